"""Batches used before their verdict: no step, no plaintext when it fails (rule M3)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sealift.channel.device.host import HostDevice
from sealift.data import SealedDataLoader, SealedDataset
from sealift.data.loader import memories, torchloader
from sealift.data.loader import torchloader as stepgate
from sealift.data.loader.memories import DeviceWindows
from sealift.data.loader.opening import AllOf
from sealift.errors import (
    AuthenticationError,
    SealiftError,
    UnavailableError,
    UsageError,
)
from tests.sim.device_engines import ENGINES, ON_A_GPU
from tests.sim.sealed_shards import ID_SCHEMA, Shards, seal_shards
from tests.unit.data.test_devicewindows import over_stand_in

ROWS, BATCH, RECORD_BYTES, ROW_BYTES = 48, 8, 192, 32
ONE_WINDOW, SMALL_WINDOWS = 1 << 20, 400
ON = (
    "host-threads",
    "cuda-pinned",
    pytest.param("cuda-gcc", marks=pytest.mark.gcc),
    pytest.param("cuda", marks=pytest.mark.gpu),
)


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return seal_shards(tmp_path, (ROWS,))


@pytest.fixture(params=ON)
def engine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    if request.param.startswith("cuda-"):
        monkeypatch.setattr(memories, "device_tensor", over_stand_in)
    made = {**ENGINES, **ON_A_GPU}[request.param]()
    yield made
    made.close()


@contextlib.contextmanager
def opened(shards: Shards, *, cards: bool = False) -> Iterator[SealedDataset]:
    """Without cards nothing is compared on the processor, so all is deferred."""
    bare = {} if cards else {"schema": ID_SCHEMA}
    with SealedDataset(shards.places, shards.keys, **bare) as dataset:
        assert (dataset.shards.leaves[0] is not None) == cards
        yield dataset


def loader(dataset: SealedDataset, engine: Any, **changes: Any) -> SealedDataLoader:
    options = {
        "fields": ("x",), "engine": engine, "drop_last": True,
        "window_bytes": ONE_WINDOW, "verdicts": "deferred",
        # Batches stay where the engine is.
        "device": "cpu" if isinstance(engine, str) else "auto", **changes,
    }  # fmt: skip
    return SealedDataLoader(dataset, BATCH, **options)


def flip(shards: Shards, record: int) -> None:
    raw = bytearray(shards.places[0].read_bytes())
    raw[120 + record * (RECORD_BYTES + 16) + 7] ^= 1
    shards.places[0].write_bytes(raw)


class Bench:
    """A model that learns from whatever is handed out."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.start = self.weights()
        self.batches: list[Tensor] = []

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def learn(self, batches: SealedDataLoader) -> None:
        for (x,) in batches:
            self.batches.append(x)
            self.optimizer.zero_grad()
            (self.model(x.cpu()) - 1).square().mean().backward()
            self.optimizer.step()

    def is_at(self, weights: list[Tensor]) -> bool:
        return all(map(torch.equal, weights, self.weights()))


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether windows still had plaintext, each time that they were given back."""
    found: list[bool] = []
    give_back = DeviceWindows._close_memories

    def looking(self: Any) -> None:
        cpu = torch.device("cpu")
        for _, plain in self._memories:
            found.append(bool(memories.device_tensor(plain, cpu).any()))
        give_back(self)

    monkeypatch.setattr(DeviceWindows, "_close_memories", looking)
    return found


def strictly(shards: Shards, steps: int | None = None) -> list[Tensor]:
    """The weights after so many steps on verified batches."""
    bench = Bench()
    with (
        opened(shards) as dataset,
        loader(dataset, "host", verdicts="strict") as batches,
    ):
        for number, (x,) in enumerate(batches):
            if number == steps:
                break
            bench.optimizer.zero_grad()
            (bench.model(x) - 1).square().mean().backward()
            bench.optimizer.step()
    return bench.weights()


@pytest.mark.parametrize("window_bytes", [ONE_WINDOW, SMALL_WINDOWS])
def test_good_batches_teach_the_same(
    shards: Shards, engine: Any, window_bytes: int
) -> None:
    bench, expected = Bench(), strictly(shards)
    with opened(shards) as dataset:
        batches = loader(dataset, engine, window_bytes=window_bytes)
        with batches:
            batches.guard(bench.optimizer)
            bench.learn(batches)
            assert len(bench.batches) == ROWS // BATCH
            batches.gate.check()
    assert bench.is_at(expected)
    assert not bench.is_at(bench.start)
    assert all(batch.any() for batch in bench.batches)


@pytest.mark.parametrize("record", [0, 4, 7])
def test_a_flipped_bit_takes_no_step_and_leaves_no_plaintext(
    shards: Shards, engine: Any, record: int, left: list[bool]
) -> None:
    flip(shards, record)
    bench = Bench()
    with opened(shards) as dataset, loader(dataset, engine) as batches:
        batches.guard(bench.optimizer)
        with pytest.raises(AuthenticationError) as caught:
            bench.learn(batches)
        assert caught.value.__cause__ is None
        assert left == [False, False]
        assert bench.is_at(bench.start)
        assert all(p.grad is None for p in bench.model.parameters())
        assert bench.batches
        assert not any(batch.any() for batch in bench.batches)
        with pytest.raises(AuthenticationError):
            batches.gate.check()
        with pytest.raises(AuthenticationError):
            bench.learn(batches)  # no more from this one
        assert not any(batch.any() for batch in bench.batches)


def test_windows_that_verified_have_plaintext_until_they_are_given_back(
    shards: Shards, engine: Any, left: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control, and the mutant of the above: nobody overwrites."""
    monkeypatch.setattr(DeviceWindows, "scrub", lambda _: None)
    bench = Bench()
    with opened(shards) as dataset, loader(dataset, engine) as batches:
        batches.guard(bench.optimizer)
        bench.learn(batches)
    assert any(left)


