"""A failing verdict: no optimizer step, no plaintext, no detail (rule M3)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sealift.channel.device.device import RecordPlace
from sealift.channel.device.host import HostDevice
from sealift.channel.device.verdict import Gate, check_deferrable
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.data.loader.torchloader import StepGate
from sealift.errors import AuthenticationError, UsageError

ROWS, FEATURES = 8, 16
BATCH_BYTES = ROWS * FEATURES * 4
SUITE = Suite.AES_256_GCM


class Batch:
    """A batch of floats that was opened on a device, its verdict still out."""

    def __init__(self, *, flip=False):
        self.engine = HostDevice(threads=1)
        key = SecretKey.generate()
        plaintext = torch.rand(ROWS, FEATURES).numpy().tobytes()
        sealed = bytearray(BATCH_BYTES + 16)
        Aead(SUITE, key).seal_into(bytes(12), plaintext, b"", sealed)
        sealed[7] ^= flip
        uploaded = self.engine.allocate(len(sealed))
        self.engine.upload(sealed, uploaded).wait()
        self.memory = self.engine.allocate(BATCH_BYTES)
        place = RecordPlace(bytes(12), b"", 0, 0, BATCH_BYTES)
        device_key = self.engine.key(SUITE, key)
        self.verdicts = self.engine.open(device_key, uploaded, self.memory, [place])
        # What eager work would read: the engine's plaintext, before any verdict.
        self.rows = torch.frombuffer(bytearray(plaintext), dtype=torch.float32)
        self.rows = self.rows.reshape(ROWS, FEATURES).clone()


class Bench:
    """A model, an optimizer, and a gate between batch and step."""

    def __init__(self, *, gated=True):
        torch.manual_seed(1)
        self.model = nn.Linear(FEATURES, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps = StepGate(self.optimizer, Gate())
        if not gated:
            self.steps.close()
        self.before = self.weights()

    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def learn(self, batch):
        rows = self.steps.admit(batch.rows, batch.verdicts)
        with self.steps.gate.working():
            self.model(rows).square().mean().backward()
            self.optimizer.step()

    @property
    def unchanged(self):
        pairs = zip(self.before, self.weights(), strict=True)
        return all(torch.equal(before, after) for before, after in pairs)


def test_a_good_batch_takes_its_step():
    bench = Bench()
    bench.learn(Batch())
    assert not bench.unchanged


def test_a_flipped_bit_takes_no_step_and_leaves_no_plaintext():
    bench, batch = Bench(), Batch(flip=True)
    with pytest.raises(AuthenticationError):
        bench.learn(batch)
    assert bench.unchanged
    assert all(p.grad is None for p in bench.model.parameters())
    assert not any(batch.memory.view)
    assert not batch.rows.any()


def test_without_the_gate_the_step_is_taken():
    # The mutant: an optimizer that does not ask.
    bench, batch = Bench(gated=False), Batch(flip=True)
    bench.learn(batch)
    assert not bench.unchanged


def test_after_a_failed_verdict_nothing_outward_happens_any_more():
    bench = Bench()
    with pytest.raises(AuthenticationError):
        bench.learn(Batch(flip=True))
    with pytest.raises(AuthenticationError):
        bench.learn(Batch())
    with pytest.raises(AuthenticationError):
        bench.steps.gate.check()
    assert bench.unchanged


def test_an_error_before_the_verdict_is_reported_as_the_failed_verdict():
    gate, batch = Gate(), Batch(flip=True)
    gate.admit(
        batch.verdicts, dtype="float32", shape=(ROWS, FEATURES), nbytes=BATCH_BYTES
    )
    with pytest.raises(AuthenticationError) as caught, gate.working():
        raise IndexError("row 1094795585 is out of range")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "1094795585" not in str(caught.value)


def test_an_error_of_a_batch_that_verified_is_itself():
    gate, batch = Gate(), Batch()
    gate.admit(
        batch.verdicts, dtype="float32", shape=(ROWS, FEATURES), nbytes=BATCH_BYTES
    )
    with pytest.raises(ZeroDivisionError), gate.working():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        ("int64", (4,), 32),
        ("uint8", (4,), 4),
        ("bool", (4,), 4),
        ("torch.int32", (4,), 16),
        ("float32", (4,), 15),
        ("float32", (-1, 4), 16),
        ("float32", (0,), 0),
        ("complex64", (4,), 32),
    ],
)
def test_what_could_decide_something_is_not_deferred(dtype, shape, nbytes):
    with pytest.raises(UsageError) as caught:
        check_deferrable(dtype, shape, nbytes)
    assert caught.value.code == "deferral-not-allowed"
    with pytest.raises(UsageError):
        Gate().admit(None, dtype=dtype, shape=shape, nbytes=nbytes)


@pytest.mark.parametrize("dtype", ["torch.float32", "bfloat16", "float64"])
def test_floats_of_a_known_shape_may_be(dtype):
    width = {"torch.float32": 4, "bfloat16": 2, "float64": 8}[dtype]
    check_deferrable(dtype, (3, 5), 15 * width)


def test_everything_is_undone_even_when_an_undo_fails():
    undone = []

    def failing():
        undone.append("first")
        raise OSError

    gate, batch = Gate([failing, lambda: undone.append("second")]), Batch(flip=True)
    shape = (ROWS, FEATURES)
    gate.admit(
        batch.verdicts, dtype="float32", shape=shape, nbytes=BATCH_BYTES,
        undo=lambda: undone.append("batch"),
    )  # fmt: skip
    with pytest.raises(AuthenticationError):
        gate.check()
    assert undone == ["batch", "first", "second"]


def test_a_step_that_waits_is_the_only_thing_that_differs():
    # Gated and ungated training on good batches gives the same weights.
    plain, gated = Bench(gated=False), Bench()
    torch.manual_seed(7)
    batches = [Batch() for _ in range(3)]
    for bench in (plain, gated):
        for batch in batches:
            bench.learn(batch)
    pairs = zip(plain.weights(), gated.weights(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
