"""Reading binary formats front to back, never past their end."""

from __future__ import annotations

from typing import Literal

from sealift.errors import MalformedError


class Cursor:
    """A place in bytes; everything taken moves it on.

    Args:
        raw: All the bytes.
        what: What they are, for errors: ``the quote``.
        order: How numbers are written.
    """

    __slots__ = ("_order", "offset", "raw", "what")

    def __init__(
        self, raw: bytes, what: str, order: Literal["little", "big"] = "little"
    ) -> None:
        self.raw = raw
        self.what = what
        self.offset = 0
        self._order = order

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes.

        Raises:
            MalformedError: if there are fewer.
        """
        part = self.raw[self.offset : self.offset + size]
        if len(part) != size:
            raise MalformedError(f"{self.what} ends too early", offset=self.offset)
        self.offset += size
        return part

    def number(self, size: int) -> int:
        """The next ``size`` bytes as an unsigned number."""
        return int.from_bytes(self.take(size), self._order)

    def rest(self) -> bytes:
        """Everything that is left."""
        return self.take(len(self.raw) - self.offset)

    def require_end(self) -> None:
        """Refuse what nobody asked for.

        Raises:
            MalformedError: if something is left.
        """
        if self.offset != len(self.raw):
            raise MalformedError(f"{self.what} has a tail", offset=self.offset)
