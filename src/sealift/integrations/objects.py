"""Objects that torch's object collectives send, as bytes that run nothing when read.

Torch pickles them, and a pickle from another organisation is a program. Over a sealed
group the same calls (``all_gather_object``, ``broadcast_object_list``, the planner of
``torch.distributed.checkpoint``, ``ZeroRedundancyOptimizer``) use this closed encoding:
plain values, containers, tensors, arrays of numbers, torch's small types, and by name the
data classes of torch's own checkpoints and what it tells of states' tensors. Anything else is refused with its type, by who would send it.
Not here: what a user's script unpickles itself.
Source: torch 2.13 (run with no other version), ``distributed_c10d._object_to_tensor`` and its users.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import inspect
import json
import math
import os
import secrets
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PosixPath
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _state_dict_utils, distributed_c10d
from torch.distributed.checkpoint import filesystem, metadata, planner, storage
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import _optim_utils

from sealift.errors import (
    JobError,
    MalformedError,
    SealiftError,
    UnavailableError,
    UsageError,
    meaning,
    visible,
)
from sealift.integrations.torchgroup import MAX_TOLD_BYTES, SealedProcessGroup

MAX_DEPTH: Final = 64
_CLASSES: Final[Mapping[str, type]] = {
    f"{module.__name__}:{name}": member
    for module in (metadata, planner, filesystem, storage)
    for name, member in vars(module).items()
    if isinstance(member, type)
    and member.__module__ == module.__name__
    and (dataclasses.is_dataclass(member) or issubclass(member, enum.Enum))
} | {
    # ``set_model_state_dict(..., broadcast_from_rank0=True)``, optimizer states of FSDP
    f"{module.__name__}:{name}": vars(module)[name]
    for module, name in (
        (_state_dict_utils, "_TensorInfo"),
        (_optim_utils, "_PosDimTensorInfo"),
        (_optim_utils, "StateInfo"),
    )
}
# What stages of a pipeline tell each other: whoever sends or awaits it has loaded the module.
_PIPELINE: Final = "torch.distributed.pipelining._utils"
_STAGES: Final = frozenset({"_TensorMeta", "_StageForwardMeta", "_StageBackwardMeta"})
_SENT: Final = "only plain values, numbers, containers and tensors are sent"
_PLACES: Final = frozenset({"prefix", "relative_path"})  # of files of a checkpoint
_NOT_IN_NAMES: Final = frozenset("/\\\0")
_PLAIN: Final = (type(None), bool, int, float, str)
_NUMBERS: Final = frozenset("biufc")  # NumPy's kinds of elements that are no programs
_SEQUENCES: Final[dict[str, type]] = {
    "tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size
}  # fmt: skip
_MAPPINGS: Final[dict[str, type]] = {"dict": dict, "ordered": collections.OrderedDict}
_OWN_ERRORS: Final = collections.deque[tuple[str, str]](maxlen=16)  # by their marks
_TORCH_KINDS: Final = (torch.dtype, torch.layout, torch.memory_format)
_TORCH: Final[Mapping[str, Mapping[str, Any]]] = {
    kind.__name__: {
        name: each for name, each in vars(torch).items() if type(each) is kind
    }
    for kind in _TORCH_KINDS
}


def pack_object(value: Any) -> bytes:
    """The bytes of an object.

    Raises:
        UsageError: code ``object-refused``: it is, or holds, something of another type.
    """
    return json.dumps(_to_plain(value, 0)).encode()


def unpack_object(raw: bytes) -> Any:
    """The object of ``pack_object``'s bytes, which anybody may have sent.

    Raises:
        MalformedError: code ``bad-object``.
    """
    try:
        return _from_plain(json.loads(raw))
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise MalformedError(
            "a rank sent an object that cannot be read", why=error, code="bad-object"
        ) from None


def _to_plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    write = _WRITERS.get(kind)
    if write is None and _stage_class(name := f"{_PIPELINE}:{kind.__name__}") is kind:
        write = _class_writer(name, kind)
    if write is None:
        write = next(
            (how for of, how in _WRITERS_OF_KINDS if isinstance(value, of)), None
        )
    if write is None:
        raise _refused(kind.__qualname__, _SENT)
    if depth > MAX_DEPTH:
        raise _refused(kind.__qualname__, f"it is nested more than {MAX_DEPTH} deep")
    return write(value, lambda items: [_to_plain(each, depth + 1) for each in items])


def _stage_class(name: str) -> type | None:
    module, _, kind = name.partition(":")
    known = module == _PIPELINE and kind in _STAGES and module in sys.modules
    return vars(sys.modules[module])[kind] if known else None


def _refused(kind: str, why: str) -> UsageError:
    return UsageError(
        f"an object of type {kind} is not sent to other ranks",
        why=why,
        code="object-refused",
    )


Each = Callable[[Iterable[Any]], list[Any]]
Writer = Callable[[Any, Each], Any]


def _sequence_writer(name: str) -> Writer:
    return lambda value, each: {name: each(value)}


def _mapping_writer(name: str) -> Writer:
    return lambda value, each: {name: [each(pair) for pair in value.items()]}


def _torch_writer(name: str) -> Writer:
    return lambda value, _: {name: str(value).removeprefix("torch.")}


def _class_writer(name: str, member: type) -> Writer:
    if issubclass(member, enum.Enum):
        return lambda value, _: {"member": [name, value.name]}

    fields = (
        [each.name for each in dataclasses.fields(member)]
        if dataclasses.is_dataclass(member)
        else vars(member)["_fields"]
    )

    def write(value: Any, each: Each) -> Any:
        parts = {field: getattr(value, field) for field in fields}
        return {"class": [name, *each([parts])]}

    return write


def _write_bytes(value: Any, _: Each) -> Any:
    return {type(value).__name__: base64.b64encode(value).decode()}


def _write_tensor(value: Tensor, each: Each) -> Any:
    dense = value.detach().cpu().to_dense().contiguous()
    raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    kind, shape = each([value.dtype, list(value.shape)])
    return {"tensor": [kind, shape, base64.b64encode(raw).decode()]}


def _write_numbers(value: Any, each: Each) -> Any:
    if value.dtype.kind not in _NUMBERS:
        raise _refused(f"NumPy's {value.dtype}", _SENT)
    array = np.ascontiguousarray(value)
    raw = base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes())
    kind = "array" if isinstance(value, np.ndarray) else "number"
    return {kind: [value.dtype.newbyteorder("<").str, list(value.shape), raw.decode()]}


def _write_checkpoint(value: CheckpointException, each: Each) -> Any:
    return {"checkpoint": each([value.args[0], dict(value.failures)])}


class RankError(RuntimeError):
    """An error of some rank, as all ranks may read it; whose own it is reads all of it.

    Args:
        mark: Drawn by that rank, which knows its own errors by it.
        public: Its kind and what its code means.
    """

    def __init__(self, mark: str, public: str) -> None:
        self.sent = [mark, public]
        super().__init__(dict(_OWN_ERRORS).get(mark) or visible(public))


def _write_error(value: BaseException, _: Each) -> Any:
    """Its kind: texts name files and quote cells of this rank's rows."""
    if isinstance(value, RankError):
        return {"error": value.sent}
    number = getattr(value, "errno", None)
    reason = os.strerror(number) if isinstance(number, int) else ""
    if isinstance(value, SealiftError):
        reason = f"{meaning(value.code)} [{value.code}]"
    kind = type(value).__name__
    mark, public = secrets.token_hex(8), f"{kind}: {reason}" if reason else kind
    _OWN_ERRORS.append((mark, f"{kind}: {value}"))
    return {"error": [mark, public]}