def learn_until_refused(shards: Shards, engine: Any) -> Bench:
    """Rows 36 to 41 are spoiled; a window has rows of two records, 24 to 35, ..."""
    flip(shards, 6)
    bench = Bench()
    with (
        opened(shards) as dataset,
        loader(dataset, engine, window_bytes=SMALL_WINDOWS) as batches,
    ):
        batches.guard(bench.optimizer)
        with pytest.raises(AuthenticationError):
            bench.learn(batches)
    return bench


def test_steps_before_the_window_that_fails_stay_and_no_other_is_taken(
    shards: Shards, engine: Any
) -> None:
    after_four = strictly(shards, 4)
    bench = learn_until_refused(shards, engine)
    assert bench.is_at(after_four)
    assert all(p.grad is None for p in bench.model.parameters())
    assert len(bench.batches) == 5
    assert all(batch.any() for batch in bench.batches[:4])
    # Rows 32 to 35 verified; they are gone with the others of their batch.
    assert not bench.batches[4].any()


def test_who_takes_no_step_hears_it_from_the_loader(
    shards: Shards, engine: Any
) -> None:
    """A slot is not opened into again before the verdict of what it had."""
    flip(shards, 1)
    seen: list[Tensor] = []

    def gather(batches: SealedDataLoader) -> None:
        for (x,) in batches:
            seen.append(x)

    with (
        opened(shards) as dataset,
        loader(dataset, engine, window_bytes=SMALL_WINDOWS) as batches,
    ):
        batches.guard(Bench().optimizer)
        with pytest.raises(AuthenticationError) as caught:
            gather(batches)
        assert caught.value.__cause__ is None
    assert 1 <= len(seen) < ROWS // BATCH
    assert not any(batch.any() for batch in seen)


