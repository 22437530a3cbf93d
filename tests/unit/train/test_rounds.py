"""What ranks believe of each other, pass by pass; what the orchestrator takes from whom."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.codec import encode_named
from sealift.collective.group import SealedGroup
from sealift.crypto.sign import SigningKey
from sealift.data.schedule.visits import Stop, VisitBatch
from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    PolicyError,
    SealiftError,
    meaning,
)
from sealift.events import discard
from sealift.ids import Role
from sealift.release.agreement import GroupRule
from sealift.train.loop.statistics import Measured
from sealift.train.output.accounts import TableUse, Uses
from sealift.train.ranks.orchestrator import (
    FIRST_WORD_S,
    SILENT_S,
    GroupOrchestrator,
    RankWords,
    _first_cause,
    _numbers_told,
)
from sealift.train.ranks.rank import BEAT_S, Rank
from sealift.train.ranks.rankedjob import CLOSE_S
from sealift.train.ranks.rounds import (
    GroupRounds,
    PassReport,
    RankIntroduction,
    RankNumbers,
    Work,
)
from sealift.travel.orchestrator import job as job_module
from sealift.travel.orchestrator.job import RunSummary, add_to_receipt
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.peers import accelerator_names
from sealift.travel.settings import JobSettings, RunSettings
from sealift.travel.visit.messages import (
    RUN_RECEIPT_NAME,
    Alive,
    Failed,
    FailedError,
    Finished,
    JobFinished,
    JobReady,
    Output,
    RoundEnded,
    StartJob,
    message_name,
    parse_message,
)
from tests.sim.wires import simulated_wires
from tests.worlds.consortium import OUTPUT, make_consortium


def stop(rank: int, rows: int = 10) -> Stop:
    return Stop(0, f"o{rank}", f"o{rank}-heldout", "heldout", 0, rows)


def on_ranks(work: Callable[[int, GroupRounds], Any], *works: Work) -> list[Any]:
    """What each rank came to; each tells what its ``work`` makes."""
    plans = [[VisitBatch(0, "heldout", 0, (stop(rank),))] for rank in range(len(works))]
    wires = simulated_wires(len(works))
    state = SimpleNamespace(to_parts=lambda: {"rows": bytes(8)})
    trainer: Any = SimpleNamespace(steps=0, snapshot=lambda: state)

    def one(rank: int) -> Any:
        with SealedGroup(rank, wires[rank]) as group:
            try:
                return work(
                    rank, GroupRounds(group, trainer, plans, works[rank], max_norm=0.0)
                )
            except SealiftError as error:
                return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(one, range(len(works))))


def tells(of: Stop, count: int = 1) -> Work:
    told = (RankNumbers(stop=of, metrics={"loss": 0.5}),) * count
    uses = Uses((TableUse(resource=of.resource, purpose="heldout"),))
    return lambda purpose, epoch: (told, uses)


def measure(rank: int, rounds: GroupRounds) -> tuple[PassReport, ...]:
    return rounds.run("heldout", 0)


def test_every_rank_hears_what_all_measured() -> None:
    found = on_ranks(measure, tells(stop(0)), tells(stop(1)))
    assert found[0] == found[1]
    assert [each.parts[0].stop for each in found[0]] == [stop(0), stop(1)]


@pytest.mark.parametrize(
    "lie",
    [
        tells(stop(0)),
        tells(stop(1, 1 << 40)),
        tells(stop(1), 2),
    ],
)
def test_a_rank_speaks_of_its_own_rows_alone(lie: Work) -> None:
    found = on_ranks(measure, tells(stop(0)), lie)
    assert [each.code for each in found] == ["untrue-report"] * 2
    assert [each.ranks for each in found] == [(1,)] * 2


def test_a_report_may_be_as_long_as_all_stops_make_it() -> None:
    def many(purpose: Any, epoch: int) -> tuple[tuple[RankNumbers, ...], Uses]:
        names = {f"metric-{number}": 0.5 for number in range(100_000)}
        return (RankNumbers(stop=stop(1), metrics=names),), Uses()

    found = on_ranks(measure, tells(stop(0)), many)
    assert len(found[0][1].parts[0].metrics) == 100_000


@pytest.mark.parametrize("position", [-1, 3])
def test_rank_0_goes_on_with_a_pass_of_the_job(position: int) -> None:
    def meet(rank: int, rounds: GroupRounds) -> Any:
        own = RankIntroduction(heads=(), position=0 if rank else position)
        return rounds.meet(own, [("train", 0), ("heldout", 0)])

    found = on_ranks(meet, tells(stop(0)), tells(stop(1)))
    assert [(each.code, each.ranks) for each in found] == [("untrue-report", (0,))] * 2


def test_numbers_of_another_rank_leave_by_the_rule_as_ones_own() -> None:
    told = Measured(10, {"loss": 0.123456})
    rule = replace(OUTPUT, metric_rows=10)
    assert RankNumbers.of(stop(1), told, rule).metrics == {"loss": 0.123}
    few = replace(told, rows=9)
    assert RankNumbers.of(stop(1, 9), few, rule).metrics == {}
    assert RankNumbers.of(stop(1), told, replace(rule, audience="owner")).metrics == {}
    with pytest.raises(JobError) as caught:
        RankNumbers.of(stop(1), replace(told, metrics={"rows": 5.0}), rule)
    assert caught.value.code == "measure-not-agreed"


READY = JobReady("development", 1, 0, why="", sandbox="")
ENDED = RoundEnded(purpose="train", epoch=0, rows=1, seconds=0.0, metrics={})
NOTE, MODEL = Output("fault.ada.json", b"", True), Output("model.sealed", b"", True)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("said", [ENDED, MODEL, JobFinished(b"", b"")])
def test_the_result_is_rank_0s(rank: int, said: object) -> None:
    words = [READY, NOTE, said]
    raw = [encode_named(message_name(type(each)), each) for each in reversed(words)]

    def receive(timeout_s: float | None) -> bytes:
        if not raw:
            raise PeerError("gone")
        return raw.pop()

    heard: list[Any] = []
    session: Any = SimpleNamespace(receive=receive)
    RankWords(rank, ("rank 0", "rank 1")).hear(session, heard.append)
    assert heard[:2] == words[:2]
    if rank:
        assert isinstance(heard[2], MalformedError)
    else:
        assert heard[2] == said


@pytest.mark.parametrize(
    "name", ["regression[1]", "classes_2", "alone.east.loss", "alone.ada.x.loss", "r2"]
)
def test_rank_0_tells_numbers_that_the_agreement_lists(name: str) -> None:
    rule = replace(OUTPUT, metrics=("loss", "classes_2"), baseline_alone=True)
    agreed = replace(make_consortium().agreement, output=rule)
    told = {"loss": 0.5, "majority": 0.5, "alone.ada.accuracy": 0.5}
    words = [replace(ENDED, metrics=told), replace(ENDED, metrics={name: 1.0})]
    raw = [encode_named(message_name(type(each)), each) for each in reversed(words)]
    heard: list[Any] = []
    session: Any = SimpleNamespace(receive=lambda timeout_s: raw.pop())
    names = _numbers_told(agreed)
    RankWords(0, NAMES, passes=2, numbers=names).hear(session, heard.append)
    assert heard[0] == words[0]
    assert heard[1].code == "bad-message"
    assert heard[1].ranks == (0,)
    assert heard[1].what.startswith(NAMES[0])


@pytest.mark.parametrize(("said", "passes"), [(READY, 9), (ENDED, 2)])
def test_a_rank_cannot_talk_without_end(said: object, passes: int) -> None:
    """Each word of a pass is an event, and a line of the journal of whoever hosts."""
    raw = [encode_named(message_name(type(said)), said)] * 20

    def receive(timeout_s: float | None) -> bytes:
        if not raw:
            raise PeerError("gone")
        return raw.pop()

    heard: list[Any] = []
    session: Any = SimpleNamespace(receive=receive)
    RankWords(0, ("rank 0", "rank 1"), passes=passes).hear(session, heard.append)
    assert len(heard) == 1 + (1 if said is READY else passes)
    assert isinstance(heard[-1], MalformedError)
    assert heard[-1].code == "bad-message"
    assert heard[-1].ranks == (0,)


def test_a_receipt_is_bounded_before_it_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "MAX_RUN_RECEIPT_BYTES", 8)
    receipt, part = bytearray(), Output(RUN_RECEIPT_NAME, b"12345", False)
    add_to_receipt(receipt, part)
    add_to_receipt(receipt, replace(part, name="model.sealed"))
    with pytest.raises(MalformedError) as refused:
        add_to_receipt(receipt, part)
    assert (refused.value.code, receipt) == ("bad-output", b"12345")


def test_a_rank_that_left_before_the_start_is_not_taken_for_another() -> None:
    """It is waited for once more, and not started again and again."""

    def gone(message: bytes) -> None:
        raise PeerError("it hung up", code="peer-closed")

    sessions, closed = LiveSessions(clock=time.monotonic), list[str]()
    for name in accelerator_names(3):
        peer = SimpleNamespace(role=Role.ACCELERATOR, name=name)
        close = partial(closed.append, name)
        sessions.enter(cast(Any, SimpleNamespace(peer=peer, send=gone, close=close)))
    agreement = make_consortium(group=GroupRule(3, "owner")).verified()
    settings = JobSettings(run=RunSettings(gather_s=0.1, rejoin_s=0.1))
    orchestrator = GroupOrchestrator(
        agreement, settings, sessions=sessions, sink=discard
    )
    outputs = cast(Any, SimpleNamespace(clear=lambda: None))
    with pytest.raises(PeerError, match=r"rank 0 \(ada\), rank 1 \(bern\), rank 2 "):
        orchestrator.run(StartJob("digits", b""), outputs)
    assert closed == list(accelerator_names(3))


class Control:
    """A rank's session, as the orchestrator has it."""

    def __init__(self, name: str, *said: object) -> None:
        instance = SigningKey.generate().public_key
        self.peer = SimpleNamespace(role=Role.ACCELERATOR, name=name, instance=instance)
        self._said, self.heard = list(said), list[object]()
        self._closed = threading.Event()

    def send(self, message: bytes) -> None:
        self.heard.append(parse_message(message, (StartJob, Finished, Failed)))

    def receive(self, timeout_s: float | None) -> bytes:
        if not self._said:
            self._closed.wait()
            raise PeerError("it is closed", code="session-closed")
        each = self._said.pop(0)
        if isinstance(each, Exception):
            raise each
        return encode_named(message_name(type(each)), each)

    def close(self) -> None:
        self._closed.set()


