"""What a holder demands to see before its rows leave (rule H6)."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.cli.roles.join import require_kept
from sealift.crypto.sign import sign_document
from sealift.errors import IntegrityError, JobError, MalformedError, PolicyError
from sealift.ids import Digest, Role, VisitId
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.files import append_line
from sealift.release.log.entries import SignedTreeHead, TreeHead
from sealift.release.log.heads import HeadStore
from sealift.session.endpoint import Endpoint
from sealift.travel.holder.jobs import HolderJob, Receipts
from sealift.travel.holder.visit import SERVED_NAME, ServedVisits
from sealift.travel.visit.messages import StartJob
from tests.sim.owners import now
from tests.sim.paperwork import signed_receipt
from tests.worlds.consortium import RUN, Consortium, make_consortium


@pytest.fixture
def consortium() -> Consortium:
    return make_consortium()


def holder_job(consortium: Consortium, folder: Path, owner: str = "ada") -> HolderJob:
    verified = consortium.verified()
    identity = consortium.identities[owner]
    endpoint = Endpoint(
        role=Role.HOLDER, name=owner, agreement=verified.digest, identity=identity
    )
    return HolderJob(
        cast(Any, None),
        endpoint,
        verified,
        held={},
        heads=HeadStore(folder / "heads.json"),
        served=ServedVisits(folder / SERVED_NAME),
        receipts=Receipts(folder),
        run=RUN,
        clock=lambda: 0.0,
        statements=StatementsInForce(verified, folder, clock=now),
    )


def head(consortium: Consortium, owner: str) -> SignedTreeHead:
    identity = consortium.identities[owner]
    tree = TreeHead(identity.public_key, 1, Digest.of(owner.encode()), 0)
    return sign_document(tree, identity)


def test_the_head_of_the_own_log_is_enough(
    consortium: Consortium, tmp_path: Path
) -> None:
    holder_job(consortium, tmp_path)._check_heads((head(consortium, "ada"),))


@pytest.mark.parametrize("others", [(), ("bern",), ("bern", "cleo")])
def test_without_the_own_log_nothing_leaves(
    consortium: Consortium, tmp_path: Path, others: tuple[str, ...]
) -> None:
    heads = tuple(head(consortium, owner) for owner in others)
    with pytest.raises(PolicyError) as refused:
        holder_job(consortium, tmp_path)._check_heads(heads)
    assert refused.value.code == "head-missing"


def test_a_log_of_no_party_is_refused(consortium: Consortium, tmp_path: Path) -> None:
    stranger = make_consortium()
    heads = (head(consortium, "ada"), head(stranger, "bern"))
    with pytest.raises(PolicyError) as refused:
        holder_job(consortium, tmp_path)._check_heads(heads)
    assert refused.value.code == "other-log"


def test_a_head_that_its_log_did_not_sign_is_refused(
    consortium: Consortium, tmp_path: Path
) -> None:
    forged = replace(head(consortium, "ada"), signature=bytes(64))
    with pytest.raises(IntegrityError) as refused:
        holder_job(consortium, tmp_path)._check_heads((forged,))
    assert refused.value.code == "head-unsigned"


def test_a_log_that_is_another_than_the_one_shown_before_is_refused(
    consortium: Consortium, tmp_path: Path
) -> None:
    holder_job(consortium, tmp_path)._check_heads((head(consortium, "ada"),))
    ada = consortium.identities["ada"]
    other = sign_document(TreeHead(ada.public_key, 1, Digest.of(b"other"), 0), ada)
    with pytest.raises(IntegrityError) as refused:
        holder_job(consortium, tmp_path)._check_heads((other,))
    assert refused.value.code == "log-forked"


@pytest.mark.parametrize("gone", [False, True])
def test_a_receipt_that_cannot_be_written_is_lost(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """The visit was served: that it cannot be shown later is no success."""
    folder = tmp_path / "receipts"
    folder.mkdir()
    holder = holder_job(consortium, tmp_path)
    holder._receipts = receipts = Receipts(folder)
    visit = VisitId.generate()
    lease = cast(Any, SimpleNamespace(visit=visit, shape=(3,)))
    monkeypatch.setattr(
        holder, "_provision", lambda signed: signed_receipt(consortium, ())
    )
    if gone:
        folder.rmdir()
    holder._attend(cast(Any, SimpleNamespace(body=lease)))
    assert (receipts.kept, receipts.failed, receipts.lost) == (not gone, gone, gone)
    if gone:
        with pytest.raises(JobError) as lost:
            require_kept(receipts.lost, folder)
        assert lost.value.code == "receipt-lost"
        assert lost.value.exit_code
    else:
        require_kept(receipts.lost, folder)


@pytest.mark.parametrize("job", ["../../elsewhere", "a/b", "", "x" * 300, "nul\0"])
def test_a_receipt_is_written_nowhere_but_in_its_folder(
    consortium: Consortium, tmp_path: Path, job: str
) -> None:
    """The job stands in what another party signed, and becomes the name of a file."""
    folder = tmp_path / "home" / "receipts"
    folder.mkdir(parents=True)
    receipts, signed = Receipts(folder), signed_receipt(consortium, ())
    foreign = replace(signed, body=replace(signed.body, job=job))
    with pytest.raises(MalformedError) as refused:
        receipts.keep(foreign)
    assert refused.value.code == "bad-name"
    assert (receipts.kept, receipts.lost) == (0, 1)
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_a_job_that_is_opened_under_a_path_is_refused() -> None:
    StartJob("digits", b"{}")  # control
    with pytest.raises(MalformedError) as refused:
        StartJob("../digits", b"{}")
    assert refused.value.code == "bad-name"


def test_a_receipt_still_on_its_way_to_the_disk_is_not_lost(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orchestrator is lost in that moment, and another holder_job begins."""
    writing, go_on = threading.Event(), threading.Event()

    def write_slowly(path: Path, line: bytes) -> None:
        writing.set()
        assert go_on.wait(300)
        append_line(path, line)

    monkeypatch.setattr("sealift.travel.holder.jobs.append_line", write_slowly)
    receipts = Receipts(tmp_path)
    signed = signed_receipt(consortium, ())
    visit = threading.Thread(target=receipts.keep, args=(signed,))
    visit.start()
    assert writing.wait(300)
    assert (receipts.kept, receipts.lost) == (0, 0)
    go_on.set()
    visit.join()
    assert (receipts.kept, receipts.lost) == (1, 0)
