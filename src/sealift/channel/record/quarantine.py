"""Private memory that nobody reads before the tag of what lies in it verified.

The AEAD library writes plaintext before it knows whether the tag fits, and leaves it
there when it does not (measured: 4,095 of 4,096 bytes). A slot gives its bytes out only
after ``mark_verified``, and is overwritten on failure. ``__del__`` of Python memory
overwrites nothing: whoever owns a slot scrubs it when the stream ends.
"""

from __future__ import annotations

from typing import Final

from sealift.errors import UsageError

_ZEROES: Final = bytes(64 << 10)


def scrub(memory: bytearray | memoryview) -> None:
    """Overwrite ``memory`` with zeroes, without allocating as much again."""
    view = memoryview(memory).cast("B")
    for start in range(0, len(view), len(_ZEROES)):
        part = view[start : start + len(_ZEROES)]
        part[:] = _ZEROES[: len(part)]


class Slot:
    """Room for the plaintext of one record.

    Args:
        memory: Memory that belongs to this process alone, or its size in bytes.
    """

    __slots__ = ("_memory", "_verified_bytes")

    def __init__(self, memory: bytearray | memoryview | int) -> None:
        owned = bytearray(memory) if isinstance(memory, int) else memory
        self._memory = memoryview(owned).cast("B")
        self._verified_bytes = -1

    @property
    def capacity_bytes(self) -> int:
        """The longest plaintext that fits."""
        return len(self._memory)

    def room(self, plaintext_bytes: int) -> memoryview:
        """Where the opener writes; what was verified before is no longer released."""
        if plaintext_bytes > len(self._memory):
            raise UsageError(
                f"a slot of {len(self._memory)} bytes is too small for {plaintext_bytes}"
            )
        self._verified_bytes = -1
        return self._memory[:plaintext_bytes]

    def mark_verified(self, plaintext_bytes: int) -> None:
        """The tag of the bytes in the slot fits."""
        self._verified_bytes = plaintext_bytes

    def release(self) -> memoryview:
        """The verified plaintext, read-only, valid until the slot is used again.

        Raises:
            UsageError: if nothing in the slot was verified.
        """
        if self._verified_bytes < 0:
            raise UsageError(
                "nothing in this slot was verified", code="unverified-slot"
            )
        return self._memory[: self._verified_bytes].toreadonly()

    def scrub(self) -> None:
        """Overwrite all of it."""
        self._verified_bytes = -1
        scrub(self._memory)
