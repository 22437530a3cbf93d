"""Development evidence: software keys, which prove nothing about hardware.

The body is canonical JSON: a statement (bound value, claims, attester key) and the
attester key's signature over the statement's canonical bytes (spec/evidence.md). It stands
in the place of hardware so that everything around it is real; it proves only that the
holder of the key took part in this very handshake. Its trust vector is contraindicated by
construction, so no result over it can be affirming.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift import codec
from sealift.attest.evidence import Body, Evidence, require_bound
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import AppraisalBasis
from sealift.attest.verifier import Claims, check_bound, check_code_bundle
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import EvidenceError
from sealift.ids import Digest, Role

MEDIA_TYPE: Final = "application/vnd.sealift.development-evidence+json"


@dataclass(frozen=True, slots=True)
class DevelopmentClaims:
    """What the software says about itself."""

    role: str
    code_bundle: Digest | None
    software: str


@dataclass(frozen=True, slots=True)
class DevelopmentStatement:
    """What the attester key signs."""

    bound: bytes
    claims: DevelopmentClaims
    attester: PublicKey


@dataclass(frozen=True, slots=True)
class DevelopmentBody(Body):
    """The whole body."""

    kind = "development"
    max_bytes = 4096

    statement: DevelopmentStatement
    signature: bytes


class DevelopmentAttester:
    """Signs bound values with a software key.

    Args:
        signer: The attester key, which the agreement pins.
        role: The role of this process.
        code_bundle: Digest of the code that it runs, as it says itself.
        software: Free text (name and version), at most 200 characters.
    """

    def __init__(
        self,
        signer: Signer,
        *,
        role: Role,
        code_bundle: Digest | None = None,
        software: str = "sealift",
    ) -> None:
        self._signer = signer
        self._claims = DevelopmentClaims(role.value, code_bundle, software[:200])

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound``.

        Raises:
            UsageError: if ``bound`` has not 2 to 64 bytes.
        """
        require_bound(bound)
        statement = DevelopmentStatement(bound, self._claims, self._signer.public_key)
        signature = self._signer.sign(
            Label.DEVELOPMENT_EVIDENCE, codec.encode(statement)
        )
        return DevelopmentBody(statement, signature).to_evidence()


CEILING: Final = TrustVector(hardware=97, runtime_opaque=96)


def examine_development(evidence: Evidence, basis: AppraisalBasis) -> Claims:
    """Verify attester key and signature; compare bound value and code bundle.

    Collateral and time play no part.
    """
    body = DevelopmentBody.parse(evidence.body)
    attester, claims = body.statement.attester, body.statement.claims
    _require_pinned_attester(attester, basis)
    _verify_signature(body)
    return Claims(
        level=Level.DEVELOPMENT,
        attester=attester.to_text(),
        role=claims.role,
        code_bundle=claims.code_bundle,
        trust=CEILING,
        checks=(
            check_bound(body.statement.bound, basis.bound, "bound value"),
            check_code_bundle(claims.code_bundle, basis.references.code_bundle),
        ),
        notes=("software keys protect data from nobody",),
    )


def _require_pinned_attester(attester: PublicKey, basis: AppraisalBasis) -> None:
    if attester not in basis.references.development_attesters:
        raise EvidenceError(
            "the evidence is signed by an attester that the agreement does not name",
            code="attester-unknown",
        )


def _verify_signature(body: DevelopmentBody) -> None:
    signed = codec.encode(body.statement)
    body.statement.attester.verify(Label.DEVELOPMENT_EVIDENCE, signed, body.signature)
