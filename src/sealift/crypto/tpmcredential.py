"""A secret that only one TPM can read, and only for one of its keys.

What TPM2_MakeCredential computes, in software: the secret is encrypted to the
endorsement key and tied to the Name of another key, so TPM2_ActivateCredential returns
it only in the TPM that holds both. Whoever answers with the secret has shown that the
attestation key lives beside that endorsement key.
Source: TPM 2.0 Library part 1, sections 11.4.10 (KDFs) and 24 (credential protection),
annexes B.10.4 (RSA) and C.6.1 (elliptic curves).
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.serialization import load_der_public_key

from sealift.crypto.hash import HashName, digest, digest_bytes, hash_algorithm
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.vendorkeys import EcdsaKey, RsaKey
from sealift.errors import MalformedError, UsageError

_IDENTITY: Final = b"IDENTITY\0"
_SYMMETRIC_BITS: Final = (128, 256)


@dataclass(frozen=True, slots=True)
class Credential:
    """What the TPM is handed: both parts without their outer two bytes of length.

    Attributes:
        blob: TPMS_ID_OBJECT: a MAC, then the encrypted secret.
        seed: The seed of its keys, encrypted to the endorsement key.
    """

    blob: bytes
    seed: bytes


def make_credential(
    endorsement: EcdsaKey | RsaKey,
    *,
    name_hash: HashName,
    symmetric_bits: int,
    name: bytes,
    secret: SecretKey,
) -> Credential:
    """Encrypt ``secret`` to an endorsement key, for the key that is called ``name``.

    Args:
        endorsement: The public endorsement key.
        name_hash: Its nameAlg.
        symmetric_bits: Of its AES: 128 or 256.
        name: nameAlg and digest of the key to activate.
        secret: At most as long as a digest of ``name_hash``.

    Raises:
        MalformedError: if the key's symmetric part is none that is known.
        UsageError: if the secret is too long.
    """
    if symmetric_bits not in _SYMMETRIC_BITS:
        raise MalformedError(f"an endorsement key uses AES of {symmetric_bits} bits")
    if len(secret) > digest_bytes(name_hash):
        raise UsageError("a credential must not be longer than the key's digest")
    seed, encrypted_seed = _share_seed(endorsement, name_hash)
    key = _kdfa(name_hash, seed, b"STORAGE", name, symmetric_bits)
    identity = _encrypt_cfb(key, _sized(secret.reveal(TOKEN)))
    mac_key = _kdfa(name_hash, seed, b"INTEGRITY", b"", 8 * digest_bytes(name_hash))
    mac = hmac.digest(mac_key, identity + name, name_hash)
    return Credential(_sized(mac) + identity, encrypted_seed)


def _kdfa(name: HashName, key: bytes, label: bytes, context: bytes, bits: int) -> bytes:
    """KDFa of part 1 section 11.4.10.2, with one context; ``bits`` a multiple of 8."""
    tail = label + b"\0" + context + bits.to_bytes(4, "big")
    blocks = -(-bits // (8 * digest_bytes(name)))
    counters = (number.to_bytes(4, "big") for number in range(1, blocks + 1))
    parts = (hmac.digest(key, counter + tail, name) for counter in counters)
    return b"".join(parts)[: bits // 8]


def _kdfe(name: HashName, shared: bytes, ours: bytes, theirs: bytes) -> bytes:
    """KDFe of part 1 section 11.4.10.3, for one digest: a single round."""
    return digest(name, bytes((0, 0, 0, 1)), shared, _IDENTITY, ours, theirs)


def _share_seed(
    endorsement: EcdsaKey | RsaKey, name_hash: HashName
) -> tuple[bytes, bytes]:
    key = load_der_public_key(endorsement.to_spki())
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _agree_on_seed(key, name_hash)
    if not isinstance(key, rsa.RSAPublicKey):
        raise AssertionError("an RsaKey holds an RSA key")
    seed = secrets.token_bytes(digest_bytes(name_hash))
    algorithm = hash_algorithm(name_hash)
    oaep = padding.OAEP(padding.MGF1(algorithm), algorithm, _IDENTITY)
    return seed, key.encrypt(seed, oaep)


def _agree_on_seed(
    key: ec.EllipticCurvePublicKey, name_hash: HashName
) -> tuple[bytes, bytes]:
    size = (key.curve.key_size + 7) // 8
    ephemeral = ec.generate_private_key(key.curve)
    ours = ephemeral.public_key().public_numbers()
    x, y = (part.to_bytes(size, "big") for part in (ours.x, ours.y))
    shared = ephemeral.exchange(ec.ECDH(), key)
    theirs = key.public_numbers().x.to_bytes(size, "big")
    return _kdfe(name_hash, shared, x, theirs), _sized(x) + _sized(y)


def _encrypt_cfb(key: bytes, plain: bytes) -> bytes:
    """AES-CFB, zero IV: part 1 wants it so, and the key is used once."""
    encryptor = Cipher(algorithms.AES(key), CFB(bytes(16))).encryptor()
    return encryptor.update(plain) + encryptor.finalize()


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(2, "big") + content
