"""What a rank demands of its orchestrator and of other ranks before it works for them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.codec import encode
from sealift.collective.group import SealedGroup
from sealift.crypto.sign import SignedDocument, SigningKey, sign_document
from sealift.data.schedule.visits import Stop, VisitBatch
from sealift.errors import (
    IntegrityError,
    JobError,
    PeerError,
    PolicyError,
    SealiftError,
    UsageError,
)
from sealift.events import Event, discard
from sealift.ids import Digest
from sealift.release.agreement import Agreement
from sealift.release.agreement.resources import GroupRule
from sealift.release.agreement.training import PrivateSteps
from sealift.release.log.entries import SignedTreeHead, TreeHead
from sealift.release.log.heads import ShownHeads
from sealift.train.job.runningjob import JobShapes
from sealift.train.job.sentences import sentence
from sealift.train.loop.faults import bad_row, recipe_failed
from sealift.train.loop.statistics import Measured
from sealift.train.output.accounts import TableUse, Uses
from sealift.train.ranks import rank as ranks_module
from sealift.train.ranks import rankedjob as rankedjob_module
from sealift.train.ranks.rank import BEAT_S, Rank, agreed_settings, demand_one_level
from sealift.train.ranks.rankedjob import LOST, RankedJob
from sealift.train.ranks.rounds import (
    GroupRounds,
    PassReport,
    RankIntroduction,
    RankNumbers,
)
from sealift.travel.settings import (
    JobSettings,
    RunSettings,
    SlicesSettings,
    TrainingSettings,
    TravelSettings,
    run_terms,
)
from sealift.travel.visit.messages import Alive, StartJob, parse_message
from tests.sim.owners import NOW_S
from tests.sim.paperwork import signed_receipt
from tests.sim.runreceipts import OWNERS, SmallRun, small_run
from tests.sim.wires import simulated_wires
from tests.unit.train.joints import cargo
from tests.worlds.consortium import TRAINING, make_consortium

RANKS = len(make_consortium().agreement.data_owners)
AGREED = JobSettings(slices=SlicesSettings(count=RANKS))


def grouped() -> Agreement:
    training = replace(TRAINING, plans=("ddp",), sync=("round",))
    group = GroupRule(RANKS, "owner")
    return replace(make_consortium().agreement, group=group, training=training)


def told(settings: JobSettings, shapes: JobShapes | None = None) -> JobSettings:
    start = StartJob("digits", encode(settings))
    own = run_terms("digits", "ddp", settings)
    return agreed_settings(start, grouped(), shapes or JobShapes(), own)


def test_what_is_agreed_is_done() -> None:
    assert told(AGREED) == AGREED


@pytest.mark.parametrize(
    ("job", "changes"),
    [
        ("digits-2", {}),
        ("digits", {"seed": 9}),
        ("digits", {"epochs": 2}),
        ("digits", {"keep_state": True}),
    ],
)
def test_a_rank_begins_no_run_but_the_one_that_its_owner_allowed(
    job: str, changes: dict[str, Any]
) -> None:
    """Whatever the agreement's ranges hold: its job file is of one run (rule O1)."""
    agreement = grouped()
    rule = replace(agreement.training_rule, keep_state=True)
    own = run_terms("digits", "ddp", AGREED)
    other = replace(AGREED, training=replace(AGREED.training, **changes))
    rule.require(run_terms(job, "ddp", other))  # in their ranges
    start = StartJob(job, encode(other))
    with pytest.raises(JobError) as refused:  # after which `--stay` asks for later runs
        agreed_settings(start, replace(agreement, training=rule), JobShapes(), own)
    assert refused.value.code == "another-run"
    (changed,) = changes or ("job",)
    assert f"{changed} is " in refused.value.why


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (JobSettings(), "group-not-agreed"),
        (JobSettings(slices=SlicesSettings(count=RANKS + 1)), "group-not-agreed"),
        (replace(AGREED, travel=TravelSettings(mixed=True)), "cargo-not-agreed"),
        (
            replace(AGREED, slices=SlicesSettings(count=RANKS, sync="step")),
            "settings-differ",
        ),
        (replace(AGREED, training=TrainingSettings(epochs=1001)), "settings-differ"),
        (replace(AGREED, training=TrainingSettings(epochs=0)), "nothing-to-make"),
        (replace(AGREED, training=TrainingSettings(batch_rows=0)), "bad-field"),
        (replace(AGREED, training=TrainingSettings(epochs=1 << 40)), "bad-field"),
        (replace(AGREED, run=RunSettings(work_s=-1.0)), "bad-field"),
        (
            replace(AGREED, slices=SlicesSettings(count=RANKS, max_norm=-1.0)),
            "bad-field",
        ),
    ],
)
def test_an_orchestrator_gets_no_more_than_agreed(
    asked: JobSettings, code: str
) -> None:
    with pytest.raises(SealiftError) as refused:
        told(asked)
    assert refused.value.code == code


