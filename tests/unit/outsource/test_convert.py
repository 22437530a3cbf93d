"""Converted modules compute and differentiate as PyTorch's, within a rounding step."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from sealift.errors import SealiftError, UsageError
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.convert import Route, convert, restore, why_not
from sealift.outsource.module.model import StepRehearsal
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.plain import PlainProducts
from sealift.outsource.trace import Recorder, StepKind

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "linear, rows of rows": (lambda: nn.Linear(6, 5, bias=False), (2, 3, 6)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 7, 6)),
    "padded": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 5, 5)),
    "same": (lambda: nn.Conv2d(3, 4, (3, 5), padding="same"), (2, 3, 6, 6)),
    "valid": (lambda: nn.Conv2d(3, 4, 2, padding="valid"), (2, 3, 6, 6)),
    "strides": (lambda: nn.Conv2d(3, 4, (3, 2), (2, 3), (1, 0)), (2, 3, 8, 9)),
    "strides that leave pixels": (lambda: nn.Conv2d(2, 3, 2, 3), (2, 2, 7, 7)),
    "no bias": (lambda: nn.Conv2d(2, 3, 1, bias=False), (2, 2, 4, 4)),
    "line": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 7)),
    "padded line": (lambda: nn.Conv1d(3, 4, 3, 2, padding=1, bias=False), (2, 3, 8)),
    "same line": (lambda: nn.Conv1d(3, 4, 5, padding="same"), (2, 3, 6)),
    "one line": (lambda: nn.Conv1d(2, 3, 3), (2, 5)),
    "one image": (lambda: nn.Conv2d(2, 3, 3), (2, 5, 5)),
}


@pytest.fixture
def route() -> Iterator[Route]:
    route = Route(edges=frozenset(("model",)))
    with route.to(StepRehearsal(), keeps=True):
        yield route


def differentiate(model: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    y = model(x)
    wanted = [x, *model.parameters()]
    return (y.detach(), *torch.autograd.grad(y, wanted, dy))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("last", [False, True])
def test_a_module_computes_and_differentiates_as_torchs(
    kind: str, last: bool, route: Route
) -> None:
    make, shape = LAYERS[kind]
    plain, x = make(), torch.randn(shape)
    if last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    dy = torch.randn_like(plain(x))
    ours = copy.deepcopy(plain)
    assert convert(ours, route) == ["model"]
    found, expected = (differentiate(each, x, dy) for each in (ours, plain))
    assert found[0].stride() == expected[0].stride()
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize("kind", LAYERS)
def test_quantized_products_are_within_a_rounding_step(kind: str) -> None:
    """Each number is off by at most one step of each operand, times the other's sum."""
    torch.manual_seed(1)  # the bound is of usual tensors, not of every one
    make, shape = LAYERS[kind]
    plain, x = make(), torch.randn(shape)
    dy = torch.randn_like(plain(x))
    multiplier = Multiplier(PlainProducts(), portable_kernels(), 5)
    multiplier.begin(StepKind("train", shape[0]), 0, Recorder())
    route = Route(edges=frozenset(("model",)))
    ours = copy.deepcopy(plain)
    convert(ours, route)
    with route.to(multiplier, keeps=True):
        found = differentiate(ours, x, dy)
    multiplier.settle()
    for name, got, expected in zip(
        ("y", "x", "w", "bias"), found, differentiate(plain, x, dy), strict=False
    ):
        steps = 2**-10 * max(1.0, float(expected.abs().max())) * expected.numel() ** 0.5
        assert (got - expected).abs().max() < steps, name


def test_the_first_input_needs_no_gradient(route: Route) -> None:
    model = nn.Linear(3, 2)
    convert(model, route)
    model(torch.randn(4, 3)).sum().backward()
    assert model.weight.grad is not None
    rehearsal = route.through
    assert isinstance(rehearsal, StepRehearsal)
    first, last = rehearsal.trace(frozenset())
    assert (first.later, last.wants) == (("weight",), ("weight",))  # type: ignore[union-attr]


def test_a_frozen_weight_gets_no_gradient(route: Route) -> None:
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    convert(model, route)
    x = torch.randn(4, 3, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None
    assert model.weight.grad is None
    assert model.bias.grad is not None


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Conv2d(4, 4, 3, groups=2), "2 groups"),
        (nn.Conv2d(4, 4, 3, dilation=2), "dilation (2, 2)"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "padding mode reflect"),
        (nn.Conv2d(4, 4, 2, padding="same"), "unequal"),
        (nn.Conv2d(4, 4, 1, padding=1), "as large as the kernel"),
        (nn.ConvTranspose2d(4, 4, 3), "no product"),
        (nn.Conv1d(4, 4, 3, groups=4), "4 groups"),
        (nn.Conv1d(4, 4, 3, dilation=2), "dilation (2,)"),
        (nn.Conv1d(4, 4, 2, padding="same"), "unequal"),
        (nn.Conv3d(4, 4, 3), "no product"),
        (nn.Embedding(4, 4), "looks up rows"),
        (nn.Linear(4, 4, dtype=torch.bfloat16), "bfloat16, not float32"),
        (nn.Linear(4, 4, dtype=torch.float64), "not float32"),
        (type("Mine", (nn.Linear,), {})(4, 4), "a subclass"),
        (nn.ReLU(), "no product"),
        (nn.Linear(4, 4), ""),
    ],
)
def test_what_cannot_be_converted_stays(module: nn.Module, why: str) -> None:
    kind = type(module)
    assert why in why_not(module)
    assert bool(why_not(module)) == bool(why)
    assert bool(convert(module, Route())) == (not why)
    assert (type(module) is kind) == bool(why)


def test_copies_are_plain_modules(route: Route) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    keys, state = list(model.state_dict()), copy.deepcopy(model.state_dict())
    convert(model, route)
    assert list(model.state_dict()) == keys
    for each in (copy.deepcopy(model), copy.deepcopy(copy.copy(model))):
        assert type(each[0]) is nn.Conv2d
        assert type(each[2]) is nn.Linear
        assert all(torch.equal(state[k], v) for k, v in each.state_dict().items())
    restore(model)
    assert type(model[0]) is nn.Conv2d


@pytest.mark.parametrize("how", ["create_graph", "retain_graph"])
def test_a_call_is_differentiated_once(how: str, route: Route) -> None:
    model = nn.Linear(3, 2)
    convert(model, route)
    y = model(torch.randn(4, 3)).sum()
    if how == "retain_graph":
        y.backward(retain_graph=True)
    with pytest.raises(UsageError, match=f"model cannot compute this gradient.*{how}"):
        y.backward(create_graph=how == "create_graph")


def test_an_evaluation_is_not_differentiated() -> None:
    model, route = nn.Linear(3, 2), Route()
    convert(model, route)
    with (
        route.to(StepRehearsal(), keeps=False),
        pytest.raises(UsageError, match="eval"),
    ):
        model(torch.randn(4, 3)).sum().backward()


@pytest.mark.parametrize("x", [torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 4)])
def test_operands_of_another_kind_are_refused_by_name(x: Tensor, route: Route) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    convert(model, route)
    with pytest.raises(SealiftError, match=r"^0 ") as caught:
        model(x)
    assert caught.value.code == "bad-operand"


def test_without_a_route_a_module_computes_as_ever() -> None:
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    expected = model(x)
    convert(model, Route())
    assert torch.equal(model(x), expected)
