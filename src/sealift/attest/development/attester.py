"""Collects development evidence: a software key signs what we say about ourselves.

It stands in the place of hardware so that everything around it is real; it proves only
that the holder of the attester key took part in this very handshake, in this role.
"""

from __future__ import annotations

from sealift import codec
from sealift.attest.development.evidence import (
    KIND,
    MEDIA_TYPE,
    DevelopmentBody,
    DevelopmentClaims,
    Statement,
)
from sealift.attest.evidence import Evidence, require_bound
from sealift.crypto.kdf import Label
from sealift.crypto.sign import Signer
from sealift.ids import Digest, Role


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
