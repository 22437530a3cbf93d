"""A user's own model, of which linear layers and convolutions run on servers that nobody trusts.

    from sealift.outsource import outsource_module

    with outsource_module(model, servers="servers.toml"):
        ...  # as ever

The model stays the object it is; its class is one more derived from its own, until it is
closed. What is on servers is what happens within a call of the model; its submodules called
alone compute here. A verdict comes before any weight changes: a step that failed raises from
``backward()``, its gradients are dropped, and no optimizer steps afterwards.

What rounding to integers did to a model's operands: measured, shown, and said if it is much.

Measured at one step of many, here, from what this process has; no server hears of it. Only
in a user's own process: in a job it would be a result that no owner agreed to.

A step in ``train()`` ends, and is judged, with the last gradient, inside ``backward()``; any
other as the model returns. Its form is known by phase and rows of a batch. The products of
the first step of a form are made here, in float32, and its trace is kept; nothing is sent
before. The others have that trace, all of it: where a step is torn by an error, or its
output is never differentiated, the rest of its exchanges is of zeros. So servers learn how
often each form of step is made, and nothing else. Source: security rule N2.
"""

from __future__ import annotations

import math
import os
import secrets
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sealift.crypto.identity import Identity, load_identity
from sealift.errors import JobError, UsageError, quote_foreign, require_kind
from sealift.numeric.kernels import Kernels, best_kernels
from sealift.numeric.residues import F32
from sealift.outsource.convert import (
    CONVERTED,
    STATE,
    Float32Products,
    ModelState,
    Route,
    computes_itself,
    convert,
    copied,
    restore,
    why_not,
)
from sealift.outsource.module.server import LayerCost, LayerSpeed, Reach, StepRunner
from sealift.outsource.module.servers import ReachedServers, Servers
from sealift.outsource.quantize import Operand, OperandId
from sealift.outsource.terms import Backward, Exchange, Forward, Layer, Tensor
from sealift.outsource.terms import Tensor as OperandName
from sealift.outsource.trace import Phase, StepKind, Trace
from sealift.release.files import read_given_passphrase

EVERY: Final = 64  # steps; the first one of them is measured
_MUCH: Final = 0.5  # of the rows, or of the columns
_NAMES: Final[dict[Tensor, str]] = {"x": "input", "w": "weight", "dy": "gradient"}


@dataclass(frozen=True, slots=True)
class RoundingError:
    """Of one operand of a module, the last time that it was measured.

    Attributes:
        relative: The error's root mean square, divided by the numbers'.
        rows_lost: Share of the rows (images; of a weight, outputs) that are not zero, but
            smaller than one step of the integers.
        columns_lost: The same of the columns (channels).
    """

    relative: float
    rows_lost: float
    columns_lost: float


class RoundingWatch:
    """Measures the operands of one model.

    Attributes:
        errors: Of each module and operand.
    """

    def __init__(self) -> None:
        self.errors: dict[str, dict[Tensor, RoundingError]] = {}
        self._warned: set[str] = set()

    def note(self, place: OperandId, values: F32, operand: Operand) -> None:
        """Measure an operand, if it is its turn; warn once of a module's input."""
        if place.step % EVERY or not operand.finite:
            return
        name, step = place.layer.name, math.ldexp(1.0, operand.exponent)
        error = values - operand.ints * step
        whole = float(np.linalg.norm(values.astype(np.float64)))
        found = RoundingError(
            float(np.linalg.norm(error)) / whole if whole else 0.0,
            _lost(values.reshape(len(values), -1), step, axis=1),
            _lost(values.reshape(-1, values.shape[-1]), step, axis=0),
        )
        self.errors.setdefault(name, {})[place.tensor] = found
        if place.tensor == "x" and name not in self._warned:
            self._warn(name, found)

    def _warn(self, name: str, found: RoundingError) -> None:
        sides = {"rows": found.rows_lost, "columns": found.columns_lost}
        for what, lost in sides.items():
            if lost >= _MUCH:
                self._warned.add(name)
                warnings.warn(
                    f"{lost:.0%} of the {what} of the input of {quote_foreign(name)} are "
                    f"lost in rounding because other {what} are much larger. Bring the {what} to similar sizes "
                    "(standardize the columns, clip outliers), or leave this module on "
                    "this machine.",
                    stacklevel=2,
                )
                return


