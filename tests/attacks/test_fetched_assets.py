"""A host that sends other weights than it declared, and what an owner's folder has of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.cli.meeting.place import open_folder
from sealift.data.schema.document import schema_from_plain
from sealift.errors import SealiftError, UsageError
from sealift.ids import Digest
from sealift.meet import fetching
from sealift.meet.fetching import PARTIAL, AssetFetcher
from sealift.meet.host import Host
from sealift.meet.messages import ASSET_PIECE_BYTES, AskAsset, AssetPiece
from sealift.meet.question import tell_comparison
from sealift.release.agreement.code import Asset, measure_bundle
from tests.sim.lyinghost import LyingHost, lying_host

NAME = "assets/base.safetensors"
CONTENT = bytes(range(256)) * 5000  # three pieces


class Fetching:
    """An owner that fetches one file of a host's."""

    def __init__(self, folder: Path, fetched: dict[str, Digest] | None = None) -> None:
        (folder / "host").mkdir(exist_ok=True)
        self.source = folder / "host" / "base.safetensors"
        self.source.write_bytes(CONTENT)
        self.place = open_folder(folder, "north")
        self.path = folder / "recipe" / NAME
        self.lines: list[str] = []
        self.kept: dict[str, Digest] = {}
        asset = Asset(NAME, self.path, len(CONTENT), Digest.of(CONTENT))
        self.fetcher = AssetFetcher(
            self.place,
            [asset],
            fetched or {},
            self.kept.__setitem__,
            self.lines.append,
        )

    def piece(self, asked: AskAsset) -> AssetPiece:
        host: Any = SimpleNamespace(assets={NAME: self.source})
        return Host.piece_of(host, asked)

    def fetch(self, most: int = 100) -> int:
        """How many pieces came."""
        for number in range(most):
            asked = self.fetcher.next()
            if asked is None:
                return number
            self.fetcher.take(asked, self.piece(asked))
        return most


def test_a_file_is_fetched_in_pieces_and_compared(tmp_path: Path) -> None:
    made = Fetching(tmp_path)
    assert made.fetch() == -(-len(CONTENT) // ASSET_PIECE_BYTES)
    assert made.path.read_bytes() == CONTENT
    assert made.lines[-1] == "fetching base.safetensors: 100 % of 1,280,000 bytes"
    assert not (tmp_path / PARTIAL).exists()
    assert made.kept == {NAME: Digest.of(CONTENT)}
    assert Fetching(tmp_path).fetch() == 0


def test_a_fetch_that_was_cut_goes_on(tmp_path: Path) -> None:
    Fetching(tmp_path).fetch(most=1)
    made = Fetching(tmp_path)
    asked = made.fetcher.next()
    assert asked == AskAsset(NAME, ASSET_PIECE_BYTES)
    assert made.fetch() == 2
    assert made.path.read_bytes() == CONTENT


def test_another_file_is_refused_and_removed(tmp_path: Path) -> None:
    made = Fetching(tmp_path)
    made.source.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(SealiftError) as caught:
        made.fetch()
    assert caught.value.code == "asset-differs"
    assert not made.path.exists()
    assert not any((tmp_path / PARTIAL).iterdir())
    made.source.write_bytes(CONTENT)
    assert Fetching(tmp_path).fetch() == 3


@pytest.mark.parametrize(
    "other",
    [
        {"name": "assets/other.json"},
        {"start": 1},
        {"content": b""},
        {"content": CONTENT[: ASSET_PIECE_BYTES - 1]},  # so it would never end
        {"total": len(CONTENT) + 1},  # another size than was declared
    ],
)
def test_another_piece_than_was_asked_for_is_refused(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    made = Fetching(tmp_path)
    asked = made.fetcher.next()
    assert asked is not None
    told = replace(made.piece(asked), **other)
    with pytest.raises(SealiftError) as caught:
        made.fetcher.take(asked, told)
    assert caught.value.code == "bad-message"


def test_an_owners_own_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "recipe" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(UsageError) as caught:
        Fetching(tmp_path)
    assert caught.value.code == "file-in-the-way"
    assert path.read_bytes() == b"mine"
    with pytest.raises(UsageError):  # another file with these bytes was fetched
        Fetching(tmp_path, {"assets/other.json": Digest.of(b"mine")})
    made = Fetching(tmp_path, {NAME: Digest.of(b"mine")})  # of a former declaration
    assert made.fetch() == 3


def test_nor_is_one_that_appears_during_the_fetch(tmp_path: Path) -> None:
    made = Fetching(tmp_path)
    made.fetch(most=2)
    made.path.parent.mkdir(parents=True)
    made.path.write_bytes(b"mine")
    with pytest.raises(UsageError) as caught:
        made.fetch()
    assert caught.value.code == "file-in-the-way"
    assert made.path.read_bytes() == b"mine"


def test_a_file_that_is_not_declared_is_said_before_anything_is_signed(
    tmp_path: Path,
) -> None:
    stray = tmp_path / "recipe" / "assets" / "renamed.safetensors"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(CONTENT)
    with pytest.raises(UsageError) as caught:
        Fetching(tmp_path)
    assert caught.value.code == "file-in-the-way"
    Fetching(tmp_path, {"assets/renamed.safetensors": Digest.of(CONTENT)})
    assert not stray.exists()  # a former declaration had it


def test_a_partial_file_that_is_too_long_is_begun_anew(tmp_path: Path) -> None:
    made = Fetching(tmp_path)
    partial = tmp_path / PARTIAL / Digest.of(CONTENT).raw.hex()
    partial.parent.mkdir()
    partial.write_bytes(CONTENT + b"more")
    assert made.fetch() == 3
    assert made.path.read_bytes() == CONTENT


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SealiftError, match="need 1,280,000 more bytes") as caught:
        Fetching(tmp_path)
    assert caught.value.code == "no-room-for-assets"


def test_a_host_sends_declared_assets_alone(tmp_path: Path) -> None:
    made = Fetching(tmp_path)
    for name in ("assets/other.json", "../host/base.safetensors", "recipe.py"):
        with pytest.raises(SealiftError) as caught:
            made.piece(AskAsset(name, 0))
        assert caught.value.code == "bad-message"


@pytest.fixture
def host(tmp_path: Path) -> Any:
    with lying_host(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("assets/model.bin", "bad-asset"),
        ("assets/model.pt", "bad-asset"),
        ("assets/../../x.json", "meeting-terms"),
    ],
)
def test_an_owner_fetches_nothing_that_could_be_unpickled(
    host: LyingHost, name: str, code: str
) -> None:
    files = dict(host.host.files)
    declared = host.declare(
        code=measure_bundle(files, "recipe.py", {name: Digest.of(b"x")}),
        assets={name: 1},
    )
    host.lie = lambda party, told: (
        replace(told, declaration=declared) if hasattr(told, "files") else told
    )
    error = host.owner("north").begin().refused()
    assert error.code == code
    assert not (host.folder / "north" / PARTIAL).exists()