def test_a_job_goes_on_in_the_shape_in_which_it_began() -> None:
    shapes = JobShapes()
    told(AGREED, shapes)
    told(AGREED, shapes)
    with pytest.raises(SealiftError) as refused:
        told(replace(AGREED, training=TrainingSettings(seed=2)), shapes)
    assert refused.value.code == "other-shape"


def test_a_rank_of_another_level_gets_nothing() -> None:
    demand_one_level("tee", ("tee", "tee"))
    with pytest.raises(JobError, match=r"tee; .* development") as refused:
        demand_one_level("tee", ("tee", "development"))
    assert refused.value.code == "levels-differ"


class Home:
    """What a rank lends its rows from, and keeps receipts in."""

    def __init__(self, content: bytes) -> None:
        self.kept: list[Any] = []
        loaded = cargo("ada")
        self.stop = loaded.stop
        self.agreement = SimpleNamespace(resource=lambda name: loaded.resource)
        self.tables = SimpleNamespace(read=lambda stop: content)
        signed = signed_receipt(make_consortium(), ())
        self.handout = SimpleNamespace(receipt_for=lambda *how: signed)
        self._uses: list[Uses] = []
        self.receipts = SimpleNamespace(keep=lambda *how: self.kept.append(how))

    def use(self) -> None:
        of: Any = self
        with RankedJob._lend_rows(of, self.stop):
            raise JobError("the recipe failed", code="recipe-killed")


def test_rows_that_were_used_have_a_receipt_whatever_came_of_it() -> None:
    home = Home(bytes(cargo("ada").memory.view))
    with pytest.raises(JobError, match="the recipe failed"):
        home.use()
    assert len(home.kept) == 1
    assert [len(each.receipts) for each in home._uses] == [1]


def test_rows_that_do_not_fit_their_schema_are_not_used() -> None:
    home = Home(b"\xff" * len(cargo("ada").memory.view))
    with pytest.raises(JobError, match="not finite") as refused:
        home.use()
    assert refused.value.code == "bad-row"
    assert home.kept == []


def test_which_row_is_bad_is_not_the_recipes_to_say() -> None:
    def work(*how: Any, **more: Any) -> Any:
        raise bad_row("x", "not a number")

    job: Any = SimpleNamespace(
        agreement=SimpleNamespace(agreement=grouped()),
        leases=SimpleNamespace(await_proven=lambda owners: None),
        keys=SimpleNamespace(owners=()),
        trainer=SimpleNamespace(statistics=b""),
        _slice=SimpleNamespace(work=work),
        _beside=None,
        _rounds=SimpleNamespace(most_steps=lambda epoch: 1),
        _require_counted=lambda purpose, epoch: None,
    )
    with pytest.raises(JobError) as refused:
        RankedJob._work(job, "train", 0)
    assert refused.value.code == "recipe-garbled"


class Counting:
    """A rank's job, with brokers that allow so many passes for each purpose."""

    def __init__(self, rank: int = 0, steps: int = 0, others: bytes = b"") -> None:
        self.rank, self.others = rank, others
        self.allows: dict[str, int] = {}
        self.worked: list[Any] = []
        self.told: list[Event] = []
        self.sink = self.told.append
        self.agreement = SimpleNamespace(agreement=grouped())
        self.leases = SimpleNamespace(await_proven=lambda owners: None)
        self.keys = SimpleNamespace(owners=())
        self.trainer = SimpleNamespace(statistics=b"", steps=steps)
        self._slice = SimpleNamespace(work=lambda *how: self.worked.append(how) or ())
        self._beside = self._counted = self._refused = self._stopped_at = None
        self._uses: list[Uses] = []
        self._rounds = SimpleNamespace(hear_limits=self.hear)
        for name in ("_is_over", "_require_counted", "_work"):
            setattr(self, name, partial(getattr(RankedJob, name), self))

    def hear(self, *, over: bool) -> tuple[int, ...]:
        said = bytes([over]) + self.others
        return tuple(rank for rank, each in enumerate(said) if each)

    def _count_pass(self, purpose: str, epoch: int, *, begins: bool = True) -> None:
        if not self.allows.get(purpose, 99):
            raise PolicyError("no more", code="too-many-visits")
        self.allows[purpose] = self.allows.get(purpose, 99) - begins

    def may_begin(self, purpose: Any, epoch: int, *, last: bool = False) -> bool:
        of: Any = self
        return RankedJob._may_begin(of, purpose, epoch, last=last)


