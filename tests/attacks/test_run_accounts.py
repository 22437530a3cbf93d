"""A first rank that writes into everybody's receipt what was not so; ranks that sign lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.cli.main import main
from sealift.codec import encode_named
from sealift.collective.group import SealedGroup
from sealift.crypto.identity import save_identity
from sealift.crypto.sign import PublicKey, SigningKey, sign_document
from sealift.data.schedule.visits import Stop
from sealift.data.schedule.visits import VisitBatch as VisitGroup
from sealift.errors import MalformedError, PolicyError, SealiftError
from sealift.events import discard
from sealift.ids import Digest, Role, VisitId
from sealift.release.agreement.signed import Equipment, save_signed
from sealift.release.log.entries import SignedTreeHead, TreeHead
from sealift.release.receipt import ScrubbedPart, ScrubSummary, prove_instance
from sealift.session.endpoint import Endpoint
from sealift.train.loop.states import state_digest
from sealift.train.loop.trainer import BestState
from sealift.train.output.accounts import RunAccount, SignedAccount, Uses
from sealift.train.output.handout import Handout
from sealift.train.output.runfolder import RunFolder, RunName
from sealift.train.output.runreceipt import (
    FORMER,
    PREDICATE,
    RunReceipt,
    demand_of,
    open_run,
    sign_run,
    verify_run,
)
from sealift.train.ranks.rankedjob import RankedJob
from sealift.train.ranks.rounds import GroupRounds
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.accelerator.setup import LoadedVisit
from sealift.travel.holder.jobs import Receipts
from sealift.travel.orchestrator.job import RunSummary
from sealift.travel.settings import JobSettings, TrainingSettings
from sealift.travel.visit.messages import (
    RUN_RECEIPT_NAME,
    JobFinished,
    Output,
    OutputKept,
    message_name,
    parse_message,
)
from tests.attacks.test_run_receipts import restated
from tests.sim.approvedrun import MODEL
from tests.sim.owners import NOW_S
from tests.sim.runreceipts import OWNERS, SmallRun, accounted, small_run
from tests.sim.wires import simulated_wires


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRun]:
    with small_run(tmp_path_factory.mktemp("group"), group=True) as made:
        yield made


def refusal(run: SmallRun, raw: bytes, **known: Any) -> SealiftError:
    with pytest.raises(SealiftError) as refused:
        demand_of(raw, run.verified(), **known)
    assert str(refused.value).startswith(
        "ada wrote a receipt of the run that is refused"
    )
    return refused.value


def test_what_all_owners_signed_is_said_to_be_theirs(run: SmallRun) -> None:
    raw = sign_run(run.receipt, run.instance)
    assert demand_of(raw, run.verified(), job="job-1") == raw
    lines = {each.name: each.said for each in verify_run(run.receipt, run.verified())}
    assert lines["accounts"].endswith("each signed by its party: ada, bern, cleo")
    assert lines["model"].endswith("each signed by its party: ada, bern, cleo")
    for alone in ("run", "checkpoints", "time"):
        assert lines[alone].endswith("only by ada")


def other_uses(run: SmallRun) -> bytes:
    uses = run.receipt.uses
    invented = tuple(Digest.of(bytes([n])) for n, _ in enumerate(uses.receipts))
    return run.lie(uses=replace(uses, receipts=invented))


def more_rows(run: SmallRun) -> bytes:
    first, *others = run.receipt.uses.tables
    more = replace(first, sealed_bytes=first.sealed_bytes + 1)
    return run.lie(uses=replace(run.receipt.uses, tables=(more, *others)))


def forged(run: SmallRun, **changes: Any) -> bytes:
    """An account of cleo that the writer signs with its own key."""
    account = replace(run.receipt.accounts[2].body, **changes)
    last = sign_document(account, run.instance)
    return run.lie(accounts=(*run.receipt.accounts[:2], last))


LIES: dict[str, tuple[Callable[[SmallRun], bytes], str]] = {
    "subject": (
        lambda r: r.lie(subject=Digest.of(b"other")),
        "signed a different value of model file",
    ),
    "weights": (
        lambda r: r.lie_of(weights=Digest.of(b"other")),
        "a different value of weights",
    ),
    "metrics": (
        lambda r: r.lie_of(metrics={"loss": 0.001}),
        "a different value of metrics",
    ),
    "steps": (lambda r: r.lie_of(steps=1), "a different value of steps"),
    "rows": (lambda r: r.lie_of(rows=1), "other rows or restarts"),
    "prepared": (
        lambda r: r.lie_of(prepared={"ada": 9}),
        "a different value of prepared",
    ),
    "resumed": (lambda r: r.lie_of(resumed=1), "other rows or restarts"),
    "settings": (
        lambda r: r.lie(settings=JobSettings(training=TrainingSettings(seed=9))),
        "a different value of settings",
    ),
    "rows-distinct": (
        lambda r: r.lie(distinct_rows={**r.receipt.distinct_rows, "cleo": 39}),
        "a different value of distinct rows",
    ),
    "receipts": (other_uses, "ada signed other receipts"),
    "uses": (more_rows, "ada signed other numbers of used rows"),
    "release": (lambda r: r.lie(released=r.receipt.released[:-1]), "a key release"),
    "dropped": (lambda r: r.lie(accounts=r.receipt.accounts[:2]), "accounts of 2"),
    "forged": (forged, "account of cleo is not signed"),
    "doubled": (
        lambda r: r.lie(accounts=(*r.receipt.accounts[:2], r.receipt.accounts[1])),
        "account of cleo is not signed",
    ),
}


@pytest.mark.parametrize(("lie", "words"), LIES.values(), ids=LIES.keys())
def test_a_writer_alone_changes_nothing_that_others_signed(
    run: SmallRun, lie: Callable[[SmallRun], bytes], words: str
) -> None:
    assert words in str(refusal(run, lie(run)))


SIGNED: dict[str, tuple[dict[str, Any], str]] = {
    "result": (
        {"result": {"steps": Digest.of(b"99")}},
        "cleo signed a different value of steps",
    ),
    "unheard": (
        {"result": {"metrics": None}},
        "cleo signed a different value of metrics",
    ),
    "rows": ({"tables": "ada-train"}, "cleo signed a use of ada-train"),
    "name": ({"party": "bern"}, "account of cleo is not signed"),
    "instance": ({"instance": "ada"}, "account of cleo is not signed"),
    "log": ({"head": 0}, "cleo signed a head of another"),
    "restart": (
        {"passes_before": 3},
        "cleo signed an account that begins at another checkpoint",
    ),
    "time": ({"at_s": int(NOW_S) - 3600}, "cleo signed a time before"),
}


@pytest.mark.parametrize(("changes", "words"), SIGNED.values(), ids=SIGNED.keys())
def test_what_a_party_signs_must_be_able_to_be_true(
    run: SmallRun, changes: dict[str, Any], words: str
) -> None:
    """Signed by cleo's own key, and still refused, with its name."""
    account = run.receipt.accounts[2].body
    if "result" in changes:
        result = account.result | changes["result"]
        changes = {"result": {name: each for name, each in result.items() if each}}
    if "tables" in changes:
        changes = {"tables": run.receipt.accounts[0].body.tables}
    if "head" in changes:
        changes = {"head": run.receipt.manifest.heads[0]}
    if "instance" in changes:
        changes = {"instance": run.instance.public_key}
    lie = sign_document(replace(account, **changes), run.signers[2])
    raw = run.lie(accounts=(*run.receipt.accounts[:2], lie))
    assert words in str(refusal(run, raw))


