"""The moduli: odd, coprime in pairs, each the size of a signed byte.

Z_Q is a ring, not a field: nothing may assume that what is not zero has an inverse.
Source: spec/shares.md section 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Basis:
    """Moduli whose product is the modulus Q.

    Attributes:
        moduli: Each odd and at most 255, so that centred residues fit a signed byte.
        modulus: Q, odd, below 2**32.
    """

    moduli: tuple[int, ...]

    @property
    def modulus(self) -> int:
        """Q."""
        return math.prod(self.moduli)


MODULI: Final = (255, 253, 251, 247)
BASES: Final = (Basis(MODULI[:3]), Basis(MODULI))  # 2**23.9, 2**31.9
