"""A model that parties must approve of: who opens it, when, and what they are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.codec import decode, encode
from sealift.crypto.identity import create_identity, save_identity
from sealift.crypto.keys import TOKEN
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    AuthenticationError,
    PolicyError,
    RefusedError,
    SealiftError,
    UnavailableError,
)
from sealift.ids import Digest
from sealift.release.agreement.explain import explain
from sealift.release.agreement.holes import find_holes
from sealift.release.agreement.signed import save_signed
from sealift.train.loop.states import parse_tensors
from sealift.train.output.approval import ApproverShare, share_name
from sealift.train.output.opening import read_model_manifest, read_share
from sealift.train.output.runfolder import OUTPUT_NAMES
from sealift.train.output.sealing import OutputKey
from tests.sim.approvedrun import (
    APPROVERS,
    MODEL,
    FinishedRun,
    finished_run,
    sign_run,
    who_approves,
)
from tests.worlds.consortium import Consortium, make_consortium

FIRST = make_consortium()
CONSORTIUM = who_approves(*APPROVERS, first=FIRST)
PASSPHRASE = "long enough for a test"


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return finished_run(CONSORTIUM, tmp_path / "run")


def code_of(error: pytest.ExceptionInfo[SealiftError]) -> str:
    return error.value.code


def test_it_opens_when_everybody_approved(run: FinishedRun) -> None:
    assert {path.name for path in run.folder.iterdir()} == {
        "manifest.json",
        "model.key.json",
        "model.sealed",
        "model.share.ada.json",
        "model.share.bern.json",
    }
    run.approve("bern", "ada")
    assert parse_tensors(run.open())["a"].content == MODEL["a"].content


def test_the_orchestrator_takes_every_file(run: FinishedRun) -> None:
    """But none that only an approver writes."""
    names = {path.name for path in run.folder.iterdir()} - {"manifest.json"}
    assert all(OUTPUT_NAMES.fullmatch(name) for name in names)
    assert not OUTPUT_NAMES.fullmatch("model.approval.ada.json")
    assert not OUTPUT_NAMES.fullmatch("model.share..json")
    assert not OUTPUT_NAMES.fullmatch("model.share.a/b.json")


@pytest.mark.parametrize("given", [(), ("ada",), ("bern",)])
def test_whose_approval_is_missing_is_said(
    run: FinishedRun, given: tuple[str, ...]
) -> None:
    run.approve(*given)
    with pytest.raises(PolicyError) as missing:
        run.open()
    assert code_of(missing) == "approval-missing"
    waiting = " and ".join(name for name in APPROVERS if name not in given)
    assert f"{waiting} must approve" in str(missing.value)


def test_everybody_who_gets_the_model_opens_it(tmp_path: Path) -> None:
    """An approver may get the model as well; its approval is needed all the same."""
    shared = who_approves("ada", "bern", model_to=("cleo", "ada"), first=FIRST)
    run = finished_run(shared, tmp_path)
    run.approve("bern")
    for name in ("cleo", "ada"):
        with pytest.raises(PolicyError, match="ada must approve"):
            run.open(name)
    run.approve("ada")
    assert run.open("cleo") == run.open("ada")
    with pytest.raises(PolicyError) as other:
        run.open("bern")
    assert code_of(other) == "other-key"


def test_without_approvers_the_key_is_what_it_was(tmp_path: Path) -> None:
    run = finished_run(FIRST, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"manifest.json", "model.sealed", "model.key.json"}
    assert decode(OutputKey, (tmp_path / "model.key.json").read_bytes())
    assert parse_tensors(run.open())
    with pytest.raises(SealiftError) as nobody:
        run.share("ada")
    assert code_of(nobody) == "no-approvers"


def test_only_who_is_named_approves(run: FinishedRun) -> None:
    """Neither another party, nor somebody else of an approver's name."""
    verified, stranger = CONSORTIUM.verified(), create_identity("ada")
    manifest = read_model_manifest(run.folder, verified)
    for other in (run.party("cleo"), stranger):
        with pytest.raises(PolicyError) as refused:
            read_share(run.folder, manifest, other, verified)
        assert code_of(refused) == "other-key"


