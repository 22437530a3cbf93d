"""Ranks that learn sums alone: states, sums of ``prepare`` and measures, and nothing beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from sealift.collective.group import SealedGroup
from sealift.collective.masked import MaskedSums
from sealift.data.schedule.visits import Stop, VisitBatch
from sealift.errors import MalformedError, SealiftError, UsageError
from sealift.release.agreement import Between, GroupRule, OutputRule
from sealift.release.agreement.sums import SumEncoding
from sealift.release.agreement.training import PrivateSteps
from sealift.train import plans
from sealift.train.loop.averaging import Contribution
from sealift.train.loop.measures import joint_numbers
from sealift.train.loop.states import (
    TensorBytes,
    TrainingState,
    pack_tensors,
    parse_tensors,
)
from sealift.train.loop.statistics import Measured, add_sums, let_out, sum_numbers
from sealift.train.output.accounts import Uses
from sealift.train.ranks import rankedjob
from sealift.train.ranks.rounds import GroupRounds, PassReport, RankNumbers
from sealift.train.ranks.sumsonly import (
    NoisedSteps,
    SumsOnly,
    layout_of,
    step_group,
)
from sealift.travel.settings import JobSettings, SlicesSettings
from tests.attacks.test_ranks_that_lie import World
from tests.sim.wires import simulated_wires
from tests.unit.collective import test_masked
from tests.unit.train.test_averaging import numbers, state
from tests.worlds.consortium import OUTPUT, TRAINING, make_consortium

USUAL: Final = SumEncoding(1.0, 26, 32)
RANKS: Final = 3
ROWS: Final = (20, 30, 50)
MEASURED: Final = replace(
    OUTPUT,
    metrics=("loss", "classes_2", "scores_4", "regression"),
    digits=4,
    metric_rows=16,
    audience="everyone",
)


def sums_of(
    group: SealedGroup, rule: OutputRule = MEASURED, encoding: SumEncoding = USUAL
) -> SumsOnly:
    return SumsOnly(MaskedSums(group, encoding), rule)


def on_ranks(
    work: Callable[[int, SumsOnly], Any], rule: OutputRule = MEASURED, wires: Any = None
) -> list[Any]:
    ends = wires or simulated_wires(RANKS)

    def one(rank: int) -> Any:
        with SealedGroup(rank, ends[rank]) as group:
            try:
                sums = sums_of(group, rule)
                sums.begin()
                return work(rank, sums)
            except SealiftError as error:
                return error

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(one, range(RANKS)))


# --- states -----------------------------------------------------------------------------


def test_ranks_train_what_ranks_train_that_see_parts() -> None:
    """Whole rounds of real trainers: equal on all ranks, and rounded by 2**-26."""
    found = World(sums=sums_of, odd=-1).run()
    assert [each.error for each in found] == [None] * RANKS
    assert len({each.trainer.joint for each in found}) == 1
    parts = World(odd=-1).run()
    ours, theirs = (each[0].trainer.joint for each in (found, parts))
    assert ours.step == theirs.step
    tensors = parse_tensors(theirs.tensors)
    for name, tensor in parse_tensors(ours.tensors).items():
        assert tensor.dtype == "F32"
        one, other = (np.frombuffer(e.content, "f4") for e in (tensor, tensors[name]))
        assert np.abs(one - other).max() < 4 * 2.0**-26 + 1e-6, name
    assert ours != theirs
    assert [each.rounds.cut for each in found] == [0] * RANKS


def test_a_change_beyond_the_bound_is_cut_and_counted_everywhere() -> None:
    tight = SumEncoding(2.0**-20, 40, 64)
    found = World(sums=lambda group: sums_of(group, encoding=tight), odd=-1).run()
    assert [each.error for each in found] == [None] * RANKS
    cut = {each.rounds.cut for each in found}
    assert len(cut) == 1
    assert cut.pop() > 100


def mean_of(states: list[TrainingState], before: TrainingState) -> list[TrainingState]:
    def work(rank: int, sums: SumsOnly) -> TrainingState:
        one = Contribution(before, states[rank], ROWS[rank] / 100, only_sums=RANKS)
        for piece in one.pieces():
            sums.add_piece(piece)
            one.put(piece)
        return one.result(7)

    return on_ranks(work)


def test_each_role_has_its_own_bound() -> None:
    """A count of steps and a square of a small gradient are in one optimizer."""
    before = state(F32_w=[0.5, -0.5], F32_ostep=[0.0], F32_osquare=[0.0, 0.0])
    after = [
        state(F32_w=[0.25, 0.5], F32_ostep=[n], F32_osquare=[1e-11, 2e-12])
        for n in (1000.0, 2000.0, 3000.0)
    ]
    for mean in mean_of(after, before):
        assert numbers(mean, "model/w") == pytest.approx([0.25, 0.5], abs=1e-7)
        assert numbers(mean, "optimizer/ostep") == pytest.approx([2300.0])
        found = numbers(mean, "optimizer/osquare")
        assert found == pytest.approx([1e-11, 2e-12], rel=1e-4)


def test_a_counter_moves_by_the_mean_of_its_changes() -> None:
    """The largest one is somebody's own; what is the same everywhere stays what it is."""
    before = state(I64_seen=[10, -5, 1 << 40], F32_w=[0.0])
    changes = ([3, -1, 0], [5, -1, 0], [6, -3, 0])
    after = [state(I64_seen=np.add([10, -5, 1 << 40], c), F32_w=[0.0]) for c in changes]
    for mean in mean_of(after, before):
        assert numbers(mean, "model/seen", np.int64) == [14, -6, 1 << 40]


