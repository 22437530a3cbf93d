"""The served model's process: what it survives, and what is not believed of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from sealift.data.schedule.memory import SharedBuffer
from sealift.errors import JobError, SealiftError, UnavailableError
from sealift.serve.modelworker import (
    MAX_RESTARTS,
    RESTARTS_S,
    ModelWorker,
)
from sealift.train.job.settings import ServingTable
from sealift.train.loop.faults import NOT_OVERWRITTEN
from sealift.train.sandboxed.recipe import Recipe
from sealift.train.sandboxed.recipeworker import ServedModel
from sealift.train.worker.executor import RecipeExecutor
from tests.sim import madeup_gpu
from tests.sim.served import FORM, rows

RECIPE = b"""
import os
import socket
import time

import torch
from torch import nn


def build():
    return nn.Linear(2, 2, bias=False)


def predict(model, batch):
    x = batch["x"]
    first = int(x[0, 0])
    if first == 1:
        raise ValueError(f"rows {x}")
    if first == 2:
        os._exit(3)
    if first == 3:
        time.sleep(60)
    if first == 4:
        return {"y": x[:, :1]}
    if first == 5:
        return {"y": x / 0}
    if first == 6:
        socket.socket()
    batch["x"] *= 100  # its own copy
    return {"y": model(x / 100)}


def generate(model, batch):
    for step in range(2):
        yield {"t": batch["x"] * 0 + step}
"""


@pytest.fixture(scope="module")
def executor() -> Iterator[RecipeExecutor]:
    """In a process with many files open: its descriptors are above 1023."""
    with ExitStack() as opened:
        for _ in range(1024):
            opened.enter_context(open(os.devnull, "rb"))
        made = opened.enter_context(RecipeExecutor({"recipe.py": RECIPE}, "recipe.py"))
        yield made


def weights(width: int = 2) -> bytes:
    return save({"weight": 2 * np.eye(2, width, dtype=np.float32)})


def host(executor: RecipeExecutor, content: bytes) -> ModelWorker:
    settings = ServingTable(max_batch_rows=16, work_s=2.0)
    return ModelWorker(
        executor, FORM, lambda: SharedBuffer.of(content), settings=settings
    )


def ask(model: ModelWorker, first: float) -> np.ndarray:
    x = rows(first)
    found = model.predict([x.tobytes()], 1)
    return np.frombuffer(found, np.float32).reshape(1, 2)


@pytest.mark.distributed
def test_it_answers_again_whatever_a_recipe_did(executor: RecipeExecutor) -> None:
    model = host(executor, weights())
    model.start()
    try:
        assert np.array_equal(ask(model, 7.0), 2 * rows(7.0))
        for first, code in (
            (1.0, "recipe-error"),
            (2.0, "recipe-killed"),
            (3.0, "recipe-timeout"),
            (4.0, "bad-recipe"),
            (5.0, "answer-refused"),
            (6.0, "recipe-error"),  # the sandbox gives no sockets
        ):
            with pytest.raises(JobError) as caught:
                ask(model, first)
            assert caught.value.code == code, first
            assert np.array_equal(ask(model, 7.0), 2 * rows(7.0))
        model.begin(1, rows(1.0, 2.0).tobytes(), 2)
        model.begin(2, rows(1.0).tobytes(), 1)
        assert [model.next(1, 2) is None for _ in range(2)] == [False, False]
        assert model.next(2, 1) is not None
        model.drop(2)
        assert model.next(1, 2) is None
    finally:
        model.close()


def test_another_model_than_the_code_builds(executor: RecipeExecutor) -> None:
    model = host(executor, weights(3))
    try:
        with pytest.raises(JobError, match="another model"):
            model.start()
    finally:
        model.close()


def test_whoever_kills_it_often_is_stopped_for_a_while_and_not_for_ever(
    executor: RecipeExecutor,
) -> None:
    now_s, lost = 0.0, list[SealiftError]()
    settings = ServingTable(max_batch_rows=1)
    model = ModelWorker(
        executor, FORM, lambda: SharedBuffer.of(b""), settings=settings,
        lost=lost.append, clock=lambda: now_s,
    )  # fmt: skip
    model.start = lambda: None  # type: ignore[method-assign]
    for _ in range(MAX_RESTARTS):
        model._restart()
    with pytest.raises(JobError, match="20 times"):
        model._restart()
    now_s = RESTARTS_S
    model._restart()
    assert not lost

    def gone() -> None:
        raise UnavailableError("the sealed model is gone", code="no-file")

    model.start = gone  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        model._restart()
    assert [each.code for each in lost] == ["no-file"]  # the server ends of it
    model.close()


@pytest.mark.parametrize("more", [b"", b"def prepare(batch): return {}\n"])
def test_a_model_built_of_sums_cannot_be_served_and_says_why(more: bytes) -> None:
    build = b"def build(sums): return torch.nn.Linear(int(sums['rows']), 1)\n"
    served: Any = ServedModel.__new__(ServedModel)
    served._order = SimpleNamespace(parameters={})
    served._recipe = Recipe({"r.py": b"import torch\n" + build + more}, "r.py")
    with pytest.raises(JobError, match=r"sums of prepare\(\)") as caught:
        served._build()
    assert caught.value.code == "bad-recipe"
    tolerant = build.replace(b"sums['rows']", b"sums.get('rows', 2)")
    served._recipe = Recipe({"r.py": b"import torch\n" + tolerant}, "r.py")
    assert served._build().in_features == 2


SHAKEN = """
ALIVE = [True]