def test_no_row_is_worked_on_before_the_pass_was_counted() -> None:
    job: Any = Counting()
    job.allows["train"] = 0
    assert job._is_over("train", 0)
    with pytest.raises(PolicyError) as refused:
        job._work("train", 0)
    assert (refused.value.code, job.worked) == ("too-many-visits", [])
    job.allows["train"] = 1
    assert not job._is_over("train", 0)
    for purpose, epoch in (("train", 1), ("train", 0)):  # of another one; no longer
        with pytest.raises(PolicyError) as refused:
            job._work(purpose, epoch)
        assert (refused.value.code, job.worked) == ("release-refused", [])


@pytest.mark.parametrize("others", [b"\0\0", b"\0\1"])
def test_a_limit_that_is_reached_ends_training_and_not_the_run(others: bytes) -> None:
    """Whoever says so: no rank begins the round, and what was trained is measured."""
    job = Counting(steps=8, others=others)
    job.allows["train"] = 9 if any(others) else 0
    assert not job.may_begin("train", 5)
    assert job._stopped_at == 5
    assert [each.kind for each in job.told] == ["job.limited"]
    job.others = b"\0\0"
    assert not job.may_begin("heldout", 5)
    assert not job.may_begin("train", 6)
    assert job.may_begin("heldout", 7, last=True)


@pytest.mark.parametrize("private", [True, False])
def test_a_budget_that_is_over_costs_no_other_owner_a_round(private: bool) -> None:
    job = Counting(steps=8, others=b"\0\1")
    agreement = grouped()
    terms = PrivateSteps(clip=1.0, noise=1.0, batch=32) if private else None
    training = replace(
        agreement.training_rule, privacy=terms, prepare=(False,), rows=("owner",)
    )
    job.agreement.agreement = replace(agreement, training=training)
    job.allows["train"] = 9
    assert not job.may_begin("train", 5)
    assert job.allows["train"] == (9 if private else 8)
    job.others, job._stopped_at = b"\0\0", None
    assert job.may_begin("train", 6)
    assert job.allows["train"] == (8 if private else 7)


def test_a_limit_before_the_first_round_ends_the_run() -> None:
    for job in (Counting(), Counting(others=b"\1\0")):
        job.allows["train"] = 0 if not any(job.others) else 9
        with pytest.raises(PolicyError) as refused:
            job.may_begin("train", 0)
        assert refused.value.code == "too-many-visits"


def test_a_limit_of_measuring_leaves_numbers_out() -> None:
    job = Counting(steps=8)
    job.allows["heldout"] = 0
    assert not job.may_begin("heldout", 0)
    assert job._stopped_at is None
    assert job.may_begin("train", 1)


@pytest.mark.parametrize(("sums", "nbytes"), [(b"", 0), (b"sums", 8)])
def test_no_model_is_built_before_the_sums_that_it_is_built_on(
    sums: bytes, nbytes: int
) -> None:
    class Trainer:
        statistics = sums

        @property
        def joint(self) -> Any:
            assert sums, "built too early"
            return SimpleNamespace(
                model=lambda: {"w": SimpleNamespace(content=b"8" * 8)}
            )

    training = TrainingSettings(prepare=True)
    job: Any = SimpleNamespace(
        settings=replace(AGREED, training=training), trainer=Trainer()
    )
    assert RankedJob._model_bytes(job) == nbytes


def rounds_of(plans: Any, names: tuple[str, ...]) -> GroupRounds:
    group: Any = SimpleNamespace(world=len(names), rank=0)
    trainer: Any = None
    work: Any = None
    return GroupRounds(group, trainer, plans, work, max_norm=0.0, names=names)


