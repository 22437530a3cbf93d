"""Shards behind URLs, shards that moved, and what is said about those that are gone."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest

from sealift.crypto.keys import SecretKey
from sealift.data import SealedDataLoader, SealedDataset, urls
from sealift.data.schema.schema import Field, Schema
from sealift.data.sealing import seal_table
from sealift.data.urls import expand, open_place
from sealift.errors import (
    MalformedError,
    SealiftError,
    UnavailableError,
    UsageError,
)
from sealift.release.agreement import Resource
from tests.sim.sealed_shards import Shards, seal_shards

ROWS = 100


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return seal_shards(tmp_path)


def ids(dataset: SealedDataset, **options: Any) -> list[int]:
    options = {"shuffle": True, "window_bytes": 700, **options}
    with SealedDataLoader(dataset, 8, **options) as batches:
        return [int(row) for batch in batches for row in batch["id"]]


def drain(batches: Iterable[Any], seen: list[int]) -> None:
    for batch in batches:
        seen += batch["id"].tolist()


@pytest.fixture
def in_memory(shards: Shards) -> Iterator[str]:
    files = fsspec.filesystem("memory")
    for path in shards.folder.iterdir():
        if path.suffix in (".sealed", ".json"):
            files.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    yield "memory://bucket"
    files.rm("/bucket", recursive=True)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves parts of files, as servers of big files do."""

    whole = False

    def send_head(self) -> Any:
        wanted = self.headers.get("Range")
        if not wanted or self.whole:
            return super().send_head()
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return None
        first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
        content = path.read_bytes()
        part = content[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        end = first + len(part) - 1
        self.send_header("Content-Range", f"bytes {first}-{end}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)
        return None

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path, kind: type[Ranges] = Ranges) -> Iterator[str]:
    def handle(*args: Any) -> Ranges:
        return kind(*args, directory=str(folder))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handle) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_shards_in_memory_and_files_by_url(shards: Shards, in_memory: str) -> None:
    with shards.open() as dataset:
        whole, state = ids(dataset), SealedDataLoader(dataset).state_dict()
    for place in (f"{in_memory}/*.sealed", f"file://{shards.folder}/*.sealed"):
        with SealedDataset(place, shards.keys) as dataset:
            assert ids(dataset, num_workers=2) == whole
            SealedDataLoader(dataset).load_state_dict(state)  # they are the same shards


def test_shards_on_a_server(shards: Shards) -> None:
    with shards.open() as dataset:
        whole = ids(dataset)
    with served(shards.folder) as url:
        places = [f"{url}/{path.name}" for path in shards.places]
        with SealedDataset(places, shards.keys) as dataset:
            assert ids(dataset) == whole
            assert ids(dataset, workers="process") == whole
        with SealedDataset(places[0] + "?signed=1", shards.keys["part-0"]) as dataset:
            assert len(dataset) == 37
        with pytest.raises(UnavailableError, match=r"cannot read shard none.sealed"):
            SealedDataset(f"{url}/none.sealed?secret=1", shards.keys["part-0"],
                          schema=shards.cards[0].schema)  # fmt: skip


def test_a_server_that_sends_everything(shards: Shards) -> None:
    class Whole(Ranges):
        whole = True

    with served(shards.folder, Whole) as url:
        place = f"{url}/{shards.places[0].name}"
        with pytest.raises(SealiftError) as caught:
            SealedDataset(place, shards.keys["part-0"])
    assert caught.value.exit_code == 3


class Endless(Ranges):
    """Says that it has a small file, and sends 64 MiB of whatever is asked."""

    protocol_version = "HTTP/1.1"
    sent: ClassVar[list[int]] = []
    gone: ClassVar[threading.Event]
    status = 206

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def do_GET(self) -> None:
        if self.path not in ("/", "/x.sealed"):  # a pattern is no file
            self.send_error(404)
            return
        self.send_response(self.status)
        self.send_header("Content-Range", "bytes 0-119/1000")
        self.send_header("Content-Type", "text/html")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        block = bytes(1 << 20)
        try:
            for _ in range(64):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))
                self.sent.append(len(block))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        self.gone.set()


@pytest.fixture
def endless() -> Iterator[tuple[str, type[Endless]]]:
    class Fresh(Endless):
        sent: ClassVar[list[int]] = []
        gone = threading.Event()

    with served(Path(), Fresh) as url:
        yield f"{url}/x.sealed", Fresh


def read_120(place: str) -> None:
    source = open_place(place)
    source.read_into(0, memoryview(bytearray(120)))