def test_an_account_that_shows_a_later_log_than_the_receipt(run: SmallRun) -> None:
    account = run.receipt.accounts[2].body
    head = TreeHead(run.signers[2].public_key, 99, Digest.of(b"root"), int(NOW_S))
    later = replace(account, head=sign_document(head, run.signers[2]))
    signed = sign_document(later, run.signers[2])
    raw = run.lie(accounts=(*run.receipt.accounts[:2], signed))
    assert refusal(run, raw).code == "head-missing"


@pytest.mark.parametrize("made_at_s", [1_000_000_000, NOW_S - 301, NOW_S + 361])
def test_a_date_lies_between_the_heads_and_what_others_signed(
    run: SmallRun, made_at_s: float
) -> None:
    assert refusal(run, run.lie(made_at_s=int(made_at_s))).code == "receipt-time"


def test_a_receipt_of_the_future_is_none(run: SmallRun) -> None:
    receipt = accounted(replace(run.receipt, made_at_s=int(NOW_S) + 3600), run.signers)
    assert refusal(run, sign_run(receipt, run.instance)).code == "receipt-time"
    ahead = run.verified().equipped(Equipment(clock=lambda: NOW_S + 3600))
    demand_of(sign_run(receipt, run.instance), ahead)  # control


def test_a_receipt_after_the_agreements_end_is_none(run: SmallRun) -> None:
    verified = run.verified()
    body = replace(verified.agreement, not_after=int(NOW_S))
    late = replace(verified, agreement=body)
    with pytest.raises(SealiftError) as refused:
        list(verify_run(run.receipt, late))
    assert refused.value.code in {"other-agreement", "agreement-expired"}


