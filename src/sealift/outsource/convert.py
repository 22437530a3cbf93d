"""Modules whose products are made elsewhere: what changes in a PyTorch model, no more.

A converted module stays the object it was, under its name, with its parameters, buffers
and hooks; its class alone changes, as torch's own ``fully_shard`` does it. So
``state_dict``, optimizers, tied weights, ``train()`` and ``eval()`` are PyTorch's. A copy of
it, or what is pickled, is a plain module again. Bias is added here.

What makes the products is behind ``Route``, for a user's own process and for a recipe's
worker alike: none at all, where a module computes as ever, or somebody ``Outsourced``.
A call can be differentiated once, with respect to input and weight in one round.

Products in float32, made here: what a module's call is where no server is asked.

Operands are copies, as whoever calls may change its own before it asks for gradients.

Until the verdict a server's wrong answer runs through the model, so the tensors that a step
began with are put back if its verdict fails. Attributes in Python, random generators, and
whatever else code wrote are not put back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.nn.parameter import is_lazy

from sealift.errors import UsageError
from sealift.numeric.residues import F32
from sealift.outsource.terms import Backward, Direction, Forward, Layer

Pair = tuple[int, int]
# In the __dict__ of a converted module; of a model that is outsourced as a whole.
_PLACE: Final = "_place_outsourced"
STATE: Final = "_state_outsourced"
_SHORT: Final = (torch.bfloat16, torch.float16)
_WANTS: Final[tuple[Direction, ...]] = ("input", "weight")


class Float32Products:
    """Somebody ``Outsourced`` who is here."""

    def __init__(self) -> None:
        self._calls = 0
        self.operands: dict[int, tuple[Layer, Tensor, Tensor]] = {}

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y``."""
        layer, images, kernel = exchange.layer, _nchw(x), _nchw(w)
        if exchange.later:
            self.operands[self._calls] = layer, images.clone(), kernel.clone()
        self._calls += 1
        y = conv2d(images, kernel, stride=layer.stride, padding=layer.padding)
        return _nhwc(y)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """The gradients that the exchange wants."""
        layer, x, w = self.operands.pop(exchange.call)
        steps = {"stride": layer.stride, "padding": layer.padding}
        slopes, found = _nchw(dy), []
        if "input" in exchange.wants:
            found.append(conv2d_input(x.shape, w, slopes, **steps))
        if "weight" in exchange.wants:
            found.append(conv2d_weight(x, w.shape, slopes, **steps))
        return [_nhwc(each) for each in found]


def _nchw(array: F32) -> Tensor:
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def _nhwc(tensor: Tensor) -> F32:
    found: F32 = tensor.permute(0, 2, 3, 1).contiguous().numpy()
    return found


class Outsourced(Protocol):
    """Who makes products: calls are numbered from 0 in each step.

    Arrays are float32, contiguous, and laid out as ``Layer`` says. Operands are read
    before the call returns, and may be changed afterwards.
    """

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y``."""
        ...

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """The gradients that the exchange wants, in its order."""
        ...


@dataclass(slots=True)
class Route:
    """Where the products of one model go; its modules share it.

    Attributes:
        through: None where they are made here.
        keeps: Whether operands are kept for gradients.
        edges: Names of the modules that are called first and last.
        stays: Names of the modules that compute here after all.
        calls: Forward calls of this step so far.
    """

    through: Outsourced | None = None
    keeps: bool = False
    edges: frozenset[str] = frozenset()
    stays: frozenset[str] = frozenset()
    calls: int = 0
    _kept: WeakSet[ModuleCall] = field(default_factory=WeakSet)

    @property
    def waits(self) -> bool:
        """Whether gradients of this step's calls can still be asked for, and were not."""
        return any(not each.answered for each in self._kept)

    @property
    def is_plain(self) -> bool:
        """Whether modules compute as if they were not converted.

        While gradients wait, a checkpoint of activations computes a part of the step
        again, and must save for autograd what the step saved: nothing.
        """
        return self.through is None and not self.waits

    def begin(self) -> None:
        """A step begins: calls are counted from 0."""
        self.calls, self._kept = 0, WeakSet()

    def number(self, layer: Layer, later: tuple[Direction, ...]) -> ModuleCall:
        """The next call; a part of a step that is computed once more is none."""
        if self.through is None:
            return ModuleCall(Float32Products(), 0, Forward(layer, later))
        call = ModuleCall(self.through, self.calls, Forward(layer, later))
        self.calls += 1
        if later:
            self._kept.add(call)
        return call

    @contextmanager
    def to(self, through: Outsourced, *, keeps: bool) -> Iterator[None]:
        """Let products go there meanwhile; numbers of calls go on."""
        self.through, self.keeps = through, keeps
        try:
            yield
        finally:
            self.through = None