def test_the_sizes_stand_in_the_question_and_are_signed(host: LyingHost) -> None:
    names = {"assets/a.json": 2, "assets/b.safetensors": 3_000_000}
    digests = {name: Digest.of(name.encode()) for name in names}
    code = measure_bundle(dict(host.host.files), "recipe.py", digests)
    declared = host.declare(code=code, assets=names)
    schema = schema_from_plain(declared.schema)
    lines = [*tell_comparison(declared, schema, {}, 1, numbers=())]
    at = lines.index(
        "  The recipe brings 2 files, 3,000,002 bytes in all, which this machine fetches:"
    )
    assert lines[at + 1 : at + 3] == [
        '    "assets/a.json": 2 bytes',
        '    "assets/b.safetensors": 3,000,000 bytes',
    ]
    assert (
        declared.digest != replace(declared, assets=names | {"assets/a.json": 3}).digest
    )
    for other in ({}, {"assets/a.json": 2}, names | {"assets/a.json": -1}):
        with pytest.raises(SealiftError) as caught:
            host.declare(code=code, assets=other)
        assert caught.value.code == "bad-meeting"


def test_a_declared_digest_has_no_file_of_an_owners_deleted(host: LyingHost) -> None:
    mine = host.folder / "north" / "recipe" / "assets" / "mine.json"

    def say(content: bytes) -> None:
        digests = {"assets/mine.json": Digest.of(content)}
        declared = host.declare(
            code=measure_bundle(dict(host.host.files), "recipe.py", digests),
            assets={"assets/mine.json": len(content)},
        )
        host.lie = lambda party, told: (
            replace(told, declaration=declared) if hasattr(told, "files") else told
        )

    say(b"{}")
    error = host.owner("north", answers=None).begin().refused()  # nothing is fetched
    assert error.code == "not-confirmed"
    mine.parent.mkdir()
    mine.write_bytes(b"{}")
    say(b"[]")
    assert host.owner("north").begin().refused().code == "file-in-the-way"
    assert mine.read_bytes() == b"{}"


def test_a_piece_that_nobody_asked_for_ends_the_meeting(host: LyingHost) -> None:
    host.lie = lambda party, told: AssetPiece(NAME, 0, 1, b"x")
    assert host.owner("north").begin().refused().code == "bad-message"
