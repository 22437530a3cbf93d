"""What screens and report say in words, in one place, so that they say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sealift.demo.hostile import BEYOND_LEASE, PREVIOUS_KEY, REPLAY

BANNER: Final = (
    "software keys prove nothing about this machine; nobody is kept out, "
    "and the recipe runs without a sandbox"
)
ATTACK_IN_WORDS: Final[Mapping[str, str]] = {
    REPLAY: "sends a record a second time",
    BEYOND_LEASE: "writes behind the end of its lease",
    PREVIOUS_KEY: "uses the key of its previous visit",
}
WHY_REFUSED: Final[Mapping[str, str]] = {
    REPLAY: "frames of a visit are numbered; only the next number is admitted",
    BEYOND_LEASE: "the signed lease says which bytes of which buffer may be written",
    PREVIOUS_KEY: "every visit has a fresh key from its own handshake",
}
REAL: Final = (
    "eight operating-system processes with keys of their own, over TCP",
    "hybrid key exchange (X25519 and ML-KEM-768) in every session",
    "AES-256-GCM records, sealed at home, opened only inside the accelerator",
    "one agreement that every party signed; one broker per owner releases its keys",
    "audit logs as Merkle trees, receipts signed by the accelerator's instance key",
    "memory overwritten and read back after every visit",
    "real handwritten digits in private, disjoint parts",
)
DEVELOPMENT_ONLY: Final = (
    "evidence comes from a software key: it proves nothing about the machine",
    "whoever runs this machine can read everything on it",
    "the recipe runs without a sandbox",
    "all parties' keys and passphrases lie in one folder",
    "the accelerator is a CPU process that stands in for a GPU",
)


def say_bytes(count: int) -> str:
    """Bytes for people: ``79.2 kB``, ``5.1 MB``."""
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def say_s(seconds: float) -> str:
    """Seconds for people: ``6.3 ms``, ``4.2 s``."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
