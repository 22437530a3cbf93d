"""Sums for a recipe's ``prepare``, and what can be read off their totals.

Whatever ``prepare`` returns is added over all rows of all owners, so everything here is a
sum: parts add up to the whole, in whatever slices the rows come. Each maker returns a
dict that ``prepare`` returns, alone or merged with others; each reader takes the totals,
as ``build(statistics)`` gets them or as ``statistics.json`` holds them.
"""

from sealift.recipes.counts import class_counts as class_counts
from sealift.recipes.counts import histogram as histogram
from sealift.recipes.counts import quantile as quantile
from sealift.recipes.moments import mean_and_variance as mean_and_variance
from sealift.recipes.moments import moments as moments
from sealift.recipes.vocabulary import count_distinct as count_distinct
from sealift.recipes.vocabulary import estimate_counts as estimate_counts
from sealift.recipes.vocabulary import ngrams as ngrams
from sealift.recipes.vocabulary import vocabulary as vocabulary