class Account:
    """What rank 0 takes of two ranks' accounts of a pass; rank 1 is south's."""

    def __init__(self) -> None:
        of = [Stop(0, owner, f"{owner}-train", "train", 0, 10) for owner in ("n", "s")]
        self.plans = [[VisitBatch(0, "train", 0, (stop,))] for stop in of]
        self.taken: list[Uses] = []
        self._used: list[list[Uses]] = [[], []]
        self._seen: set[Digest] = set()
        self.agreement = SimpleNamespace(
            resource=lambda name: SimpleNamespace(row_bytes=8)
        )
        self.handout = SimpleNamespace(
            use=self.taken.append,
            uses=lambda: Uses((), tuple(r for u in self.taken for r in u.receipts)),
        )
        self._rounds = rounds_of(self.plans, ("rank 0 (north)", "rank 1 (south)"))
        self._plan_use = partial(RankedJob._plan_use, self)  # type: ignore[arg-type]

    def take(self, *receipts: bytes, **lie: Any) -> None:
        uses = [
            TableUse(resource=f"{o}-train", purpose="train", visits=1) for o in "ns"
        ]
        true = {"rows": 10, "cargo_bytes": 80, "scrubbed_bytes": 81}
        tables = [replace(uses[0], **true), replace(uses[1], **{**true, **lie})]
        own = (Digest.of(b"0" + bytes([len(self.taken)])),)
        reports = [
            PassReport(uses=Uses((tables[0],), own)),
            PassReport(uses=Uses((tables[1],), tuple(map(Digest.of, receipts)))),
        ]
        of: Any = self
        RankedJob._take_uses(of, "train", 0, reports)


def test_an_account_that_fits_the_plan_is_taken() -> None:
    """Control; what of a GPU's memory a rank says besides is not taken over."""
    account = Account()
    account.take(b"1")
    account.take(b"2", scrubbed_bytes=1 << 40)
    assert [each.tables[0].scrubbed_bytes for each in account.taken] == [81] * 4


@pytest.mark.parametrize(
    "lie",
    [
        {"rows": 10**7},
        {"visits": 2},
        {"cargo_bytes": 81},
        {"sealed_bytes": 1},
        {"nonzero_bytes": 1},
        {"scrubbed_bytes": 80},
        {"purpose": "heldout"},
        {"resource": "n-train"},
    ],
)
def test_another_account_of_rows_than_the_plans_is_refused(lie: Any) -> None:
    account = Account()
    with pytest.raises(IntegrityError, match=r"rank 1 \(south\)") as refused:
        account.take(b"1", **lie)
    assert (refused.value.code, refused.value.ranks) == ("untrue-report", (1,))
    assert len(account.taken) == 1  # rank 0's own


@pytest.mark.parametrize(
    "receipts",
    [
        (),
        (b"1",),  # of the pass before
        (b"2", b"2"),
        (b"2", b"3"),
    ],
)
def test_each_use_of_rows_has_one_receipt_of_its_own(receipts: Any) -> None:
    """Of another pass, or another rank's, it would not verify in the run's receipt."""
    account = Account()
    account.take(b"1")
    with pytest.raises(IntegrityError) as refused:
        account.take(*receipts)
    assert (refused.value.code, refused.value.ranks) == ("untrue-report", (1,))


def test_of_two_ranks_with_one_receipt_both_are_named() -> None:
    """Who speaks last has heard the other one's words, and may have copied them."""
    account = Account()
    account.take(b"1")
    with pytest.raises(IntegrityError) as refused:
        account.take(b"0\2")
    assert (refused.value.code, refused.value.ranks) == ("ranks-diverged", (0, 1))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SmallRun]:
    with small_run(tmp_path) as made:
        yield made


class Judging:
    """What a rank makes of what the rank of ada shows of the logs."""

    def __init__(self, run: SmallRun) -> None:
        self.agreement = run.verified()
        count = len(OWNERS)
        slices = SlicesSettings(count=count)
        self.settings = JobSettings(slices=slices)
        keys = (
            run.instance.public_key,
            *(SigningKey.generate().public_key for _ in "ab"),
        )
        self.handout = SimpleNamespace(instances=keys)
        self.level = "development"
        self.keys = SimpleNamespace(heads=ShownHeads())
        heads = {each.body.log: each for each in run.receipt.manifest.heads}
        ada = run.consortium.agreement.party("ada").sign
        self.releases = tuple(
            each for each in run.receipt.released if each.head.body.log == ada
        )
        self.head = heads[ada]

    def judge(self, **shown: Any) -> None:
        present = {"heads": (self.head,), "releases": self.releases, **shown}
        of: Any = self
        RankedJob._judge_releases(of, 0, RankIntroduction(**present))

    def refuse(self, code: str, **shown: Any) -> None:
        with pytest.raises(SealiftError) as refused:
            self.judge(**shown)
        assert refused.value.code == code

    @property
    def shown(self) -> list[int]:
        return [each.body.size for each in self.keys.heads()]


