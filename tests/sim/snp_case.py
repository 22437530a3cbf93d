"""One report of ours and what it is judged by: the good case, and everything replaceable."""

from __future__ import annotations

from dataclasses import dataclass, field

from sealift.attest import Appraiser, Level, ReferenceValues
from sealift.attest.collateral import Collateral
from sealift.attest.snp.evidence import MEDIA_TYPE, SnpBody
from sealift.attest.verifier import Claims
from tests.sim import snp_made as made
from tests.sim.kinds import with_roots


@dataclass
class Case:
    """A report of ours and what it is judged by; everything fits unless changed."""

    product: str = "Milan"
    version: int = 3
    fields: dict[str, bytes | int] = field(default_factory=dict)
    references: ReferenceValues | None = None
    signer: made.Signer | None = None
    issuer: str = "ask"
    collateral: Collateral | None = None
    bound: bytes | None = made.BOUND
    at_s: int = made.AT_S

    def appraise(self) -> Claims:
        """Appraise: a refusal of any kind is raised."""
        authority = made.authority(self.product)
        signer = self.signer or made.vcek(self.product)
        raw = signer.sign(made.report(self.product, self.version, **self.fields))
        chain = (signer.certificate, authority.der(self.issuer), authority.der("ark"))
        body = SnpBody(report=raw, certificates=chain)
        appraiser = Appraiser(
            accept=(Level.TEE,),
            references=self.references or made.references(self.product),
            collateral=self.collateral or authority.collateral(),
            clock=lambda: float(self.at_s),
            verifiers={MEDIA_TYPE: with_roots(MEDIA_TYPE, roots=authority.roots)},
        )
        return appraiser.appraise(body.to_evidence(), self.bound or b"").claims