def describe(errors: Mapping[Tensor, RoundingError]) -> str:
    """As a line of a report says it."""
    each = (f"{_NAMES[t]} {e.relative:.2%}" for t, e in errors.items())
    return "rounding error: " + ", ".join(each)


def _lost(table: F32, step: float, axis: int) -> float:
    """Share of rows or columns that are smaller than one step, of those that are something."""
    peaks = np.abs(table).max(axis=axis)
    some = peaks > 0
    return float((peaks[some] < step).mean()) if some.any() else 0.0


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """A module that computes: one without modules of its own, or attention.

    Attributes:
        name: Its path in the model.
        kind: Its class.
        stays: Why it stays here; empty if its products go to servers.
        share: Of the time that the first calls of the model took, which were all made here.
        rounding: Of each operand (``x``, ``w``, ``dy``), what rounding it to integers
            changed, the last time that it was measured: at one of 64 steps.
        cost: Of its products in all steps on servers; None if there were none.
        speed: Of a step of zeros, here and by servers; None if it was not measured.
    """

    name: str
    kind: str
    stays: str
    share: float
    rounding: Mapping[OperandName, RoundingError]
    cost: LayerCost | None
    speed: LayerSpeed | None = None

    def __str__(self) -> str:
        where = f"on this machine: {self.stays}" if self.stays else "servers"
        parts = [f"{self.name:<32} {self.kind:<16} {self.share:6.1%}  {where}"]
        if self.speed is not None:
            parts.append(str(self.speed))
        if self.cost is not None:
            parts.append(str(self.cost))
        if self.rounding:
            parts.append(describe(self.rounding))
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What is made where.

    Attributes:
        modules: Every module that computes.
        rehearsed: Steps that were the first of their form, made here.
        served: Steps that servers made, and that were judged to be right.
    """

    modules: tuple[ModuleReport, ...]
    rehearsed: int
    served: int

    def __str__(self) -> str:
        steps = f"{self.served} steps on servers, {self.rehearsed} on this machine"
        return "\n".join((*map(str, self.modules), steps))


class OutsourcedState:
    """What an outsourced model has besides: its steps, and what it measured."""

    def __init__(
        self,
        model: nn.Module,
        reach: Reach,
        kernels: Kernels,
        seed: int,
        *,
        keep_faster: bool,
    ) -> None:
        route = Route()
        self._model, self._reach = model, reach
        leaves = [(n, m) for n, m in model.named_modules() if computes_itself(m)]
        self._leaves = {
            name or "model": (m, type(m).__name__, why_not(m)) for name, m in leaves
        }
        self._seconds: dict[str, float] = defaultdict(float)
        if not convert(model, route):
            raise UsageError(
                "the model has no Linear, Conv1d or Conv2d that the servers could compute",
                why=self._why_none(),
                code="nothing-to-outsource",
            )
        self._rounding = RoundingWatch()
        door = StepRunner(
            reach,
            kernels,
            seed,
            on_begin=self._begin_step,
            on_failure=self._undo_step,
            on_rounding=self._rounding.note,
        )
        self._door = door
        self.steps = Steps(route, door, keep_faster=keep_faster)
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _why_none(self) -> str:
        """Of the first module that could be converted if it were another."""
        for name, (module, _, why) in self._leaves.items():
            if isinstance(module, tuple(CONVERTED)):
                return f"{name}: {why}"
        return ""

    def close(self) -> None:
        """Make the model plain again; an open step is ended as its trace says before.

        Raises:
            SealiftError: if that step fails.
        """
        try:
            self.steps.close()
        finally:
            self._hook.remove()
            del self._model.__dict__[STATE]
            restore(self._model)
            self._reach.close()

    @contextmanager
    def call(self, kind: StepKind) -> Iterator[None]:
        """One call of the model."""
        trained = tuple(p.requires_grad for p in self._model.parameters())
        with self.steps.call(kind, trained) as rehearsed:
            if not rehearsed:
                yield
                return
            with self._measured():
                yield

    def report(self) -> ConversionReport:
        """What is made where."""
        total = sum(self._seconds.values()) or 1.0
        modules = (
            ModuleReport(
                name,
                kind,
                why or self._why_faster(name),
                self._seconds[name] / total,
                self._rounding.errors.get(name, {}),
                self._door.costs.get(name),
                self.steps.speeds.get(name),
            )
            for name, (_, kind, why) in self._leaves.items()
        )
        return ConversionReport(tuple(modules), self.steps.rehearsed, self.steps.served)

    def _why_faster(self, name: str) -> str:
        """Why it stays though servers could compute it; nothing, if it does not."""
        speed = self.steps.speeds.get(name)
        return "it is faster" if speed is not None and speed.stays else ""

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Time of each leaf, and of what is between them."""
        started: dict[str, float] = {}
        hooks = []
        for name, (module, *_) in self._leaves.items():
            before, after = (
                partial(_start, started, name),
                partial(self._stop, started, name),
            )
            hooks += [
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after),
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.compiler.disable
    def _stop(self, started: dict[str, float], name: str, *_: object) -> None:
        self._seconds[name] += time.perf_counter() - started[name]

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        ours = {id(each) for each in self._model.parameters()}
        held = (p for group in optimizer.param_groups for p in group["params"])
        if any(id(each) in ours for each in held):
            self.steps.before_optimizer()

    def _begin_step(self) -> None:
        self._before = ModelState(self._model)

    def _undo_step(self) -> None:
        """Let nothing of a failed step stay in the model."""
        self._before.restore()
        for parameter in self._model.parameters():
            parameter.grad = None


