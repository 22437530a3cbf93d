"""Where a recipe computes: all of a step on one device, and with the CPU's bits."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from sealift.collective.group import SealedGroup
from sealift.errors import JobError, UnavailableError
from sealift.ids import Digest
from sealift.train.loop.buckets import Array
from sealift.train.loop.tasks import DeviceScrub, TaskDone
from sealift.train.loop.trainer import Trainer
from sealift.train.sandboxed import gpus
from sealift.train.sandboxed import placement as placement_module
from sealift.train.sandboxed.gpus import find_gpus
from sealift.train.sandboxed.placement import HERE, DevicePlacement
from sealift.train.sandboxed.recipe import Containment
from sealift.train.worker import devices
from sealift.train.worker.devices import Gpu, choose_device, say_cpu
from sealift.train.worker.executor import RecipeExecutor
from tests.sim.inplace import InPlace
from tests.sim.otherdevice import NAME, OtherDevice, in_a_process
from tests.unit.train.joints import cargo
from tests.unit.train.ranked import Join, World
from tests.unit.train.recipes import LIGHTNING, PLAIN, SETTINGS
from tests.unit.train.test_joint import PREPARING

MIXING = PLAIN.replace('batch["y"])', 'batch["y"] + 0 * torch.arange(len(batch["y"])))')


def at(placement: DevicePlacement, text: str) -> InPlace:
    return InPlace({"recipe.py": text.encode()}, "recipe.py", placement=placement)


def trained(placement: DevicePlacement, text: str) -> tuple[Any, ...]:
    return work_through(Trainer(at(placement, text), SETTINGS, values=2), text)


def work_through(trainer: Trainer, text: str) -> tuple[Any, ...]:
    """A model that is prepared, trained, measured, and carried from slice to slice."""
    told = []
    if "def prepare" in text:
        told += [trainer.work([cargo("north", 48)], "prepare")]
    for epoch in range(2):
        told += [trainer.work([cargo("north", 20, epoch=epoch)])]
    told += [trainer.work([cargo("south", 21)], "heldout")]
    return trainer.snapshot(), told


class Watched(Containment):
    """Runs a recipe's code, each of its calls watched but those that begin on the CPU."""

    BEGIN = ("build", "configure_optimizers", "to", "load_state_dict", "state_dict")

    def __init__(self, device: OtherDevice) -> None:
        super().__init__(["recipe.py"])
        self._device = device

    def __call__(self, call: Any, /, *parts: Any) -> Any:
        named = getattr(call, "func", call)  # of a partial, what it calls
        name = getattr(named, "__name__", type(named).__name__)
        if name in self.BEGIN:
            return super().__call__(call, *parts)
        return super().__call__(lambda: self._device.watch(name, call, *parts))


class There(InPlace):
    """That device in whatever thread a task is done."""

    def __init__(self, text: str) -> None:
        self.device = OtherDevice()
        super().__init__(
            {"recipe.py": text.encode()},
            "recipe.py",
            placement=DevicePlacement(f"{NAME}:0"),
            guard=Watched(self.device),
        )

    def do(self, *parts: Any) -> TaskDone:
        with self.device:
            return super().do(*parts)


def watched(text: str) -> tuple[Any, ...]:
    there = There(text)
    return (
        work_through(Trainer(there, SETTINGS, values=2), text),
        there.device.calls,
        (there.device.here),
    )


MEASURED = (
    PREPARING
    + """

def evaluate(model, batch):
    wrong = (model(batch["x"]).argmax(1) != batch["y"]).double()
    return {"wrong": wrong.sum()}
"""
)


@pytest.mark.long
def test_all_tensors_of_a_step_a_measurement_and_sums_are_on_the_device() -> None:
    found, calls, here = in_a_process(watched, MEASURED)
    assert found == trained(HERE, MEASURED)
    assert here == []
    for name in ("<lambda>", "backward", "step", "_evaluate", "prepare"):
        assert calls[name], name
    apart = "batch['x'] * float(torch.arange(3.).sum())"  # mixes nothing: control
    _found, _calls, here = in_a_process(watched, PLAIN.replace('batch["x"]', apart))
    assert ("<lambda>", "aten.arange.default", (3,)) in here


def trained_away(text: str) -> tuple[Any, ...]:
    with OtherDevice() as device:
        return trained(DevicePlacement(f"{NAME}:0"), text), device.ran


def failed_away(text: str) -> str:
    with pytest.raises(JobError) as caught:
        trained_away(text)
    return str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("text", [PLAIN, LIGHTNING, PREPARING])
def test_another_device_gives_the_same_model(text: str) -> None:
    found, ran = in_a_process(trained_away, text)
    assert found == trained(HERE, text)
    assert ran["aten.addmm.default"] > 5
    assert ran["aten.mm.default"] > 5  # backward, too


@pytest.mark.long
def test_what_a_recipe_makes_on_the_cpu_does_not_mix() -> None:
    """As on a GPU; it is the control of the test before, too."""
    trained(HERE, MIXING)
    assert "recipe.py:16 with RuntimeError" in in_a_process(failed_away, MIXING)