def test_parts_of_runs_under_two_agreements_are_no_receipt(
    run: SmallRun, tmp_path: Path
) -> None:
    """The same owners signed both, and released keys to this instance under both."""
    second = replace(run.consortium.agreement, name="another-job")
    other = replace(run.consortium, agreement=second)
    with small_run(tmp_path, run.instance, of=other, instances=run.instances) as there:
        released = refusal(run, run.lie(released=there.receipt.released))
        assert str(released).partition(" refused: ")[2].startswith("keys released: ")
        assert released.code == "no-release"
        raw = run.lie(agreement=there.receipt.agreement)
        assert refusal(run, raw).code == "other-agreement"
        with pytest.raises(SealiftError) as refused:  # under the other one as well
            demand_of(raw, there.verified())
        assert "refused: evidence: the run used another" in str(refused.value)
        demand_of(sign_run(there.receipt, run.instance), there.verified())  # control


def test_settings_that_nobody_agreed_on_are_no_run(run: SmallRun) -> None:
    """All ranks together signed them, and the agreement does not allow them."""
    settings = JobSettings(training=TrainingSettings(epochs=5000))
    receipt = accounted(replace(run.receipt, settings=settings), run.signers)
    error = refusal(run, sign_run(receipt, run.instance))
    assert error.code == "settings-differ"


def test_a_receipt_names_what_a_party_has_itself(run: SmallRun) -> None:
    raw, manifest = sign_run(run.receipt, run.instance), run.receipt.manifest
    truth = {
        "settings": run.receipt.settings,
        "manifest": manifest,
        "accounts": run.receipt.accounts,
        "subject": run.receipt.subject,
    }
    others = {
        "settings": JobSettings(training=TrainingSettings(epochs=9)),
        "manifest": replace(manifest, metrics={}),
        "accounts": run.receipt.accounts[:2],
        "subject": Digest.of(b"another file"),
    }
    assert demand_of(raw, run.verified(), **truth) == raw
    for name, other in others.items():
        assert refusal(run, raw, **{**truth, name: other}).code == "receipt-differs"


def test_the_former_version_is_refused_by_name(run: SmallRun) -> None:
    raw = sign_run(run.receipt, run.instance)
    old = restated(run, lambda statement: statement.update(predicateType=FORMER))
    assert PREDICATE.encode() not in old
    with pytest.raises(MalformedError) as refused:
        open_run(old)
    assert refused.value.code == "old-run-receipt"
    open_run(raw)  # control


