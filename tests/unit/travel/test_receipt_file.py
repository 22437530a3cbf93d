"""An owner's receipts of a job are the lines of one file, however long the job is."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.cli.receipt import ReceiptTotals, verified_receipts
from sealift.codec import encode
from sealift.crypto.sign import SigningKey
from sealift.errors import MalformedError, RefusedError, SealiftError
from sealift.ids import VisitId
from sealift.release.files import append_line
from sealift.release.receipt import (
    SignedReceipt,
    read_receipts,
    receipts_in,
    sign_receipt,
    verify_receipt,
)
from sealift.travel.holder.jobs import Receipts
from sealift.view.kept import _start_of_last
from tests.sim.paperwork import draft_receipt
from tests.worlds.consortium import make_consortium

CONSORTIUM = make_consortium()
INSTANCE = SigningKey.generate()


def receipt_of(job: str = "digits") -> SignedReceipt:
    draft = draft_receipt(CONSORTIUM, INSTANCE, ())
    return sign_receipt(replace(draft, job=job, visit=VisitId.generate()), INSTANCE)


def kept(folder: Path, many: int, job: str = "digits") -> list[SignedReceipt]:
    receipts, made = Receipts(folder), [receipt_of(job) for _ in range(many)]
    for each in made:
        receipts.keep(each)
    assert receipts.kept == many
    return made


def read(path: Path, start: int = 0) -> list[SignedReceipt]:
    return [signed for signed, _end in read_receipts(path, start)]


def test_all_receipts_of_a_job_are_in_one_file(tmp_path: Path) -> None:
    made = kept(tmp_path, 5)
    other = kept(tmp_path, 1, "letters")
    (digits, letters) = receipts_in(tmp_path)
    assert (digits.name, letters.name) == (
        "digits.receipts.jsonl",
        "letters.receipts.jsonl",
    )
    assert (read(digits), read(letters)) == (made, other)
    ends = [end for _signed, end in read_receipts(digits)]
    assert ends[-1] == digits.stat().st_size
    assert read(digits, ends[2]) == made[3:]


def test_those_of_earlier_versions_are_read_beside_them(tmp_path: Path) -> None:
    former = receipt_of()
    (tmp_path / "00001-visit.receipt.json").write_bytes(encode(former))
    made = kept(tmp_path, 2)
    found = [*verified_receipts([tmp_path], None)]
    assert sorted(map(encode, found)) == sorted(map(encode, [former, *made]))


def test_what_a_kill_left_of_a_line_is_no_receipt_and_goes(tmp_path: Path) -> None:
    made = kept(tmp_path, 2)
    (path,) = receipts_in(tmp_path)
    with path.open("ab") as file:
        file.write(encode(receipt_of())[:700])
    assert read(path) == made
    made += kept(tmp_path, 1)
    assert read(path) == made


def test_a_line_that_was_changed_is_refused_by_its_visit(tmp_path: Path) -> None:
    made = kept(tmp_path, 3)
    (path,) = receipts_in(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"rows":', b'"rows":1', 1))
    with pytest.raises(RefusedError) as caught:
        [*verified_receipts([tmp_path], None)]
    assert caught.value.code == "receipt-altered"
    assert made[0].body.visit.to_text() in str(caught.value)
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(MalformedError) as broken:
        [*verified_receipts([tmp_path], None)]
    assert broken.value.code == "bad-receipt"


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kept(tmp_path, 2)
    (path,) = receipts_in(tmp_path)
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    receipts = Receipts(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(SealiftError) as caught:
            receipts.keep(receipt_of())
    assert caught.value.code == "disk-full"
    assert (receipts.kept, receipts.lost) == (0, 1)
    assert path.read_bytes() == before
    assert read(path) == made


def test_two_processes_of_an_owner_may_write_at_one_time(tmp_path: Path) -> None:
    path = tmp_path / "digits.receipts.jsonl"
    lines = [encode(receipt_of()) for _ in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda line: append_line(path, line), lines))
    assert sorted(path.read_bytes().splitlines()) == sorted(lines)


def test_totals_need_no_receipt_but_the_last(tmp_path: Path) -> None:
    made = kept(tmp_path, 4)
    totals = ReceiptTotals()
    for signed in verified_receipts([tmp_path], None):
        totals.add(verify_receipt(signed))
    facts = totals.facts("so it is")
    assert (facts["receipts"], facts["jobs"]) == (4, "digits")
    assert totals.require_last() == made[-1].body
    cargo = sum(each.body.cargo_bytes for each in made)
    assert facts["bytes"].startswith(f"{cargo:,} opened")


@pytest.mark.parametrize(("lines", "left"), [(2, 2), (9, 5), (5, 5)])
def test_a_page_begins_with_the_latest(tmp_path: Path, lines: int, left: int) -> None:
    made = kept(tmp_path, 5)
    (path,) = receipts_in(tmp_path)
    assert read(path, _start_of_last(path, lines)) == made[-left:]