def test_what_a_rank_shows_of_its_owners_log_is_kept(run: SmallRun) -> None:
    """Control."""
    judging = Judging(run)
    judging.judge()
    assert judging.shown == [judging.head.body.size]


def forged(head: SignedTreeHead, **lie: Any) -> SignedTreeHead:
    return SignedDocument(replace(head.body, **lie), head.signature)


def test_a_head_that_its_owner_did_not_sign_is_not_passed_on(run: SmallRun) -> None:
    judging = Judging(run)
    judging.refuse("head-unsigned", heads=(forged(judging.head, size=2**50),))
    stranger = SigningKey.generate()
    head = TreeHead(stranger.public_key, 9, Digest.of(b"root"), 1)
    judging.refuse("other-log", heads=(sign_document(head, stranger),))
    assert judging.shown == []


def test_an_owner_that_signed_two_logs_is_found(run: SmallRun) -> None:
    judging = Judging(run)
    judging.judge()
    body = replace(judging.head.body, root=Digest.of(b"another past"))
    fork = sign_document(body, run.consortium.identities["ada"])
    judging.refuse("log-forked", heads=(fork,))


def test_a_log_of_the_future_is_refused_before_anybody_is_dated_by_it(
    run: SmallRun,
) -> None:
    judging = Judging(run)
    head = judging.head.body
    for ahead_s, owner in ((300, 0), (301, 1)):
        later = replace(head, at_s=int(NOW_S) + 120 + ahead_s)
        signed = sign_document(later, run.consortium.identities["ada"])
        if owner:
            judging.refuse("head-of-the-future", heads=(signed,))
        else:
            judging.judge(heads=(signed,))


def test_a_rank_shows_nobody_a_log_of_the_future(run: SmallRun) -> None:
    """Its owner's broker is named, before the rank is that shows it."""
    judging = Judging(run)
    later = replace(judging.head.body, at_s=int(NOW_S) + 3600)
    head = sign_document(later, run.consortium.identities["ada"])
    of: Any = judging
    of.keys = SimpleNamespace(heads=lambda: (head,), releases=())
    of._restore = lambda: 0
    with pytest.raises(PolicyError, match="log of ada") as refused:
        RankedJob._meet(of, [])
    assert refused.value.code == "head-of-the-future"


def test_what_is_still_met_ends_with_the_start_of_the_group() -> None:
    """A rank that waits for another one, or for a broker, waits in its relay."""
    ended: list[str] = []
    relay = SimpleNamespace(close=lambda: ended.append("relay"))
    group = SimpleNamespace(abort=lambda: ended.append("group"))
    executor = SimpleNamespace(cut=lambda: ended.append("work"))
    of: Any = SimpleNamespace(_group=None, _relay=relay, _executor=executor)
    Rank._leave(of, PeerError("gone"))
    of._group = group
    Rank._leave(of, PeerError("gone"))
    assert ended == ["relay", "work", "group", "work"]


