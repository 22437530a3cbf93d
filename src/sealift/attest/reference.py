"""Reference values: what the parties agreed that evidence must show.

They come from the signed agreement, never from the peer. Each kind of evidence reads
the field that concerns it; a kind whose field is empty accepts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.attest.collateral import DAY_S
from sealift.attest.nvidia.references import NvidiaReferences
from sealift.attest.snp.references import SnpReferences
from sealift.attest.tdx.references import TdxReferences
from sealift.attest.tpm.references import TpmReferences
from sealift.crypto.sign import PublicKey
from sealift.errors import PolicyError
from sealift.ids import Digest

LowestTier = Literal["affirming", "warning"]
COLLATERAL_MAX_AGE_S: Final = 30 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceValues:
    """What appraisal compares with.

    Attributes:
        development_attesters: Keys whose development evidence is genuine.
        code_bundle: Digest of the code that must run, or None if any may.
        code_files: Digest of every file of that code by path, to compare measured
            modules with; None compares none.
        enrollers: Keys whose word ties an attestation key to its TPM (enrolment).
        tpm: For TPM evidence, and for the virtual TPM of Azure's guests.
        tdx: For TD quotes.
        snp: For SEV-SNP reports.
        nvidia: For GPUs and switches.
        collateral_max_age_s: How old collateral may be (rule H13).
        lowest_tier: The worst tier that is taken; ``warning`` takes a platform whose
            vendor advises a configuration or an update that the parties can live with.
    """

    development_attesters: tuple[PublicKey, ...] = ()
    code_bundle: Digest | None = None
    code_files: dict[str, Digest] | None = None
    enrollers: tuple[PublicKey, ...] = ()
    tpm: TpmReferences | None = None
    tdx: TdxReferences | None = None
    snp: SnpReferences | None = None
    nvidia: NvidiaReferences | None = None
    collateral_max_age_s: int = COLLATERAL_MAX_AGE_S
    lowest_tier: LowestTier = "affirming"


def no_references(kind: str) -> PolicyError:
    """The refusal of a kind that the agreement has no reference values for."""
    return PolicyError(
        f"the agreement has no reference values for {kind}",
        why="without them nothing that it shows could be right",
        code="references-missing",
    )
