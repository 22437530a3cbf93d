"""Opening a model that not everybody approved of: by less, by other, by forged shares.

The operator has every file of a run, and who gets the model may hold its share and
whatever approvals there are. Each defence is taken away once, to show that the attack
is a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.codec import decode, encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PolicyError,
    RefusedError,
)
from sealift.ids import Digest
from sealift.release.checkpoint import join_key, split_key
from sealift.release.grant import seal_grant
from sealift.train.output import approval
from sealift.train.output.approval import (
    Approval,
    ApprovalInfo,
    ApprovedShare,
    ApproverShare,
    RecipientShare,
    approval_name,
    share_name,
)
from sealift.train.output.opening import read_model_manifest
from sealift.train.output.sealing import KEY_NAME, MODEL_NAME, open_stream
from tests.sim.approvedrun import (
    APPROVERS,
    FinishedRun,
    finished_run,
    sign_run,
    who_approves,
)
from tests.sim.mutants import without
from tests.worlds.consortium import make_consortium

FIRST = make_consortium()
CONSORTIUM = who_approves(*APPROVERS, first=FIRST)
BOTH = who_approves(*APPROVERS, model_to=("cleo", "ada"), first=FIRST)


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    run = finished_run(CONSORTIUM, tmp_path / "run")
    run.approve(*APPROVERS)
    return run


def refused(run: FinishedRun, code: str) -> None:
    with pytest.raises(PolicyError) as caught:
        run.open()
    assert caught.value.code == code


def shares_of(run: FinishedRun) -> dict[str, SecretKey]:
    """What recipient and approvers hold, opened by themselves."""
    own = decode(RecipientShare, (run.folder / KEY_NAME).read_bytes())
    found = {"cleo": run.party("cleo").hpke.open(encode(own.info), own.wrapped)}
    for name in APPROVERS:
        share = decode(ApproverShare, (run.folder / share_name(name)).read_bytes())
        found[name] = run.party(name).hpke.open(encode(share.info), share.wrapped)
    return found


def open_with(run: FinishedRun, shares: Iterable[SecretKey]) -> bytes:
    return open_stream((run.folder / MODEL_NAME).read_bytes(), join_key(shares))


@pytest.mark.parametrize("left_out", ["cleo", *APPROVERS])
def test_all_shares_but_one_are_another_key(run: FinishedRun, left_out: str) -> None:
    """Whoever is missing, the one who gets the model included."""
    shares = shares_of(run)
    del shares[left_out]
    with pytest.raises(AuthenticationError):
        open_with(run, shares.values())


def test_all_shares_are_the_key(run: FinishedRun) -> None:
    """The control."""
    assert open_with(run, shares_of(run).values()) == run.open()


@pytest.mark.parametrize("left_out", ["", *APPROVERS])
def test_without_one_share_the_others_say_nothing(left_out: str) -> None:
    """Joined, they are uniform, however plain the key; 6 deviations is once in 10^9."""
    ones, splits = 0, 400
    for _ in range(splits):
        shares = split_key(SecretKey(bytes(32)), (*APPROVERS, ""))
        del shares[left_out]
        ones += int.from_bytes(join_key(shares.values()).reveal(TOKEN)).bit_count()
    bits = splits * 256
    assert abs(ones - bits / 2) < 6 * (bits / 4) ** 0.5


def test_with_it_they_are_the_key() -> None:
    """The control: all of them always give the plain key."""
    shares = split_key(SecretKey(bytes(32)), (*APPROVERS, ""))
    assert join_key(shares.values()).reveal(TOKEN) == bytes(32)


def test_a_missing_approval_is_not_made_up(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random share in its place: named by its commitment; else the key is wrong."""
    ada = run.party("ada")
    run.change("ada", lambda s: seal_again(s, ada, SecretKey.generate(), run))
    refused(run, "approval-false")
    without(approval, "require_committed")(monkeypatch)
    with pytest.raises(AuthenticationError):
        run.open()


def seal_again(
    share: ApprovedShare,
    signer: Identity,
    content: SecretKey,
    run: FinishedRun,
    info: ApprovalInfo | None = None,
) -> ApprovedShare:
    """Another content or info, sealed to cleo and signed by whoever."""
    info = info or share.info
    grant = seal_grant(
        content,
        info,
        recipient=run.party("cleo").card.hpke,
        signer=signer,
        label=Label.OUTPUT_APPROVAL,
    )
    return ApprovedShare(info, *grant)


def test_an_approval_of_another_run(run: FinishedRun, tmp_path: Path) -> None:
    """The same job again, with the same weights: it approved of the first alone."""
    second = finished_run(CONSORTIUM, tmp_path / "second")
    second.approve("bern")
    second.put("ada", run.approval("ada"))
    refused(second, "approval-differs")


@pytest.mark.parametrize("job", ["job", "other"])
def test_the_second_run_opens_with_its_own(tmp_path: Path, job: str) -> None:
    """The control."""
    second = finished_run(CONSORTIUM, tmp_path / "second", job)
    second.approve(*APPROVERS)
    assert second.open()