def controls_of(*said: object) -> list[Control]:
    """Each rank says one thing, or nothing."""
    names = zip(accelerator_names(len(said)), said, strict=True)
    return [Control(name, *([each] if each else [])) for name, each in names]


def run_group(controls: list[Control], keep: Callable[[RunSummary], None]) -> None:
    """The orchestrator's part of a job with these ranks, which begins once."""
    sessions = LiveSessions(clock=time.monotonic)
    for each in controls:
        sessions.enter(cast(Any, each))
    agreement = make_consortium(group=GroupRule(len(controls), "owner")).verified()
    settings = JobSettings(run=RunSettings(rejoin_s=0.0))
    outputs = cast(Any, SimpleNamespace(clear=lambda: None, keep=keep))
    with pytest.MonkeyPatch.context() as patched:
        # Some ranks never say a word.
        patched.setattr("sealift.train.ranks.orchestrator.OWN_WORD_S", FIRST_WORD_S)
        GroupOrchestrator(agreement, settings, sessions=sessions, sink=discard).run(
            StartJob("digits", b""), outputs
        )


SILENT = PeerError("no answer", code="peer-timeout")
LOST = PeerError("ada is gone", code="rank-lost")
LATER = Failed("rank-lost", "", (0,))
ABOUT = Failed("untrue-report", "/home/bern", (0,))