@dataclass(frozen=True, slots=True)
class ConvertedModule:
    """A converted module's name, and its route."""

    name: str
    route: Route

    @property
    def is_plain(self) -> bool:
        """Whether it computes as if it were not converted."""
        return self.route.is_plain or self.name in self.route.stays

    def product(
        self, x: Tensor, w: Tensor, stride: Pair = (1, 1), padding: Pair = (0, 0)
    ) -> Tensor:
        """``y`` of images (N, H, W, C) and a kernel (outputs, height, width, C)."""
        x, w = _under_autocast(x), _under_autocast(w)
        self._check(x, w)
        (batch, height, width, inputs), (outputs, *kernel, _) = x.shape, w.shape
        layer = Layer(
            name=self.name,
            batch=batch,
            inputs=inputs,
            outputs=outputs,
            height=height,
            width=width,
            kernel=(kernel[0], kernel[1]),
            stride=stride,
            padding=padding,
            edge=self.name in self.route.edges,
        )
        needed = (x.requires_grad, w.requires_grad)
        keeps = torch.is_grad_enabled() and self.route.keeps
        later = tuple(d for d, need in zip(_WANTS, needed, strict=True) if need * keeps)
        call = self.route.number(layer, later)
        return _Product.apply(x, w, call)

    def _check(self, x: Tensor, w: Tensor) -> None:
        for each in (x, w):
            if each.dtype != torch.float32 or each.device.type != "cpu":
                raise UsageError(
                    f"{self.name} supports only float32 tensors on the CPU",
                    why=f"it received {each.dtype} on {each.device}",
                    code="bad-operand",
                )
        if x.shape[-1] != w.shape[-1]:
            raise UsageError(
                f"{self.name} needs {w.shape[-1]} channels and received {x.shape[-1]}",
                code="bad-operand",
            )


@dataclass(slots=True, weakref_slot=True, eq=False)
class ModuleCall:
    """One call of a module; autograd holds it for as long as gradients can be asked."""

    through: Outsourced
    number: int
    exchange: Forward
    answered: bool = field(default=False, init=False)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """``y``."""
        with _no_autocast():
            y = self.through.forward(self.exchange, _array(x), _array(w))
        return torch.from_numpy(y)

    def backward(self, dy: Tensor) -> dict[Direction, Tensor]:
        """All gradients that the forward call announced, needed or not.

        Raises:
            UsageError: code ``not-differentiable``.
        """
        self._check()
        self.answered = True
        wants = self.exchange.later
        with _no_autocast():
            found = self.through.backward(Backward(self.number, wants), _array(dy))
        return dict(zip(wants, map(torch.from_numpy, found), strict=True))

    def _check(self) -> None:
        why = ""
        if torch.is_grad_enabled():
            why = (
                "second-order gradients (create_graph) would need operands that the "
                "servers do not have"
            )
        elif self.answered:
            why = (
                "the servers delete the operands after the first backward pass "
                "(retain_graph)"
            )
        elif not self.exchange.later:
            why = "the model was in eval() mode when it was called"
        if why:
            raise UsageError(
                f"{self.exchange.layer.name} cannot compute this gradient",
                why=why,
                code="not-differentiable",
            )


