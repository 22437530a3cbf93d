"""Reference values for an SEV-SNP guest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.errors import MalformedError

_TCB_FIELDS: Final = frozenset({"fmc", "boot_loader", "tee", "snp", "microcode"})

PlatformFact = Literal[
    "smt-off", "ciphertext-hiding", "rapl-off", "alias-check", "single-socket"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpReferences:
    """What an attestation report must show.

    Attributes:
        measurement: Accepted launch digests (48 bytes each).
        host_data: Accepted values (32 bytes each).
        host_data_names_code: Whether HOST_DATA is the digest of the code bundle, which
            the measured image compares before it runs it. Then ``host_data`` is not
            read: HOST_DATA must be the agreement's code bundle.
        max_vmpl: Highest (least privileged) VMPL that may ask.
        min_tcb: Lowest security versions by field (``fmc``, ``boot_loader``, ``tee``,
            ``snp``, ``microcode``), by product (``Milan``, ``Genoa``, ``Turin``); a
            product without is refused, a field without is not compared.
        chips: Accepted CHIP_IDs (64 bytes), or empty for any.
        operators: Names (CSP ids) of those whose loaded keys (VLEK) are accepted;
            empty accepts chips' own keys (VCEK) only.
        platform: Facts about the host that must hold.
        revocation: Whether AMD's revocation list must be at hand; ``waived`` accepts
            keys without looking.
    """

    measurement: tuple[bytes, ...]
    host_data: tuple[bytes, ...]
    host_data_names_code: bool = False
    max_vmpl: int = 0
    min_tcb: dict[str, dict[str, int]]
    chips: tuple[bytes, ...] = ()
    operators: tuple[str, ...] = ()
    platform: tuple[PlatformFact, ...] = ()
    revocation: Literal["required", "waived"] = "required"

    def __post_init__(self) -> None:
        for product, floor in self.min_tcb.items():
            if unknown := sorted(floor.keys() - _TCB_FIELDS):
                raise MalformedError(
                    f"no security version is called {unknown[0]}",
                    field=f"min_tcb.{product}",
                )
