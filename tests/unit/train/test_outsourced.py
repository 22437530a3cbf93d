"""Products that a recipe's process asks for: held to their traces, judged, made again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from sealift.errors import IntegrityError, JobError, SealiftError, UnavailableError
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.plain import PlainProducts
from sealift.outsource.terms import Forward, Layer
from sealift.outsource.trace import StepKind, Traces, tabulate
from sealift.train.loop.products import Outsourcing, TaskSteps
from sealift.train.loop.tasks import Given, SliceId, SliceTask, TaskModel, TaskPart
from sealift.train.plans.local import LocalRun
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.settings import TrainingSettings
from tests.sim.jobworld import RECIPE, Wishes, fresh_world, train_here

pytestmark = pytest.mark.distributed

Settle = Callable[[int], None]


class JudgedProducts(PlainProducts):
    """Products of servers whose verdicts a test chooses; counts what was asked."""

    def __init__(self, verdict: Settle = lambda settled: None) -> None:
        super().__init__()
        self._verdict, self.settled = verdict, 0
        self.begun: list[tuple[StepKind, int]] = []

    def begin(self, kind: StepKind, step: int) -> None:
        self.begun.append((kind, step))
        super().begin(kind, step)

    def settle(self) -> None:
        super().settle()
        self.settled += 1
        self._verdict(self.settled)


def wrong_at(*settled: int) -> Settle:
    def verdict(now: int) -> None:
        if now in settled:
            raise IntegrityError("P (cloud) answered wrongly", code="wrong-product")

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
    world = fresh_world(folder, Wishes(epochs=1, recipe=recipe))
    kept = told if told is not None else []
    outsourcing = Outsourcing(
        lambda traces: products, portable_kernels(), 7, redo=redo, told=kept.append
    )
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
    with pytest.raises(JobError) as caught:
        run(tmp_path, PlainProducts(), recipe)
    assert caught.value.code == "other-operations"


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
    ends = nullcontext() if whole else pytest.raises(JobError, match="ends early")
    with ends, outsourcing.steps(TASK, Given(states=(None,))) as steps:
        for number in range({"none": 0, "two": 2}.get(left, 1)):
            ask(steps)
            assert steps.settle() is (wrong != number + 1)
        if left == "one and a half":
            ask(steps)
        if whole:
            with pytest.raises(JobError, match="more than it has rows for") as more:
                ask(steps)
            assert more.value.code == "other-operations"
