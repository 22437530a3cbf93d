"""`sealift receipt verify` on the receipt of a run: what it compares with, and says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.cli.main import main
from sealift.codec import encode
from sealift.release.agreement.signed import save_signed
from sealift.release.log.heads import HeadStore
from sealift.train.output import runreceipt
from sealift.train.output.runreceipt import sign_run
from tests.sim.owners import make_broker
from tests.sim.paperwork import release_once
from tests.sim.runreceipts import MODEL, SmallRun, accounted, release, small_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SmallRun]:
    """receipt.json, model.safetensors, agreement.json, heads.json, and all logs."""
    with small_run(tmp_path) as made:
        (tmp_path / "receipt.json").write_bytes(sign_run(made.receipt, made.instance))
        (tmp_path / "model.safetensors").write_bytes(MODEL)
        save_signed(made.consortium.signed(), tmp_path / "agreement.json")
        for head in made.receipt.manifest.heads:
            HeadStore(tmp_path / "heads.json").admit(head)
        yield made


@pytest.fixture
def said(tmp_path: Path, run: SmallRun, capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(tmp_path, capsys)


class Said:
    """What the command says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *words: str, rc: int = 0, file: str = "receipt.json") -> str:
        named = [str(self.folder / w) if "." in w else w for w in words]
        found = main(["receipt", "verify", str(self.folder / file), *named])
        out, err = self._capsys.readouterr()
        assert found == rc, err
        return out if not rc else err

    def verified(self, *words: str) -> str:
        return str(json.loads(self(*words, "--json"))["verified"])


ALONE = "internally consistent"


def test_alone_it_is_internally_consistent(said: Said) -> None:
    lines = said().splitlines()
    assert lines[0].startswith("agreement         joint-digits number 1, signed by ada")
    assert f"verified          {ALONE}" in lines
    verdict = (
        "verdict The receipt is internally consistent. To prove that it is not "
        "forged, add `--with-log audit.db`."
    )
    assert " ".join(" ".join(lines[-2:]).split()) == verdict
    assert said.verified().startswith(ALONE)


def test_with_a_head_from_outside(said: Said) -> None:
    words = said.verified("--head", "heads.json")
    assert "ada's log, 3 entries" in words
    assert "internally" not in words


def test_with_the_log_itself(said: Said, run: SmallRun) -> None:
    words = said.verified("--with-log", "bern.log")
    assert "bern's log has" in words
    assert "bern-heldout, bern-train, for evidence sha256:" in words


