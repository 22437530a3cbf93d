"""Checkpoint files: sealed, bound to their job, the last one or none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sealift.channel.record.sealedfile import write_sealed_file
from sealift.codec import decode, encode
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    MalformedError,
    PolicyError,
)
from sealift.ids import Digest
from sealift.train.job import checkpointfile as format_
from sealift.train.job.checkpointfile import (
    Checkpoint,
    JobBinding,
    checkpoint_path,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from sealift.train.output.accounts import PackedUses, TableUse, Uses

BINDING = JobBinding(
    job="digits", agreement=Digest.of(b"agreement"), settings=Digest.of(b"settings")
)


@dataclass(frozen=True)
class Progress:
    rows: int
    metrics: dict[str, float]


STATES = {"joint": os.urandom(300_000), "alone/ada": b"", "alone/bern": b"\x00\xff"}
CHECKPOINT = Checkpoint(12, 96, Progress(640, {"loss": 0.25}), STATES)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    key = SecretKey.generate()
    sealed = write_checkpoint(tmp_path, CHECKPOINT, BINDING, key)
    path = find_checkpoint(tmp_path, 12, sealed)
    assert path.name == "checkpoint-000012.sealed"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_checkpoint(path, Progress, BINDING, 12, key) == CHECKPOINT
    assert STATES["joint"][:64] not in path.read_bytes()


OTHERS = {
    "job": replace(BINDING, job="letters"),
    "agreement": replace(BINDING, agreement=Digest.of(b"other")),
    "settings": replace(BINDING, settings=Digest.of(b"other")),
}


@pytest.mark.parametrize("binding", OTHERS.values(), ids=OTHERS.keys())
def test_of_another_job(tmp_path: Path, binding: JobBinding) -> None:
    key = SecretKey.generate()
    write_checkpoint(tmp_path, CHECKPOINT, BINDING, key)
    with pytest.raises(PolicyError) as caught:
        read_checkpoint(checkpoint_path(tmp_path, 12), Progress, binding, 12, key)
    assert caught.value.code == "checkpoint-other-job"


@pytest.mark.parametrize("version", [1, 3])
def test_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    key = SecretKey.generate()
    monkeypatch.setattr(format_, "VERSION", version)
    write_checkpoint(tmp_path, CHECKPOINT, BINDING, key)
    monkeypatch.undo()
    with pytest.raises(MalformedError) as caught:
        read_checkpoint(checkpoint_path(tmp_path, 12), Progress, BINDING, 12, key)
    assert caught.value.code == "checkpoint-version"
    assert f"has format version {version}" in str(caught.value)


def rewritten(change: Callable[[dict[str, object], bytes], bytes]) -> bytes:
    """The plaintext of a checkpoint, with its head and states changed."""
    head = {
        "binding": {
            "agreement": BINDING.agreement.to_text(),
            "job": BINDING.job,
            "settings": BINDING.settings.to_text(),
        },
        "number": 12,
        "position": 96,
        "progress": {"metrics": {}, "rows": 1},
        "states": [{"length": 3, "name": "a"}, {"length": 2, "name": "b"}],
    }
    return change(head, b"aaabb")


def packed(head: dict[str, object], states: bytes, *, magic: bytes = b"") -> bytes:
    raw = json.dumps(head, separators=(",", ":"), sort_keys=True).encode()
    start = format_._START.pack(magic or format_.MAGIC, format_.VERSION, len(raw))
    return start + raw + states


def with_states(
    *states: tuple[str, int],
) -> Callable[[dict[str, object], bytes], bytes]:
    entries = [{"length": length, "name": name} for name, length in states]
    return lambda head, raw: packed({**head, "states": entries}, raw)


SPOILED = {
    "empty": lambda head, raw: b"",
    "other magic": lambda head, raw: packed(head, raw, magic=b"x"),
    "head too long": lambda head, raw: packed(head, b"")[:40],
    "no head": lambda head, raw: packed({}, raw),
    "more in the head": lambda head, raw: packed({**head, "more": 1}, raw),
    "other number": lambda head, raw: packed({**head, "number": 11}, raw),
    "too short": lambda head, raw: packed(head, raw[:-1]),
    "too long": lambda head, raw: packed(head, raw + b"c"),
    "negative": with_states(("a", -1), ("b", 6)),
    "twice": with_states(("a", 3), ("a", 2)),
    "not in order": with_states(("b", 3), ("a", 2)),
    "long name": with_states(("a" * 201, 5)),
    "wrong progress": lambda head, raw: packed({**head, "progress": {"rows": 1}}, raw),
}


@pytest.mark.parametrize("change", SPOILED.values(), ids=SPOILED.keys())
def test_nothing_else_parses(
    tmp_path: Path, change: Callable[[dict[str, object], bytes], bytes]
) -> None:
    key, path = SecretKey.generate(), checkpoint_path(tmp_path, 12)
    plaintext = rewritten(change)
    write_sealed_file(path, [plaintext], key=key, total_bytes=len(plaintext))
    with pytest.raises(MalformedError):
        read_checkpoint(path, Progress, BINDING, 12, key)


def test_the_unspoiled_one_parses(tmp_path: Path) -> None:
    """Control."""
    key, path = SecretKey.generate(), checkpoint_path(tmp_path, 12)
    plaintext = rewritten(packed)
    write_sealed_file(path, [plaintext], key=key, total_bytes=len(plaintext))
    found = read_checkpoint(path, Progress, BINDING, 12, key)
    assert found.states == {"a": b"aaa", "b": b"bb"}


def test_receipts_of_a_long_run_take_little_of_a_checkpoint() -> None:
    use = TableUse(resource="ada-train", purpose="train", visits=1000)
    receipts = tuple(Digest.of(str(number).encode()) for number in range(1000))
    uses = Uses((use,), receipts)
    packed = PackedUses.of(uses)
    assert packed.unpack() == uses
    raw = encode(packed)
    assert len(raw) < 44 * len(receipts)
    assert decode(PackedUses, raw).unpack() == uses
    with pytest.raises(
        MalformedError, match="31 bytes cannot be split into names of 32 bytes"
    ):
        PackedUses((), bytes(31)).unpack()
