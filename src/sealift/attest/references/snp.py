"""Reference values for an SEV-SNP guest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpReferences:
    """What an attestation report must show.

    Attributes:
        measurement: Accepted launch digests (48 bytes each).
        host_data: Accepted values (32 bytes each).
        max_vmpl: Highest (least privileged) VMPL that may ask.
        min_tcb: Lowest security versions by field (``microcode``, ``snp``, ...), by
            product (``Milan``, ``Genoa``, ``Turin``); a product without is refused.
        chips: Accepted CHIP_IDs (64 bytes), or empty for any.
    """

    measurement: tuple[bytes, ...]
    host_data: tuple[bytes, ...]
    max_vmpl: int = 0
    min_tcb: dict[str, dict[str, int]]
    chips: tuple[bytes, ...] = ()
