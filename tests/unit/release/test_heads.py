"""Kept heads: on disk, per log, and found again for `audit verify`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.codec import encode
from sealift.crypto.merkle import leaf_hash
from sealift.crypto.sign import PublicKey, SigningKey, sign_document
from sealift.errors import MalformedError, PolicyError, UnavailableError
from sealift.ids import Digest
from sealift.release.log.auditlog import LogTree
from sealift.release.log.entries import SignedTreeHead, TreeHead
from sealift.release.log.heads import HeadStore, find_head

KEY, OTHER = SigningKey.generate(), SigningKey.generate()


def head(key: SigningKey = KEY, size: int = 1) -> SignedTreeHead:
    root = Digest.of(size.to_bytes(4, "big"))
    return sign_document(TreeHead(key.public_key, size, root, 0), key)


def test_logs_are_kept_apart(tmp_path: Path) -> None:
    store = HeadStore(tmp_path / "heads")
    store.admit(head(KEY))
    store.admit(head(OTHER, 7))
    again = HeadStore(tmp_path / "heads")
    assert again.last(KEY.public_key) == head(KEY)
    assert again.last(OTHER.public_key) == head(OTHER, 7)
    assert again.last(SigningKey.generate().public_key) is None


def test_the_same_head_again_needs_no_proof(tmp_path: Path) -> None:
    store = HeadStore(tmp_path / "heads")
    store.admit(head())
    store.admit(head())


GROWN = LogTree(leaf_hash(bytes([index])) for index in range(9))


def grown(size: int) -> SignedTreeHead:
    return sign_document(
        TreeHead(KEY.public_key, size, Digest(GROWN.root(size)), 0), KEY
    )


def prove(log: PublicKey, first: int, second: int) -> tuple[bytes, ...]:
    return GROWN.consistency_proof(first, second)


@pytest.mark.parametrize("loses_file", [False, True])
def test_two_processes_never_lower_a_head(tmp_path: Path, loses_file: bool) -> None:
    path = tmp_path / "heads"
    one, two = HeadStore(path), HeadStore(path)
    one.admit(grown(9))
    with pytest.raises(PolicyError) as caught:
        two.admit(grown(3))  # nothing but the file tells it of the other head
    assert caught.value.code == "head-unproven"
    two.admit(grown(3), prove)
    if loses_file:
        path.unlink()
    with pytest.raises(PolicyError):
        one.admit(grown(3))
    assert loses_file or HeadStore(path).last(KEY.public_key) == grown(9)


def test_a_head_kept_by_another_process_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "heads"
    store, other = HeadStore(path), HeadStore(path)
    store.admit(grown(2))

    def overtaken(log: PublicKey, first: int, second: int) -> tuple[bytes, ...]:
        other.admit(grown(9), prove)
        return prove(log, first, second)

    store.admit(grown(5), overtaken)
    assert HeadStore(path).last(KEY.public_key) == grown(9)


def test_found_in_a_store_and_alone(tmp_path: Path) -> None:
    HeadStore(tmp_path / "heads").admit(head())
    (tmp_path / "single").write_bytes(encode(head()))
    for name in ("heads", "single"):
        assert find_head(tmp_path / name, KEY.public_key) == head()
        with pytest.raises(PolicyError) as caught:
            find_head(tmp_path / name, OTHER.public_key)
        assert caught.value.code == "no-head"


def test_what_is_no_head(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"{}")
    with pytest.raises(MalformedError):
        find_head(tmp_path / "x", KEY.public_key)
    with pytest.raises(MalformedError):
        HeadStore(tmp_path / "x")
    with pytest.raises(UnavailableError):
        find_head(tmp_path / "nowhere", KEY.public_key)


def test_full_disk_keeps_the_head_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HeadStore(tmp_path / "heads")
    store.admit(head())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UnavailableError) as caught:
        store.admit(head(OTHER))
    assert caught.value.code == "disk-full"
    assert store.last(OTHER.public_key) is None
    assert [path.name for path in tmp_path.iterdir()] == ["heads"]
    assert HeadStore(tmp_path / "heads").last(KEY.public_key) == head()


def test_sizes_are_not_negative() -> None:
    with pytest.raises(MalformedError):
        TreeHead(KEY.public_key, -1, Digest(bytes(32)), 0)
