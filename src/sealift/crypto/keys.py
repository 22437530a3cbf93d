"""Secret keys that do not print, pickle, copy or survive a fork.

Guarantees: ``repr`` is redacted; pickling and copying raise; ``wipe`` overwrites the
bytes that this object owns; in a forked child every key is wiped (rule C8: a sending
key in two processes is a nonce used twice).
Not promised: Python and the libraries below may have made copies of the bytes that
nobody can overwrite.
"""

from __future__ import annotations

import os
import secrets
import weakref
from typing import Final, NoReturn

from sealift.errors import UsageError

KEY_BYTES: Final = 32


class _RevealToken:
    """Pass ``TOKEN`` to read key bytes, so that every place that does can be found."""


TOKEN: Final = _RevealToken()
_LIVE: weakref.WeakSet[SecretKey] = weakref.WeakSet()


class SecretKey:
    """Key material of a fixed length.

    Args:
        material: The bytes; they are copied into memory that ``wipe`` overwrites.
    """

    __slots__ = ("__weakref__", "_material", "_usable")

    def __init__(self, material: bytes | bytearray | memoryview) -> None:
        if len(material) == 0:
            raise UsageError("a key cannot be empty")
        self._material = bytearray(material)
        self._usable = True
        _LIVE.add(self)

    @classmethod
    def generate(cls, length: int = KEY_BYTES) -> SecretKey:
        """A fresh key of ``length`` bytes from the system's generator."""
        return cls(secrets.token_bytes(length))

    @classmethod
    def from_bytes(cls, material: bytes | bytearray | memoryview) -> SecretKey:
        """A key from bytes that the caller already holds."""
        return cls(material)

    def twin(self) -> SecretKey:
        """The same key once more, which lives and is wiped by itself."""
        return SecretKey(self.reveal(TOKEN))

    def reveal(self, token: _RevealToken) -> bytes:
        """The bytes.

        Raises:
            UsageError: without ``TOKEN``, after ``wipe``, or in a forked child.
        """
        if token is not TOKEN:
            raise UsageError("key bytes are read with keys.TOKEN only")
        # Copied before the check: ``wipe`` in another thread forbids before it
        # overwrites, so zeroes are never taken for a key.
        material = bytes(self._material)
        if not self._usable:
            raise UsageError("this key was wiped", fix="Derive or receive a fresh one")
        return material

    def wipe(self) -> None:
        """Overwrite the bytes; the key cannot be used again."""
        self._usable = False
        self._material[:] = bytes(len(self._material))

    def __len__(self) -> int:
        return len(self._material)

    def __repr__(self) -> str:
        return f"<SecretKey {8 * len(self._material)} bits>"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> NoReturn:
        raise UsageError("keys are not pickled or copied")

    __copy__ = __reduce__

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise UsageError("keys are not pickled or copied")


def _poison_after_fork() -> None:
    for key in list(_LIVE):
        key.wipe()


os.register_at_fork(after_in_child=_poison_after_fork)