def test_a_log_of_another_run_is_named(said: Said, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with small_run(tmp_path / "there"):
        words = said("--with-log", "there/ada.log", rc=5)
    assert "there/ada.log: the manifest contains no head of this log" in words
    assert "[other-log]" in words


def test_a_head_of_another_size_needs_the_log(
    said: Said, run: SmallRun, tmp_path: Path
) -> None:
    """The owner's log went on after the run, and so did what it kept."""
    later = release_once(run.consortium, run.boxes["ada"], "ada")
    (tmp_path / "later.json").write_bytes(encode(later))
    assert "[head-unproven]" in said("--head", "later.json", rc=2)
    words = said.verified("--head", "later.json", "--with-log", "ada.log")
    assert "ada's log, 4 entries" in words


def test_a_head_of_somebody_else_says_nothing(said: Said, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with small_run(tmp_path / "there") as other:
        foreign = encode(other.receipt.manifest.heads[0])
    (tmp_path / "foreign.json").write_bytes(foreign)
    assert "[no-head]" in said("--head", "foreign.json", rc=5)


def test_a_forked_log_is_found(said: Said, run: SmallRun, tmp_path: Path) -> None:
    (tmp_path / "fork").mkdir()
    box = make_broker(run.consortium, "ada", tmp_path / "fork")
    for _ in range(2):
        head = release_once(run.consortium, box, "ada")
    box.close()
    (tmp_path / "forked.json").write_bytes(encode(head))
    assert "[log-forked]" in said("--head", "forked.json", rc=5)
    assert "[log-forked]" in said("--with-log", "fork/ada.log", rc=5)


def test_another_owners_log_proves_no_head(
    said: Said, run: SmallRun, tmp_path: Path
) -> None:
    """A head of a fork, and somebody else's honest log beside it."""
    (tmp_path / "fork").mkdir()
    box = make_broker(run.consortium, "bern", tmp_path / "fork")
    head = release_once(run.consortium, box, "bern")
    box.close()
    (tmp_path / "forked.json").write_bytes(encode(head))
    words = ["--head", "forked.json", "--with-log"]
    assert "[head-unproven]" in said(*words, "ada.log", rc=2)
    assert "[log-forked]" in said(*words, "bern.log", rc=5)


def test_a_log_must_have_the_releases(
    said: Said, run: SmallRun, tmp_path: Path
) -> None:
    """Releases that stand in a fork alone: the honest log knows nothing of them."""
    (tmp_path / "fork").mkdir()
    box = make_broker(run.consortium, "ada", tmp_path / "fork")
    forked = [
        release(run.consortium, box, "ada", part, run.instance)
        for part in ("train", "heldout")
    ]
    box.close()
    honest = [
        each
        for each in run.receipt.released
        if each.head.body.log != forked[0].head.body.log
    ]
    lie = replace(run.receipt, released=(*forked, *honest))
    (tmp_path / "lie.json").write_bytes(sign_run(lie, run.instance))
    words = said("--with-log", "ada.log", file="lie.json", rc=5)
    assert "[log-forked]" in words


def test_the_model(said: Said, tmp_path: Path) -> None:
    assert "the model's file" in said("--model", "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(MODEL + b"!")
    assert "[weights-differ]" in said("--model", "model.safetensors", rc=5)


def test_it_ends_with_one_verdict(
    said: Said, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it is refused; a model that is another one ends it at once."""
    last = said("--with-log", "ada.log").splitlines()[-1]
    assert last == "verdict           verified, and compared with what you gave"
    (tmp_path / "model.safetensors").write_bytes(MODEL + b"!")
    model = str(tmp_path / "model.safetensors")
    words = ["receipt", "verify", str(tmp_path / "receipt.json"), "--model", model]
    assert main(words) == 5
    assert capsys.readouterr().out == "verdict           refused [weights-differ]\n"
    assert main([*words, "--json"]) == 5
    assert capsys.readouterr().out == ""


def test_the_agreement(said: Said, run: SmallRun, tmp_path: Path) -> None:
    assert "its agreement" in said.verified("--agreement", "agreement.json")
    other = tmp_path / "other"
    other.mkdir()
    with small_run(other) as made:
        save_signed(made.consortium.signed(), tmp_path / "foreign.json")
    assert "[other-agreement]" in said("--agreement", "foreign.json", rc=5)


def test_what_stood_before_the_lie_is_still_said(
    said: Said, run: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lie = sign_run(replace(run.receipt, released=()), run.instance)
    (tmp_path / "lie.json").write_bytes(lie)
    assert main(["receipt", "verify", str(tmp_path / "lie.json")]) == 5
    out, err = capsys.readouterr()
    assert "\nevidence " in out
    assert "\nkeys released" not in out
    assert "keys released: the rows of ada-train" in err


def test_files_that_are_missing_are_said_before_anything_holds(said: Said) -> None:
    for words in (("--model", "no.safetensors"), ("--with-log", "no.db")):
        assert f"{words[1]} does not exist" in said(*words, rc=3)
        assert "gone.json does not exist" in said(*words, file="gone.json", rc=3)


def test_several_logs(said: Said) -> None:
    words = said.verified("--with-log", "ada.log", "--with-log", "cleo.log")
    assert "ada's log has" in words
    assert "cleo's log has" in words


def test_damaged(said: Said, tmp_path: Path) -> None:
    raw = (tmp_path / "receipt.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(raw[: len(raw) // 2])
    said(file="cut.json", rc=6)
    (tmp_path / "empty.json").write_bytes(b"")
    said(file="empty.json", rc=6)


def test_options_of_a_run_are_not_for_visits(said: Said, tmp_path: Path) -> None:
    (tmp_path / "visit.json").write_bytes(b"{}")
    assert "[usage]" in said("--model", "m.safetensors", file="visit.json", rc=2)


@pytest.mark.parametrize(
    ("compared", "line"),
    [
        (None, "no meeting took place; the keys are those of the agreement"),
        ((), "no"),
        (("ada",), "compared by ada; not compared by bern"),
        (("ada", "bern"), "compared by ada, bern"),
    ],
)
def test_who_did_not_compare_words_is_named(compared: object, line: str) -> None:
    agreement = SimpleNamespace(compared=compared, data_owners=("ada", "bern"))
    verified: Any = SimpleNamespace(agreement=agreement)
    receipt: Any = None  # nothing of it is asked
    assert runreceipt._compared(receipt, verified) == line


def test_at_is_the_time_as_of_which_all_is_judged(said: Said) -> None:
    assert "[receipt-time]" in said("--at", "2020-01-01", rc=5)
    found = json.loads(said("--at", "2026-11-01", "--json"))
    assert found["evidence"].endswith("judged for 2026-11-01T00:00:00Z")


def test_at_alone_is_refused_for_receipts_of_visits(
    said: Said, run: SmallRun, tmp_path: Path
) -> None:
    (tmp_path / "visit.json").write_bytes(encode(run.visits[0]))
    assert "--agreement FILE" in said("--at", "2020-01-01", file="visit.json", rc=2)
    said(file="visit.json")


def test_a_run_and_a_visit_are_verified_in_two_commands(
    said: Said, run: SmallRun, tmp_path: Path
) -> None:
    (tmp_path / "visit.json").write_bytes(encode(run.visits[0]))
    assert "two commands" in said("receipt.json", file="visit.json", rc=2)
    assert "[receipts-differ]" in said("visit.json", rc=5)


def test_receipts_of_several_parties_are_the_same(said: Said, tmp_path: Path) -> None:
    raw = (tmp_path / "receipt.json").read_bytes()
    (tmp_path / "north.json").write_bytes(raw)
    assert said("north.json") == said()
    (tmp_path / "north.json").write_bytes(raw + b" ")
    assert "[receipts-differ]" in said("north.json", rc=5)


def test_of_several_owners_the_screen_says_what_all_signed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_run(tmp_path / "group", group=True) as made:
        raw = sign_run(made.receipt, made.instance)
    (tmp_path / "receipt.json").write_bytes(raw)
    told = Said(tmp_path, capsys).verified()
    assert "ada, bern, cleo" in told.partition("; ")[0]


def test_what_an_accelerator_says_of_itself_begins_no_line(
    said: Said, run: SmallRun, tmp_path: Path
) -> None:
    """As a terminal of 80 columns breaks lines: our names alone stand at the beginning."""
    names = {line[:16].strip() for line in said().splitlines()}
    wide = " ".join(["\u5b57" * 15, "verified   yes, by all of them"] * 9)
    manifest = replace(
        run.receipt.manifest, sandbox=wide, device=wide, software=wide, collectives=wide
    )
    forged = accounted(replace(run.receipt, manifest=manifest), [run.instance])
    (tmp_path / "forged.json").write_bytes(sign_run(forged, run.instance))
    lines = said(file="forged.json").splitlines()
    assert any("\u5b57" in line for line in lines)
    for line in lines:
        assert line[:16].strip() in names
        drawn = len(line) + line.count("\u5b57")
        assert drawn <= 80 or line[80:].rstrip(",").isalnum()  # a digest
