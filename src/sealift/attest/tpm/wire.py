"""Reading what a TPM writes: big-endian numbers, and parts behind two bytes of length.

Strict: whoever opens a structure says when it must be at its end.
Source: TPM 2.0 Library part 2 (structures); TCG algorithm registry (numbers).
"""

from __future__ import annotations

from typing import Final, TypeVar

from sealift.crypto.hash import HashName
from sealift.errors import MalformedError

T = TypeVar("T")
ALG_RSA: Final = 0x0001
ALG_AES: Final = 0x0006
ALG_NULL: Final = 0x0010
ALG_RSASSA: Final = 0x0014
ALG_RSAPSS: Final = 0x0016
ALG_ECDSA: Final = 0x0018
ALG_ECC: Final = 0x0023
ALG_CFB: Final = 0x0043
HASHES: Final[dict[int, HashName]] = {
    0x0004: "sha1",
    0x000B: "sha256",
    0x000C: "sha384",
    0x000D: "sha512",
}
HASH_NUMBER: Final = {name: number for number, name in HASHES.items()}


class TpmReader:
    """A cursor over the bytes of one structure.

    Args:
        raw: The bytes.
        what: Name of the structure, for errors.
    """

    def __init__(self, raw: bytes, what: str) -> None:
        self._raw = raw
        self._at = 0
        self._what = what

    @property
    def offset(self) -> int:
        """How far it was read, in bytes."""
        return self._at

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes.

        Raises:
            MalformedError: if there are fewer.
        """
        end = self._at + size
        if end > len(self._raw):
            raise self.malformed("it ends too early")
        part = self._raw[self._at : end]
        self._at = end
        return part

    def number(self, size: int) -> int:
        """An unsigned number of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big")

    def sized(self) -> bytes:
        """A part behind its length (TPM2B)."""
        return self.take(self.number(2))

    def hash_name(self) -> HashName:
        """A hash algorithm.

        Raises:
            MalformedError: for one that no evidence uses.
        """
        return self.one_of(HASHES, "hash algorithm")

    def one_of(self, known: dict[int, T], what: str) -> T:
        """What a number of two bytes stands for."""
        number = self.number(2)
        if number not in known:
            raise self.malformed(f"unknown {what} {number:#06x}")
        return known[number]

    def finish(self) -> None:
        """Refuse bytes that are left over."""
        if self._at != len(self._raw):
            raise self.malformed(f"{len(self._raw) - self._at} bytes too many")

    def malformed(self, why: str) -> MalformedError:
        """The refusal of these bytes."""
        return MalformedError(f"not a {self._what}", why=why, offset=self._at)


def sized(content: bytes) -> bytes:
    """``content`` behind its length in two bytes (TPM2B)."""
    return len(content).to_bytes(2, "big") + content