class _Product(torch.autograd.Function):
    """A call as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, call: ModuleCall) -> Tensor:
        ctx.call = call
        return call.forward(x, w)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        found = ctx.call.backward(dy[0])
        return found.get("input"), found.get("weight"), None


class _Converted(nn.Module):
    """What converted modules have in common."""

    plain: type[nn.Module]

    @property
    def _place(self) -> ConvertedModule:
        place: ConvertedModule = self.__dict__[_PLACE]
        return place

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """A copy is a plain module: it has no share in this one's steps."""
        return copied(self, self.plain)


class OutsourcedLinear(_Converted, nn.Linear):
    """``nn.Linear``: images of one pixel."""

    plain = nn.Linear

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch's."""
        if self._place.is_plain:
            return nn.Linear.forward(self, x)
        rows = x.reshape(-1, 1, 1, x.shape[-1])
        y = self._place.product(rows, self.weight[:, None, None])
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], self.out_features)


class OutsourcedConv1d(_Converted, nn.Conv1d):
    """``nn.Conv1d`` with one group, no dilation, and zeros around: images of one row."""

    plain = nn.Conv1d

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch's."""
        if self._place.is_plain:
            return nn.Conv1d.forward(self, x)
        lines = x if x.dim() == 3 else x[None]
        nhwc, kernel = (
            each.transpose(1, 2).unsqueeze(1) for each in (lines, self.weight)
        )
        steps = ((1, self.stride[0]), (0, _padding(self)[0]))
        y = self._place.product(nhwc, kernel, *steps)
        if self.bias is not None:
            y += self.bias
        y = y.squeeze(1).transpose(1, 2).contiguous()
        return y if x.dim() == 3 else y[0]


class OutsourcedConv2d(_Converted, nn.Conv2d):
    """``nn.Conv2d`` with one group, no dilation, and zeros around the image."""

    plain = nn.Conv2d

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch's; memory that is ``channels_last`` is not copied."""
        if self._place.is_plain:
            return nn.Conv2d.forward(self, x)
        images = x if x.dim() == 4 else x[None]
        nhwc, kernel = (each.permute(0, 2, 3, 1) for each in (images, self.weight))
        steps = (_pair(self.stride), _pair(_padding(self)))
        y = self._place.product(nhwc, kernel, *steps)
        if self.bias is not None:
            y += self.bias
        y = y.permute(0, 3, 1, 2)
        if not (_is_channels_last(images) or _is_channels_last(self.weight)):
            y = y.contiguous()
        return y if x.dim() == 4 else y[0]


CONVERTED: Final = {
    each.plain: each for each in (OutsourcedLinear, OutsourcedConv1d, OutsourcedConv2d)
}
_COMPUTE_HERE: Final = {
    nn.Embedding: "it looks up rows of its table, which takes no product",
    nn.EmbeddingBag: "it looks up rows of its table, which takes no product",
    nn.MultiheadAttention: "each row and head of attention would be an exchange of its own",
}


def convert(model: nn.Module, route: Route) -> list[str]:
    """Convert what can be, in place; a module with several names has its first.

    Returns:
        Names of the converted modules.
    """
    found = [(n, m) for n, m in model.named_modules() if not why_not(m)]
    for name, module in found:
        module.__dict__[_PLACE] = ConvertedModule(name or "model", route)
        module.__class__ = CONVERTED[type(module)]
    return [name or "model" for name, _ in found]


def restore(model: nn.Module) -> None:
    """Make every converted module plain again."""
    for module in model.modules():
        if isinstance(module, _Converted):
            del module.__dict__[_PLACE]
            module.__class__ = module.plain