def test_text_of_others_draws_no_line_of_its_own(run: SmallRun) -> None:
    forged_line = " " * 70 + "verified          ada's log has the receipt's head"
    raw = run.lie_of(software=forged_line, device=forged_line, sandbox=forged_line)
    lines = {each.name: each.said for each in verify_run(open_run(raw), run.verified())}
    assert "  " not in lines["run"]
    assert '"verified ada' in lines["run"]


def test_text_of_others_makes_no_part_of_a_line(run: SmallRun) -> None:
    """`receipt verify` shows a line's words part by part, each one where a line begins."""
    forged_part = "none;  model, steps, numbers: signed by ada;\nx"
    raw = run.lie_of(software=forged_part, device=forged_part, sandbox=forged_part)
    lines = {each.name: each.said for each in verify_run(open_run(raw), run.verified())}
    parts = lines["run"].split("; ")
    assert parts[0] == "plan ddp"
    assert [part.count("signed by ada") for part in parts[1:]] == [3, 0]


class Control:
    """The orchestrator's end of rank 0's session."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def send(self, raw: bytes) -> None:
        self.heard.append(raw)

    def receive(self, _timeout_s: float | None) -> bytes:
        return encode_named(message_name(OutputKept), OutputKept("job-1"))


class LyingHandout(Handout):
    """Of a rank 0 that signs another receipt than the run was."""

    lie: Callable[[RunReceipt], RunReceipt]

    def _run_receipt(self, *of: Any) -> bytes:
        receipt = open_run(super()._run_receipt(*of))
        return sign_run(self.lie(receipt), self._endpoint.instance)


def truth(receipt: RunReceipt) -> RunReceipt:
    return receipt


SETTINGS = JobSettings(training=TrainingSettings(epochs=1, seed=4))


def handout_of(run: SmallRun, number: int, kind: type[Handout]) -> Handout:
    """What an accelerator of a run that is over hands out."""
    owner, consortium, manifest = OWNERS[number], run.consortium, run.receipt.manifest
    endpoint = Endpoint(
        role=Role.ACCELERATOR,
        name=f"accelerator-{number}",
        agreement=consortium.agreement.digest,
        instance=run.instances[owner],
        identity=consortium.identities[owner],
        attester=DevelopmentAttester(
            consortium.attester,
            role=Role.ACCELERATOR,
            code_bundle=consortium.agreement.code.digest,
        ),
    )
    verified, rules = run.verified(), VisitRules(max_visits=50)
    for each in OWNERS:
        rules.count(Stop(0, each, f"{each}-train", "train", 0, 40))
    return kind(
        verified,
        endpoint,
        "job-1",
        rules,
        proof=prove_instance(endpoint, verified),
        heads=lambda: manifest.heads,
        plan=manifest.plan,
        settings=SETTINGS,
        sandbox="none",
        device=lambda: "cpu",
        ranks=manifest.ranks,
        released=lambda: run.receipt.released,
    )


def trainer(rows: int) -> Any:
    """One that has trained."""
    return SimpleNamespace(
        verify=lambda: None,
        state=lambda: MODEL,
        digest=lambda: state_digest(MODEL),
        steps=2,
        rows_trained=rows,
        statistics=b"",
        products=None,
        best=BestState(TrainingSettings()),
    )


def kept_by_host(
    run: SmallRun,
    folder: Path,
    control: Control,
    instances: tuple[PublicKey, ...] = (),
) -> RunFolder:
    """The folder that the host's orchestrator makes of what it heard.

    Args:
        run: Of the parties.
        folder: Where it is made.
        control: What it heard.
        instances: Of the accelerators that are here, if they are not the run's.
    """
    here = instances or run.receipt.manifest.ranks
    words = [parse_message(raw, (Output, JobFinished)) for raw in control.heard]
    name = RunName("job-1", run.consortium.agreement.digest)
    with RunFolder(folder / "run", name) as kept:
        receipt = bytearray()
        for word in words[:-1]:
            assert isinstance(word, Output)
            kept.write_output(word)
            receipt += word.part if word.name == RUN_RECEIPT_NAME else b""
        last = words[-1]
        assert isinstance(last, JobFinished)
        summary = RunSummary(0, 0, last, bytes(receipt), here)
        kept.finish(summary, run.verified(), SETTINGS, lambda _facts: None)
    return kept


class Signing:
    """The handout of a rank that signs another account than it found.

    Args:
        handout: Its own.
        sign: What it makes of the account.
    """

    def __init__(
        self, handout: Handout, sign: Callable[[RunAccount], RunAccount]
    ) -> None:
        self._handout, self._sign = handout, sign

    def account(self, *of: Any, **how: Any) -> SignedAccount:
        found = self._handout.account(*of, **how).body
        identity = self._handout._endpoint.identity
        assert identity is not None
        return sign_document(self._sign(found), identity)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handout, name)


class Group:
    """Three ranks in one process that have trained, each with its owner's keys."""

    def __init__(
        self,
        run: SmallRun,
        folder: Path,
        lie: Callable[[RunReceipt], RunReceipt],
        sign: Callable[[RunAccount], RunAccount] | None = None,
    ) -> None:
        self.run, self.folder, self.control = run, folder, Control()
        self.sign = sign
        kinds = (LyingHandout, Handout, Handout)
        self.handouts = [
            handout_of(run, number, kind) for number, kind in enumerate(kinds)
        ]
        first: Any = self.handouts[0]
        first.lie = lie
        self.stops = [Stop(0, each, f"{each}-train", "train", 0, 40) for each in OWNERS]
        self.trainers = [trainer(40) for _ in OWNERS]
        self.keys = SimpleNamespace(heads=lambda: run.receipt.manifest.heads)
        pairs = zip(self.handouts, self.stops, strict=True)
        self.used = [[Uses.of(self._receipt(*pair))] for pair in pairs]

    @staticmethod
    def _receipt(handout: Handout, stop: Stop) -> Any:
        scrub = ScrubSummary((ScrubbedPart("buffer", 640, 0),), True, True)
        return handout.receipt_for(
            VisitId.generate(), stop, LoadedVisit(640, 640), {}, scrub
        )

    def finish(self) -> list[SealiftError | None]:
        """What each rank's last act came to."""
        wires = simulated_wires(len(OWNERS))

        def one(number: int) -> SealiftError | None:
            with SealedGroup(number, wires[number]) as group:
                job = RankedJob.__new__(RankedJob)
                job.rank, job.settings, job.sink = number, SETTINGS, discard
                job.agreement, job.checkpoints = self.run.verified(), None
                job.trainer, job.handout = self.trainers[number], self.handouts[number]
                (self.folder / OWNERS[number]).mkdir()
                job.receipts = Receipts(self.folder / OWNERS[number] / "receipts")
                job.control, job._used = cast(Any, self.control), self.used
                trainer, nothing = job.trainer, cast(Any, None)
                job._rounds = GroupRounds(
                    group, trainer, (), nothing, max_norm=0.0, names=OWNERS
                )
                job._rows_before, job.keys = 0, cast(Any, self.keys)
                job._done = [("train", 0)]
                job.plans = [
                    [VisitGroup(0, "train", 0, (each,))] for each in self.stops
                ]
                if self.sign is not None and number == len(OWNERS) - 1:
                    job.handout = cast(Any, Signing(job.handout, self.sign))
                try:
                    job._finish(0)
                except SealiftError as error:
                    group.abort()
                    return error
                return None

        with ThreadPoolExecutor(len(OWNERS)) as pool:
            return list(pool.map(one, range(len(OWNERS))))

    def host(self) -> RunFolder:
        """What the host makes of what rank 0 handed out."""
        return kept_by_host(self.run, self.folder, self.control)


