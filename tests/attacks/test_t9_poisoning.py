"""T9: what was trained on is what was committed to, and receipts say which rows it was.

A holder that signed an agreement changes its rows afterwards: it swaps, repeats, edits or
shortens them and seals them again under the same data key, with the agreed leaves or with
leaves that fit. Nothing of it is trained on, and there is no receipt. What a holder committed to before it signed nobody can check; but the receipts
of a run name exactly the rows that were trained on, under the commitment of their owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.channel.record.commitment import LeafHasher, VerifiedLeaves
from sealift.channel.record.rawfile import RawSealedFile
from sealift.channel.record.sealedfile import write_sealed_file
from sealift.errors import PolicyError
from sealift.ids import Digest
from sealift.release.receipt import (
    Receipt,
    SignedReceipt,
    sign_receipt,
    verify_receipt,
)
from sealift.travel.accelerator import visit
from sealift.travel.holder.visit import HeldResource
from tests.sim.visit_world import VisitWorld
from tests.worlds.visits import RECORD_BYTES, ROW_BYTES

Change = Callable[[bytes], bytes]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


def rows_of(plain: bytes) -> list[bytes]:
    return [plain[at : at + ROW_BYTES] for at in range(0, len(plain), ROW_BYTES)]


def swapped(plain: bytes) -> bytes:
    """Two rows in each other's places."""
    rows = rows_of(plain)
    return b"".join([rows[1], rows[0], *rows[2:]])


def repeated(plain: bytes) -> bytes:
    """One row twice, another not at all."""
    rows = rows_of(plain)
    return b"".join([rows[0], rows[0], *rows[2:]])


def relabelled(plain: bytes) -> bytes:
    """One bit of one row."""
    changed = bytearray(plain)
    changed[7 * ROW_BYTES + 3] ^= 1
    return bytes(changed)


CHANGES = [swapped, repeated, relabelled]


def poisoned(
    world: VisitWorld, change: Change, *, own_leaves: bool = False
) -> HeldResource:
    """The holder's file, sealed again with other rows, under the agreed key."""
    held = world.held["ada-train"]
    plain = change(world.plain["ada-train"])
    card = write_sealed_file(
        world.folder / "poisoned.sealed",
        [plain],
        key=world.consortium.keys["ada-train"],
        total_bytes=len(plain),
        record_bytes=RECORD_BYTES,
        replace=True,
    )
    leaves = card.leaves if own_leaves else held.leaves
    source = world.files.enter_context(RawSealedFile(card.path))
    return replace(held, source=source, leaves=leaves)


def assert_not_trained(world: VisitWorld, code: str = "content-mismatch") -> None:
    outcome = world.visit("ada")
    assert outcome.reason == code
    assert outcome.receipt is None
    assert world.trained == []
    assert world.pools[-1].scrubbed


@pytest.mark.parametrize("change", CHANGES)
def test_rows_changed_after_signing_are_not_trained_on(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    world.held["ada-train"] = poisoned(world, change)
    assert_not_trained(world)
    monkeypatch.setattr(VerifiedLeaves, "verify", lambda *_: None)  # the mutant
    assert world.visit("ada").verified
    assert world.trained[-1][1] == change(world.plain["ada-train"])


def test_nor_with_leaves_that_fit_them(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.held["ada-train"] = poisoned(world, swapped, own_leaves=True)
    assert_not_trained(world)

    def believe(leaves: list[bytes], commitment: object, **key: object) -> object:
        return VerifiedLeaves(commitment, leaves, LeafHasher(key["data_key"]))  # type: ignore[arg-type]

    monkeypatch.setattr(visit, "verify_leaves", believe)  # the mutant
    assert world.visit("ada").verified
    assert world.trained[-1][1] == swapped(world.plain["ada-train"])


@pytest.mark.parametrize(
    "change", [lambda plain: plain[:-ROW_BYTES], lambda plain: plain + bytes(ROW_BYTES)]
)
def test_nor_fewer_or_more_rows(world: VisitWorld, change: Change) -> None:
    world.held["ada-train"] = poisoned(world, change)
    assert_not_trained(world)


def test_another_partys_commitment_is_not_taken(world: VisitWorld) -> None:
    """An orchestrator cannot have other content trained on in an owner's name."""
    other = world.resource("bern-train").content
    world.change_lease = lambda lease: replace(lease, content=other)
    assert_not_trained(world, "foreign-lease")


def receipt_of(world: VisitWorld, first_row: int, rows: int) -> Receipt:
    outcome = world.visit("ada", offer=world.offer("ada", first_row, rows))
    assert outcome.receipt is not None
    return outcome.receipt.body


def test_receipts_account_for_every_row_that_was_trained_on(world: VisitWorld) -> None:
    slices = [(0, 7), (7, 7), (14, 6), (0, 7)]
    receipts = [receipt_of(world, *each) for each in slices]
    assert len(world.trained) == len(receipts)
    agreed = world.resource("ada-train").content
    for (trained, rows), receipt in zip(world.trained, receipts, strict=True):
        assert receipt.visit == trained
        assert receipt.content == agreed
        start = receipt.first_row * ROW_BYTES
        assert (
            rows == world.plain["ada-train"][start : start + receipt.rows * ROW_BYTES]
        )


def test_a_receipt_with_another_commitment_does_not_verify(world: VisitWorld) -> None:
    receipt = receipt_of(world, 0, 20)
    instance = world.endpoint.instance
    for change in (
        {"content": Digest.of(b"other rows")},
        {"content": world.resource("bern-train").content},
        {"holder": "bern"},
    ):
        claimed = sign_receipt(replace(receipt, **change), instance)
        with pytest.raises(PolicyError) as refusal:
            verify_receipt(claimed, world.agreement)
        assert refusal.value.code == "foreign-receipt"
    with pytest.raises(PolicyError) as refusal:  # the control: all but the log is there
        verify_receipt(sign_receipt(receipt, instance), world.agreement)
    assert refusal.value.code == "head-missing"


@pytest.mark.parametrize(
    "change", [{"content": Digest.of(b"other rows")}, {"job": "../../elsewhere"}]
)
def test_a_holder_does_not_take_a_receipt_for_other_work(
    world: VisitWorld, change: dict[str, Any]
) -> None:
    genuine = world.setup

    def setup(meet: object) -> object:
        made = genuine(meet)  # type: ignore[arg-type]
        write = made.sign

        def lie(*account: object) -> SignedReceipt:
            receipt = write(*account).body  # type: ignore[arg-type]
            return sign_receipt(replace(receipt, **change), world.endpoint.instance)

        made.sign = lie
        return made

    world.setup = setup  # type: ignore[assignment,method-assign]
    outcome = world.visit("ada")
    assert outcome.receipt is None
    assert outcome.holder_error is not None
    assert outcome.holder_error.code == "foreign-receipt"
