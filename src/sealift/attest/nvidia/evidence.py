"""The body of NVIDIA device evidence: what a GPU or NVSwitch signed, and its chain.

Whether it comes from a GPU or a switch is read from the report, not said beside it.
Source: spec/evidence-nvidia.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.attest.evidence import Evidence
from sealift.codec import decode, encode
from sealift.errors import MalformedError

KIND: Final = "nvidia"
MEDIA_TYPE: Final = "application/vnd.sealift.nvidia-evidence+json"
CHAIN_LENGTH: Final = 5
MAX_BODY_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaBody:
    """One device's evidence.

    Attributes:
        report: Request, response and signature (``formats/spdm.py``).
        certificates: DER, the device's leaf first, NVIDIA's root last.
    """

    report: bytes
    certificates: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.certificates) != CHAIN_LENGTH:
            raise MalformedError(
                f"a device's chain has {CHAIN_LENGTH} certificates",
                field="certificates",
            )

    def to_evidence(self) -> Evidence:
        """As evidence."""
        return Evidence(KIND, MEDIA_TYPE, encode(self))


def parse_body(raw: bytes) -> NvidiaBody:
    """Parse a body.

    Raises:
        MalformedError: if it is none.
    """
    return decode(NvidiaBody, raw, max_bytes=MAX_BODY_BYTES)