@pytest.mark.parametrize(
    ("status", "why"), [(206, "more bytes"), (200, "range requests")]
)
def test_an_answer_is_read_as_far_as_was_asked(
    endless: tuple[str, type[Endless]], status: int, why: str
) -> None:
    place, server = endless
    server.status = status
    with pytest.raises(UnavailableError, match=why):
        read_120(place)
    assert server.gone.wait(300)
    assert len(server.sent) < 48  # what sockets hold, of 64


def test_what_is_not_bounded_is_read_to_its_end(
    endless: tuple[str, type[Endless]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: all 64 MiB come into memory for 120 bytes."""
    monkeypatch.setattr(urls, "_bounded", lambda scheme, options: options)
    with pytest.raises(UnavailableError, match="another range"):
        read_120(endless[0])
    assert len(endless[1].sent) == 64


def test_a_page_of_files_is_bounded(endless: tuple[str, type[Endless]]) -> None:
    place, server = endless
    server.status = 200
    with pytest.raises(UnavailableError, match="more bytes"):
        expand(place.replace("x.sealed", "*.sealed"))


def test_less_than_was_asked_is_refused(shards: Shards) -> None:
    class Short(Ranges):
        def send_head(self) -> Any:
            wanted = self.headers.get("Range")
            if wanted:
                first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
                del self.headers["Range"]
                self.headers["Range"] = f"bytes={first}-{last - 1}"
            return super().send_head()

    with served(shards.folder, Short) as url:
        source = open_place(f"{url}/{shards.places[0].name}")
        with pytest.raises(UnavailableError, match="another range"):
            source.read_into(0, memoryview(bytearray(120)))
    with served(shards.folder) as url:  # control
        source = open_place(f"{url}/{shards.places[0].name}")
        assert source.read_into(0, memoryview(bytearray(120))) == 120


def test_a_url_tells_no_secrets() -> None:
    with pytest.raises(UnavailableError) as caught:
        open_place("http://user:word@127.0.0.1:9/x?sig=word").state()
    assert "word" not in str(caught.value)
    assert str(caught.value).startswith("cannot read http://127.0.0.1:9/x:")


def test_a_server_that_goes_away_while_training(shards: Shards) -> None:
    with served(shards.folder) as url:
        places = [f"{url}/{path.name}" for path in shards.places]
        dataset = SealedDataset(places, shards.keys)
        batches = SealedDataLoader(dataset, 8, window_bytes=700)
        part = iter(batches)
        seen = next(part)["id"].tolist()
        hidden = [path.rename(path.with_suffix(".away")) for path in shards.places]
        with pytest.raises(UnavailableError, match=r"cannot read shard part-\d") as e:
            drain(part, seen)
        assert e.value.code == "shard-unreadable"
        for path in hidden:
            path.rename(path.with_suffix(".sealed"))
        batches.load_state_dict(batches.state_dict())
        drain(batches, seen)
        batches.close()
        dataset.close()
    assert seen == list(range(ROWS))


def test_a_moved_shard_is_named_and_found_again(shards: Shards, tmp_path: Path) -> None:
    with shards.open() as dataset, SealedDataLoader(dataset, 8) as batches:
        whole = ids(dataset)
        next(iter(batches))
        state = batches.state_dict()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(shards.places[1], elsewhere / "renamed")
    shutil.move(shards.places[1].with_suffix(".resource.json"), elsewhere)
    words = r"shard part-1.sealed: No such file.*relocate=\{'part-1.sealed': 'PATH OR"
    schema = shards.cards[0].schema
    with pytest.raises(UnavailableError, match=words) as caught:
        SealedDataset(shards.places, shards.keys, schema=schema)
    assert (caught.value.code, caught.value.exit_code) == ("shard-unreadable", 3)
    shutil.move(elsewhere / "renamed", elsewhere / "part-1.sealed")
    moves = {"part-1.sealed": elsewhere / "part-1.sealed"}
    with SealedDataset(shards.places, shards.keys, relocate=moves) as dataset:
        assert ids(dataset) == whole
        with SealedDataLoader(dataset, 8) as batches:
            batches.load_state_dict(state)


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("gs://bucket/x.sealed", r"pip install 'fsspec\[gs\]'"),
        ("s3://bucket/x.sealed", r"pip install 'fsspec\[s3\]'"),
    ],
)
def test_a_scheme_whose_package_is_missing(place: str, command: str) -> None:
    with pytest.raises(UnavailableError, match=command) as caught:
        open_place(place)
    assert (caught.value.code, caught.value.exit_code) == ("extra-missing", 3)


def test_without_fsspec(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UnavailableError, match=r"pip install '\.\[urls\]'"):
        open_place("memory://x")
    with shards.open() as dataset:  # paths need none
        assert len(dataset) == ROWS


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        open_place("nonsense://x")


def test_a_pattern_that_names_nothing(shards: Shards, in_memory: str) -> None:
    for place in (f"{shards.folder}/*.gone", f"{in_memory}/*.gone"):
        with pytest.raises(UnavailableError, match="no file matches"):
            expand(place)
    odd = shards.folder / "odd[1].sealed"
    shutil.copy(shards.places[0], odd)
    assert expand(str(odd)) == [str(odd)]  # a file of that very name


def test_shards_of_several_schemas(shards: Shards, tmp_path: Path) -> None:
    fields = list(shards.cards[0].schema.fields)
    fields[1] = Field("x", "float64", (3,))
    arrays = {**shards.arrays, "x": shards.arrays["x"].astype(np.float64)}
    np.savez(tmp_path / "o.npz", **arrays)
    key = SecretKey.generate()
    seal_table(
        tmp_path / "o.npz", Schema(tuple(fields)), name="other", part="train",
        owner="north", key=key, out_dir=tmp_path,
    )  # fmt: skip
    keys = {**shards.keys, "other": key}
    places = [shards.places[0], tmp_path / "other.sealed"]
    with pytest.raises(
        MalformedError, match=r"other.sealed has other columns"
    ) as caught:
        SealedDataset(places, keys)
    assert (caught.value.code, caught.value.field) == ("schema-mismatch", "x")
    assert caught.value.offset == 8
    with pytest.raises(MalformedError, match="other columns than schema="):
        SealedDataset(
            places[1], key, schema=shards.cards[0].schema,
            card=SealedDataset(places[1], key).shards.shards[0].card,
        )  # fmt: skip
    with pytest.raises(UnavailableError, match="no key for other"):
        SealedDataset(places, shards.keys)


def test_the_agreement_decides_what_a_card_says(shards: Shards) -> None:
    agreed = [card.resource for card in shards.cards]
    with SealedDataset(shards.places, shards.keys, agreed=agreed) as dataset:
        assert len(dataset) == ROWS
    card = shards.places[0].with_suffix(".resource.json")
    raw = card.read_bytes()
    for before, after in ((b'"name":"id"', b'"name":"ix"'), (b"train", b"heldout")):
        assert raw.count(before) == 1
        card.write_bytes(raw.replace(before, after))
        agreement_decides(shards, agreed)
    # Control: a card alone is believed in what the sealed file does not say.
    SealedDataset(shards.places[0], shards.keys).close()
    card.unlink()
    with pytest.raises(UsageError, match="no card to compare"):
        SealedDataset(shards.places, shards.keys, agreed=agreed)


def agreement_decides(shards: Shards, agreed: list[Resource]) -> None:
    with pytest.raises(SealiftError, match="the card of part-0") as e:
        SealedDataset(shards.places, shards.keys, agreed=agreed)
    assert e.value.exit_code == 5


def test_a_genuine_shard_in_anothers_place(shards: Shards) -> None:
    """Whoever stores shards may not read one twice to somebody, and another never."""
    first, second = shards.places[:2]
    for suffix in (".sealed", ".resource.json"):
        shutil.copy(first.with_suffix(suffix), second.with_suffix(suffix))
    agreed = [card.resource for card in shards.cards]
    for options in ({}, {"agreed": agreed}):
        with pytest.raises(SealiftError, match=r"part-1.sealed belongs to part-0") as e:
            SealedDataset(shards.places, shards.keys, **options)
        assert (e.value.code, e.value.exit_code) == ("content-mismatch", 5)
    # Control: who names the card, or the key, decides; the file is genuine.
    SealedDataset(second, shards.keys, card=shards.cards[0]).close()
    SealedDataset(second, shards.keys["part-0"]).close()


def test_a_shard_that_is_not_there(shards: Shards) -> None:
    with pytest.raises(UnavailableError, match=r"cannot read shard part-7.sealed: No"):
        SealedDataset(shards.folder / "part-7.sealed", shards.keys)


def test_a_folder_with_a_question_mark(shards: Shards) -> None:
    odd = shards.folder / "what?x"
    odd.mkdir()
    for path in shards.places[0], shards.places[0].with_suffix(".resource.json"):
        shutil.copy(path, odd)
    with SealedDataset(odd / "part-0.sealed", shards.keys) as dataset:
        assert len(dataset) == 37


def test_keys_that_are_none(shards: Shards) -> None:
    keys: Any = "north.key"
    with pytest.raises(UsageError, match="keys="):
        SealedDataset(shards.places, keys)
