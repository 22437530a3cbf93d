"""Products that a recipe's process asks for: held to their traces, judged, made again."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealift.channel.record.frames import wrong_length
from sealift.errors import (
    IntegrityError,
    JobError,
    PeerError,
    SealiftError,
    Stopping,
    UnavailableError,
)
from sealift.numeric.kernels import portable_kernels
from sealift.numeric.residues import F32, I16, U32
from sealift.numeric.windows import KernelWindow
from sealift.outsource import server
from sealift.outsource.masked import MaskedProducts, Share
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.plain import PlainProducts
from sealift.outsource.server import ServedJob, ShareServer
from sealift.outsource.terms import Backward, Direction, Exchange, Forward, Layer
from sealift.outsource.trace import Phase, StepKind, Trace, Traces, tabulate
from sealift.train.loop.products import Outsourcing, RehearsedSteps, TaskSteps
from sealift.train.loop.tasks import (
    SliceId,
    SliceTask,
    StepForm,
    TaskInputs,
    TaskModel,
    TaskPart,
    Work,
)
from sealift.train.loop.told import TaskObserver
from sealift.train.plans.local import LocalRun
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.products import BeginStep, ProductAnswers
from sealift.travel.settings import TrainingSettings
from tests.sim.jobworld import RECIPE, Wishes, fresh_world, train_here
from tests.sim.servedshares import SharesWorld
from tests.sim.shareservers import InPlaceServers

pytestmark = pytest.mark.distributed

Settle = Callable[[int], None]


class JudgedProducts(PlainProducts):
    """Products of servers whose verdicts a test chooses; counts what was asked."""

    def __init__(self, verdict: Settle = lambda settled: None) -> None:
        super().__init__()
        self._verdict, self.settled = verdict, 0
        self.begun: list[tuple[StepKind, int]] = []
        self.asked: list[str] = []

    def begin(self, kind: StepKind, step: int) -> None:
        self.begun.append((kind, step))
        self.asked.append("")
        super().begin(kind, step)

    def forward(self, exchange: Forward, x: I16, w: I16, scale: float) -> F32:
        self.asked[-1] += "f"
        return super().forward(exchange, x, w, scale)

    def backward(
        self, exchange: Backward, dy: I16, scales: tuple[float, ...]
    ) -> list[F32]:
        self.asked[-1] += "b"
        return super().backward(exchange, dy, scales)

    def settle(self) -> None:
        super().settle()
        self.settled += 1
        self._verdict(self.settled)


def wrong_at(*settled: int) -> Settle:
    def verdict(now: int) -> None:
        if now in settled:
            raise IntegrityError("P (cloud) sent a wrong answer", code="wrong-product")

    return verdict


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    return run(tmp_path_factory.mktemp("honest"), PlainProducts())


def run(
    folder: Path,
    products: PlainProducts,
    recipe: str = RECIPE,
    *,
    redo: int = 0,
    told: list[SealiftError] | None = None,
) -> LocalRun:
    """In the sandboxed process of recipes."""
    kept = told if told is not None else []
    outsourcing = Outsourcing(
        lambda traces: products, portable_kernels(), 7, redo=redo, told=kept.append
    )
    return train_in_sandbox(folder, recipe, outsourcing)


def train_in_sandbox(folder: Path, recipe: str, outsourcing: Outsourcing) -> LocalRun:
    world = fresh_world(folder, Wishes(epochs=1, recipe=recipe))
    executors: list[RecipeExecutor] = []

    def at(*bundle: object) -> RecipeExecutor:
        executors.append(RecipeExecutor(*bundle))  # type: ignore[arg-type]
        return executors[0]

    try:
        return train_here(world, products=outsourcing, at=at)
    finally:
        for each in executors:
            each.close()


def test_a_run_asks_for_the_products_of_every_step(tmp_path: Path) -> None:
    products = JudgedProducts()
    ran = run(tmp_path, products)
    trained = {step for kind, step in products.begun if kind.phase == "train"}
    assert trained == set(range(ran.steps))
    assert {kind.rows for kind, _ in products.begun if kind.phase == "train"} > {64}
    assert any(kind.phase == "evaluate" for kind, _ in products.begun)
    assert products.settled == len(products.begun)


def test_the_bits_are_those_of_the_same_products_without_a_sandbox(
    tmp_path: Path, honest: LocalRun
) -> None:
    world = fresh_world(tmp_path, Wishes(epochs=1))
    here = Outsourcing(lambda traces: PlainProducts(), portable_kernels(), 7)
    assert train_here(world, products=here).weights == honest.weights
    assert train_here(world).weights != honest.weights  # of float32


def test_a_step_that_is_made_again_gives_the_same_model(
    tmp_path: Path, honest: LocalRun
) -> None:
    told: list[SealiftError] = []
    products = JudgedProducts(wrong_at(2, 3, 9))
    ran = run(tmp_path, products, redo=3, told=told)
    assert ran.weights == honest.weights
    assert [each.code for each in told] == ["wrong-product"] * 3
    assert products.begun[1] == products.begun[2] == products.begun[3]


def test_buffers_are_put_back_before_a_step_is_made_again(tmp_path: Path) -> None:
    normed = RECIPE.replace("nn.Dropout(0.1)", "nn.BatchNorm1d(16)")
    honest = run(tmp_path / "a", PlainProducts(), normed)
    again = run(tmp_path / "b", JudgedProducts(wrong_at(5)), normed, redo=1)
    assert again.weights == honest.weights


def test_a_wrong_answer_that_is_not_forgiven_ends_the_job(tmp_path: Path) -> None:
    told: list[SealiftError] = []
    with pytest.raises(IntegrityError, match=r"P \(cloud\)") as caught:
        run(tmp_path, JudgedProducts(wrong_at(4, 9)), redo=1, told=told)
    assert (caught.value.exit_code, len(told)) == (5, 2)


ONE_MORE = """
    def training_step(self, batch, step):
        if step == 3:
            self.layers(batch["pixels"])
