"""How ranks write numbers as whole ones, so that they need to show nothing but a sum.

Bound and step of the whole numbers are agreed on, and never follow from data. A sum of all
ranks' numbers must fit, at its largest, or it could not be told from another one: this is
computed from the agreement and the job alone, before anything starts.
Source: spec/collective.md section 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from sealift.errors import MalformedError

SumBits = Literal[32, 64]
FEWEST_RANKS: Final = 3  # of two, each has the other's part by subtraction
_SLACK: Final = 1 + 2.0**-20  # a bound is rounded to the numbers' own precision


@dataclass(frozen=True, slots=True)
class SumEncoding:
    """Numbers as whole multiples of ``2 ** -places``, in two's complement.

    Attributes:
        bound: Largest magnitude; a number beyond it is cut to it, and counted.
        places: Binary places after the point.
        bits: Of one whole number.
    """

    bound: float
    places: int
    bits: SumBits

    def require_fit(self, ranks: int) -> None:
        """Demand that the largest sum of so many ranks is a whole number of these bits.

        Raises:
            MalformedError: ``sums-overflow``.
        """
        room = self.bits - 1
        if self.largest(ranks) >= 1 << room:
            most = math.floor(room - math.log2(ranks * self.bound * _SLACK) - 1e-9)
            raise MalformedError(
                f"sums of {ranks} ranks with sum_bound = {self.bound:g} and sum_places = "
                f"{self.places} do not fit {self.bits} bits",
                why=f"with this bound at most sum_places = {most} fits",
                code="sums-overflow",
            )

    def largest(self, ranks: int) -> int:
        """Magnitude of a sum of so many ranks, as a whole number, at most."""
        return ranks * math.ceil(self.bound * 2.0**self.places * _SLACK)

    @property
    def wide(self) -> SumEncoding:
        """The same bound in 64 bits, with as many more places: it fits where this one does."""
        return SumEncoding(self.bound, self.places + 64 - self.bits, 64)


# What is no weight and no gradient, whatever a job sets. Of up to 16 ranks all of them fit.
COUNTS: Final = SumEncoding(2.0**58, 0, 64)  # whole numbers, and their changes
MEASURES: Final = SumEncoding(2.0**38, 20, 64)  # over rows: of measures, of ``prepare``
SCALARS: Final = SumEncoding(2.0**24, 34, 64)  # single numbers of an optimizer