def test_another_manifest_of_the_same_instance(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was approved is what was shown, to the last metric."""
    manifest = read_model_manifest(run.folder, CONSORTIUM.verified())
    sign_run(run, replace(manifest, metrics={"loss": 9.0}))
    with pytest.raises(PolicyError, match="another manifest") as caught:
        run.open()
    assert caught.value.code == "approval-differs"
    without(approval, "require_same")(monkeypatch)
    assert run.open()


def test_another_approvers_signature(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who got hold of ada's share cannot say yes in ada's name."""
    share = shares_of(run)["ada"]
    run.change("ada", lambda s: seal_again(s, run.party("bern"), share, run))
    refused(run, "approval-unsigned")
    without(approval, "verify_giver")(monkeypatch)
    share = shares_of(run)["ada"]
    run.change("ada", lambda s: seal_again(s, run.party("bern"), share, run))
    assert run.open()


def test_one_approval_in_the_place_of_another(run: FinishedRun) -> None:
    run.put("ada", run.approval("bern"))
    refused(run, "approval-unsigned")


def test_an_approval_for_another_recipient(tmp_path: Path) -> None:
    run = finished_run(BOTH, tmp_path)
    run.approve(*APPROVERS)
    given = run.approval("bern").shares
    run.put("bern", Approval({"cleo": given["ada"]}))
    refused(run, "approval-differs")
    run.put("bern", Approval({"ada": given["ada"]}))
    refused(run, "approval-differs")
    run.put("bern", Approval(given))  # the control
    assert run.open()


def other_weights(info: ApprovalInfo) -> ApprovalInfo:
    return replace(info, model=replace(info.model, weights=Digest.of(b"other")))


def test_altered_weights(run: FinishedRun) -> None:
    run.change("ada", lambda s: replace(s, info=other_weights(s.info)))
    refused(run, "approval-unsigned")


def other_sealed(info: ApprovalInfo) -> ApprovalInfo:
    return replace(info, model=replace(info.model, sealed=Digest.of(b"other")))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (other_weights, "weights"),
        (other_sealed, "sealed"),
        (lambda i: replace(i, manifest=Digest.of(b"other")), "manifest"),
        (lambda i: replace(i, approver="bern"), "approver"),
        (lambda i: replace(i, recipient="ada"), "recipient"),
    ],
)
def test_an_approval_that_says_something_else(
    run: FinishedRun, change: Callable[[ApprovalInfo], ApprovalInfo], field: str
) -> None:
    """Signed by the right approver, and still not for this."""
    ada, share = run.party("ada"), shares_of(run)["ada"]
    run.change("ada", lambda s: seal_again(s, ada, share, run, change(s.info)))
    with pytest.raises(PolicyError, match=f"another {field}") as caught:
        run.open()
    assert caught.value.code == "approval-differs"


def test_a_share_that_says_something_else_does_not_open(run: FinishedRun) -> None:
    """The recipient's own, altered by the operator: fewer approvers, another model."""
    path = run.folder / KEY_NAME
    own = decode(RecipientShare, path.read_bytes())
    for info in (
        replace(own.info, approvers=own.info.approvers[:1]),
        replace(own.info, model=replace(own.info.model, job="other")),
    ):
        path.write_bytes(encode(replace(own, info=info)))
        with pytest.raises(AuthenticationError):
            run.open()


def test_an_accelerator_that_leaves_out_an_approver(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faulty one: the key is in two shares where the agreement asks for three."""
    one = who_approves("ada", first=FIRST)
    faulty = replace(CONSORTIUM, agreement=one.agreement)
    model = decode(RecipientShare, (run.folder / KEY_NAME).read_bytes()).info.model
    key = join_key(shares_of(run).values())
    for name, content in approval.split_output_key(
        key, model, faulty.verified(), run.instance
    ).items():
        (run.folder / name).write_bytes(content)
    (run.folder / approval_name("ada")).unlink()
    run.approve("ada")
    with pytest.raises(PolicyError, match="another approvers") as caught:
        run.open()
    assert caught.value.code == "share-differs"
    without(approval, "require_same")(monkeypatch)
    assert run.open()  # with a share of ada alone


def test_another_sealed_model(run: FinishedRun) -> None:
    path = run.folder / MODEL_NAME
    sealed = bytearray(path.read_bytes())
    sealed[-20] ^= 1
    path.write_bytes(sealed)
    with pytest.raises(RefusedError) as caught:
        run.open()
    assert caught.value.code == "share-differs"


@pytest.mark.parametrize("raw", [b"", b"{}", b"null", b'{"shares":[]}', b"\xff"])
def test_a_file_that_is_no_approval(run: FinishedRun, raw: bytes) -> None:
    (run.folder / approval_name("ada")).write_bytes(raw)
    with pytest.raises(MalformedError):
        run.open()
