"""Recipes and the loop that trains them: states as bytes, sums, and what was measured."""