@pytest.mark.distributed
def test_what_torch_compiles_without_a_program_runs_in_the_sandbox() -> None:
    said = 'backend="aot_eager", or not at all'
    for backend, fails in (("aot_eager", False), ("inductor", True)):
        call = f"torch.compile(model, backend={backend!r})(batch['x'])"
        text = PLAIN.replace("    return F.cross", f"    {call}\n    return F.cross")
        with RecipeExecutor({"recipe.py": text.encode()}, "recipe.py") as executor:
            trainer = Trainer(executor, SETTINGS)
            if not fails:
                trainer.work([cargo("north", 20)])
                continue
            with pytest.raises(JobError, match=said) as caught:
                trainer.work([cargo("north", 20)])
            assert caught.value.code == "bad-recipe"


class Apart(DevicePlacement):
    """The CPU as if it were another device: gradients lie in memory of their own."""

    @property
    def is_cpu(self) -> bool:
        return False


class OthersToo:
    """A rank's group as if others had brought gradients as well.

    A real one would take ranks in threads, which load a recipe's modules over each other.
    """

    def __init__(self, group: SealedGroup) -> None:
        self._group = group

    def all_reduce(self, tensor: Array) -> None:
        self._group.all_reduce(tensor)
        tensor += 0.25

    def exchange(self, words: bytes) -> list[bytes]:
        return self._group.exchange(words)


def rank_at(placement: DevicePlacement, join: Join) -> Digest:
    world = World(PLAIN, [[24, 17]], work=lambda number: at(placement, PLAIN))
    (rank,) = world.apart(join)
    assert rank.error is None
    return rank.trainer.digest()


def rank_there(text: str) -> tuple[Any, ...]:
    made: list[There] = []

    def there(_number: int) -> There:
        made.append(There(text))
        return made[-1]

    world = World(text, [[24, 17]], work=there)
    (rank,) = world.apart(lambda rank, group: OthersToo(group))
    return rank.trainer.digest(), rank.error, made[0].device.calls, made[0].device.here


@pytest.mark.long
def test_gradients_are_added_up_where_they_are_not_computed() -> None:
    expected = rank_at(HERE, lambda rank, group: OthersToo(group))
    digest, error, calls, here = in_a_process(rank_there, PLAIN)
    assert (digest, error) == (expected, None)
    assert {op for _call, op, _shape in here} == {"aten.copy_.default"}  # of buckets
    assert calls["backward"]
    assert calls["step"]
    assert rank_at(Apart(), lambda rank, group: OthersToo(group)) == expected
    assert rank_at(HERE, lambda rank, group: group) != expected


class Streams:
    """CUDA's streams by hand: what is copied is there for who waited for its event alone.

    A copy's bytes come when the computing stream waits for an event recorded behind it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copied: list[Copied] = []
        self.inside = False
        self.begun = threading.Semaphore(0)  # one for each batch
        fakes = {
            "Stream": lambda device: self,
            "stream": lambda stream: nullcontext(stream._enter()),
            "current_stream": lambda device: self,
            "memory_allocated": lambda device: 7,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def _enter(self) -> None:
        self.inside = True

    def record_event(self) -> int:
        self.inside = False
        self.begun.release()
        return len(self.copied)

    def wait_event(self, event: int) -> None:
        for each in self.copied[:event]:
            each.arrived = True


class Copied:
    """A tensor of a batch on its way."""

    def __init__(self, streams: Streams, content: int, pinned: bool = False) -> None:
        self.streams, self.content, self.pinned = streams, content, pinned
        self.arrived, self.kept_for = False, False

    def pin_memory(self) -> Copied:
        return Copied(self.streams, self.content, pinned=True)

    def to(self, device: torch.device, *, non_blocking: bool) -> Copied:
        assert self.pinned  # else the copy waits for what is computed
        assert self.streams.inside
        assert non_blocking
        self.streams.copied.append(Copied(self.streams, self.content))
        return self.streams.copied[-1]

    def record_stream(self, stream: Streams) -> None:
        self.kept_for = stream is self.streams


def ahead(streams: Streams, count: int) -> None:
    """Batches come ready and in order, and the next is copied before one is done with."""
    made: Any = (
        {"x": Copied(streams, n), "y": Copied(streams, n)} for n in range(count)
    )
    placement = DevicePlacement("cuda:0")
    for number, batch in enumerate(placement.batches(made)):
        found: Any = list(batch.values())
        assert [each.content for each in found] == [number, number]
        assert all(each.arrived and each.kept_for for each in found)
        for _own_or_next in range(1 + (number == 0) - (number + 1 == count)):
            assert streams.begun.acquire(timeout=60)
    assert placement._resting == [7] * min(count, 3)


def test_a_batch_is_copied_while_the_one_before_is_worked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for count in (0, 1, 2, 4):
        ahead(Streams(monkeypatch), count)
    monkeypatch.setattr(Streams, "wait_event", lambda streams, event: None)
    with pytest.raises(AssertionError):  # control
        ahead(Streams(monkeypatch), 2)


def test_a_batch_that_cannot_be_made_ends_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails in another thread, and where the steps wait for it."""
    streams = Streams(monkeypatch)

    def made() -> Any:
        yield {"x": Copied(streams, 0)}
        raise LookupError("the second")

    batches = DevicePlacement("cuda:0").batches(made())
    assert next(batches)["x"].content == 0  # type: ignore[attr-defined]
    with pytest.raises(LookupError, match="the second"):
        next(batches)