class OutsourcedModel(nn.Module):
    """What an outsourced model can besides what it could before."""

    plain: type[nn.Module]

    @torch.compiler.disable
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As ever; a step begins, or goes on."""
        differentiable = self.training and torch.is_grad_enabled()
        rows = next(_rows((args, kwargs)), 0)
        phase: Phase = "train" if differentiable else "evaluate"
        with self._own.call(StepKind(phase, rows)):
            return super().__call__(*args, **kwargs)

    def outsourced(self) -> ConversionReport:
        """Which modules are on servers, which stay, and their shares of the time."""
        return self._own.report()

    def close(self) -> None:
        """Take leave of the servers: the model is an ordinary one again.

        Raises:
            SealiftError: if a step was open, and failed as it was ended.
        """
        own, plain = self._own, self.plain
        try:
            own.close()
        finally:
            self.__class__ = plain

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """A copy is an ordinary model."""
        return copied(self, self.plain)

    @property
    def _own(self) -> OutsourcedState:
        own: OutsourcedState = self.__dict__[STATE]
        return own


def outsource_module(
    model: nn.Module,
    *,
    servers: Servers | str | Path,
    key: Identity | str | Path,
    keep_faster: bool = False,
) -> OutsourcedModel:
    """Let three servers that nobody trusts make the products of linear layers and convolutions.

    The model is changed in place, and returned; it is a context manager. The first step of
    each form (training or not, rows of a batch) is made here, and tells the servers the
    shapes and order of its products. Compiling kernels takes seconds, once.

    Args:
        model: Of float32 on the CPU. ``nn.Linear``, ``nn.Conv1d`` and ``nn.Conv2d`` are
            converted; ``outsourced()`` lists what stays, and why.
        servers: Or ``servers.toml``.
        key: The client's identity, or its file; its passphrase is in
            ``SEALIFT_PASSPHRASE``.
        keep_faster: Let modules stay here that are faster here, as few steps of zeros
            show before the first step on servers; ``outsourced()`` says which.

    Raises:
        UsageError: code ``nothing-to-outsource``, ``other-key``.
        PolicyError: code ``servers-not-apart``.
    """
    if not isinstance(servers, Servers):
        servers = Servers.read(servers)
    if not isinstance(key, Identity):
        key = load_identity(Path(key), read_given_passphrase(None, os.environ) or "")
    kernels = best_kernels()
    reach = ReachedServers(servers, key, kernels)
    seed = secrets.randbits(63)
    return outsource(model, reach, kernels, seed=seed, keep_faster=keep_faster)


def outsource(
    model: nn.Module,
    reach: Reach,
    kernels: Kernels,
    *,
    seed: int,
    keep_faster: bool = False,
) -> OutsourcedModel:
    """As ``outsource_module``, to whoever is reached.

    Args:
        model: Whatever a call of it computes.
        reach: The servers.
        kernels: Compute.
        seed: Of the rounding.
        keep_faster: See ``outsource_module``.

    Raises:
        UsageError: code ``nothing-to-outsource``.
    """
    plain = type(model)
    own = OutsourcedState(model, reach, kernels, seed, keep_faster=keep_faster)
    model.__dict__[STATE] = own
    name, parents = f"Outsourced{plain.__name__}", (OutsourcedModel, type(model))
    model.__class__ = type(name, parents, {"plain": plain, "__doc__": plain.__doc__})
    return require_kind(model, OutsourcedModel)


@torch.compiler.disable
def _start(started: dict[str, float], name: str, *_: object) -> None:
    started[name] = time.perf_counter()


def _rows(given: object) -> Iterator[int]:
    """Of each tensor that a model is called with."""
    if isinstance(given, torch.Tensor):
        yield given.shape[0] if given.dim() else 1
    elif isinstance(given, dict):
        yield from _rows(tuple(given.values()))
    elif isinstance(given, tuple | list):
        for each in given:
            yield from _rows(each)


class StepRehearsal(Float32Products):
    """Takes down what a step asks for, and in which call of the model."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[Exchange] = []
        self._parts: list[int] = []  # of each forward call: in which call of the model
        self._part = 0

    def begin_part(self) -> None:
        """The model is called, perhaps once more in the same step."""
        self._part += 1

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y``."""
        self._asked.append(exchange)
        self._parts.append(self._part)
        return super().forward(exchange, x, w)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """Gradients."""
        self._asked.append(exchange)
        return super().backward(exchange, dy)

    def edges(self) -> frozenset[str]:
        """The modules that were called first and last."""
        names = [each.layer.name for each in self._asked if isinstance(each, Forward)]
        return frozenset((*names[:1], *names[-1:]))

    def trace(self, edges: frozenset[str]) -> Trace:
        """What was asked for and used.

        Calls of the model that nobody differentiated, though it could be, were no part of
        the step. Operands of a call without gradients are not kept.
        """
        answered = {e.call for e in self._asked if isinstance(e, Backward)}
        used = {self._parts[call] for call in answered}
        numbers: dict[int, int] = {}
        found: list[Exchange] = []
        for call, each in self._numbered():
            if isinstance(each, Backward):
                found.append(Backward(numbers[call], each.wants))
            elif self._parts[call] in used or not self._could_be_used(call):
                numbers[call] = len(numbers)
                layer = replace(each.layer, edge=each.layer.name in edges)
                later = each.later if call in answered else ()
                found.append(Forward(layer, later))
        return tuple(found)

    def _could_be_used(self, call: int) -> bool:
        """Whether the model's call that it is in could be differentiated."""
        part = self._parts[call]
        return any(self._parts[other] == part for other in self.operands)

    def _numbered(self) -> Iterator[tuple[int, Exchange]]:
        forward = 0
        for each in self._asked:
            yield (each.call if isinstance(each, Backward) else forward), each
            forward += isinstance(each, Forward)