_WRITERS: Final[Mapping[type, Writer]] = {
    list: lambda value, each: each(value),
    **{of: _sequence_writer(name) for name, of in _SEQUENCES.items()},
    **{of: _mapping_writer(name) for name, of in _MAPPINGS.items()},
    **{kind: _torch_writer(kind.__name__) for kind in _TORCH_KINDS},
    **{member: _class_writer(name, member) for name, member in _CLASSES.items()},
    torch.device: lambda value, _: {"device": str(value)},
    PosixPath: lambda value, _: {"path": str(value)},
    bytes: _write_bytes,
    bytearray: _write_bytes,
    complex: lambda value, _: {"complex": [value.real, value.imag]},
}
_WRITERS_OF_KINDS: Final[Sequence[tuple[type, Writer]]] = (
    (Tensor, _write_tensor),
    (np.ndarray, _write_numbers),
    (np.generic, _write_numbers),
    # Names of files at home: they do not travel.
    (traceback.StackSummary, lambda value, _: {"stack": None}),
    (CheckpointException, _write_checkpoint),
    (BaseException, _write_error),
)


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_from_plain(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    ((name, content),) = plain.items()
    return _READERS[name](content)


def _read_member(content: Any) -> Any:
    name, member = content
    return _CLASSES[name][member]  # type: ignore[index]


def _read_tensor(content: Any) -> Tensor:
    dtype, shape, raw = content
    flat = torch.from_numpy(np.frombuffer(bytearray(base64.b64decode(raw)), np.uint8))
    return flat.view(_from_plain(dtype)).reshape(shape)


def _read_array(content: Any) -> Any:
    kind, shape, raw = content
    dtype = np.dtype(kind)
    if dtype.kind not in _NUMBERS or dtype.shape:
        raise ValueError(f"{kind!r} is not a type of numbers")
    return np.frombuffer(bytearray(base64.b64decode(raw)), dtype).reshape(shape)


def _container_reader(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda content: of(map(_from_plain, content))


def _read_class(content: Any) -> Any:
    name, parts = content
    member = _stage_class(name) or _CLASSES[name]
    if issubclass(member, enum.Enum):
        raise ValueError(f"{name} is not a data class")
    values = _from_plain(parts)
    for place in _PLACES.intersection(values):
        _demand_inside(values[place])
    if member.__name__ == "_TensorMeta":
        _demand_told(values)
    return member(**values)


def _demand_told(values: Mapping[str, Any]) -> None:
    """What a stage says of a tensor: this rank takes memory for each one that it awaits."""
    shape, dtype = values["shape"], values["dtype"]
    if not isinstance(shape, torch.Size) or not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor's shape or type is not valid")
    stride = tuple(values["stride"])
    if len(stride) != len(shape) or not all(type(n) is int and n >= 0 for n in stride):
        raise ValueError("a tensor's strides are not valid")
    spread = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if max(math.prod(shape), spread) * dtype.itemsize > MAX_TOLD_BYTES:
        raise ValueError(f"a tensor of shape {tuple(shape)} is too large to receive")


def _demand_inside(place: Any) -> None:
    """A part of a file's name: another rank must not choose where this one writes."""
    if not isinstance(place, str) or _NOT_IN_NAMES.intersection(place) or ".." in place:
        raise ValueError(f"{place!r} cannot be a file in a checkpoint's folder")


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: _container_reader(of) for name, of in (_SEQUENCES | _MAPPINGS).items()},
    **{name: known.__getitem__ for name, known in _TORCH.items()},
    "device": torch.device,
    "path": PosixPath,
    "bytes": base64.b64decode,
    "bytearray": lambda content: bytearray(base64.b64decode(content)),
    "complex": lambda content: complex(*content),
    "array": _read_array,
    "number": lambda content: _read_array(content)[()],
    "tensor": _read_tensor,
    "member": _read_member,
    "class": _read_class,
    "stack": lambda _: traceback.StackSummary(),
    "checkpoint": lambda content: CheckpointException(*map(_from_plain, content)),
    "error": lambda content: RankError(*map(str, content)),
}


