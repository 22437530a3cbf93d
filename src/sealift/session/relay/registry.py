"""Whose a name at the relay is: a party proves its own, strangers share a few places.

A name that the agreement gives a key is registered by a signature, with that key, over
the relay's challenge, the agreement and the name; nobody else can hold it or take a
place from whoever does. All other names are strangers' until somebody who judged their
evidence vouches for them: the accelerator, which has no party's identity.
Source: spec/handshake.md section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sealift.crypto.kdf import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import AuthenticationError, MalformedError
from sealift.ids import Buffer, Digest

CHALLENGE_BYTES: Final = 32
STRANGERS: Final = 16  # registered at one time
STRANGERS_EACH: Final = 4  # of them from one address

Prove = Callable[[bytes], bytes]
"""Signs a relay's challenge."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Names with keys, and the places of those without.

    Attributes:
        agreement: Part of what is signed; None where no name has a key.
        keys: By name.
    """

    agreement: Digest | None = None
    keys: Mapping[str, PublicKey] = field(default_factory=dict)
    strangers: int = STRANGERS
    strangers_each: int = STRANGERS_EACH

    def verify(self, name: str, challenge: bytes, signature: Buffer) -> None:
        """Check a proof of a name that has a key.

        Raises:
            AuthenticationError: if it does not verify.
        """
        if self.agreement is None:
            raise AuthenticationError
        signed = _signed(self.agreement, name, challenge)
        self.keys[name].verify(Label.RELAY_NAME, signed, signature)


def prover(signer: Signer, agreement: Digest, name: str) -> Prove:
    """How whoever holds a name's key proves it."""
    return lambda challenge: signer.sign(
        Label.RELAY_NAME, _signed(agreement, name, challenge)
    )


def _signed(agreement: Digest, name: str, challenge: bytes) -> bytes:
    if len(challenge) != CHALLENGE_BYTES:
        raise MalformedError("a challenge has 32 bytes", code="bad-envelope")
    return agreement.raw + challenge + name.encode()