def test_a_share_is_for_its_approver_alone(run: FinishedRun) -> None:
    """The operator, who has every file, and another approver open nothing."""
    path = run.folder / share_name("ada")
    share = decode(ApproverShare, path.read_bytes())
    for other in ("bern", "cleo"):
        with pytest.raises(AuthenticationError):
            run.party(other).hpke.open(encode(share.info), share.wrapped)
    opened = run.party("ada").hpke.open(encode(share.info), share.wrapped)
    assert len(opened.reveal(TOKEN)) == 32


def test_who_approved_does_not_do_it_again(run: FinishedRun) -> None:
    run.approve("ada")
    with pytest.raises(SealiftError) as again:
        run.approve("ada")
    assert code_of(again) == "exists"


def test_a_share_that_was_lost_cannot_be_approved(run: FinishedRun) -> None:
    (run.folder / share_name("ada")).unlink()
    with pytest.raises(UnavailableError):
        run.share("ada")


def test_statistics_alone_need_no_approval(run: FinishedRun) -> None:
    manifest = read_model_manifest(run.folder, CONSORTIUM.verified())
    sign_run(run, replace(manifest, weights=None))
    with pytest.raises(UnavailableError) as nothing:
        run.share("ada")
    assert code_of(nothing) == "no-model"


@pytest.mark.parametrize(
    "changes", [{"job": "other"}, {"weights": Digest.of(b"other")}]
)
def test_a_share_of_another_run_is_not_approved(
    run: FinishedRun, changes: dict[str, object]
) -> None:
    """The instance key signed both; they do not fit each other."""
    manifest = read_model_manifest(run.folder, CONSORTIUM.verified())
    sign_run(run, replace(manifest, **changes))  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match=f"another {next(iter(changes))}") as refused:
        run.share("ada")
    assert code_of(refused) == "share-differs"


def test_a_manifest_that_no_accelerator_signed_is_not_approved(
    run: FinishedRun,
) -> None:
    manifest = read_model_manifest(run.folder, CONSORTIUM.verified())
    sign_run(replace(run, instance=SigningKey.generate()), manifest)
    with pytest.raises(RefusedError):
        run.share("ada")


def test_it_is_said_in_plain_words() -> None:
    text = "\n".join(each.text for each in explain(CONSORTIUM.agreement))
    names = " and ".join(APPROVERS)
    assert f"Nobody can open the model before {names} approve it" in text
    before = "\n".join(each.text for each in explain(FIRST.agreement))
    assert "approve" not in before
    holes = find_holes(FIRST.agreement)
    assert [h.line for h in find_holes(CONSORTIUM.agreement)] == [h.line for h in holes]


class Papers:
    """A run's folder, a signed agreement, and identity files."""

    def __init__(self, folder: Path, consortium: Consortium) -> None:
        self.run = finished_run(consortium, folder / "run")
        self.agreement = folder / "agreement.json"
        save_signed(consortium.signed(), self.agreement)
        self.folder = folder
        (folder / "pw").write_text(PASSPHRASE)
        for name, identity in consortium.identities.items():
            save_identity(identity, folder / f"{name}.key", PASSPHRASE)

    def sealift(self, verb: str, name: str, *more: str) -> int:
        words = [str(self.run.folder), "--key", str(self.folder / f"{name}.key")]
        words += ["--agreement", str(self.agreement)]
        words += ["--passphrase-file", str(self.folder / "pw")]
        return main(["output", verb, *words, *more])


def test_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    papers = Papers(tmp_path, CONSORTIUM)
    model = tmp_path / "model.safetensors"
    assert papers.sealift("approve", "ada") == 2  # nobody to ask
    shown = capsys.readouterr()
    assert "[not-confirmed]" in shown.err
    assert not list(papers.run.folder.glob("*approval*"))
    assert papers.sealift("approve", "ada", "--yes") == 0
    shown = capsys.readouterr()
    for line in (
        "job         job",
        f"code        {CONSORTIUM.agreement.code.digest}, entry recipe.py",
        "level       development",
        "visits      ada 2, bern 1",
        "rows agreed ada 40, bern 40, cleo 40",
        "metrics     loss 0.125",
        "model to    cleo",
    ):
        assert line in shown.out.splitlines()
    assert "level development" in shown.err
    assert papers.sealift("open", "cleo", "-o", str(model)) == 5
    assert "bern" in capsys.readouterr().err
    assert papers.sealift("approve", "cleo", "--yes") == 5
    assert papers.sealift("approve", "bern", "--yes") == 0
    assert papers.sealift("open", "cleo", "-o", str(model)) == 0
    assert parse_tensors(model.read_bytes())
