"""The moduli: odd, coprime in pairs, each the size of a signed byte.

Z_Q is a ring, not a field: nothing may assume that what is not zero has an inverse.
Source: spec/shares.md section 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final


@dataclass(frozen=True)
class ResidueBasis:
    """Moduli whose product is the modulus Q.

    Attributes:
        moduli: Each odd and at most 255, so that centred residues fit a signed byte.
        modulus: Q, odd, below 2**32.
    """

    moduli: tuple[int, ...]

    @cached_property
    def modulus(self) -> int:
        """Q."""
        return math.prod(self.moduli)

    @property
    def cofactors(self) -> tuple[int, ...]:
        """Q / m of each modulus m."""
        return tuple(self.modulus // m for m in self.moduli)

    @property
    def inverses(self) -> tuple[int, ...]:
        """Of each cofactor, modulo its m: these exist, as moduli are coprime."""
        pairs = zip(self.cofactors, self.moduli, strict=True)
        return tuple(pow(cofactor, -1, m) for cofactor, m in pairs)


MODULI: Final = (255, 253, 251, 247)
BASES: Final = (ResidueBasis(MODULI[:3]), ResidueBasis(MODULI))  # 2**23.9, 2**31.9
