"""A device that is not the CPU, on a machine that has none: torch's own idea of one.

Its tensors lie in the CPU's memory and say that they lie elsewhere. As on a GPU, an
operation takes tensors of one device, or numbers; whatever mixes them fails, and whatever
is made without a device is made on the CPU. What is computed there has the CPU's bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from site import addsitedir
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from sealift.train.sandboxed import recipe, torchstate

T = TypeVar("T")
NAME = "elsewhere"
_EXACT = (recipe, torchstate)  # modules that take no subclass of a tensor


def in_a_process(call: Callable[..., T], *parts: Any) -> T:
    """What it returns in a process of its own, or raises."""
    root = str(Path(__file__).parents[2])
    with ProcessPoolExecutor(1, get_context("spawn"), addsitedir, (root,)) as pool:
        return pool.submit(call, *parts).result(300)


def _type_of(value: Any) -> Any:
    return Tensor if isinstance(value, Elsewhere) else type(value)


class Elsewhere(Tensor):
    """A tensor of that device."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=torch.device(NAME, 0),
        )
        made.here = here
        return made

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def __repr__(self) -> str:
        return f"Elsewhere({tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class OtherDevice(TorchDispatchMode):
    """While it is entered, there is such a device; its process is of no other use.

    Attributes:
        ran: How often each operation ran there.
        calls: How often each call was watched, by its name.
        here: Of watched calls, what had or made tensors of the CPU: call, operation, shape.
    """

    def __init__(self) -> None:
        super().__init__()
        _setup_privateuseone_for_python_backend(NAME)  # nothing takes it back
        self.ran: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.here: list[tuple[str, str, tuple[int, ...]]] = []
        self._call = ""

    def watch(self, name: str, call: Callable[..., T], *parts: Any) -> T:
        """Call it, and note each operation in it that is not on that device alone.

        Numbers may be the CPU's: a tensor without dimensions, as a GPU takes them, too.
        """
        before, self._call = self._call, name
        self.calls[name] += 1
        try:
            return call(*parts)
        finally:
            self._call = before

    def __enter__(self) -> Self:
        for each in _EXACT:
            vars(each)["type"] = _type_of
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for each in _EXACT:
            del vars(each)["type"]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        found = _run(func, args, kwargs or {})
        leaves = tree_leaves((args, kwargs, found))
        if any(isinstance(each, Elsewhere) for each in tree_leaves(found)):
            self.ran[str(func)] += 1
        if self._call:
            self.here += [
                (self._call, str(func), tuple(each.shape))
                for each in leaves
                if isinstance(each, Tensor)
                and not isinstance(each, Elsewhere)
                and each.dim()
            ]
        return found


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    away = [isinstance(each, Elsewhere) for each in given]
    wanted = kwargs.get("device")
    copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    mixed = any(away) and not all(
        there or each.dim() == 0 for each, there in zip(given, away, strict=True)
    )
    if mixed and not copies:
        raise RuntimeError(f"{func} has tensors on two devices")
    there = any(away) if wanted is None else torch.device(wanted).type == NAME
    kwargs = {**kwargs, "device": torch.device("cpu")} if wanted is not None else kwargs
    plain = tree_map(
        lambda e: e.here if isinstance(e, Elsewhere) else e, (args, kwargs)
    )
    found = func(*plain[0], **plain[1])
    owners = {id(each.here): each for each in given if isinstance(each, Elsewhere)}

    def wrap(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        if id(each) in owners:  # changed in place
            return owners[id(each)]
        return Elsewhere(each) if there else each

    if func is torch.ops.aten.copy_.default:
        return args[0]
    return tree_map(wrap, found)