def copied(module: nn.Module, plain: type[nn.Module]) -> tuple[Any, ...]:
    """How a module is copied or pickled: as one of a plain class."""
    state = {k: v for k, v in module.__dict__.items() if k not in (_PLACE, STATE)}
    return _empty, (plain,), state


def why_not(module: nn.Module) -> str:
    """Why a module stays; nothing, if it can be converted."""
    if type(module) in _COMPUTE_HERE:
        return _COMPUTE_HERE[type(module)]
    if type(module) not in CONVERTED:
        return (
            "it computes no product that servers make"
            if not isinstance(module, (*CONVERTED,))
            else "it is a subclass"
        )
    for parameter in module.parameters(recurse=False):
        if parameter.dtype != torch.float32:
            return f"it is {parameter.dtype}, not float32"
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return ""
    if module.groups != 1:
        return f"each of its {module.groups} groups would be an exchange of its own"
    if set(module.dilation) != {1}:
        return f"it has dilation {module.dilation}"
    if module.padding_mode != "zeros":
        return f"it has padding mode {module.padding_mode}"
    return _why_not_padding(module)


def computes_itself(module: nn.Module) -> bool:
    """Whether a report lists it: modules within it, if there are any, are not called."""
    return type(module) in _COMPUTE_HERE or not any(module.children())


def _no_autocast() -> torch.autocast:
    """Rehearsals make products here, of float32 like the servers' ones."""
    return torch.autocast("cpu", enabled=False)


def _under_autocast(operand: Tensor) -> Tensor:
    """As float32, where autocast made it shorter: products are float32's all the same."""
    if operand.dtype in _SHORT and torch.is_autocast_enabled(operand.device.type):
        return operand.float()
    return operand


def _empty(plain: type[nn.Module]) -> nn.Module:
    found: nn.Module = object.__new__(plain)
    return found


def _why_not_padding(module: nn.Conv1d | nn.Conv2d) -> str:
    kernel = module.kernel_size
    if module.padding == "same" and not all(side % 2 for side in kernel):
        return "its padding is unequal"
    if any(p >= side for p, side in zip(_padding(module), kernel, strict=True)):
        return "its padding is as large as the kernel"
    return ""


def _padding(module: nn.Conv1d | nn.Conv2d) -> tuple[int, ...]:
    """Along each axis, where torch also takes words."""
    match module.padding:
        case "valid":
            return (0,) * len(module.kernel_size)
        case "same":
            return tuple(side // 2 for side in module.kernel_size)
    return tuple(map(int, module.padding))


def _pair(sides: Any) -> Pair:
    height, width = sides
    return int(height), int(width)


def _is_channels_last(images: Tensor) -> bool:
    as_last = images.is_contiguous(memory_format=torch.channels_last)
    return as_last and not images.is_contiguous()


def _array(tensor: Tensor) -> F32:
    found: F32 = tensor.detach().contiguous().numpy()
    return found


Entries = dict[str, Tensor | None]


class ModelState:
    """Parameters and buffers of a model, copied; also those that no checkpoint has.

    Args:
        model: Whose they are.
    """

    def __init__(self, model: nn.Module) -> None:
        held: list[Entries] = []
        for module in model.modules():
            held += module._parameters, module._buffers  # noqa: SLF001
        self._held = [(entries, dict(entries)) for entries in held]
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        with torch.no_grad():
            for entries in held:
                for each in entries.values():
                    if each is not None and not is_lazy(each):
                        self._copies.setdefault(id(each), (each, each.clone()))

    def restore(self) -> None:
        """Put them back: the same tensors under the same names, with what they held."""
        for entries, before in self._held:
            entries.clear()
            entries.update(before)
        with torch.no_grad():
            for tensor, copy in self._copies.values():
                if tensor.shape == copy.shape:
                    tensor.copy_(copy)
                else:  # a forward call gave it another size
                    tensor.data = copy.clone()
