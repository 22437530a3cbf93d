"""Ed25519: the 1,024 vectors of the original implementation (sign.input).

Ours signs a label before the message; the frame is taken off here, nothing else.
"""

from __future__ import annotations

import pytest

from sealift.crypto import sign
from sealift.crypto.keys import Label, SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import AuthenticationError
from tests.vectors.vectorfile import text


def test_sign_and_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign, "_framed", lambda label, message: bytes(message))
    lines = text("asymmetric/Ed25519/sign.input").splitlines()
    for line in lines:
        secret, public, message, signed = map(bytes.fromhex, line.split(":")[:4])
        signer = SigningKey(SecretKey(secret[:32]))
        assert signer.public_key.raw == public
        assert signer.sign(Label.RECEIPT, message) + message == signed
        signer.public_key.verify(Label.RECEIPT, message, signed[:64])
        with pytest.raises(AuthenticationError):
            signer.public_key.verify(Label.RECEIPT, message + b"\0", signed[:64])
    assert len(lines) == 1024
