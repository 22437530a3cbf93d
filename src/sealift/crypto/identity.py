"""A party's identity: one signing key and one HPKE key in a passphrase-protected file.

The file is canonical JSON: the public halves in the clear, the secret halves under
AES-256-GCM with a key from scrypt (RFC 7914). The public halves are associated data,
so they cannot be swapped. ``Identity`` is a ``Signer``; a hardware key can replace it.
A backup is the same file under a generated recovery code instead of a passphrase.
Not promised: a weak passphrase stays weak.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from sealift.codec import decode, encode
from sealift.crypto.aead import NONCE_BYTES, Aead, Suite
from sealift.crypto.hash import stretch
from sealift.crypto.hpke import SEED_BYTES, HpkePrivateKey, HpkePublicKey
from sealift.crypto.keys import KEY_BYTES, TOKEN, Label, SecretKey, derive
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    RefusedError,
    UnavailableError,
    UsageError,
    unreadable,
)
from sealift.ids import Buffer, check_name

# scrypt: 64 MiB and about 0.2 s for each try. The file says its
# own cost, so that a later version may raise it; a file may ask for 1 MiB to 1 GiB.
SCRYPT_LOG2_N: Final = 16
_LOG2_N_LIMITS: Final = range(10, 21)
_DRAWN_BYTES: Final = 18
MIN_PASSPHRASE: Final = 8
MAX_FILE_BYTES: Final = 1 << 16
RECOVERY_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class Card:
    """The public half of an identity: what others put into an agreement."""

    name: str
    sign: PublicKey
    hpke: HpkePublicKey

    def __post_init__(self) -> None:
        check_name(self.name, what="party name")


@dataclass(frozen=True, slots=True)
class _IdentityFile:
    format: Literal["sealift-identity"]
    version: Literal[1]
    purpose: Literal["identity", "backup"]
    card: Card
    scrypt_log2_n: int
    salt: bytes
    nonce: bytes
    sealed: bytes

    def __post_init__(self) -> None:
        # Before any work: the cost is not authenticated until it has been paid.
        if self.scrypt_log2_n not in _LOG2_N_LIMITS:
            raise MalformedError("the cost is out of range", field="scrypt_log2_n")
        if len(self.nonce) != NONCE_BYTES:
            raise MalformedError(f"a nonce has {NONCE_BYTES} bytes", field="nonce")


class Identity:
    """A party's secret halves, unlocked. Signs like any ``Signer``.

    Args:
        name: The party's name.
        seed: 32-byte signing seed || 96-byte HPKE seed.
    """

    __slots__ = ("_seed", "_signing", "card", "hpke")

    def __init__(self, name: str, seed: SecretKey) -> None:
        material = seed.reveal(TOKEN)
        if len(material) != KEY_BYTES + SEED_BYTES:
            raise MalformedError("an identity has the wrong length")
        self._seed = seed
        self._signing = SigningKey(SecretKey(material[:KEY_BYTES]))
        self.hpke = HpkePrivateKey(SecretKey(material[KEY_BYTES:]))
        self.card = Card(name, self._signing.public_key, self.hpke.public)

    @property
    def name(self) -> str:
        """The party's name."""
        return self.card.name

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies this party's signatures."""
        return self._signing.public_key

    def sign(self, label: Label, message: Buffer) -> bytes:
        """Sign ``message`` for the purpose ``label``."""
        return self._signing.sign(label, message)

    def derive(self, label: Label, context: bytes = b"") -> SecretKey:
        """A key that only this identity can derive (the vault's wrapping key)."""
        return derive(self._seed, label, context)

    @property
    def seed(self) -> SecretKey:
        """What an identity file stores."""
        return self._seed

    def __repr__(self) -> str:
        return f"<Identity {self.name}>"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled or copied")


class DrawnPassphrase(str):
    """One that nobody can guess: ``draw_passphrase`` makes it, and people need not type it."""

    __slots__ = ()


def draw_passphrase() -> DrawnPassphrase:
    """A fresh one, of 144 bits: no cost of a try would keep it any better."""
    return DrawnPassphrase(secrets.token_urlsafe(_DRAWN_BYTES))


def create_identity(name: str) -> Identity:
    """A fresh identity for the party ``name``."""
    check_name(name, what="party name")
    return Identity(name, SecretKey.generate(KEY_BYTES + SEED_BYTES))


def save_identity(identity: Identity, path: Path, passphrase: str) -> None:
    """Write an identity file, readable by its owner only.

    Args:
        passphrase: A ``DrawnPassphrase`` is stretched no more than the format asks for.

    Raises:
        UsageError: if the passphrase is too short or the file exists.
    """
    if len(passphrase) < MIN_PASSPHRASE:
        raise UsageError(
            "the passphrase is too short",
            fix=f"Use at least {MIN_PASSPHRASE} characters",
            code="weak-passphrase",
        )
    _create(path, _lock(identity, passphrase, "identity"))