def test_ranks_that_found_the_same_have_one_receipt(
    run: SmallRun, tmp_path: Path
) -> None:
    group = Group(run, tmp_path, truth)
    assert group.finish() == [None] * 3
    folder = group.host()
    assert folder.refusal is None
    places = [tmp_path / each / RUN_RECEIPT_NAME for each in (*OWNERS, "run")]
    (receipt,) = {each.read_bytes() for each in places}
    assert open_run(receipt).settings == SETTINGS
    assert open_run(receipt).manifest.rows == 120


@pytest.mark.parametrize("fresh", [1, 2])
def test_a_first_rank_that_hands_out_an_earlier_run_is_named(
    run: SmallRun, tmp_path: Path, fresh: int
) -> None:
    """It kept that run's bytes and its own key; another rank has a fresh one."""
    group = Group(run, tmp_path, truth)
    assert group.finish() == [None] * 3
    here = list(run.receipt.manifest.ranks)
    here[fresh] = SigningKey.generate().public_key
    with pytest.raises(PolicyError, match=r"^rank 0 \(ada\)") as refused:
        kept_by_host(run, tmp_path, group.control, tuple(here))
    assert (refused.value.code, refused.value.ranks) == ("other-run", (0,))
    assert list(tmp_path.glob("*run*")) == []


