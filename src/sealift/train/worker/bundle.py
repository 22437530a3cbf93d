"""A bundle in memory, as workers map it: code, and behind it the assets, which are not copied.

Workers copy the code, which is small, and map the assets to read: weights of any size are
there once, whatever the number of workers. Nobody can map this memory to write.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Final

from sealift.data.schedule.memory import SharedBuffer, free_memory_bytes
from sealift.errors import UnavailableError
from sealift.release.agreement.code import Asset
from sealift.train.loop.states import TensorBytes, head_of, pack_tensors

LENGTH_BYTES: Final = 8  # before the assets' blob: how long it is


class BundleMemory:
    """Code and assets.

    Args:
        files: The code, measured.
        assets: Files of weights and texts; each is measured as it is read.

    Attributes:
        length: Bytes of the code's blob, with which it begins.

    Raises:
        IntegrityError: ``code-bundle-differs``, if an asset is not the agreed one.
        UnavailableError: ``no-memory``; or a file cannot be read.
    """

    def __init__(
        self, files: Mapping[str, bytes], assets: Sequence[Asset] = ()
    ) -> None:
        code = pack_bundle(files)
        self.length = len(code)
        if not assets:
            self._buffer = SharedBuffer.of(code)
            return
        forms = {each.name: TensorBytes("U8", (each.size,), b"") for each in assets}
        head, order = head_of(forms)
        at, whole = assets_at(len(code)), len(head) + sum(each.size for each in assets)
        total, free = at + LENGTH_BYTES + whole, free_memory_bytes()
        if total > free:
            raise UnavailableError(
                f"the recipe's code and assets have {total:,} bytes",
                why=f"this machine has {free:,} bytes of free memory",
                code="no-memory",
            )
        self._buffer = SharedBuffer(total)
        try:
            view = self._buffer.view
            view[: len(code)] = code
            view[at : at + LENGTH_BYTES] = whole.to_bytes(LENGTH_BYTES, "little")
            at += LENGTH_BYTES
            view[at : at + len(head)] = head
            at += len(head)
            by_name = {each.name: each for each in assets}
            for name in order:
                for piece in by_name[name].pieces():
                    view[at : at + len(piece)] = piece
                    at += len(piece)
        except BaseException:
            self._buffer.close()
            raise

    @property
    def descriptor(self) -> int:
        """What is handed over, until ``close``."""
        return self._buffer.descriptor

    @property
    def code(self) -> memoryview:
        """The code's blob."""
        return self._buffer.view[: self.length]

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._buffer.close()


def assets_at(code_bytes: int) -> int:
    """Where the assets begin: on a page of their own."""
    return code_bytes + -code_bytes % mmap.PAGESIZE


def pack_bundle(files: Mapping[str, bytes]) -> bytes:
    """Code as one blob."""
    return pack_tensors(
        {
            path: TensorBytes("U8", (len(content),), memoryview(content))
            for path, content in files.items()
        }
    )
