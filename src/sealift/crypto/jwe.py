"""JSON Web Encryption to a key that evidence bound: how KBS servers hand out secrets.

ECDH-ES+A256KW over P-256 or P-521 and RSA-OAEP-256, content under A256GCM, in the
flattened form. Keys are JSON Web Keys, as the protocol carries them. The library that
does it is the extra ``kbs``.
Source: RFC 7516, RFC 7517, RFC 7518 sections 4.3, 4.6 and 5.3; RFC 7638.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from sealift.codec import encode
from sealift.crypto.hash import sha256
from sealift.errors import AuthenticationError, MalformedError, UnavailableError
from sealift.ids import Digest

try:
    from joserfc import jwe
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey
except ImportError:  # pragma: no cover - the extra is part of every test environment
    jwe = None  # type: ignore[assignment]

EC_ALGORITHM: Final = "ECDH-ES+A256KW"
RSA_ALGORITHM: Final = "RSA-OAEP-256"
CONTENT: Final = "A256GCM"
CURVES: Final = ("P-256", "P-521")
RSA_BITS: Final = (2048, 8192)
MAX_SEALED_BYTES: Final = 1 << 20
_ALGORITHMS: Final = [EC_ALGORITHM, RSA_ALGORITHM, CONTENT]
_MEMBERS: Final = {"EC": ("crv", "kty", "x", "y"), "RSA": ("e", "kty", "n")}
_PARTS: Final = ("protected", "encrypted_key", "iv", "ciphertext", "tag")


@dataclass(frozen=True, slots=True)
class RecipientKey:
    """A public key that secrets can be encrypted to.

    Attributes:
        jwk: Its members as they came, the algorithm included; no private ones.
        algorithm: ``ECDH-ES+A256KW`` or ``RSA-OAEP-256``.
    """

    jwk: Mapping[str, str]
    algorithm: str
    _key: Any

    @classmethod
    def from_jwk(cls, jwk: object) -> RecipientKey:
        """From a JSON Web Key.

        Raises:
            MalformedError: for another kind of key, curve, size or algorithm, for
                members that are missing, and for private ones.
            UnavailableError: ``extra-missing``.
        """
        require_extra()
        members = _text_members(jwk)
        kind = members.get("kty", "")
        if kind not in _MEMBERS:
            raise _bad_key("a kind of key that nothing is encrypted to")
        wanted = {*_MEMBERS[kind], "alg"}
        if not wanted >= set(members) >= set(_MEMBERS[kind]):
            raise _bad_key("members are missing, or there are more than it has")
        algorithm = EC_ALGORITHM if kind == "EC" else RSA_ALGORITHM
        if members.get("alg", algorithm) != algorithm:
            raise _bad_key("an algorithm that is not taken")
        key = _import_ec(members) if kind == "EC" else _import_rsa(members)
        return cls(MappingProxyType(members), algorithm, key)

    @property
    def thumbprint(self) -> Digest:
        """SHA-256 over its required members in canonical form (RFC 7638)."""
        required = _MEMBERS[self.jwk["kty"]]
        return Digest(sha256(encode({name: self.jwk[name] for name in required})))

    def seal(self, plaintext: bytes) -> dict[str, str]:
        """Encrypt to it: the five members of the flattened form."""
        header = {"alg": self.algorithm, "enc": CONTENT}
        compact = jwe.encrypt_compact(
            header, plaintext, self._key, algorithms=_ALGORITHMS
        )
        # Flattened without further members is the compact form, cut at its points.
        return dict(zip(_PARTS, compact.split("."), strict=True))


class RecipientKeyPair:
    """A fresh key pair on P-256, whose private half stays in memory."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        require_extra()
        self._key = ECKey.generate_key("P-256", private=True)

    @property
    def public(self) -> RecipientKey:
        """The half that goes out."""
        jwk = self._key.as_dict(private=False)
        members = {name: str(jwk[name]) for name in _MEMBERS["EC"]}
        return RecipientKey.from_jwk({**members, "alg": EC_ALGORITHM})

    def open(self, sealed: object) -> bytes:
        """The plaintext of what was encrypted to it.

        Raises:
            AuthenticationError: if it does not open.
            MalformedError: if it is not the flattened form.
        """
        compact = ".".join(_parts(sealed))
        try:
            opened = jwe.decrypt_compact(compact, self._key, algorithms=_ALGORITHMS)
        except (JoseError, ValueError, KeyError, TypeError):
            raise AuthenticationError from None
        return bytes(opened.plaintext or b"")

    def __repr__(self) -> str:
        return "<RecipientKeyPair>"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled or copied")


def _import_ec(members: Mapping[str, str]) -> Any:
    if members["crv"] not in CURVES:
        raise _bad_key("a curve that is not taken")
    return _imported(ECKey, members)


def _import_rsa(members: Mapping[str, str]) -> Any:
    try:
        modulus = base64.urlsafe_b64decode(members["n"] + "==")
    except ValueError:
        raise _bad_key("a modulus that is not base64url") from None
    low, high = RSA_BITS
    if not low <= int.from_bytes(modulus).bit_length() <= high:
        raise _bad_key(f"a modulus that has not {low} to {high} bits")
    return _imported(RSAKey, members)


def _imported(kind: Any, members: Mapping[str, str]) -> Any:
    try:
        key = kind.import_key(dict(members))
        _ = key.public_key  # the point or modulus is looked at here
    except (JoseError, ValueError, KeyError, TypeError):
        raise _bad_key("not a key") from None
    return key


def _text_members(jwk: object) -> dict[str, str]:
    if not isinstance(jwk, dict) or len(jwk) > 8:
        raise _bad_key("not a JSON Web Key")
    for name, value in jwk.items():
        if not isinstance(value, str) or len(value) > 2048:
            raise _bad_key(f"member {str(name)[:20]} is no text, or too long")
    return dict(jwk)


def _parts(sealed: object) -> list[str]:
    if not isinstance(sealed, dict) or sealed.get("aad"):
        raise MalformedError("not an encrypted answer of this protocol")
    parts = [sealed.get(name) for name in _PARTS]
    if not all(isinstance(part, str) and "." not in part for part in parts):
        raise MalformedError("not an encrypted answer of this protocol")
    texts = [str(part) for part in parts]
    if sum(map(len, texts)) > MAX_SEALED_BYTES:
        raise MalformedError("an encrypted answer that is too large")
    _require_header(texts[0])
    return texts


def _require_header(protected: str) -> None:
    try:
        header = json.loads(base64.urlsafe_b64decode(protected + "=="))
    except (ValueError, RecursionError):
        raise MalformedError("not an encrypted answer of this protocol") from None
    if not isinstance(header, dict) or set(header) - {"alg", "enc", "epk"}:
        raise MalformedError("an encrypted answer with an unknown header")


def require_extra() -> None:
    """Refuse to begin what needs the library; raises ``extra-missing`` without it."""
    if jwe is None:
        raise UnavailableError(
            "the KBS protocol needs a package that is not installed",
            fix="Install sealift[kbs]",
            code="extra-missing",
        )


def _bad_key(why: str) -> MalformedError:
    return MalformedError(
        "the key to encrypt to is not taken",
        why=why,
        fix=f"Use an EC key on {' or '.join(CURVES)} for {EC_ALGORITHM}, or an RSA key "
        f"for {RSA_ALGORITHM}",
        field="tee-pubkey",
        code="tee-key-unusable",
    )
