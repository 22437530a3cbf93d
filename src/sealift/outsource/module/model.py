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
"""

from __future__ import annotations

import math
import os
import secrets
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sealift.crypto.identity import Identity, load_identity
from sealift.errors import UsageError, quote_foreign, require_kind
from sealift.numeric.kernels import Kernels, best_kernels
from sealift.numeric.loops import F32
from sealift.outsource.convert import (
    CONVERTED,
    STATE,
    Route,
    computes_itself,
    convert,
    copied,
    restore,
    why_not,
)
from sealift.outsource.modelstate import ModelState
from sealift.outsource.module.server import LayerCost, Reach, StepRunner
from sealift.outsource.module.servers import ReachedServers, Servers
from sealift.outsource.module.speed import LayerSpeed
from sealift.outsource.module.steps import Steps
from sealift.outsource.quantize import Operand, OperandId
from sealift.outsource.terms import Tensor
from sealift.outsource.terms import Tensor as OperandName
from sealift.outsource.trace import Phase, StepKind
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
                    f"rounded away beside larger {what}. Bring the {what} to similar sizes "
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