def test_a_round_in_which_an_owner_makes_no_step_is_not_begun() -> None:
    """Its part would be zeros, which all others know."""

    class Idle(World):
        @property
        def plans(self) -> list[list[VisitBatch]]:
            return [*super().plans[:2], []]

    idle = Idle(sums=sums_of, odd=-1)
    found = idle.run()
    assert [each.error and each.error.code for each in found] == ["slices-differ"] * 3
    assert not any(each.trainer.joint.step for each in found)


# --- sums of prepare --------------------------------------------------------------------


def blob(scale: int) -> bytes:
    real = np.array([[0.25, -1e6], [3.5, 1e-3]]) * scale
    whole = np.array([1 << 50, -7], np.int64) // scale
    return pack_tensors(
        {
            "mean": TensorBytes("F64", real.shape, memoryview(real.tobytes())),
            "count": TensorBytes("I64", whole.shape, memoryview(whole.tobytes())),
        }
    )


def test_sums_of_prepare_are_those_of_open_ranks() -> None:
    blobs = [blob(rank + 1) for rank in range(RANKS)]
    exact = {n: sum_numbers(e) for n, e in parse_tensors(add_sums(blobs)).items()}

    def work(rank: int, sums: SumsOnly) -> bytes:
        return sums.add_statistics(layout_of(blobs[0]), blobs[rank])

    first, *others = on_ranks(work)
    assert others == [first] * 2
    for name, tensor in parse_tensors(first).items():
        least = RANKS * 2.0**-21 if tensor.dtype == "F64" else 0
        assert sum_numbers(tensor) == pytest.approx(exact[name], abs=least, rel=0)


def test_what_is_compared_before_has_no_number_in_it() -> None:
    layouts = {layout_of(blob(scale)) for scale in (1, 2, 3)}
    assert len(layouts) == 1
    assert not any(any(sum_numbers(e)) for e in parse_tensors(layouts.pop()).values())


# --- measures ---------------------------------------------------------------------------


def stop(rank: int) -> Stop:
    return Stop(0, f"o{rank}", f"o{rank}-heldout", "heldout", 0, ROWS[rank])


def told(rank: int) -> dict[str, float]:
    """As a recipe tells it; every class and interval has rows enough on every rank."""
    rows = ROWS[rank]
    ones = rows // 2
    return {
        "loss": 0.123456 * (rank + 1),
        "classes_2[0,0]": float(rows - ones),
        "classes_2[0,1]": float(ones),
        "classes_2[1,1]": float(ones - rank),
        "classes_2[2,0]": float(rows - ones),
        "classes_2[2,1]": float(ones),
        "scores_4[0,0]": float(rows - ones),
        "scores_4[1,3]": float(ones),
        "scores_4[2,0]": 0.1 * (rows - ones),
        "scores_4[2,3]": 0.9 * ones,
        "regression[0]": float(rows),
        "regression[1]": 10.0 * rows,
        "regression[2]": 200.0 * rows,
        "regression[3]": 1.5 * rows,
        "regression[4]": 0.5 * rows,
    }


def told_by(sums: SumsOnly) -> Callable[[bytes], list[bytes]]:
    return sums._sums._group.exchange


def measures(
    rule: OutputRule = MEASURED, tell: Callable[[int], dict[str, float]] = told
) -> list[tuple[int, dict[str, float]]]:
    def work(rank: int, sums: SumsOnly) -> Any:
        stops = [stop(each) for each in range(RANKS)]
        return sums.add_measures([(stop(rank), tell(rank))], stops, told_by(sums))

    return on_ranks(work, rule)


