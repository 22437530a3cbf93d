"""What evidence must show: the code by digest, values in the document, signed sets by name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from sealift.attest.nvidia.references import NvidiaReferences
from sealift.attest.reference import (
    COLLATERAL_MAX_AGE_S,
    LowestTier,
    ReferenceValues,
    SetName,
)
from sealift.attest.snp.references import SnpReferences
from sealift.attest.tdx.references import TdxReferences
from sealift.attest.tpm.references import TpmReferences
from sealift.codec import MAX_INTEGER, encode
from sealift.crypto.hash import labelled
from sealift.crypto.sign import PublicKey
from sealift.ids import Digest, check_name
from sealift.release.agreement.consistency import (
    inconsistent,
    require_distinct,
    require_within,
)

BUNDLE_LABEL: Final = "sealift v1 code bundle"


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """The code that runs: every file by its digest.

    Attributes:
        digest: ``bundle_digest(files)``.
        entry: Path of the recipe inside the bundle.
        files: Digest by path, ``/`` between the parts.
    """

    digest: Digest
    entry: str
    files: dict[str, Digest]

    def __post_init__(self) -> None:
        for name in self.files:
            # Else two different documents could look equal.
            if not name or not name.isascii() or not name.isprintable():
                raise inconsistent(
                    f"{ascii(name)[:80]} is not printable ASCII", "files"
                )
        if self.entry not in self.files:
            raise inconsistent("the bundle has no such file", "entry")
        if self.digest != bundle_digest(self.files):
            raise inconsistent("the digest is not that of the files", "digest")


def bundle_digest(files: dict[str, Digest]) -> Digest:
    """One digest for a set of files: their paths and digests, in canonical form."""
    return Digest(labelled(BUNDLE_LABEL, encode(files)))


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
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        del own["sets"]
        return ReferenceValues(code_bundle=code.digest, code_files=code.files, **own)
