"""Weights and texts of a recipe, fetched from the host piece by piece, and resumed when cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from sealift.errors import IntegrityError, MalformedError, UnavailableError
from sealift.ids import Digest
from sealift.meet.folder import PartyFolder, file_exists
from sealift.meet.messages import ASSET_PIECE_BYTES, AskAsset, AssetPiece
from sealift.release.agreement.code import ASSETS, PIECE_BYTES, Asset, digest_of
from sealift.release.files import make_folder

PARTIAL: Final = ".assets"  # what was fetched of a file, under its digest's name


class AssetFetcher:
    """Fetches what a declaration names, and has nothing of it that does not fit its digest.

    What a declaration before brought, and this one does not, is removed.

    Args:
        place: The party's folder.
        assets: What is declared, and where it is to lie.
        fetched: Digests of what the command fetched before, by path in the recipe.
        keep: Gets path and digest of what it has fetched.
        tell: Gets a line with the progress.

    Raises:
        UsageError: ``file-in-the-way``: another file lies below recipe/assets/.
        UnavailableError: ``no-room-for-assets``, for all that is left to fetch; a file
            cannot be read.
    """

    def __init__(
        self,
        place: PartyFolder,
        assets: Collection[Asset],
        fetched: Mapping[str, Digest],
        keep: Callable[[str, Digest], None],
        tell: Callable[[str], None],
    ) -> None:
        self._place, self._keep, self._tell = place, keep, tell
        declared = {each.name: each.digest for each in assets}
        for path in place.require_own_assets(declared, fetched):
            path.unlink()
        self._left = {each.name: each for each in assets if not each.path.exists()}
        self._told = -1
        left = self._left.values()
        if nbytes := sum(each.size - self._start_of(each) for each in left):
            _require_room(place.folder, nbytes)

    def next(self) -> AskAsset | None:
        """What to ask for; None once all files are there."""
        for name, asset in self._left.items():
            return AskAsset(name, self._start_of(asset))
        return None

    def _start_of(self, asset: Asset) -> int:
        """Bytes that are there; none where they are more than the file is to have."""
        partial = self._partial(asset.digest)
        there = partial.stat().st_size if partial.exists() else 0
        return there if there <= asset.size else 0

    def take(self, asked: AskAsset, told: AssetPiece) -> None:
        """Write a piece behind what is there; the last one makes the file, if it fits.

        Raises:
            MalformedError: ``bad-message``: it is not the piece that was asked for, of
                the file that was declared; every piece but the last is a whole one.
            IntegrityError: ``asset-differs``: what was fetched is not the declared file;
                it is removed.
            UnavailableError: ``cannot-write``.
            UsageError: ``file-in-the-way``.
        """
        asset = self._left[asked.name]
        due_bytes = min(ASSET_PIECE_BYTES, asset.size - asked.start)
        due = (asked.name, asked.start, asset.size, due_bytes)
        if (told.name, told.start, told.total, len(told.content)) != due:
            raise MalformedError(
                "the host sent a piece of an asset that this party did not ask for",
                code="bad-message",
            )
        end = told.start + len(told.content)
        partial = self._partial(asset.digest)
        make_folder(partial.parent)
        try:
            with partial.open("ab" if told.start else "wb") as file:
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
            self._finish(asset, partial)

    def _finish(self, asset: Asset, partial: Path) -> None:
        if digest_of(partial) != asset.digest:
            partial.unlink()
            raise IntegrityError(
                f"the host sent another file than it declared: {asset.name}",
                why="its digest differs from the declared one",
                code="asset-differs",
            )
        make_folder(asset.path.parent)
        if os.path.lexists(asset.path):  # since the fetch began
            raise file_exists(f"{self._place.recipe.name}/{asset.name}")
        os.replace(partial, asset.path)
        self._keep(asset.name, asset.digest)
        del self._left[asset.name]
        if not any(partial.parent.iterdir()):
            partial.parent.rmdir()

    def _partial(self, digest: Digest) -> Path:
        return self._place[PARTIAL] / digest.raw.hex()


def _require_room(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if nbytes + PIECE_BYTES > free:
        raise UnavailableError(
            f"assets of the recipe need {nbytes:,} more bytes in {folder}",
            why=f"{free:,} bytes are free on that disk",
            code="no-room-for-assets",
        )