@pytest.mark.parametrize(
    ("second", "third", "code", "ranks"),
    [
        (None, SILENT, "rank-lost", (2,)),
        (LATER, SILENT, "rank-lost", (2,)),
        (LATER, None, "rank-lost", (1, 0)),
        (ABOUT, LATER, "untrue-report", (1, 0)),
        (Failed("bad-row", "", ()), LATER, "bad-row", (1,)),
        (JobReady("", 0, 0, why="", sandbox=""), MODEL, "bad-message", (2,)),
    ],
)
def test_every_rank_hears_who_ended_a_start(
    second: object, third: object, code: str, ranks: tuple[int, ...]
) -> None:
    controls = controls_of(None, second, third)
    with pytest.raises(SealiftError):
        run_group(controls, lambda summary: None)
    for each in controls:
        assert each.heard[1:] == [Failed(code, "", ranks)]


def test_who_is_gone_is_named_before_who_lost_it() -> None:
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    gone = PeerError("rank 2 is gone", ranks=(2,))
    told.put(gone)
    assert _first_cause(LATER, told, 2) is gone


def test_the_host_knows_whose_result_it_takes() -> None:
    """What it refuses of that ends the start for every rank, by name."""
    controls = controls_of(JobFinished(b"{}", b""), None, None)
    kept: list[RunSummary] = []

    def keep(summary: RunSummary) -> None:
        kept.append(summary)
        raise PolicyError("not of this run", code="other-run", ranks=(0,))

    with pytest.raises(PolicyError):
        run_group(controls, keep)
    assert [each.instances for each in kept] == [
        tuple(each.peer.instance for each in controls)
    ]
    for each in controls:
        assert each.heard[1:] == [Failed("other-run", "", (0,))]