def _is_sealed(group: Any) -> bool:
    return isinstance(group or dist.group.WORLD, SealedProcessGroup)


# Torch makes room for as many bytes as these calls were told, and they alone call the
# functions of their own module that tell it.
_OBJECT_CALLS: Final = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
    "recv_object_list",
)  # fmt: skip


def _demand_sizes(told: Sequence[Tensor], group: Any) -> None:
    """Refuse sizes of objects for which nobody should make room.

    Args:
        told: Whole numbers of bytes: a tensor of one from each rank, of which torch makes
            all as large as the largest, or one tensor from one rank.
        group: Ends, so that no rank waits for this one.

    Raises:
        JobError: code ``object-too-large``.
    """
    sizes = [int(each) for tensor in told for each in tensor.reshape(-1)]
    total = max(sizes, default=0) * len(sizes) if len(told) > 1 else sum(sizes)
    if min(sizes, default=0) < 0 or total > MAX_TOLD_BYTES:
        (group or dist.group.WORLD).abort()
        raise JobError(
            "objects of an object collective are too large",
            why=f"the ranks' sizes are {sizes[:16]} bytes; the limit for one call is "
            f"{MAX_TOLD_BYTES:,} bytes",
            code="object-too-large",
        )


def _bound_sizes(names: Sequence[str]) -> None:
    """Have torch's object collectives refuse sizes before they make room for them.

    Raises:
        KeyError: this torch has no such function.
    """
    module = vars(distributed_c10d)
    callers = {inspect.unwrap(module[name]).__code__ for name in _OBJECT_CALLS}

    def bounded(call: Callable[..., Any]) -> Callable[..., Any]:
        def with_sizes(first: Any, *others: Any, **named: Any) -> Any:
            result = call(first, *others, **named)
            # Another caller's numbers are no sizes.
            if sys._getframe(1).f_code not in callers:  # noqa: SLF001 - nothing else says who calls
                return result
            parts = first if isinstance(first, list) else [first]
            group = named.get("group")
            if isinstance(parts[0], dist.P2POp):
                group = parts[0].group
                for work in result:
                    work.wait()
                parts = [each.tensor for each in parts]
            if _is_sealed(group) and parts[0].dtype is torch.int64:
                _demand_sizes(parts, group)
            return result

        return with_sizes

    for name in names:
        module[name] = bounded(module[name])