def with_manifest(receipt: RunReceipt, **changes: Any) -> RunReceipt:
    return replace(receipt, manifest=replace(receipt.manifest, **changes))


WRITTEN: dict[str, Callable[[RunReceipt], RunReceipt]] = {
    "subject": lambda r: replace(r, subject=Digest.of(b"another file")),
    "weights": lambda r: with_manifest(r, weights=Digest.of(b"another model")),
    "metrics": lambda r: with_manifest(r, metrics={"accuracy": 0.999}),
    "date": lambda r: replace(r, made_at_s=1_000_000_000),
    "drops-one": lambda r: replace(r, accounts=r.accounts[:2]),
}


@pytest.mark.parametrize("lie", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_first_rank_that_lies_is_named_by_all_and_the_model_stays(
    run: SmallRun, tmp_path: Path, lie: Callable[[RunReceipt], RunReceipt]
) -> None:
    group = Group(run, tmp_path, lie)
    for error in group.finish():
        assert str(error).startswith("ada wrote a receipt of the run that is refused")
    folder = group.host()
    assert str(folder.refusal).startswith("ada wrote a receipt of the run")
    assert (tmp_path / "run" / "model.sealed").exists()
    assert list(tmp_path.rglob(RUN_RECEIPT_NAME)) == []


def test_a_first_rank_that_exchanges_one_account_and_writes_another(
    run: SmallRun, tmp_path: Path
) -> None:
    """Both signed by cleo, who colludes: what was exchanged is what must stand there."""

    def swap(receipt: RunReceipt) -> RunReceipt:
        other = replace(
            receipt.accounts[2].body, at_s=receipt.accounts[2].body.at_s + 1
        )
        signed = sign_document(other, run.signers[2])
        return replace(receipt, accounts=(*receipt.accounts[:2], signed))

    for error in Group(run, tmp_path, swap).finish():
        assert error is not None
        assert error.code == "receipt-differs"


@pytest.mark.parametrize("liar", [0, 2])
@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 9), ("digest", lambda: Digest.of(b"another model"))],
)
def test_a_rank_that_signs_another_result_is_named_before_anything_leaves(
    run: SmallRun, tmp_path: Path, liar: int, field: str, value: Any
) -> None:
    group = Group(run, tmp_path, truth)
    setattr(group.trainers[liar], field, value)
    errors = group.finish()
    for number, error in enumerate(errors):
        assert error is not None
        if number != liar:
            assert str(error).startswith(f"{OWNERS[liar]} signed a different value")
            assert error.code == "account-differs"
    assert group.control.heard == []