def test_a_rank_that_is_done_does_not_wait_for_who_never_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks 0 and 1 close; rank 2 has heard everything, and stays."""
    monkeypatch.setattr(rankedjob_module, "CLOSE_S", 0.1)
    wires = simulated_wires(3)
    groups = [SealedGroup(number, wires[number]) for number in range(3)]

    def close(number: int) -> None:
        of: Any = SimpleNamespace(group=groups[number])
        RankedJob._close_group(of)

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(close, number) for number in range(2)]:
            each.result(60)
    groups[2].abort()


def test_a_rank_shows_the_release_of_each_of_its_keys_and_no_other(
    run: SmallRun,
) -> None:
    judging = Judging(run)
    judging.refuse("no-release", releases=judging.releases[1:])
    judging.refuse("no-release", releases=run.receipt.released)
    judging.level = "tee"
    judging.refuse("other-level")
    judging.level = "development"
    judging.handout.instances = judging.handout.instances[::-1]
    judging.refuse("no-release")
    assert judging.shown == []


def failing(recipe_text: bool) -> Any:
    rule = SimpleNamespace(recipe_text=recipe_text)
    agreement = SimpleNamespace(agreement=SimpleNamespace(output_rule=rule))
    return SimpleNamespace(_agreement=agreement)


@pytest.mark.parametrize("text", [False, True])
def test_a_ranks_own_words_stay_at_home(text: bool) -> None:
    """With ``recipe_text`` the parties agreed that a recipe's own may go, and no other."""
    own = UsageError("/home/south/rows.sealed is missing", code="bad-world", ranks=(1,))
    said = Rank._failure(failing(text), own)
    assert (said.code, said.line, said.ranks) == ("bad-world", "", (1,))
    odd = UsageError("what", code="of-no-catalogue")
    assert Rank._failure(failing(text), odd).code == "rank-failed"
    recipe = recipe_failed("recipe.py", 3, "ValueError")
    assert bool(Rank._failure(failing(text), recipe).line) is text


def test_a_rank_says_that_it_is_alive_until_it_cannot() -> None:
    said: list[bytes] = []
    ended: list[SealiftError] = []
    named = PeerError("it is named", code=LOST)
    of: Any = SimpleNamespace(
        _leave=ended.append, _hear_end=lambda control, gone: named
    )
    control: Any = SimpleNamespace(send=said.append)
    assert Rank._beat(of, control) == BEAT_S
    assert isinstance(parse_message(said[0], (Alive,)), Alive)

    def gone(message: bytes) -> None:
        raise PeerError("it hung up", code="peer-closed")

    control.send = gone
    assert Rank._beat(of, control) is None
    assert ended == [named]


def test_who_meets_a_rank_of_another_level_sums_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real meeting's levels are judged before a rank goes on."""
    pushed: list[Any] = []

    class Meeting:
        levels, paths, instances = ("tee", "development"), dict[str, Any](), ()

        def __init__(self, *how: Any, **more: Any) -> None:
            self.charter = how[0]

        def meet(self) -> str:
            return "group"

    monkeypatch.setattr(ranks_module, "GroupMeeting", Meeting)
    of: Any = SimpleNamespace(
        _agreement=make_consortium().verified(),
        _names=("a", "b", "c"),
        _endpoint=None,
        _relay=None,
        _places=SimpleNamespace(direct_host=None, dialler=None),
        _proof=SimpleNamespace(level="tee"),
        _sink=discard,
        _lost=None,
    )
    stack: Any = SimpleNamespace(push=pushed.append)
    with pytest.raises(JobError) as refused:
        Rank._meet(of, stack, "digits", AGREED)
    assert refused.value.code == "levels-differ"
    assert pushed == ["group"]  # it is ended with the rank
    Meeting.levels = ("tee", "tee")
    assert Rank._meet(of, stack, "digits", AGREED) == ("group", ())
    of._lost = PeerError("the orchestrator ended this start")  # while it met them
    with pytest.raises(PeerError, match="ended this start"):
        Rank._meet(of, stack, "digits", AGREED)


def test_a_ranks_rounds_have_the_jobs_bound_and_its_owners_names() -> None:
    agreed = make_consortium(group=GroupRule(RANKS, "owner")).verified()
    slices = SlicesSettings(count=RANKS, max_norm=0.5, sync="step")
    given = dict.fromkeys(RankedJob.__dataclass_fields__)
    for name in (
        "plans",
        "_slice",
        "_beside",
        "_rounds",
        "_uses",
        "_used",
        "_own",
        "_shared",
        "_rows_before",
        "_seen",
        "_done",
        "_counted",
        "_refused",
        "_best",
        "_planned",
        "_cut",
        "_masked",
        "_stopped_at",
    ):
        given.pop(name)
    given |= {
        "rank": 0,
        "agreement": agreed,
        "settings": JobSettings(slices=slices),
        "group": SimpleNamespace(world=RANKS, rank=0),
    }
    made: Any = RankedJob(**given)  # type: ignore[arg-type]
    assert made._rounds._max_norm == 0.5
    assert made._rounds._sync == "step"
    assert made._rounds._names[0] == f"rank 0 ({agreed.agreement.data_owners[0]})"


