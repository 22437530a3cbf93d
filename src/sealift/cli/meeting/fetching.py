"""Weights and texts of a recipe, fetched from the host piece by piece, and resumed when cut."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from sealift.cli.meeting.place import PartyFolder, file_exists
from sealift.errors import IntegrityError, MalformedError, UnavailableError, unreadable
from sealift.ids import Digest
from sealift.meet.messages import AskAsset, AssetPiece
from sealift.release.agreement.code import ASSETS, PIECE_BYTES
from sealift.release.files import make_folder

PARTIAL: Final = ".assets"  # what was fetched of a file, under its digest's name


class AssetFetcher:
    """Fetches what a declaration names, and has nothing of it that does not fit its digest.

    Args:
        place: The party's folder.
        files: Digests of the recipe's files, by path.
        written: Digests of what the command wrote before.
        tell: Gets a line with the progress.
    """

    def __init__(
        self,
        place: PartyFolder,
        files: Mapping[str, Digest],
        written: Collection[Digest],
        tell: Callable[[str], None],
    ) -> None:
        self._place, self._tell = place, tell
        self._written = frozenset(written)
        self._left = {n: each for n, each in files.items() if n.startswith(ASSETS)}
        self._told = -1

    def next(self) -> AskAsset | None:
        """What to ask for; None once all files are there.

        Raises:
            UsageError: ``file-in-the-way``: another file lies where one has to be.
            UnavailableError: a file cannot be read.
        """
        for name, digest in [*self._left.items()]:
            path = self._path(name)
            if not path.exists():
                partial = self._partial(digest)
                return AskAsset(name, partial.stat().st_size if partial.exists() else 0)
            found = _digest_of(path)
            if found != digest and found not in self._written:
                raise file_exists(f"recipe/{name}")
            if found != digest:  # of a declaration before
                path.unlink()
                return self.next()
            del self._left[name]
        return None

    def take(self, asked: AskAsset, told: AssetPiece) -> None:
        """Write a piece behind what is there; the last one makes the file, if it fits.

        Raises:
            MalformedError: ``bad-message``: it is not the piece that was asked for.
            IntegrityError: ``asset-differs``: what was fetched is not the declared file;
                it is removed.
            UnavailableError: ``disk-full``, ``cannot-write``.
        """
        end = told.start + len(told.content)
        due = (told.name, told.start) == (asked.name, asked.start)
        if not due or (not told.content and end < told.total):
            raise MalformedError(
                "the host sent another piece of an asset than this party asked for",
                code="bad-message",
            )
        digest = self._left[told.name]
        partial = self._partial(digest)
        make_folder(partial.parent)
        _require_room(partial.parent, told.total - told.start)
        try:
            with partial.open("ab") as file:
                file.write(told.content)
        except OSError as error:
            raise UnavailableError(
                f"cannot write {partial}", why=error, code="cannot-write"
            ) from None
        share = 100 * end // max(1, told.total)
        if share // 10 != self._told or end == told.total:
            self._told = share // 10
            name = told.name.removeprefix(ASSETS)
            self._tell(f"fetching {name}: {share} % of {told.total:,} bytes")
        if end == told.total:
            self._finish(told.name, digest, partial)

    def _finish(self, name: str, digest: Digest, partial: Path) -> None:
        if _digest_of(partial) != digest:
            partial.unlink()
            raise IntegrityError(
                f"the host sent another file than it declared: {name}",
                why="its digest differs from the declared one",
                code="asset-differs",
            )
        path = self._path(name)
        make_folder(path.parent)
        os.replace(partial, path)
        del self._left[name]
        if not any(partial.parent.iterdir()):
            partial.parent.rmdir()

    def _path(self, name: str) -> Path:
        return self._place["recipe"] / name

    def _partial(self, digest: Digest) -> Path:
        return self._place[PARTIAL] / digest.raw.hex()


def _digest_of(path: Path) -> Digest:
    try:
        with path.open("rb") as file:
            return Digest(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise unreadable(path, error) from None


def _require_room(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if nbytes + PIECE_BYTES > free:
        raise UnavailableError(
            f"an asset of the recipe needs {nbytes:,} more bytes in {folder}",
            why=f"{free:,} bytes are free on that disk",
            code="disk-full",
        )
