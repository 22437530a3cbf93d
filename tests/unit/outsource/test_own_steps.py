"""A step follows the trace of the first of its kind, or is ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from sealift.errors import IntegrityError, JobError
from sealift.numeric.kernels import portable_kernels
from sealift.numeric.residues import U32
from sealift.outsource.masked import MaskedProducts, Share
from sealift.outsource.module.model import outsource
from sealift.outsource.terms import Direction, Layer
from tests.sim.reached import Reached
from tests.sim.shareservers import InPlaceServers

KERNELS = portable_kernels()
View = list[tuple[object, ...]]


class Branches(nn.Module):
    """Whose user decides in which order they are differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x).sum(), self.two(x).sum()


def test_gradients_in_another_order_are_named() -> None:
    with outsource(Branches(), Reached(), KERNELS, seed=0) as model:
        for _ in range(2):
            one, two = model(torch.ones(4, 3))
            one.backward()
            two.backward()
        one, two = model(torch.ones(4, 3))
        with pytest.raises(JobError, match=r"asked for the gradient of two") as caught:
            two.backward()
        assert caught.value.code == "other-operations"
        with pytest.raises(JobError, match="had nothing"):
            one.backward()  # the step was ended
        assert model.outsourced().served == 2
        assert model.one.weight.grad is None
        one, two = model(torch.ones(4, 3))
        one.backward()
        two.backward()
        assert model.outsourced().served == 3


class Deep(nn.Module):
    """Does something else where its rows say."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        self.then: Callable[[Tensor], object] = Tensor.size

    def forward(self, x: Tensor) -> Tensor:
        place = int(x[0, 0])
        for number, layer in enumerate(self.layers):
            if number == place:
                self.then(x)
            x = layer(x).tanh()
        return x


def fail(x: Tensor) -> None:
    raise KeyError(x.shape)


def leave(model: Deep, x: Tensor) -> None:
    model.layers[0](x[:1])


def stop(_: Tensor) -> None:
    raise KeyboardInterrupt


WAYS: dict[str, Callable[[Deep], Callable[[Tensor], object]]] = {
    "honest": lambda model: Tensor.size,
    "raises": lambda model: fail,
    "leaves its trace": lambda model: partial(leave, model),
    "is interrupted": lambda model: stop,
}


def seen(how: str, place: int, *, training: bool) -> dict[Share, View]:
    """All that servers get of a model that is closed after its second step."""
    servers, model = InPlaceServers(), Deep()
    reached = Reached(lambda: MaskedProducts(servers, KERNELS))
    try:
        with outsource(model, reached, KERNELS, seed=0):
            model.train(training)
            for number, rows in enumerate(torch.full((2, 4, 3), float(place))):
                if number:
                    model.then = WAYS[how](model)
                y = model(rows)
                if training:
                    y.sum().backward()
    except (KeyError, JobError, KeyboardInterrupt):
        assert how != "honest"
    return {
        share: [
            tuple(getattr(part, "shape", part) for part in each)
            if type(each) is tuple and share != "Z"
            else (str(each)[:8],)
            for each in view
        ]
        for share, view in servers.views.items()
    }


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize("how", WAYS)
def test_servers_see_no_place_where_a_step_was_left(
    how: str, place: int, training: bool
) -> None:
    found = seen(how, place, training=training)
    honest = seen("honest", place, training=training)
    assert {s: [str(e) for e in v] for s, v in found.items() if s != "Z"} == {
        s: [str(e) for e in v] for s, v in honest.items() if s != "Z"
    }
    assert len(found["Z"]) == len(honest["Z"])
    assert found["P"][-1] != found["P"][0]


def test_a_liar_is_named_although_the_model_left_its_trace() -> None:
    def bend(share: Share, layer: Layer, direction: Direction, answer: U32) -> U32:
        return answer ^ (share == "Z" and direction == "weight")

    model = Deep()
    reached = Reached(lambda: MaskedProducts(InPlaceServers(bend), KERNELS))
    with outsource(model, reached, KERNELS, seed=0):
        model(torch.full((4, 3), 2.0)).sum().backward()
        model.then = partial(leave, model)
        with pytest.raises(IntegrityError, match=r"Z .cloud-z."):
            model(torch.full((4, 3), 2.0)).sum().backward()


@pytest.mark.parametrize("place", [0, 3])
def test_a_step_that_is_torn_is_ended_at_once(place: int) -> None:
    """A pause would show servers where."""
    servers, model = InPlaceServers(), Deep()
    reached = Reached(lambda: MaskedProducts(servers, KERNELS))
    with outsource(model, reached, KERNELS, seed=0):
        x = torch.full((4, 3), float(place))
        model(x).sum().backward()
        model.then = fail
        with pytest.raises(KeyError):
            model(x)
        assert servers.views["P"][-1] == "finish"
        model.then = Tensor.size
        model(x).sum().backward()
        assert model.outsourced().served == 2
