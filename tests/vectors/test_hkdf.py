"""HKDF-SHA-256: ours equals a second one, which equals RFC 5869.

Ours puts a label before ``info``, so the RFC's vectors do not pass through it. They
pass through ten lines on the standard library's HMAC, and these check ours; a library's
HKDF checks it too.
"""

from __future__ import annotations

import hmac

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from sealift.crypto.keys import Label, SecretKey, derive_bytes
from tests.vectors.vectorfile import cases


def hkdf(salt: bytes, ikm: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 section 2.2, then 2.3."""
    return hkdf_expand(hmac.digest(salt or bytes(32), ikm, "sha256"), info, length)


def hkdf_expand(key: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 section 2.3."""
    output = block = b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]


@pytest.mark.parametrize(
    "path", ["KDF/rfc-5869-HKDF-SHA256.txt", "KDF/hkdf-generated.txt"]
)
def test_rfc_5869(path: str) -> None:
    for case in cases(path):
        salt, ikm, info, output = (
            bytes.fromhex(case.get(name, "")) for name in ("salt", "ikm", "info", "okm")
        )
        assert hkdf(salt, ikm, info, int(case["l"])) == output


@given(
    st.binary(min_size=1, max_size=96),
    st.sampled_from(Label),
    st.binary(max_size=200),
    st.integers(1, 200),
)
def test_ours_is_hkdf_with_the_label_before_the_context(
    key: bytes, label: Label, context: bytes, length: int
) -> None:
    info = bytes([len(label)]) + label.encode() + context
    ours = derive_bytes(SecretKey(key), label, context, length=length)
    assert ours == hkdf(b"", key, info, length)
    library = HKDF(algorithm=SHA256(), length=length, salt=None, info=info)
    assert ours == library.derive(key)