def heldout_part(**metrics: float) -> RankNumbers:
    stop = Stop(0, "ada", "ada-heldout", "heldout", 0, 40)
    return RankNumbers(stop=stop, metrics=metrics)


def ranked(**changes: Any) -> Any:
    """What a rank judges and compares numbers with."""
    agreed = make_consortium(group=GroupRule(RANKS, "owner")).agreement
    rule = replace(agreed.output_rule, baseline_alone=True, **changes)
    agreed = replace(agreed, output=rule)
    told: list[Event] = []
    return SimpleNamespace(
        agreement=SimpleNamespace(agreement=agreed), sink=told.append, told=told, rank=0
    )


def test_a_rank_tells_a_baseline_of_its_own_owner_alone() -> None:
    of, own = ranked(), {"alone.ada.loss": 0.51239, "loss": 0.25}
    found = RankedJob._judge_numbers(of, heldout_part(**own))
    assert found.metrics == {"alone.ada.loss": 0.512, "loss": 0.25}
    texts = ("alone.a-row-of-somebody.loss", "alone.ada.a-row-of-somebody.loss")
    for name in ("alone.east.loss", "alone.loss", *texts):
        with pytest.raises(JobError) as refused:
            RankedJob._judge_numbers(of, heldout_part(**{name: 0.5}))
        assert refused.value.code == "measure-not-agreed"
    twice = {"loss": 0.5, "loss[0]": 3.0}  # an error, for which its rank can be named
    with pytest.raises(JobError, match="the agreement lists"):
        RankedJob._judge_numbers(of, heldout_part(**twice))


def test_an_owner_sees_its_own_numbers_beside_the_others() -> None:
    of = ranked(metrics=("loss", "classes_2"))
    cells = {
        "[0,0]": 30.0,
        "[0,1]": 16.0,
        "[1,0]": 30.0,
        "[1,1]": 8.0,
        "[2,0]": 38.0,
        "[2,1]": 8.0,
    }
    own = {f"classes_2{place}": value for place, value in cells.items()}
    alone = {f"alone.ada.classes_2{place}": v for place, v in cells.items()}
    of._own = of._shared = [(46, {"loss": 0.5, **own, **alone})]
    RankedJob._compare(of, 2, {"accuracy": 0.75, "loss": 0.4, "alone.east.loss": 0.1})
    (event,) = of.told
    assert event.fields["rows"] == 46
    line = sentence(event.kind, event.fields)
    assert line.startswith(
        "your 46 held-out rows, after epoch 3: accuracy 0.826 (all owners 0.75, your rows "
        "alone 0.826, most frequent class 0.652)"
    )
    assert "recall 0.5 (your rows alone 0.5)" in line
    assert "loss 0.5 (all owners 0.4)" in line
    assert "0.1" not in line, "another owner's baseline"


@pytest.mark.parametrize("home", [True, False])
def test_an_owner_sees_its_own_numbers_of_few_rows_where_its_rows_are(
    home: bool,
) -> None:
    """Others see none of a class with 4 of 20 rows; nor does its owner at another's machine."""
    of = ranked(metrics=("loss", "classes_2"))
    agreement = SimpleNamespace(
        rows_at_home=home,
        output_rule=replace(
            of.agreement.agreement.output_rule, audience="everyone", metric_rows=5
        ),
        data_owners=("ada",),
    )
    of.agreement = SimpleNamespace(agreement=agreement)
    cells = {"[0,0]": 16.0, "[0,1]": 4.0, "[1,0]": 16.0, "[2,0]": 20.0}
    own = {f"classes_2{place}": value for place, value in cells.items()}
    stop = Stop(0, "ada", "ada-heldout", "heldout", 0, 20)
    found = Measured(20, {"loss": 0.5, **own})
    of._slice = SimpleNamespace(work=lambda *how, **more: [(stop, found)])
    of._require_counted = lambda *how: None
    of.trainer = SimpleNamespace(statistics=None)
    of._beside, of._masked, of._uses = None, None, []
    (told,), _uses = RankedJob._work(of, "heldout", 0)
    assert told.metrics == {"loss": 0.5, "classes_2[]": 1.0}
    RankedJob._compare(of, 0, {"loss": 0.5})
    line = sentence(of.told[-1].kind, of.told[-1].fields)
    assert ("accuracy 0.8" in line) is home
    assert "not shared: accuracy" in line