class Served:
    """A step on the servers, which follows its trace to the end.

    Attributes:
        over: Whether it was judged.
    """

    def __init__(self, door: StepRunner, trace: Trace) -> None:
        self._door, self._trace = door, trace
        self._layers = [e.layer for e in trace if isinstance(e, Forward)]
        self._at = 0
        self.over = False

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y``.

        Raises:
            JobError: code ``other-operations``, if this is not the trace's next.
        """
        layer, later = exchange.layer, {*exchange.later}
        match self.next:
            case Forward(expected, kept) if expected == layer and later >= {*kept}:
                y = self._door.forward(Forward(layer, kept), x, w)
                self._go_on()
                return y
        raise self._deviation(layer.name)

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """Gradients.

        Raises:
            JobError: code ``other-operations``, if this is not the trace's next.
        """
        if self.next != exchange:
            raise self._deviation(_told(exchange, self._layers))
        found = self._door.backward(exchange, dy)
        self._go_on()
        return found

    @property
    def next(self) -> Exchange | None:
        """What the trace says."""
        return None if self.over else self._trace[self._at]

    def finish(self) -> None:
        """Ask for what is missing, with zeros, and judge."""
        while not self.over:
            match self.next:
                case Forward(layer) as each:
                    self._door.forward(each, _zeros(layer, "x"), _zeros(layer, "w"))
                case Backward(call) as each:
                    self._door.backward(each, _zeros(self._layers[call], "dy"))
            self._go_on()

    def _go_on(self) -> None:
        self._at += 1
        if self._at == len(self._trace):
            self.over = True
            self._door.settle()

    def _deviation(self, name: str) -> JobError:
        """End the step with zeros, so that no server sees where it left its trace."""
        error = self._other(name)
        if not self.over:
            self.finish()
            self._door.leave_trace(error)
        return error

    def unfinished(self) -> JobError:
        """The error of somebody who takes the step for done."""
        return self._other("the optimizer's step")

    def _other(self, name: str) -> JobError:
        expected = _told(self.next, self._layers)
        return JobError(
            f"the recipe asked for {name}; the first step of this kind had {expected} "
            "here",
            why=(
                "the servers know the order and the shapes of a step's products, so "
                "these must not change"
            ),
            code="other-operations",
        )


class Steps:
    """All steps of one model.

    Args:
        route: Of the model.
        door: To the servers.
        keep_faster: Whether modules stay here that are faster here.

    Attributes:
        rehearsed: Steps that were made here.
        speeds: Of each module, if they were measured; some stay.
    """

    def __init__(
        self, route: Route, door: StepRunner, *, keep_faster: bool = False
    ) -> None:
        self.rehearsed = 0
        self.speeds: dict[str, LayerSpeed] = {}
        self._keep_faster = keep_faster
        self._route, self._door = route, door
        self._kind = StepKind("evaluate", 0)
        self._step: StepRehearsal | Served | None = None
        self._torn = False
        self._trained: tuple[bool, ...] = ()

    @property
    def served(self) -> int:
        """Steps that servers made, and that were judged to be right."""
        return self._door.settled

    @contextmanager
    def call(self, kind: StepKind, trained: tuple[bool, ...]) -> Iterator[bool]:
        """One call of the model; whether it is in a rehearsal.

        Args:
            kind: Of the step, if one begins.
            trained: Which parameters are; where that changes, so does the trace.
        """
        self._door.demand_sound()
        self._end_before_call(trained)
        step = self._step or self._begin(kind)
        if step is None:
            yield False
            return
        if isinstance(step, StepRehearsal):
            step.begin_part()
        self._torn = True
        try:
            with self._route.to(step, keeps=kind.phase == "train"):
                yield isinstance(step, StepRehearsal)
        except Exception:
            self.close()  # at once: a pause would show servers where it was torn
            raise
        self._torn = False

    def close(self) -> None:
        """End a step on servers that is open, with zeros.

        Raises:
            SealiftError: if its verdict fails.
        """
        if (
            isinstance(self._step, Served)
            and not self._step.over
            and self._door.is_sound
        ):
            self._step.finish()

    def before_optimizer(self) -> None:
        """Let an optimizer change weights.

        Raises:
            SealiftError: what failed; or ``other-operations``, if gradients of the step
                are missing, so that there was no verdict yet.
        """
        self._door.demand_sound()
        if isinstance(self._step, StepRehearsal):
            self._end_rehearsal(self._step)
        if isinstance(self._step, Served) and not self._step.over:
            raise self._step.unfinished()

    def _choose(self, kind: StepKind) -> None:
        """Let stay what is faster here, in steps of every form."""
        self.speeds = self._door.measure(kind)
        stay = frozenset(name for name, each in self.speeds.items() if each.stays)
        self._route.stays = stay
        self._door.leave_out(stay)

    def _end_before_call(self, trained: tuple[bool, ...]) -> None:
        """What is open goes on only where it waits for another call of the model."""
        match self._step:
            case StepRehearsal() as step if self._torn or not self._route.waits:
                self._end_rehearsal(step)
            case Served() as step if self._torn or not isinstance(step.next, Forward):
                self._step = None
                step.finish()
        if trained != self._trained and self._step is None:
            self._trained = trained
            self._door.forget("train")

    def _end_rehearsal(self, step: StepRehearsal) -> None:
        self._step = None
        if self._torn:
            return
        self._route.edges = self._route.edges or step.edges()
        self._door.learn(self._kind, step.trace(self._route.edges))
        self.rehearsed += 1

    def _begin(self, kind: StepKind) -> StepRehearsal | Served | None:
        """None, if all modules stay here."""
        self._route.begin()
        self._kind = kind
        if self._keep_faster and not self.speeds and self._door.trace(kind):
            self._choose(kind)
        if self.speeds and all(each.stays for each in self.speeds.values()):
            return None
        if trace := self._door.trace(kind):
            self._door.begin(kind)
            self._step = Served(self._door, trace)
        else:
            self._step = StepRehearsal()
        return self._step


def _zeros(layer: Layer, tensor: Tensor) -> F32:
    return np.zeros(layer.shape(tensor), np.float32)


def _told(exchange: Exchange | None, layers: Sequence[Layer]) -> str:
    match exchange:
        case Forward(layer):
            return f"a call of {layer.name} with {layer.batch} rows"
        case Backward(call):
            return f"the gradient of {layers[call].name}"
    return "nothing"