@pytest.mark.parametrize("code", ["bad-recipe", "rank-failed"])
def test_every_rank_has_its_own_last_word(code: str) -> None:
    """What ends the job for good is heard of all; what is an echo is not waited for."""
    told: queue.Queue[object] = queue.Queue()
    late = threading.Timer(
        2 * FIRST_WORD_S, told.put, [Failed("other-resource", "rank 1")]
    )
    late.start()
    found = _first_cause(Failed(code, "rank 0"), told, 2)
    assert isinstance(found, FailedError)
    assert found.failed.code == code
    late.join()
    assert told.empty() is (code == "bad-recipe")


@pytest.mark.parametrize(
    ("error", "said", "code", "words"),
    [
        (
            LOST,
            Failed("rank-lost", "", (2,)),
            "rank-lost",
            "says that rank 2 (cleo) disc",
        ),
        (
            LOST,
            Failed("other-run", "", (0, 1)),
            "other-run",
            "host's machine says that rank 0 (ada)",
        ),
        (
            LOST,
            Failed("no-such\x1b", "\x1b", (9, -1)),
            "rank-failed",
            "another rank failed",
        ),
        (LOST, PeerError("gone"), "rank-lost", "host's machine"),
        (FailedError(Failed("other-run", "", (0,))), None, "other-run", "0 (ada)"),
        (JobError("bad", code="bad-row"), Failed("rank-lost", ""), "bad-row", "bad"),
    ],
)
def test_a_rank_says_whom_the_orchestrator_names(
    error: SealiftError, said: Any, code: str, words: str
) -> None:
    rank = Rank.__new__(Rank)
    rank._agreement = make_consortium(group=GroupRule(3, "owner")).verified()
    control = controls_of(said)[0]
    found = rank._hear_end(cast(Any, control), error)
    assert found.code == code
    assert words in str(found)
    assert "\x1b" not in str(found)


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        (Failed("no-memory", ""), "no-memory", "rank 1 (bern) failed: There is"),
        (
            Failed("rank-lost", "", (2,)),
            "rank-lost",
            "rank 1 (bern) says that rank 2 (cleo) d",
        ),
        (ABOUT, "untrue-report", "rank 1 (bern) ended the job because of rank 0 (ada)"),
    ],
)
def test_the_host_says_which_owner_failed_at_what(
    said: Failed, code: str, words: str
) -> None:
    with pytest.raises(SealiftError) as caught:
        run_group(controls_of(None, said, None), lambda summary: None)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "peer" not in str(caught.value)