def load_identity(path: Path, passphrase: str) -> Identity:
    """Read an identity file.

    Raises:
        RefusedError: code ``wrong-passphrase``, if the passphrase does not open it.
        MalformedError: if it is not an identity file.
    """
    return _unlock(_read(path), passphrase, "identity", "wrong-passphrase")


def load_card(path: Path) -> Card:
    """Read the public card that ``key new`` wrote beside the identity file."""
    return decode(Card, _read(path), max_bytes=MAX_FILE_BYTES)


def load_own_card(path: Path) -> Card:
    """Read the public half of an identity file; it is verified once the file is opened.

    Raises:
        MalformedError: if it is not an identity file.
    """
    return decode(_IdentityFile, _read(path), max_bytes=MAX_FILE_BYTES).card


def backup_identity(identity: Identity, path: Path) -> str:
    """Write a backup file and return the recovery code that opens it (160 bits)."""
    code = format_recovery_code(secrets.token_bytes(RECOVERY_BYTES))
    _create(path, _lock(identity, _normal(code), "backup"))
    return code


def restore_identity(path: Path, recovery_code: str) -> Identity:
    """Open a backup file.

    Raises:
        RefusedError: code ``wrong-recovery-code``, if the code does not open it.
    """
    raw = _read(path)
    return _unlock(raw, _normal(recovery_code), "backup", "wrong-recovery-code")


def format_recovery_code(entropy: bytes) -> str:
    """Base32 in groups of four, as people can read it aloud."""
    text = base64.b32encode(entropy).decode()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def _normal(code: str) -> str:
    return "".join(code.upper().replace("-", " ").split())


def _lock(
    identity: Identity, passphrase: str, purpose: Literal["identity", "backup"]
) -> bytes:
    drawn = isinstance(passphrase, DrawnPassphrase)
    header = _IdentityFile(
        format="sealift-identity",
        version=1,
        purpose=purpose,
        card=identity.card,
        scrypt_log2_n=_LOG2_N_LIMITS.start if drawn else SCRYPT_LOG2_N,
        salt=secrets.token_bytes(16),
        nonce=secrets.token_bytes(NONCE_BYTES),
        sealed=b"",
    )
    seed = identity.seed.reveal(TOKEN)
    sealed = _file_aead(header, passphrase).seal(header.nonce, seed, encode(header))
    return encode(replace(header, sealed=sealed))


def _unlock(
    raw: bytes, passphrase: str, purpose: Literal["identity", "backup"], code: str
) -> Identity:
    stored = decode(_IdentityFile, raw, max_bytes=MAX_FILE_BYTES)
    if stored.purpose != purpose:
        raise MalformedError(f"this is a {stored.purpose} file, not a {purpose} file")
    header = replace(stored, sealed=b"")
    aead = _file_aead(header, passphrase)
    try:
        seed = aead.open(stored.nonce, stored.sealed, encode(header))
    except AuthenticationError:
        what = code.replace("-", " ")
        fix = "Try again; without the right one the file cannot be opened"
        raise RefusedError(what, fix=fix, code=code) from None
    return Identity(stored.card.name, SecretKey(seed))


def _file_aead(header: _IdentityFile, passphrase: str) -> Aead:
    # One normal form: the same characters are other code points on another keyboard.
    normal = unicodedata.normalize("NFC", passphrase).encode(errors="surrogateescape")
    log2_n = header.scrypt_log2_n
    stretched = SecretKey(stretch(normal, header.salt, log2_n=log2_n, length=KEY_BYTES))
    label = (
        Label.IDENTITY_FILE if header.purpose == "identity" else Label.IDENTITY_BACKUP
    )
    return Aead(Suite.AES_256_GCM, derive(stretched, label))


def _create(path: Path, content: bytes) -> None:
    """Write a new file of mode 0600, whole or not at all; never replace one."""
    partial = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        with os.fdopen(_open_exclusive(partial), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _fill_unused_name(path, partial)
    except FileExistsError:
        raise UsageError(
            f"{path} exists", fix="Choose another name; keys are never overwritten"
        ) from None
    except OSError as error:
        raise UnavailableError(f"cannot write {path}", why=error) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _fill_unused_name(path: Path, partial: Path) -> None:
    """Take the name, then rename over it; a memory stick has no hard links."""
    os.close(_open_exclusive(path))
    try:
        partial.replace(path)
    except BaseException:
        path.unlink()
        raise


def _open_exclusive(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from None