def test_measures_are_those_of_open_ranks() -> None:
    loose = replace(MEASURED, metric_rows=1)
    open_parts = [
        (ROWS[rank], let_out(Measured(ROWS[rank], told(rank)), loose).metrics)
        for rank in range(RANKS)
    ]
    exact = joint_numbers(open_parts, 4)
    for rows, metrics in measures():
        assert rows == sum(ROWS)
        seen = let_out(Measured(rows, metrics), MEASURED).metrics
        found = joint_numbers([(rows, seen)], 4)
        assert found.keys() == exact.keys()
        assert found == pytest.approx(exact, abs=2e-4)


def test_the_output_rule_judges_the_sum() -> None:
    """Few rows of a class on one rank are no few rows of all; few of all are withheld."""

    def rare(rank: int) -> dict[str, float]:
        rows = float(ROWS[rank])
        return {"classes_2[0,0]": rows - 2, "classes_2[0,1]": 2, "classes_2[2,0]": rows}

    rule = replace(MEASURED, metrics=("classes_2",), metric_rows=5)
    for rows, metrics in measures(rule, rare):
        assert "classes_2[0,1]" in let_out(Measured(rows, metrics), rule).metrics
    rule = replace(rule, metric_rows=7)
    for rows, metrics in measures(rule, rare):
        seen = let_out(Measured(rows, metrics), rule).metrics
        assert seen == {"classes_2[]": 1.0}