"""
BY_ROWS = """
    def training_step(self, batch, step):
        if (batch["pixels"] > 15.5).any() and step > 2:
            self.layers(batch["pixels"])
"""
FEWER = """
    def training_step(self, batch, step):
        if step == 3:
            return self.layers[0].weight.sum()
"""
HALF = """
    def training_step(self, batch, step):
        if step == 3:
            batch = {name: each[: len(each) // 2] for name, each in batch.items()}
"""


@pytest.mark.parametrize("change", [ONE_MORE, BY_ROWS, FEWER, HALF])
def test_other_products_than_rehearsed_end_the_job(tmp_path: Path, change: str) -> None:
    recipe = RECIPE.replace("    def training_step(self, batch, step):\n", change[1:])
    assert recipe != RECIPE
    products = JudgedProducts()
    with pytest.raises(JobError) as caught:
        run(tmp_path, products, recipe)
    assert caught.value.code == "other-operations"
    assert products.settled == len(products.begun)
    assert set(products.asked) == {"ffbb"}  # every step is whole, the last one too


def test_what_is_not_finite_is_named_by_its_layer(tmp_path: Path) -> None:
    recipe = RECIPE.replace(
        'self.layers(batch["pixels"] / 16.0)',
        'self.layers(batch["pixels"] / (16.0 if step != 3 else 0.0))',
    )
    with pytest.raises(JobError, match=r"x of layers\.0 in step 3") as caught:
        run(tmp_path, PlainProducts(), recipe)
    assert caught.value.code == "operand-not-finite"


FAILS = """
    def training_step(self, batch, step):
        if step == 3:
            self.layers(batch["pixels"])
            raise KeyError(step)
"""


def test_a_recipe_that_fails_shows_no_server_where(tmp_path: Path) -> None:
    """The step is made whole and judged; what a server did comes first."""
    recipe = RECIPE.replace("    def training_step(self, batch, step):\n", FAILS[1:])
    products = JudgedProducts()
    with pytest.raises(JobError) as caught:
        run(tmp_path / "a", products, recipe)
    assert caught.value.code == "recipe-error"
    assert products.settled == len(products.begun) == 4
    with pytest.raises(IntegrityError):
        run(tmp_path / "b", JudgedProducts(wrong_at(4)), recipe)


def test_operands_that_do_not_fit_are_refused_before_the_job() -> None:
    outsourcing = Outsourcing(lambda traces: PlainProducts(), portable_kernels(), 7)
    outsourcing._learn(Traces(()), 0)
    call = Forward(Layer(name="one", batch=2, inputs=3, outputs=5))
    traces = tabulate({StepKind("evaluate", 2): (call,)})
    assert traces.operand_bytes() == 2 * (2 * 3 + 3 * 5)
    with pytest.raises(UnavailableError) as caught:
        outsourcing._learn(traces, traces.operand_bytes() - 1)
    assert caught.value.code == "no-memory"
    outsourcing._learn(traces, traces.operand_bytes())
    assert outsourcing.traces == traces


CALL = Forward(Layer(name="one", batch=2, inputs=3, outputs=5))
TASK = SliceTask(
    "heldout",
    TrainingSettings(batch_rows=2),
    models=(TaskModel(parts=(0,), begun=True),),
    parts=(TaskPart(SliceId(0, "rows", 0), rows=4, row_bytes=4, schema={}),),
)


def ask(steps: TaskSteps) -> None:
    """Everything of a step but its verdict."""
    x, w = (np.ones(CALL.layer.shape(each), np.float32) for each in ("x", "w"))
    steps.begin()
    steps.forward(CALL, x, w)


@pytest.mark.parametrize(
    ("left", "wrong"),
    [("none", 0), ("one", 0), ("one and a half", 0), ("two", 2), ("two", 0)],
)
def test_a_task_ends_once_all_its_steps_are_made(left: str, wrong: int) -> None:
    """Of two, whatever the recipe's process says: its parent counts."""
    outsourcing = Outsourcing(
        lambda traces: JudgedProducts(wrong_at(wrong)), portable_kernels(), 7, redo=1
    )
    outsourcing._learn(tabulate({StepKind("evaluate", 2): (CALL,)}), 1 << 20)
    whole = left == "two" and not wrong
    ends = nullcontext() if whole else pytest.raises(JobError, match="ended too early")
    with ends, outsourcing.steps(TASK, TaskInputs(states=(None,))) as steps:
        for number in range({"none": 0, "two": 2}.get(left, 1)):
            ask(steps)
            assert steps.settle() is (wrong != number + 1)
        if left == "one and a half":
            ask(steps)
        if whole:
            with pytest.raises(JobError, match="more steps") as more:
                ask(steps)
            assert more.value.code == "other-operations"


HIDDEN = Layer(name="two", batch=2, inputs=5, outputs=4)
FORWARDS = (CALL, Forward(HIDDEN))
TRAINED = (
    Forward(CALL.layer, ("weight",)),
    Forward(HIDDEN, ("input", "weight")),
    Backward(1, ("input", "weight")),
    Backward(0, ("weight",)),
)


def last(trace: Trace) -> Trace:
    """The same, of a batch of one row."""
    return tuple(
        replace(each, layer=replace(each.layer, batch=1))
        if isinstance(each, Forward)
        else each
        for each in trace
    )


def ask_one(steps: TaskSteps, exchange: Exchange, layers: list[Layer]) -> None:
    def numbers(shape: tuple[int, ...]) -> F32:
        return np.ones(shape, np.float32)

    if isinstance(exchange, Forward):
        layers.append(exchange.layer)
        steps.forward(exchange, *map(numbers, map(exchange.layer.shape, ("x", "w"))))
    else:
        steps.backward(exchange, numbers(layers[exchange.call].shape("dy")))


def leave_at(servers: InPlaceServers, place: int | None, how: str, work: Work) -> None:
    """Two steps; the second one, of a short batch, is left at a place."""
    trace = TRAINED if work == "train" else FORWARDS
    phase: Phase = "train" if work == "train" else "evaluate"
    kernels = portable_kernels()
    outsourcing = Outsourcing(
        lambda traces: MaskedProducts(servers, kernels), kernels, 7
    )
    traces = {StepKind(phase, 2): trace, StepKind(phase, 1): last(trace)}
    outsourcing._learn(tabulate(traces), 1 << 30)
    part = TaskPart(SliceId(0, "rows", 0), rows=3, row_bytes=4, schema={})
    task = replace(TASK, work=work, parts=(part,))
    with outsourcing.steps(task, TaskInputs(states=(None,))) as steps:
        for number, each in enumerate((trace, last(trace))):
            layers: list[Layer] = []
            steps.begin()
            for at, exchange in enumerate(each):
                if number and at == place:
                    leave(steps, how)
                ask_one(steps, exchange, layers)
            if number and place == len(each):
                leave(steps, how)
            steps.settle()


def leave(steps: TaskSteps, how: str) -> None:
    match how:
        case "another layer":
            ask_one(steps, Forward(replace(HIDDEN, name="three")), [])
        case "settles":
            steps.settle()
            pytest.fail("a step ended early")
        case "begins another":
            steps.begin()
        case "out of memory":
            raise UnavailableError("no memory for the recipe", code="no-memory")
        case "is killed":
            raise JobError(
                "the recipe's process ended before its work was done",
                code="recipe-killed",
            )


def shown(servers: InPlaceServers) -> list[str]:
    """What P gets but for the numbers: kinds, exchanges, shapes, ends, in order."""
    return [
        str([getattr(part, "shape", part) for part in each])
        for each in map(tuple, servers.views["P"])
    ]


@pytest.mark.parametrize("work", ["train", "heldout"])
@pytest.mark.parametrize(
    "how",
    ["another layer", "settles", "begins another", "out of memory", "is killed"],
)
def test_servers_see_no_place_where_a_recipe_left_its_step(
    how: str, work: Work
) -> None:
    whole, exchanges = InPlaceServers(), 4 if work == "train" else 2
    leave_at(whole, None, how, work)
    assert len(shown(whole)) == 2 * (exchanges + 2)
    told: set[str] = set()
    for place in range(exchanges + (how != "settles")):
        servers = InPlaceServers()
        with pytest.raises(SealiftError) as caught:
            leave_at(servers, place, how, work)
        assert shown(servers) == shown(whole)
        told.add(str(caught.value))
    assert len(told) == 1  # who hears of the error learns no place and no name either
    assert "three" not in told.pop()


def test_a_server_that_lies_is_named_before_what_the_recipe_did() -> None:
    def bend(share: Share, layer: Layer, direction: Direction, answer: U32) -> U32:
        return answer ^ (share == "M" and layer.batch == 1)

    with pytest.raises(IntegrityError, match=r"M .cloud-m."):
        leave_at(InPlaceServers(bend), 1, "another layer", "heldout")


def test_a_server_that_is_gone_is_not_asked_for_the_rest() -> None:
    servers, kernels = InPlaceServers(), portable_kernels()
    outsourcing = Outsourcing(
        lambda traces: MaskedProducts(servers, kernels), kernels, 7
    )
    outsourcing._learn(tabulate({StepKind("evaluate", 2): FORWARDS}), 1 << 30)
    servers.gone = "Z"
    gone = pytest.raises(PeerError)
    with gone, outsourcing.steps(TASK, TaskInputs(states=(None,))) as steps:
        ask(steps)
    assert len(servers.views["P"]) == 2  # the step, and the exchange that failed


HUGE = Layer(name="huge", batch=1 << 12, inputs=1, outputs=1 << 14)


@pytest.mark.parametrize("what", ["one product", "many", "gradients"])
def test_a_rehearsal_takes_no_memory_for_what_exceeds_its_bounds(what: str) -> None:
    """Whatever the recipe's process asks: by the parent's own reader of its requests."""
    products = RehearsedSteps(
        Multiplier(PlainProducts(), portable_kernels(), 7),
        (StepForm("train", 2, {}),),
        most_bytes=1 << 24,
    )
    answers, parent = ProductAnswers(outsourced=True), TaskObserver(products=products)
    answers.reply(BeginStep(), b"", parent)
    code = "bad-trace" if what == "gradients" else "products-exceed-limits"
    many = Layer(name="many", batch=1, inputs=1 << 10, outputs=32)

    def ask_for_more() -> None:
        if what == "one product":
            operands = bytes(4 * ((1 << 12) + (1 << 14)))
            answers.reply(Forward(HUGE), operands, parent)
        operands = bytes(4 * ((1 << 10) + (1 << 15)))
        for _ in range(400):
            answers.reply(Forward(many, ("weight",)), operands, parent)
            if what == "gradients":
                wants: tuple[Direction, ...] = ("weight",) * 60_000
                answers.reply(Backward(0, wants), bytes(4 * 32), parent)

    tracemalloc.start()
    try:
        with pytest.raises(SealiftError) as caught:
            ask_for_more()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code == code
    assert peak < 1 << 25


def test_the_time_of_a_kernel_does_not_grow_with_its_taps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer's norms are one pass over its pixels: time is asked for in the product only."""

    def between() -> None:
        raise Stopping

    monkeypatch.setattr(
        KernelWindow, "taps", lambda *_: pytest.fail("each tap was walked")
    )
    long = Layer(
        name="long", batch=1, inputs=1, outputs=1, width=1 << 18,
        kernel=(1, 1 << 18), padding=(0, (1 << 18) - 1),
    )  # fmt: skip
    products = RehearsedSteps(
        Multiplier(PlainProducts(between), portable_kernels(), 7),
        (StepForm("train", 1, {}),),
        most_bytes=1 << 30,
    )
    products.begin()
    x, w = (np.ones(long.shape(each), np.float32) for each in ("x", "w"))
    with pytest.raises(Stopping):
        products.forward(Forward(long), x, w)


class OtherLength(ServedJob):
    """From the second step on it sends messages of other lengths than the trace's."""

    what = "answer"

    def _send(self, products: Sequence[U32]) -> None:
        if self.what == "answer" and self._begun:
            self._pipe.send(bytes(1 << 12))
        super()._send(products)

    def _signature(self, step: int) -> bytes:
        return super()._signature(step) + bytes(self.what == "signature")


@pytest.mark.parametrize(
    ("what", "code"), [("answer", "bad-share"), ("signature", "authentication")]
)
def test_a_server_that_sends_other_lengths_is_named_and_not_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, code: str
) -> None:
    monkeypatch.setattr(OtherLength, "what", what)
    servers = SharesWorld()
    kernels = portable_kernels()

    def reach(traces: Traces) -> MaskedProducts:
        connections = closing.enter_context(servers.dial())
        connections.announce(traces)
        return MaskedProducts(connections, kernels)

    honest = server.ServedJob

    def serves(of: ShareServer, *session: Any) -> ServedJob:
        return (OtherLength if of.share == "M" else honest)(of, *session)

    monkeypatch.setattr(server, "ServedJob", serves)
    outsourcing = Outsourcing(reach, kernels, 7, redo=2)
    named = pytest.raises(SealiftError, match=r"^M .cloud-b.")
    with servers.serving(), ExitStack() as closing, named as found:
        train_in_sandbox(tmp_path, RECIPE, outsourcing)
    assert found.value.code == code


def test_a_rank_that_sends_another_length_is_named_and_not_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a group names it, in the midst of a task."""

    def refuse(*_parts: object) -> None:
        error = wrong_length(40, 44)
        error.ranks = (1,)
        raise error

    monkeypatch.setattr(TaskObserver, "measured", refuse)
    with pytest.raises(SealiftError) as found:
        run(tmp_path, PlainProducts())
    assert found.value.code == "bad-record-length"
    assert found.value.ranks == (1,)


class Interrupted(RecipeExecutor):
    """The first piece of a product finds that the work was ended, or that time is over."""

    how = "interrupt"

    def demand_time(self) -> None:
        if self.how == "interrupt":
            self.interrupt()
        else:
            self._task._process._deadline = 0.0  # type: ignore[union-attr]
        super().demand_time()
        pytest.fail("the product went on")


@pytest.mark.parametrize(
    ("how", "code"), [("interrupt", "recipe-killed"), ("late", "recipe-timeout")]
)
def test_a_rehearsal_ends_within_a_product(how: str, code: str) -> None:
    schema = {
        "fields": [
            {"name": "pixels", "dtype": "float32", "shape": [64]},
            {"name": "label", "dtype": "int64", "classes": 10},
        ]
    }
    outsourcing = Outsourcing(lambda traces: PlainProducts(), portable_kernels(), 7)
    with Interrupted({"recipe.py": RECIPE.encode()}, "recipe.py") as executor:
        executor.how = how
        with pytest.raises(JobError) as caught:
            outsourcing.rehearse(
                (StepForm("train", 8, schema),), executor, TrainingSettings()
            )
    assert caught.value.code == code
