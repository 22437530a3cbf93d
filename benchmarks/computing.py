"""A step, a visit and an answer in the recipe's sandbox, beside plain torch on the same device.

``plain`` is the loop that a user of PyTorch writes: rows in memory, a batch to the device,
a step. ``task`` is the same work in a worker: forked, locked in, its states brought in and
out, its memory on a GPU overwritten. ``visit`` brings those rows sealed over a session in
memory first, opened and checked, and ends with scrub and receipt. An ``answer`` is asked for after
a pause, in which both processes did something else; ``answers`` one after another. A step is the difference
of two tasks that differ by their number of rows, so what a task costs once is not in it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import nn

from benchmarks.report import BenchReport, interleaved
from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schema.document import schema_from_plain
from sealift.release.agreement import Resource, TravelRule
from sealift.serve.modelworker import ModelWorker
from sealift.train.job.settings import ServingTable
from sealift.train.loop.tasks import StepForm
from sealift.train.loop.trainer import Trainer
from sealift.train.output.modelform import FORMAT, form_from_plain
from sealift.train.sandboxed.rehearsal import synthetic_rows
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.accelerator.setup import GroupResult, LoadedCargo
from sealift.travel.settings import TrainingSettings
from tests.worlds.consortium import ONE_HOLDER, make_consortium
from tests.worlds.memorytransport import memory_pair
from tests.worlds.visits import VisitWorld, seal_resource

REPEATS: Final = 9
QUICK_REPEATS: Final = 3
BATCH_ROWS: Final = 256
ANSWERS: Final = 32
RECORD_BYTES: Final = 1 << 20
SETTINGS: Final = TrainingSettings(seed=1, batch_rows=BATCH_ROWS)
LEASE_S: Final = 600.0
OWNER: Final = "ada"
FORM: Final[dict[str, Any]] = {
    "fields": [
        {"name": "x", "dtype": "float32", "shape": [3, 32, 32], "min": 0.0, "max": 1.0},
        {"name": "y", "dtype": "int64", "classes": 10},
    ]
}
ANSWER: Final = {"name": "y", "dtype": "float32", "shape": [10], "digits": 4}
RECIPE: Final = """
import torch
from torch import nn
from torch.nn import functional as F


def build():
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, 2, 1), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * WIDTH, 10),
    )


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def predict(model, batch):
    return {"y": model(batch["x"])}
"""


class Plain:
    """The same recipe in a loop of its user's, in this process.

    Args:
        text: The recipe.
        device: As torch writes it.
    """

    def __init__(self, text: str, device: str) -> None:
        self._recipe: dict[str, Any] = {}
        exec(text, self._recipe)  # noqa: S102 - ours, above
        self.model: nn.Module = self._recipe["build"]().to(device)
        self._optimizer = self._recipe["configure_optimizers"](self.model)
        self._device = device

    def train(self, rows: torch.Tensor) -> None:
        """One pass over rows, to its end on the device."""
        schema = schema_from_plain(FORM)
        for start in range(0, len(rows), BATCH_ROWS):
            batch = batch_from_rows(rows[start : start + BATCH_ROWS], schema)
            there = {name: each.to(self._device) for name, each in batch.items()}
            self._optimizer.zero_grad()
            self._recipe["loss"](self.model, there).backward()
            self._optimizer.step()
        next(self.model.parameters()).sum().item()

    def answer(self, x: torch.Tensor) -> bytes:
        """What it predicts, back in the host's memory."""
        with torch.inference_mode():
            found = self.model(x.to(self._device)).cpu()
        return found.numpy().tobytes()


class World(VisitWorld):
    """One owner with synthetic images, and an accelerator that trains on them."""

    def __init__(self, folder: Path, rows: torch.Tensor, executor: RecipeExecutor):
        self._images = rows.numpy().tobytes()
        self.trainer = _trainer(executor)
        consortium = make_consortium(
            (OWNER,), ("train",), output=ONE_HOLDER, travel=TravelRule(1, LEASE_S)
        )
        super().__init__(folder, consortium, lease_s=LEASE_S)

    def seal(self, resource: Resource, consortium: Any) -> Resource:
        """Seal the images."""
        schema = schema_from_plain(FORM)
        self.held[resource.name] = seal_resource(
            replace(resource, cell_rows=1),
            self._images,
            key=consortium.keys[resource.name],
            folder=self.folder,
            files=self.files,
            row_bytes=schema.row_bytes,
            record_bytes=RECORD_BYTES,
            schema=FORM,
        )
        return self.held[resource.name].resource

    def work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        """Train, in the sandbox."""
        self.trainer.work(cargo)
        return GroupResult({each.resource.name: {} for each in cargo})

    def visit(self) -> None:
        """All rows come, are trained on, and are scrubbed."""
        theirs, ours = memory_pair()
        offer = self.offer(OWNER)
        hosted = self.host(
            offer, lambda lease, left_s: self.accept(ours, lease, left_s)
        )
        signed = self.grant(offer, hosted)
        bringing = threading.Thread(target=self.bring, args=(theirs, signed))
        bringing.start()
        ended = hosted.run(signed)
        bringing.join()
        if ended.outcome != "verified":
            raise ValueError(f"the visit was not verified: {ended}")