def test_all_of_the_allocators_memory_is_overwritten_and_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On memory of the CPU; what torch says of a GPU's allocator is written by hand."""
    memory = {4096: torch.ones(512, dtype=torch.uint8), 8192: torch.ones(2048)}
    lengths = {address: each.nbytes for address, each in memory.items()}
    said = [
        {"address": address, "total_size": length, "device": number}
        for number, (address, length) in enumerate(lengths.items())
    ]
    given: list[str] = []

    def at(address: int, length: int, number: int) -> torch.Tensor:
        assert (lengths[address], number) == (length, address // 4096 - 1)
        return memory[address].view(torch.uint8)

    for name in ("synchronize", "memory_snapshot", "empty_cache"):
        monkeypatch.setattr(
            torch.cuda, name, lambda *_, n=name: given.append(n) or said
        )
    monkeypatch.setattr(placement_module, "_memory_at", at)
    found = DevicePlacement("cuda:1").scrub()
    assert found == DeviceScrub(512 + 2048 * 4, 0)
    assert not any(bool(each.any()) for each in memory.values())
    assert given == ["synchronize", "memory_snapshot", "empty_cache"]
    monkeypatch.setattr(torch.Tensor, "zero_", lambda each: each)
    memory[4096][7] = 1
    assert DevicePlacement("cuda:1").scrub().nonzero_bytes > 0


GPUS = (Gpu("NVIDIA H100", "GPU-1"), Gpu("NVIDIA H100", "GPU-2"))


@pytest.mark.parametrize(
    ("wanted", "gpus", "device"),
    [
        ("auto", (), "cpu"),
        ("auto", GPUS, "cuda:0"),
        ("cpu", GPUS, "cpu"),
        ("cuda", GPUS, "cuda:0"),
        ("cuda:1", GPUS, "cuda:1"),
    ],
)
def test_the_device_that_a_job_gets(
    wanted: str, gpus: tuple[Gpu, ...], device: str
) -> None:
    assert choose_device(wanted, gpus) == device


def test_ranks_of_one_machine_take_a_gpu_each() -> None:
    for wanted in ("auto", "cuda"):
        found = [choose_device(wanted, GPUS, rank=rank) for rank in range(3)]
        assert found == ["cuda:0", "cuda:1", "cuda:0"]
    assert choose_device("cuda:1", GPUS, rank=2) == "cuda:1"
    assert choose_device("auto", (), rank=2) == "cpu"


@pytest.mark.parametrize(
    ("wanted", "gpus", "why"),
    [("cuda", (), "process: none"), ("cuda:2", GPUS, "H100, NVIDIA H100")],
)
def test_a_device_that_is_not_there(
    wanted: str, gpus: tuple[Gpu, ...], why: str
) -> None:
    with pytest.raises(UnavailableError, match=why) as caught:
        choose_device(wanted, gpus)
    assert caught.value.code == "no-device"


def test_devices_are_those_of_torch() -> None:
    """A process that asks has not asked itself, so it can still fork."""
    found, why = find_gpus()
    assert len(found) == in_a_process(torch.cuda.device_count)
    assert bool(found) is not bool(why)
    assert not torch.cuda.is_initialized()


def test_a_gpu_that_is_there_and_cannot_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "NVIDIA", str(tmp_path / "nvidiactl"))
    assert say_cpu("auto", (), "error 304") == "cpu"  # a machine without one
    (tmp_path / "nvidiactl").touch()
    assert (
        say_cpu("auto", (), "error\x1b 304") == r"cpu (GPU not usable: error\x1b 304)"
    )
    assert len(say_cpu("auto", (), "x" * 1000)) < 230
    assert say_cpu("cpu", (), "error 304") == say_cpu("auto", GPUS, "") == "cpu"


def test_one_gpu_that_computes_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another may be in use by somebody who does not share it."""
    asked: list[str] = []

    def ones(_size: int, device: str) -> torch.Tensor:
        asked.append(device)
        if device != "cuda:1":
            raise RuntimeError("busy or unavailable")
        return torch.zeros(1)

    monkeypatch.setattr(torch, "ones", ones)
    gpus._compute_somewhere(range(3))
    assert asked == ["cuda:0", "cuda:1"]
    with pytest.raises(RuntimeError, match="busy"):
        gpus._compute_somewhere(range(1))
