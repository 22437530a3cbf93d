"""Format of development evidence: software keys, which prove nothing about hardware.

The body is canonical JSON: a statement (bound value, claims, attester key) and the
attester key's signature over the statement's canonical bytes (spec/evidence.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift import codec
from sealift.attest.check import check_bound, check_code_bundle
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence, require_bound
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import ReferenceValues
from sealift.attest.verifier import Claims
from sealift.crypto.kdf import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import EvidenceError
from sealift.ids import Digest, Role

KIND: Final = "development"
MEDIA_TYPE: Final = "application/vnd.sealift.development-evidence+json"
RESULT_MEDIA_TYPE: Final = "application/vnd.sealift.development-result+json"
MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class DevelopmentClaims:
    """What the software says about itself."""

    role: str
    code_bundle: Digest | None
    software: str


@dataclass(frozen=True, slots=True)
class Statement:
    """What the attester key signs."""

    bound: bytes
    claims: DevelopmentClaims
    attester: PublicKey


@dataclass(frozen=True, slots=True)
class DevelopmentBody:
    """The whole body."""

    statement: Statement
    signature: bytes


def parse_body(body: bytes) -> DevelopmentBody:
    """Parse; trusts nothing.

    Raises:
        MalformedError: if it is not this format.
    """
    return codec.decode(DevelopmentBody, body, max_bytes=MAX_BYTES)


class DevelopmentAttester:
    """Signs bound values with a software key.

    Args:
        signer: The attester key, which the agreement pins.
        role: The role of this process.
        code_bundle: Digest of the code that it runs, as it says itself.
        software: Free text (name and version), at most 200 characters.
    """

    media_type = MEDIA_TYPE

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
        statement = Statement(bound, self._claims, self._signer.public_key)
        signature = self._signer.sign(
            Label.DEVELOPMENT_EVIDENCE, codec.encode(statement)
        )
        body = codec.encode(DevelopmentBody(statement, signature))
        return Evidence(KIND, MEDIA_TYPE, body)


CEILING: Final = TrustVector(hardware=97, runtime_opaque=96)


class DevelopmentVerifier:
    """Verifies attester key and signature; compares bound value and code bundle."""

    media_type = MEDIA_TYPE
    levels = frozenset({Level.DEVELOPMENT})
    result_media_type = RESULT_MEDIA_TYPE

    def examine(
        self,
        evidence: Evidence,
        *,
        bound: bytes | None,
        references: ReferenceValues,
        collateral: Collateral,
        at_s: int,
    ) -> Claims:
        """See ``Verifier.examine``; collateral and time play no part."""
        body = parse_body(evidence.body)
        _require_pinned_attester(body, references)
        _verify_signature(body)
        claims = body.statement.claims
        return Claims(
            level=Level.DEVELOPMENT,
            attester=body.statement.attester.to_text(),
            role=claims.role,
            code_bundle=claims.code_bundle,
            trust=CEILING,
            checks=(
                check_bound(body.statement.bound, bound, "bound value"),
                check_code_bundle(claims.code_bundle, references.code_bundle),
            ),
            notes=("software keys: nobody is kept out",),
        )


def _require_pinned_attester(
    body: DevelopmentBody, references: ReferenceValues
) -> None:
    if body.statement.attester not in references.development_attesters:
        raise EvidenceError(
            "evidence by an attester that the agreement does not name",
            code="attester-unknown",
        )


def _verify_signature(body: DevelopmentBody) -> None:
    signed = codec.encode(body.statement)
    body.statement.attester.verify(Label.DEVELOPMENT_EVIDENCE, signed, body.signature)