def test_a_rank_that_signs_other_uses_than_it_reported_is_named(
    run: SmallRun, tmp_path: Path
) -> None:
    group = Group(run, tmp_path, truth)
    real = group.handouts[2].account
    more = replace(group.used[2][0], receipts=(Digest.of(b"another receipt"),))
    group.handouts[2].account = lambda trainer, uses, **how: real(trainer, more, **how)  # type: ignore[method-assign]
    errors = group.finish()
    assert [each and each.ranks for each in errors] == [(2,)] * 3
    assert all("another use of its rows" in str(each) for each in errors)
    assert group.control.heard == []


def other_file(receipt: RunReceipt) -> RunReceipt:
    """Another model file, and an account that says the same."""
    lie, account = replace(receipt, subject=Digest.of(b"x")), receipt.accounts[0].body
    return replace(
        lie, accounts=(sign_document(replace(account, result=lie.result), INSTANCE),)
    )


INSTANCE = SigningKey.generate()


@pytest.mark.parametrize(
    ("lie", "code"), [(truth, 0), (other_file, 5)], ids=["truth", "other-file"]
)
def test_whoever_opens_the_model_compares_its_file_with_the_receipt(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lie: Callable[[RunReceipt], RunReceipt],
    code: int,
) -> None:
    """One accelerator does all the work: nobody but the model's owner can notice."""
    with small_run(tmp_path / "parties", INSTANCE) as alone:
        handout: Any = handout_of(alone, 0, LyingHandout)
        handout.lie, control = lie, Control()
        for visit in alone.visits:
            handout.use(Uses.of(visit))
        handout.send(cast(Any, control), trainer(120))
        folder = kept_by_host(alone, tmp_path, control)
        assert folder.refusal is None
        consortium = alone.consortium
        owner = consortium.agreement.model_to[0]
        save_identity(consortium.identities[owner], tmp_path / "key", "words of it")
        save_signed(consortium.signed(), tmp_path / "agreement.json")
    (tmp_path / "pass").write_text("words of it")
    model = tmp_path / "model.safetensors"
    words = ["--key", tmp_path / "key", "--passphrase-file", tmp_path / "pass"]
    words += ["--agreement", tmp_path / "agreement.json", "-o", model]
    assert main(["output", "open", *map(str, [tmp_path / "run", *words])]) == code
    said = capsys.readouterr().err
    assert model.exists()
    assert ("accelerator-0 wrote a receipt of the run" in said) is (code == 5)
    assert ("[receipt-differs]" in said) is (code == 5)


def later_head(run: SmallRun, **lie: Any) -> SignedTreeHead:
    """Of cleo's own log, as cleo can sign it at any time."""
    head = run.receipt.accounts[2].body.head
    assert head is not None
    return sign_document(replace(head.body, **lie), run.signers[2])


OF_ITSELF: dict[str, Callable[[SmallRun], dict[str, Any]]] = {
    "no use": lambda run: {"tables": ()},
    "other receipts": lambda run: {"receipts": Digest.of(b"others")},
    "most rows": lambda run: {"rows": 2**53 - 1},
    "no rows": lambda run: {"rows": 0},
    "a release": lambda run: {"released": (Digest.of(b"of no log"),)},
    "a restart": lambda run: {"passes_before": 1},
    "a later time": lambda run: {"at_s": int(NOW_S) + 120 + 600},
    "no time": lambda run: {"at_s": 0, "head": None},
    "a later log": lambda run: {"head": later_head(run, size=99)},
    "another log": lambda run: {"head": later_head(run, root=Digest.of(b"other"))},
}


@pytest.mark.parametrize("lie", OF_ITSELF.values(), ids=OF_ITSELF.keys())
def test_who_signs_of_itself_what_all_know_better_is_named(
    run: SmallRun, tmp_path: Path, lie: Callable[[SmallRun], dict[str, Any]]
) -> None:
    """Else the receipt would be refused, and the rank that wrote it be named."""
    group = Group(run, tmp_path, truth, lambda of: replace(of, **lie(run)))
    for error in group.finish()[:2]:
        assert error is not None
        assert (error.code, error.ranks) == ("untrue-report", (2,))
        assert "cleo" in str(error)
    assert group.control.heard == []