def measure(
    report: BenchReport, *, quick: bool = False, rows: int = 0, width: int = 0
) -> None:
    """Rows of the three, and their ratios to the plain loop.

    Args:
        report: Gets them.
        quick: Fewer rows and repeats.
        rows: Of the visit; fewer on a CPU.
        width: Of the model.
    """
    on_gpu = _device().startswith("cuda")
    width = width or (256 if on_gpu else 16)
    rows = rows or (1 << 15 if on_gpu else 1 << 12) // (4 if quick else 1)
    text = RECIPE.replace("WIDTH", str(width))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a job and a server have, unless they ask for more
    try:
        with _arms(text, rows, report) as (arms, device):
            spent = interleaved(arms, QUICK_REPEATS if quick else REPEATS)
    finally:
        torch.set_num_threads(threads)
    report.real.append(
        f"computing: {rows} images of 12 KiB, width {width}, on {device}"
    )
    took = {name: each.median for name, each in spent.items()}
    report.rows += [
        {"arm": name, "ms": round(s * 1e3, 3), "device": device}
        for name, s in took.items()
    ]
    plain_s = took["plain"] - took["plain half"]
    step_s = took["task"] - took["task half"]
    if step_s > 0:
        report.ratios["step_vs_plain"] = step_s / plain_s
    else:  # on a GPU a task's preparation varies by more than its steps take
        report.real.append("a step: lost in what each task costs once")
    report.ratios["task_vs_plain"] = took["task"] / took["plain"]
    report.ratios["visit_vs_plain"] = took["visit"] / took["plain"]
    report.ratios["answer_vs_plain"] = took["answer"] / took["plain answer"]
    report.ratios["answers_vs_plain"] = took["answers"] / took["plain answers"]


def _device() -> str:
    """Where a recipe's process would compute; this one may have asked CUDA, and cannot fork."""
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as asked:
        asked.compute_on("auto")
        return asked.device()


@contextmanager
def _arms(
    text: str, count: int, report: BenchReport
) -> Iterator[tuple[dict[str, Callable[[], Any]], str]]:
    schema = schema_from_plain(FORM)
    rows = synthetic_rows(schema, count, seed=1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        executor = stack.enter_context(
            RecipeExecutor(
                {"recipe.py": text.encode()}, "recipe.py", tell=report.real.append
            )
        )
        executor.compute_on("auto")
        device = executor.device()
        executor.stand_by(SETTINGS, [StepForm("train", BATCH_ROWS, FORM)])
        plain = Plain(text, device.partition(" ")[0])
        world = stack.enter_context(World(folder, rows, executor))
        served = stack.enter_context(
            RecipeExecutor({"recipe.py": text.encode()}, "recipe.py")
        )
        served.compute_on("auto")
        model = stack.enter_context(closing(_model(served, plain.model)))
        x = batch_from_rows(rows[:1], schema)["x"].clone()
        question = x.numpy().tobytes()
        trainer = _trainer(executor)
        cargo, half = (
            [_cargo(world, part, stack)] for part in (rows, rows[: count // 2])
        )
        yield (
            {
                "plain": partial(plain.train, rows),
                "plain half": partial(plain.train, rows[: count // 2]),
                "task": partial(trainer.work, cargo),
                "task half": partial(trainer.work, half),
                "visit": world.visit,
                "plain answer": partial(plain.answer, x),
                "answer": partial(model.predict, [question], 1),
                "plain answers": partial(_one_of, partial(plain.answer, x)),
                "answers": partial(_one_of, partial(model.predict, [question], 1)),
            },
            device,
        )


def _one_of(answer: Callable[[], Any]) -> float:
    """Seconds of one answer, of several that are asked for one after another."""
    start = time.perf_counter()
    for _ in range(ANSWERS):
        answer()
    return (time.perf_counter() - start) / ANSWERS


def _trainer(executor: RecipeExecutor) -> Trainer:
    return Trainer(executor, SETTINGS)


def _cargo(world: World, rows: torch.Tensor, stack: ExitStack) -> LoadedCargo:
    """Rows as a visit leaves them, opened; here without one."""
    offer = world.offer(OWNER, rows=len(rows))
    memory = stack.enter_context(closing(SharedBuffer.of(rows.numpy().tobytes())))
    return LoadedCargo(offer, world.resource(offer.resource), memory)


def _model(executor: RecipeExecutor, built: nn.Module) -> ModelWorker:
    state = {name: each.cpu() for name, each in built.state_dict().items()}
    content = save(state)
    form = form_from_plain(
        {
            "format": FORMAT,
            "inputs": {"fields": FORM["fields"][:1]},
            "outputs": {"fields": [ANSWER]},
            "max_rows": 1,
        }
    )
    made = ModelWorker(
        executor, form, lambda: SharedBuffer.of(content), settings=ServingTable()
    )
    made.start()
    return made