def build():
    return nn.Linear(2, 2, bias=False)

def predict(model, batch):
    first = int(batch["x"][0, 0])
    if first in (1, 2):
        ALIVE[0] = first == 1
        raise ValueError
    if first == 3:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")
    return {"y": model(batch["x"])}
"""
WAIT = "if not ALIVE[0]: raise torch.AcceleratorError('CUDA error: device-side assert')"


def shaken(scrub: str, firsts: list[float]) -> list[tuple[str, dict[str, object]]]:
    """Events of a server on a made-up GPU: a wrong question each, and a right one after it."""
    told: list[tuple[str, dict[str, object]]] = []
    text = "import torch\nfrom torch import nn\n"
    text += madeup_gpu.lines(scrub, WAIT) + SHAKEN
    with RecipeExecutor({"recipe.py": text.encode()}, "recipe.py") as executor:
        madeup_gpu.compute_there(executor)
        model = host(executor, weights())
        model._sink = lambda event: told.append((event.kind, dict(event.fields)))
        model.start()
        for first in firsts:
            with pytest.raises(SealiftError) as caught:
                ask(model, first)
            told.append((caught.value.code, {}))
            assert np.array_equal(ask(model, 7.0), 2 * rows(7.0))
        model.close()
    return told


@pytest.mark.distributed
def test_a_model_whose_gpu_does_no_more_is_loaded_again() -> None:
    again = ("serve.restarted", {"number": 1})
    assert shaken(madeup_gpu.CLEAN, [1.0]) == [("recipe-error", {})]  # it goes on
    assert shaken(madeup_gpu.CLEAN, [2.0]) == [("recipe-error", {}), again]
    assert shaken(madeup_gpu.CLEAN, [3.0]) == [("device-lost", {}), again]


@pytest.mark.distributed
def test_a_model_that_ends_overwrites_its_gpus_memory_or_that_is_said() -> None:
    left = {"device": madeup_gpu.DEVICE, "line": NOT_OVERWRITTEN}
    assert shaken(madeup_gpu.CLEAN, []) == []
    assert shaken(madeup_gpu.FAILS, []) == [("serve.unscrubbed", left)]
    ends = [("serve.unscrubbed", left), ("device-lost", {})]
    ends += [("serve.restarted", {"number": 1}), ("serve.unscrubbed", left)]
    assert shaken(madeup_gpu.FAILS, [3.0]) == ends


@pytest.mark.distributed
def test_a_model_that_does_not_load_overwrites_it_too() -> None:
    told: list[str] = []
    for scrub in (madeup_gpu.CLEAN, madeup_gpu.FAILS):
        text = madeup_gpu.lines(scrub).encode() + RECIPE
        with RecipeExecutor({"recipe.py": text}, "recipe.py") as executor:
            madeup_gpu.compute_there(executor)
            model = host(executor, weights(3))
            model._sink = lambda event: told.append(event.kind)
            with pytest.raises(JobError, match="another model"):
                model.start()
            model.close()
    assert told == ["serve.unscrubbed"]  # of the second
