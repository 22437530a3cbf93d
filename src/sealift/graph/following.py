"""Following a recipe: what a program makes of tensors stays tensors, and its lines are noted.

`float`, `int` and `len` give plain numbers, which end what `torch.export` can follow. While
a recipe is followed its modules have other ones, under which a number stays a tensor.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

BUNDLE: Final = "bundle:"  # how the file names of a bundle's modules begin
Lines = Mapping[str, tuple[str, int]]
_OWN_MODULES: Final = ("sealift.recipes", "sealift.recipes.measures")


class _KeepsTensors(type):
    """Of `float` and `int` where a recipe is followed: a tensor stays one."""

    def __call__(cls, value: Any = 0, *more: Any) -> Any:
        number = cls.__mro__[1]
        if isinstance(value, Tensor):
            return value.to(torch.float64 if number is float else torch.int64)
        if isinstance(value, (torch.SymInt, torch.SymFloat)) and not more:
            return torch.sym_float(value) if number is float else torch.sym_int(value)
        return number(value, *more)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])


class _Float(float, metaclass=_KeepsTensors):
    pass


class _Int(int, metaclass=_KeepsTensors):
    pass


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) else len(value)


class Watching(TorchFunctionMode):
    """Notes where the recipe calls torch; `item()` gives a tensor, as `float` and `int` do.

    Attributes:
        lines: Path and line of the first call of each function, by its name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, tuple[str, int]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(getattr(func, "__name__", "")).strip("_")
        if name not in self.lines:
            place = _recipe_line()
            if place[1]:
                self.lines[name] = place
        if func is Tensor.item:
            wide = torch.float64 if args[0].is_floating_point() else torch.int64
            return args[0].to(wide)
        return func(*args, **(kwargs or {}))


def _recipe_line() -> tuple[str, int]:
    """Path and line of the bundle that is being executed."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(BUNDLE):
            return name.removeprefix(BUNDLE), frame.f_lineno
        frame = frame.f_back
    return "", 0


@contextmanager
def followed() -> Iterator[Watching]:
    """Numbers that a recipe makes of tensors stay tensors, so that they can be followed."""
    own = {"float": _Float, "int": _Int, "len": _length}
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name in _OWN_MODULES
        or str(getattr(getattr(module, "__spec__", None), "origin", None)).startswith(
            BUNDLE
        )
    ]
    before = [
        {n: vars(module)[n] for n in own if n in vars(module)} for module in modules
    ]
    for module in modules:
        vars(module).update(own)
    try:
        with Watching() as watching:
            yield watching
    finally:
        for module, kept in zip(modules, before, strict=True):
            for name in own:
                vars(module).pop(name, None)
            vars(module).update(kept)
