"""Format of SEV-SNP evidence: a report, and the certificates of the key that signed it.

The body is canonical JSON (spec/evidence-snp.md). It has no place for runtime events:
SNP has no register that a running guest could extend, so nothing would cover them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.crypto.certificate import MAX_CHAIN
from sealift.errors import MalformedError

KIND: Final = "snp"
MEDIA_TYPE: Final = "application/vnd.sealift.snp-evidence+json"
MAX_BODY_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpBody:
    """The whole body.

    Attributes:
        report: 1184 bytes as the firmware made them.
        certificates: DER, in any order; what is missing comes from collateral.
    """

    report: bytes
    certificates: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.certificates) > MAX_CHAIN:
            raise MalformedError("too many certificates", field="certificates")

    def to_evidence(self) -> Evidence:
        """Evidence with this body."""
        return Evidence(KIND, MEDIA_TYPE, codec.encode(self))


def parse_body(body: bytes) -> SnpBody:
    """Parse; trusts nothing.

    Raises:
        MalformedError: if it is not this format.
    """
    return codec.decode(SnpBody, body, max_bytes=MAX_BODY_BYTES)