@pytest.mark.parametrize(
    ("own", "left"),
    [
        ({"classes_2[0,0]": 20, "classes_2[2,0]": 20}, {"classes_2"}),
        ({**told(0), "loss": float("nan")}, {"classes_2", "scores_4", "regression"}),
        ({**told(0), "loss": 1e30}, {"classes_2", "scores_4", "regression"}),
        ({**told(0), "regression[2]": 1e30}, {"loss", "classes_2", "scores_4"}),
        ({**told(0), "scores_4[5,5]": 1.0}, {"loss", "classes_2", "regression"}),
    ],
)
def test_what_a_rank_lacks_is_added_up_by_nobody(
    own: dict[str, float], left: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum would be of the others alone, and each of two could subtract its own."""
    added = Counter[int]()
    add_up = MaskedSums.add_up

    def counted(self: MaskedSums, numbers: Any, *how: Any) -> None:
        added[numbers.size] += 1
        add_up(self, numbers, *how)

    monkeypatch.setattr(MaskedSums, "add_up", counted)
    places = {"loss": 1, "classes_2": 6, "scores_4": 12, "regression": 5}
    for _rows, metrics in measures(tell=lambda rank: told(rank) if rank else own):
        cells = {n for n in metrics if not n.endswith("[]")}
        assert {name.partition("[")[0] for name in cells} == left
        gone = {f"{each}[]" for each in places.keys() - left - {"loss"}}
        assert metrics.keys() - cells == gone
    assert added == {sum(places[each] for each in left): RANKS}


def test_measures_of_few_owners_are_told_to_nobody() -> None:
    assert measures(replace(MEASURED, metric_rows=25)) == [(0, {})] * RANKS
    assert measures(replace(MEASURED, audience="owner")) == [(0, {})] * RANKS


def test_no_ranks_own_number_is_on_a_wire() -> None:
    """Whole passes: what a rank hears has nothing of the parts that open ranks tell."""
    wires = test_masked.heard_wires()

    def work(rank: int, sums: SumsOnly) -> None:
        stops = [stop(each) for each in range(RANKS)]
        sums.add_measures([(stop(rank), told(rank))], stops, told_by(sums))
        sums.add_statistics(layout_of(blob(1)), blob(1))

    assert on_ranks(work, wires=wires) == [None] * RANKS
    heard = [m for wire in wires[0].values() for m in wire.heard]
    parts = [float(ROWS[1]), 0.123456 * 2 * ROWS[1], float(ROWS[2])]
    for value in parts:
        code = round(value * 2**20).to_bytes(8, "little")
        assert not any(code in message for message in heard)


# --- passes of a group ------------------------------------------------------------------


def passes(
    purpose: Any,
    work: Callable[[int], Any],
    statistics: Callable[[int], bytes],
    lie: Callable[[PassReport], PassReport] = lambda own: own,
    kind: type[SealedGroup] = SealedGroup,
) -> tuple[list[Any], list[list[PassReport]]]:
    """What each rank ends with, and the reports that it put on the wires.

    Rank 2 has this kind of group, and tells a lie.
    """
    wires, told = simulated_wires(RANKS), [list[PassReport]() for _ in range(RANKS)]
    planned = [
        [VisitBatch(0, purpose, 0, (replace(stop(rank), purpose=purpose),))]
        for rank in range(RANKS)
    ]

    def one(rank: int) -> Any:
        blob = statistics(rank)
        trainer: Any = SimpleNamespace(steps=0, statistics=blob, joint=None)
        trainer.take_sums = lambda total: setattr(trainer, "statistics", total)
        odd = rank == RANKS - 1
        with (kind if odd else SealedGroup)(rank, wires[rank]) as group:
            rounds: Any = GroupRounds(
                group,
                trainer,
                planned,
                lambda purpose, epoch: (work(rank), Uses()),
                max_norm=0.0,
                sums=sums_of(group),
            )
            share = rounds._share

            def kept(own: PassReport) -> Any:
                own = lie(own) if odd else own
                told[rank].append(own)
                return share(own)

            rounds._share = kept
            try:
                return rounds.run(purpose, 0), trainer.statistics
            except SealiftError as error:
                return error

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(one, range(RANKS))), told


def test_a_report_has_no_measure_and_the_result_is_of_all_rows() -> None:
    def work(rank: int) -> tuple[RankNumbers, ...]:
        return (RankNumbers(stop=stop(rank), metrics=told(rank)),)

    found, reports = passes("heldout", work, lambda rank: b"")
    for each in reports:
        assert [part.metrics for report in each for part in report.parts] == [{}]
    for ended, _statistics in found:
        assert ended == found[0][0]
        (part,) = [part for report in ended for part in report.parts]
        assert part.stop.rows == sum(ROWS)
        assert part.metrics["regression[0]"] == sum(ROWS)


def test_a_report_has_no_sum_and_the_result_is_of_all_ranks() -> None:
    def work(rank: int) -> tuple[RankNumbers, ...]:
        own = replace(stop(rank), purpose="prepare")
        return (RankNumbers(stop=own, metrics={}),)

    found, reports = passes("prepare", work, lambda rank: blob(rank + 1))
    assert {r.sums for each in reports for r in each} == {layout_of(blob(1))}
    (total,) = {statistics for _ended, statistics in found}
    count = sum_numbers(parse_tensors(total)["count"])
    assert count == sum_numbers(
        parse_tensors(add_sums(blob(rank + 1) for rank in range(RANKS)))["count"]
    )


def measure(rank: int) -> tuple[RankNumbers, ...]:
    return (RankNumbers(stop=stop(rank), metrics=told(rank)),)


def prepare(rank: int) -> tuple[RankNumbers, ...]:
    return (RankNumbers(stop=replace(stop(rank), purpose="prepare"), metrics={}),)


def aloud(report: PassReport) -> PassReport:
    parts = tuple(replace(each, metrics={"loss": 0.25}) for each in report.parts)
    return replace(report, parts=parts)


@pytest.mark.parametrize(
    ("purpose", "work", "lie"),
    [
        ("heldout", measure, aloud),
        ("prepare", prepare, lambda own: replace(own, sums=blob(1))),
    ],
)
def test_a_number_in_a_report_is_refused(purpose: Any, work: Any, lie: Any) -> None:
    sums = blob if purpose == "prepare" else lambda rank: b""
    found, _reports = passes(purpose, work, lambda rank: sums(rank + 1), lie)
    for error in found[:2]:
        assert (error.code, error.ranks) == ("untrue-report", (2,))
        assert "only added up masked" in str(error)


def test_no_sums_of_prepare_are_of_fewer_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[Any] = []
    monkeypatch.setattr(SumsOnly, "add_statistics", lambda *given: added.append(given))
    found, _reports = passes(
        "prepare", prepare, lambda rank: b"" if rank == 2 else blob(rank + 1)
    )
    for error in found:
        assert (error.code, error.ranks) == ("untrue-report", (2,))
    assert added == []


def test_a_sum_of_prepare_that_would_be_cut_ends_the_job_before_any_is_told() -> None:
    large = np.array([2.0**39])
    sums = {"mean": TensorBytes("F64", large.shape, memoryview(large.tobytes()))}
    found, reports = passes("prepare", prepare, lambda rank: pack_tensors(sums))
    assert {error.code for error in found} == {"statistics-withheld"}
    assert {report.sums for each in reports for report in each} == {b""}


class TwoSums(SealedGroup):
    """Adds something to what it tells rank 1 alone, of sums of 64 bits."""

    summing = False

    def all_reduce(self, tensor: Any, *how: Any) -> None:
        self.summing = tensor.dtype == np.uint64 and tensor.size > 1
        super().all_reduce(tensor, *how)
        self.summing = False

    def _send_all(self, message: Any) -> None:
        for number, peer in self._peers.items():
            other = bytearray(message)
            if self.summing and number == 1:
                other[-6] ^= 1
            peer.send(bytes(other))


def test_two_sums_of_measures_are_found() -> None:
    """Nobody publishes a number that another rank was told otherwise."""
    found, _reports = passes("heldout", measure, lambda rank: b"", kind=TwoSums)
    assert {error.code for error in found[:2]} == {"ranks-diverged"}
    assert "added up other measures" in str(found[0])


@pytest.mark.parametrize(
    ("ranks", "changes", "words"),
    [
        (3, {}, ""),
        (2, {}, "three or more"),
        (3, {"sync": "step"}, 'with sync = "round"'),
        (3, {"max_norm": 1.0}, "without max_norm"),
    ],
)
def test_each_rank_refuses_what_sums_alone_do_not_hide(
    ranks: int, changes: dict[str, Any], words: str
) -> None:
    """By the job alone: the agreement's own check is another one."""
    agreement = make_consortium().agreement
    owners = agreement.data_owners[:ranks]
    kept = tuple(each for each in agreement.resources if each.owner in (*owners, "dan"))
    fits: Any = SimpleNamespace(
        data_owners=owners, holders=owners, resources=kept, group=None
    )
    settings = JobSettings(slices=SlicesSettings(count=ranks, sums="only", **changes))
    if not words:
        plans._check_slices(settings, fits)
        return
    with pytest.raises(UsageError, match=words) as caught:
        plans._check_slices(settings, fits)
    assert caught.value.code == "slices-differ"


def test_an_agreement_of_two_owners_has_no_sums_alone() -> None:
    agreement = make_consortium().agreement
    training = replace(
        TRAINING, plans=("ddp",), rows=("owner",), sync=("round",), sums=("only",),
        max_norm=Between(0, 0), slices=Between(2, 3), drop_last=(True,),
    )  # fmt: skip
    replace(agreement, group=GroupRule(3, "owner"), training=training)
    with pytest.raises(MalformedError, match="by subtraction") as caught:
        replace(agreement, group=GroupRule(2, "share"), training=training)
    assert caught.value.code == "bad-agreement"


def test_steps_are_added_up_with_everybodys_part_of_the_noise() -> None:
    """What a wire carries is masked; the sum of nothing is noise of all parts together."""
    private = PrivateSteps(clip=1.0, noise=0.5, batch=8, honest_ranks=2)
    only = {"sums": ("only",), "sync": ("step",), "slices": Between(3, 3)}
    rule = replace(TRAINING, plans=("ddp",), rows=("owner",), prepare=(False,), privacy=private, **only)  # type: ignore[arg-type] # fmt: skip
    size = 20_000

    def work(rank: int, sums: MaskedSums) -> Any:
        steps = step_group(sums._group, sums, rule)
        numbers = np.full(size, rank << 40, np.int64)
        steps.all_reduce(numbers)
        return numbers

    first, *others = test_masked.on_ranks(work)
    assert all(np.array_equal(first, each) for each in others)
    noise = first - (3 << 40)
    # The variance of so many has a relative error of 0.01: these bounds are 8 of them.
    assert 0.92 < noise.astype(np.float64).var() / (RANKS * private.part) < 1.08
    with SealedGroup(0, simulated_wires(1)[0]) as alone:
        assert step_group(alone, None, TRAINING) is alone


def test_a_job_whose_noise_is_shared_adds_up_steps_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private = PrivateSteps(clip=1.0, noise=0.5, batch=8, honest_ranks=2)
    planned = SimpleNamespace(why=(), bucket_bytes=1 << 20)
    monkeypatch.setattr(rankedjob, "plan_group", lambda *_: planned)
    for rule, kind in ((replace(TRAINING, privacy=None), str), (None, NoisedSteps)):
        agreed = rule or SimpleNamespace(privacy=private, honest_ranks=2)
        job: Any = SimpleNamespace(
            group="the group", device="a device", plans=(), handout=SimpleNamespace(),
            settings=SimpleNamespace(slices=SimpleNamespace(sync="step")),
            agreement=SimpleNamespace(agreement=SimpleNamespace(training_rule=agreed)),
            _masked=SimpleNamespace(exchange=None), _model_bytes=lambda: 0,
        )  # fmt: skip
        rankedjob.RankedJob._plan_group(job)
        beside = job._beside
        assert isinstance(beside.group, kind)
        shared = kind is NoisedSteps
        assert (beside.units, beside.device) == (shared, None if shared else "a device")
