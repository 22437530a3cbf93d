"""Modules that are faster here stay here: by shapes and zeros, never by rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sealift.numeric.residues import F32
from sealift.outsource.module.model import OutsourcedModel, outsource
from sealift.outsource.module.server import LayerSpeed, StepRunner
from sealift.outsource.module.servers import ReachedServers
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.terms import Backward, Forward, Layer
from sealift.outsource.trace import Trace, without
from tests.sim.ownservers import KERNELS, OwnWorld
from tests.sim.reached import Reached

HERE, THERE = LayerSpeed(1.0, 2.0), LayerSpeed(2.0, 1.0)
Speeds = dict[str, LayerSpeed]


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )


def train(model: nn.Module, steps: int) -> list[torch.Tensor]:
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        found = model(torch.randn(6, 1, 4, 4))
        cross_entropy(found, torch.randint(3, (6,))).backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


def outsourced(reach: Reached) -> OutsourcedModel:
    return outsource(make_model(), reach, KERNELS, seed=7, keep_faster=True)


def layers(trace: Trace) -> list[str]:
    return [each.layer.name for each in trace if isinstance(each, Forward)]


@pytest.mark.parametrize("stays", [("0",), ("3",), ("0", "5")])
def test_what_is_faster_here_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, stays: tuple[str, ...]
) -> None:
    speeds = {n: HERE if n in stays else THERE for n in ("0", "3", "5")}
    monkeypatch.setattr(StepRunner, "measure", lambda *_: speeds)
    reach = Reached()
    with outsourced(reach) as model:
        found = train(model, 3)
        model.eval()(torch.ones(6, 1, 4, 4))
        model(torch.ones(6, 1, 4, 4))
        report = {each.name: each for each in model.outsourced().modules}
        assert model.outsourced().served == 3
    right = train(make_model(), 3)
    for ours, plain in zip(found, right, strict=True):
        assert torch.allclose(ours, plain, atol=0.02)
    asked = [name for name in speeds if name not in stays]
    assert [layers(k.trace) for k in reach.opened[-1].known] == [asked, asked]
    for name in stays:
        assert report[name].stays == "it is faster"
        line = "it takes 1000.0 ms of a step here and 2000.0 ms by servers"
        assert line in str(report[name])
    assert not any(report[name].stays for name in asked)


def test_where_all_are_faster_here_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = dict.fromkeys(("0", "3", "5"), HERE)
    monkeypatch.setattr(StepRunner, "measure", lambda *_: speeds)
    reach = Reached()
    with outsourced(reach) as model:
        found = train(model, 4)
        assert model.outsourced().served == 0
    assert not reach.opened
    for ours, plain in zip(found, train(make_model(), 4), strict=True):
        assert torch.allclose(ours, plain)  # the first step is a rehearsal


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OwnWorld]:
    with OwnWorld.serving(tmp_path) as made:
        yield made


def test_zeros_alone_are_measured(
    world: OwnWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What servers are asked before it is decided follows from no row."""
    seen: list[list[F32]] = []
    forward, measure = Multiplier.forward, StepRunner.measure

    def noted(self: Multiplier, exchange: Forward, x: F32, w: F32) -> F32:
        seen[-1] += x, w
        return forward(self, exchange, x, w)

    def measured(self: StepRunner, *kind: object) -> Speeds:
        seen.append([])
        found = measure(self, *kind)  # type: ignore[arg-type]
        seen.append([])
        assert all(each.here_s > 0 and each.served_s > 0 for each in found.values())
        return dict.fromkeys(found, THERE)

    monkeypatch.setattr(Multiplier, "forward", noted)
    monkeypatch.setattr(StepRunner, "measure", measured)
    reach = ReachedServers(world.servers, world.client, KERNELS)
    with outsource(make_model(), reach, KERNELS, seed=7, keep_faster=True) as model:
        train(model, 3)
        assert model.outsourced().served == 2
        assert set(model._own.steps.speeds) == {"0", "3", "5"}
    zeros, real = seen
    assert len(zeros) == 3 * 3 * 2
    assert not any(np.any(each) for each in zeros)
    assert all(np.any(each) for each in real)


def test_a_trace_without_some_layers_is_one() -> None:
    a, b, c = (Layer(name=n, batch=2, inputs=3, outputs=4) for n in "abc")
    trace: Trace = (
        Forward(a, ("weight",)), Forward(b), Forward(c, ("input",)),
        Backward(2, ("input",)), Backward(0, ("weight",)),
    )  # fmt: skip
    assert without(trace, ()) == trace
    assert without(trace, "b") == (
        trace[0], trace[2], Backward(1, ("input",)), Backward(0, ("weight",)),
    )  # fmt: skip
    assert without(trace, "ab") == (trace[2], Backward(0, ("input",)))
    assert without(trace, "abc") == ()