def test_who_waits_for_a_start_hears_who_did_not_come() -> None:
    here = Control("accelerator-0", PeerError("it is closed", code="session-closed"))
    sessions = LiveSessions(clock=time.monotonic)
    sessions.enter(cast(Any, here))
    agreement = make_consortium(group=GroupRule(3, "owner")).verified()
    settings = JobSettings(run=RunSettings(gather_s=0.0, rejoin_s=0.0))
    group = GroupOrchestrator(agreement, settings, sessions=sessions, sink=discard)
    with pytest.raises(PeerError, match=r"rank 1 \(bern\), rank 2 \(cleo\) did not"):
        group.run(StartJob("digits", b""), cast(Any, None))
    assert here.heard == [Failed("peer-missing", "", (1, 2))]


def test_every_rank_has_the_receipt_of_rank_0() -> None:
    def hear(rank: int, rounds: GroupRounds) -> bytes:
        return rounds.hear_receipt(b"" if rank else b"the receipt")

    assert on_ranks(hear, tells(stop(0)), tells(stop(1))) == [b"the receipt"] * 2


NAMES = ("rank 0 (north)", "rank 1 (east)", "rank 2 (south)")


@pytest.mark.parametrize(
    ("said", "code", "ranks"),
    [
        (Failed("bad-row", "/home/east/rows"), "bad-row", (1,)),
        (Failed("bad-row", "", (2,)), "bad-row", (1, 2)),
        (Failed("bad-row", "", (1,)), "bad-row", (1,)),
        (Failed("no-such\x1b[2J", "\x1b[31m"), "rank-failed", (1,)),
        (Failed("bad-row", "", (7,)), "rank-failed", (1,)),
        (Failed("bad-row", "", (-1,)), "rank-failed", (1,)),
        (Failed("rank-lost", "", (2,)), "rank-lost", (1, 2)),
        (Failed("peer-missing", "", (2,)), "rank-failed", (1,)),
    ],
)
def test_of_a_ranks_error_we_say_the_meaning_in_our_own_words(
    said: Failed, code: str, ranks: tuple[int, ...]
) -> None:
    found = RankWords(1, NAMES).explain(said)
    assert found == Failed(code, meaning(code), ranks)


def test_a_recipes_text_comes_where_the_agreement_lets_it_out() -> None:
    said = Failed("recipe-error", "it raised\n\x1b[2J")
    assert "it raised" not in RankWords(1, NAMES).explain(said).line
    found = RankWords(1, NAMES, text=True).explain(said).line
    assert "it raised" in found
    assert found.isprintable()


def test_a_rank_that_says_nothing_is_lost_whatever_its_work_may_take() -> None:
    waited: list[Any] = []
    raw = [encode_named("alive", Alive())] * 2

    def receive(timeout_s: float | None) -> bytes:
        waited.append(timeout_s)
        if raw:
            return raw.pop()
        raise PeerError("no answer", code="peer-timeout")

    heard: list[Any] = []
    session: Any = SimpleNamespace(receive=receive)
    RankWords(1, NAMES).hear(session, heard.append)
    (lost,) = heard
    assert isinstance(lost, PeerError)
    assert "rank 1 (east)" in lost.what
    assert f"{SILENT_S:g} s" in lost.what
    assert waited == [SILENT_S] * 3
    assert (SILENT_S, CLOSE_S) == (20.0, 60.0)  # as SECURITY says
    assert SILENT_S + BEAT_S <= 30.0  # and others hear of it by their next word
