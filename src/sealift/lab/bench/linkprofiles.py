"""What bounce buffers of GPU TEEs would add, computed from published figures.

Nothing here was measured on this machine or by us. Rows are marked ``modelled``, carry
their profile's name, and never mix with measured ones. They answer one question: what a
transfer costs when every crossing has a toll, and what packing it into one crossing saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.lab.bench.report import Row

PLAIN_GB_PER_S: Final = 55.0
PLAIN_SOURCE: Final = "plain host-to-device 55 GB/s: assumed for PCIe 5.0 x16"
_MESSAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Profile:
    """One machine's toll.

    Attributes:
        gb_per_s: Host to device with the toll, one context.
        crossing_s: Added by every crossing.
        source: Where both figures were published.
    """

    name: str
    gb_per_s: float
    crossing_s: float
    source: str

    def seconds(self, nbytes: int, crossings: int) -> float:
        """Time for ``nbytes`` in so many crossings, one after the other."""
        return nbytes / (self.gb_per_s * 1e9) + crossings * self.crossing_s


PROFILES: Final = (
    Profile(
        "h100-cc",
        5.3,
        0.0,
        "4.9 GiB/s through the bounce buffer of an H200 with CC on (vLLM issue 55428); "
        "messages of at most 1 MiB, one after the other (PipeLLM, arXiv 2411.03357)",
    ),
    Profile(
        "b300-cc",
        PLAIN_GB_PER_S * 0.203,
        330e-6,
        "host to device at 0.203 of CC off in one context, about 330 us a small "
        "crossing (Serialized Bridge, arXiv 2606.23969)",
    ),
)


def modelled_rows(sizes_bytes: tuple[int, ...]) -> list[Row]:
    """One row a profile and size: a crossing for each MiB, and all packed into one."""
    return [_row(profile, size) for profile in PROFILES for size in sizes_bytes]


def sources() -> list[str]:
    """Each profile's source, for the report."""
    return [PLAIN_SOURCE, *(f"{each.name}: {each.source}" for each in PROFILES)]


def _row(profile: Profile, nbytes: int) -> Row:
    messages = -(-nbytes // _MESSAGE_BYTES)
    plain_s = nbytes / (PLAIN_GB_PER_S * 1e9)
    return {
        "modelled": True,
        "profile": profile.name,
        "kib": nbytes >> 10,
        "crossing_per_mib_ms": round(profile.seconds(nbytes, messages) * 1e3, 3),
        "one_crossing_ms": round(profile.seconds(nbytes, 1) * 1e3, 3),
        "plain_ms": round(plain_s * 1e3, 3),
    }