def test_without_overwriting_rows_of_a_refused_batch_would_be_left(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant."""
    monkeypatch.setattr(stepgate, "overwrite", lambda _: None)
    engine = HostDevice(threads=1)
    assert learn_until_refused(shards, engine).batches[4].any()
    engine.close()


def test_an_optimizer_that_does_not_ask_takes_the_step(shards: Shards) -> None:
    """Mutant: the guard is taken out of the optimizer again."""
    flip(shards, 4)
    bench, engine = Bench(), HostDevice(threads=1)
    with opened(shards) as dataset, loader(dataset, engine) as batches:
        batches.guard(bench.optimizer)._hook.remove()
        bench.learn(batches)
        assert not bench.is_at(bench.start)
        with pytest.raises(AuthenticationError):
            batches.gate.check()
    engine.close()


def test_batches_that_are_not_admitted_would_be_left(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: batches go out and the gate hears nothing of them."""
    monkeypatch.setattr(torchloader.Deferral, "admit", lambda *_: None)
    flip(shards, 4)
    bench, engine = Bench(), HostDevice(threads=1)
    with opened(shards) as dataset, loader(dataset, engine) as batches:
        batches.guard(bench.optimizer)
        bench.learn(batches)
    assert not bench.is_at(bench.start)
    engine.close()


def test_the_batch_is_handed_out_before_the_verdict(shards: Shards) -> None:
    flip(shards, 7)
    engine = HostDevice(threads=1)
    with opened(shards) as dataset:
        with loader(dataset, engine) as batches:
            batches.guard(Bench().optimizer)
            assert next(iter(batches))
        strict = loader(dataset, engine, verdicts="strict")
        with strict, pytest.raises(AuthenticationError, match="record 7"):
            next(iter(strict))  # the control: the default waits
    engine.close()


def test_what_a_card_commits_to_is_compared_before_it_is_used(shards: Shards) -> None:
    """That copies to the host, so it waits: once a record, then its bytes are known."""
    bench, engine = Bench(), HostDevice(threads=1)
    with opened(shards, cards=True) as dataset, loader(dataset, engine) as batches:
        steps = batches.guard(bench.optimizer)
        bench.learn(batches)
        assert not steps.gate._pending
        next(iter(batches))
        assert steps.gate._pending  # the second epoch is deferred
        batches.set_epoch(0)
        flip(shards, 4)
        with pytest.raises(SealiftError):
            bench.learn(batches)
    engine.close()


INTEGER, SHORT, HOST = {"fields": ("x", "id")}, {"drop_last": False}, {"engine": "host"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (INTEGER, "int64"),
        ({"fields": ("kept",)}, "bool"),
        ({"fields": None}, "control"),
        ({**SHORT, "batch": 7}, "the last batch is shorter"),
        (HOST, "engine="),
        ({"device": "meta", "engine": None}, "would be copied from"),
        ({"guarded": False}, r"loader\.guard"),
    ],
)
def test_what_may_not_be_deferred_is_refused(
    shards: Shards, changes: dict[str, Any], why: str
) -> None:
    changes = dict(changes)
    guarded, batch = changes.pop("guarded", True), changes.pop("batch", BATCH)
    own = HostDevice(threads=1)
    engine = changes.pop("engine", None) or own
    options = {"fields": ("x",), "drop_last": True, "engine": engine, **changes}

    def first() -> Any:
        with SealedDataLoader(dataset, batch, verdicts="deferred", **options) as made:
            if guarded:
                made.guard(Bench().optimizer)
            return next(iter(made))

    with opened(shards) as dataset, pytest.raises(UsageError) as caught:
        first()
    assert caught.value.code == "deferral-not-allowed"
    assert caught.match(why)
    own.close()


def test_strict_is_the_default_and_has_no_gate(shards: Shards) -> None:
    with opened(shards) as dataset, SealedDataLoader(dataset, 8) as batches:
        for ask in (lambda: batches.gate, lambda: batches.guard(Bench().optimizer)):
            with pytest.raises(UsageError, match="strict"):
                ask()
        with pytest.raises(UsageError, match="'strict' or 'deferred'"):
            SealedDataLoader(dataset, 8, verdicts="later")  # type: ignore[arg-type]


def test_on_the_processor_it_is_opened_by_the_host_engine(shards: Shards) -> None:
    bench = Bench()
    with opened(shards) as dataset, loader(dataset, "auto") as batches:
        assert batches.opened_by == "host: asked for by name"
        batches.guard(bench.optimizer)
        bench.learn(batches)
    assert not bench.is_at(bench.start)


class Part:
    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.waits = error, 0

    def wait(self) -> None:
        self.waits += 1
        if self.error:
            raise self.error


def test_all_parts_end_and_a_failed_tag_outranks_a_lost_device() -> None:
    undone: list[bool] = []
    lost = UnavailableError("lost", code="device-lost")
    parts = [Part(lost), Part(AuthenticationError()), Part()]
    whole = AllOf(parts, lambda: undone.append(True))
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            whole.wait()
    assert [part.waits for part in parts] == [1, 1, 1]
    assert undone == [True]
    with pytest.raises(UnavailableError):
        AllOf([Part(lost), Part()]).wait()
    AllOf([Part()]).wait()
