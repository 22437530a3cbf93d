"""What evidence must show: values in the document itself, and signed sets by name."""

from __future__ import annotations

from dataclasses import dataclass

from sealift.attest.nvidia.references import NvidiaReferences
from sealift.attest.reference import COLLATERAL_MAX_AGE_S, LowestTier, ReferenceValues
from sealift.attest.referenceset import SetName
from sealift.attest.snp.references import SnpReferences
from sealift.attest.tdx.references import TdxReferences
from sealift.attest.tpm.references import TpmReferences
from sealift.codec import MAX_INTEGER
from sealift.crypto.sign import PublicKey
from sealift.ids import check_name
from sealift.release.agreement.code import CodeBundle
from sealift.release.agreement.consistency import require_distinct, require_within


@dataclass(frozen=True, slots=True)
class References:
    """What evidence must show, beside the code bundle.

    Attributes:
        development_attesters: Keys whose development evidence is genuine.
        enrollers: Keys whose word ties an attestation key to its TPM.
        tpm: For TPM evidence.
        tdx: For TD quotes.
        snp: For SEV-SNP reports.
        nvidia: For GPUs and switches.
        collateral_max_age_s: How old collateral may be (rule H13).
        lowest_tier: The worst tier of evidence that is taken.
        sets: Signed files of more values; their signers decide what counts.
    """

    development_attesters: tuple[PublicKey, ...] = ()
    enrollers: tuple[PublicKey, ...] = ()
    tpm: TpmReferences | None = None
    tdx: TdxReferences | None = None
    snp: SnpReferences | None = None
    nvidia: NvidiaReferences | None = None
    collateral_max_age_s: int = COLLATERAL_MAX_AGE_S
    lowest_tier: LowestTier = "affirming"
    sets: tuple[SetName, ...] = ()

    def __post_init__(self) -> None:
        require_within(
            self.collateral_max_age_s, 1, MAX_INTEGER, "collateral_max_age_s"
        )
        require_distinct((each.name for each in self.sets), "sets")
        for each in self.sets:
            check_name(each.name, what="name of a reference set")
            require_within(each.number, 1, MAX_INTEGER, "sets.number")

    def values(self, code: CodeBundle) -> ReferenceValues:
        """What stands in the document itself, as appraisal wants it."""
        return ReferenceValues(
            development_attesters=self.development_attesters,
            code_bundle=code.digest,
            code_files=code.files,
            enrollers=self.enrollers,
            tpm=self.tpm,
            tdx=self.tdx,
            snp=self.snp,
            nvidia=self.nvidia,
            collateral_max_age_s=self.collateral_max_age_s,
            lowest_tier=self.lowest_tier,
        )