def use_for_sealed_groups() -> None:
    """Have torch's object collectives use this encoding over sealed groups. Idempotent.

    Raises:
        UnavailableError: code ``torch-differs``: this torch pickles somewhere else.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what it compiles there
        from torch.distributed.optim import zero_redundancy_optimizer
    try:
        to_tensor = distributed_c10d._object_to_tensor  # noqa: SLF001 - torch has no other place
        to_object = distributed_c10d._tensor_to_object  # noqa: SLF001
        broadcast = vars(zero_redundancy_optimizer)["_broadcast_object"]
        if getattr(to_tensor, "sealed", False):
            return
        _bound_sizes(("all_gather", "broadcast", "recv", "batch_isend_irecv"))
    except (AttributeError, KeyError) as error:
        raise UnavailableError(
            "object collectives of this torch cannot be kept from unpickling",
            why=error,
            code="torch-differs",
        ) from None

    def object_to_tensor(value: Any, device: Any, group: Any) -> tuple[Tensor, Tensor]:
        if not _is_sealed(group):
            return to_tensor(value, device, group)  # type: ignore[no-any-return]
        raw = torch.frombuffer(bytearray(pack_object(value)), dtype=torch.uint8).clone()
        return raw.to(device), torch.tensor([raw.numel()], device=device)

    def tensor_to_object(tensor: Tensor, size: Any, group: Any) -> Any:
        if not _is_sealed(group):
            return to_object(tensor, size, group)
        return unpack_object(tensor.cpu().numpy().tobytes()[: int(size)])

    def broadcast_object(
        value: Any, src_rank: int, group: Any = None, device: Any = "cpu"
    ) -> Any:
        device = torch.device(device)
        if not _is_sealed(group):
            return broadcast(value, src_rank, group or dist.group.WORLD, device)
        objects = [value]
        dist.broadcast_object_list(objects, src_rank, group=group, device=device)
        return objects[0]

    object_to_tensor.sealed = True  # type: ignore[attr-defined]
    distributed_c10d._object_to_tensor = object_to_tensor  # noqa: SLF001
    distributed_c10d._tensor_to_object = tensor_to_object  # noqa: SLF001
    vars(zero_redundancy_optimizer)["_broadcast_object"] = broadcast_object
