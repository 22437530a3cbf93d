"""What torch's object collectives send over a sealed group, and what is refused."""

from __future__ import annotations

import collections
import enum
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed._state_dict_utils import _TensorInfo
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception
from torch.distributed.checkpoint.filesystem import _StoragePrefix
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.fsdp._optim_utils import StateInfo, _PosDimTensorInfo
from torch.distributed.pipelining._utils import (
    _DTensorMeta,
    _StageBackwardMeta,
    _StageForwardMeta,
    _TensorMeta,
)

from sealift.errors import MalformedError, StaleError, UsageError
from sealift.integrations import objects
from sealift.integrations.objects import MAX_DEPTH, pack_object, unpack_object


class Own:
    """A class of a user's script."""

    def __reduce__(self) -> Any:
        raise AssertionError("nothing is pickled")


class Colour(enum.Enum):
    """So is this."""

    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, 2**70, 1.5, math.inf, "text", "\u00e4\u4e2d", b"bytes", bytearray(b"x"),
        [1, [2]], (1, (2,)), {1, 2}, frozenset({3}), {"a": 1, 2: (3,)},
        collections.OrderedDict(b=1, a=2), torch.Size([2, 3]), torch.float16,
        torch.device("cpu"), torch.strided, torch.contiguous_format, Path("/x/y"),
        MetadataIndex("weight", torch.Size([1, 2])), WriteItemType.SHARD,
        TensorProperties(dtype=torch.bfloat16, requires_grad=True), complex(1, -2),
        np.float64(0.5), np.int8(-3), np.bool_(True), np.complex64(1j),
        _TensorInfo(torch.Size([2]), torch.float16),
        _StageForwardMeta((_TensorMeta(torch.Size([2]), (1,), torch.float32, True),)),
        _StageBackwardMeta((None,)),
        StateInfo({"a": _PosDimTensorInfo(torch.Size([2]), torch.int8)}, {}, {"b": 1}),
    ],
)  # fmt: skip
def test_what_is_sent_comes_out_the_same(value: object) -> None:
    again = unpack_object(pack_object(value))
    assert type(again) is type(value)
    assert again == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T, np.empty((0, 3), np.int8), np.array(1.5),
        np.arange(3, dtype=">i4"), np.array([True, False]), np.ones(2, np.complex128),
    ],
)  # fmt: skip
def test_arrays_of_numbers_come_out_the_same(array: np.ndarray) -> None:
    again = unpack_object(pack_object({"a": array}))["a"]
    assert isinstance(again, np.ndarray)
    assert again.dtype == array.dtype.newbyteorder("<")
    assert again.shape == array.shape
    assert again.tolist() == array.tolist()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(), torch.ones((), dtype=torch.bfloat16),
        torch.empty(0, 3), torch.tensor([True, False]), torch.ones(2, requires_grad=True),
    ],
)  # fmt: skip
def test_tensors_come_out_the_same(tensor: torch.Tensor) -> None:
    again = unpack_object(pack_object([tensor]))[0]
    assert again.dtype is tensor.dtype
    assert torch.equal(again, tensor.detach())


@pytest.mark.parametrize(
    "value",
    [
        Own(),
        [Own()],
        {"a": Own},
        len,
        lambda: 0,
        Colour.RED,
        object(),
        torch.nn.ReLU(),
        np.array([Own()]),
        np.array(["a"]),
        np.zeros(1, "i4,f4"),
        np.datetime64("2026-01-01"),
        _DTensorMeta(torch.Size([1]), (1,), torch.float32, False),
    ],
)
def test_anything_else_is_refused_by_its_type(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        pack_object(value)
    assert caught.value.code == "object-refused"


def test_what_is_nested_too_deep_is_refused() -> None:
    nested: Any = 0
    for _ in range(MAX_DEPTH + 2):
        nested = [nested]
    with pytest.raises(UsageError) as caught:
        pack_object(nested)
    assert caught.value.code == "object-refused"


def test_a_failed_checkpoint_is_told_without_names_of_files() -> None:
    try:
        Path("/home/ada/patients/march.csv").read_bytes()
    except FileNotFoundError as error:
        failed = CheckpointException("write", {1: _wrap_exception(error)})
    raw = pack_object([failed, ValueError("could not convert 'Anna' to float")])
    assert not any(each in raw for each in (b"ada", b"test_objects", b"Anna"))
    objects._OWN_ERRORS.clear()  # as it is on another rank
    again, _ = unpack_object(raw)
    assert isinstance(again, CheckpointException)
    assert "FileNotFoundError: No such file" in str(again.failures[1][0])


def test_a_failed_checkpoint_is_told_by_its_code_and_in_full_where_it_failed() -> None:
    """It crosses twice: to the coordinator, and from there to every rank."""
    there = StaleError("/home/ada/saved is older", code="saved-rolled-back")
    sent = pack_object(_wrap_exception(there))
    own, *_ = unpack_object(sent)
    objects._OWN_ERRORS.clear()  # as it is on another rank
    other, *_ = unpack_object(sent)
    again = unpack_object(pack_object(CheckpointException("read", {1: (own, None)})))
    assert "/home/ada/saved is older" in str(own)
    for each in (str(other), str(again)):
        assert "[saved-rolled-back]" in each
        assert "/home/ada" not in each


@pytest.mark.parametrize("prefix", ["/etc/x", "a/b", "..", "a\\b", "a\0", 7])
def test_a_rank_does_not_choose_where_another_one_writes(prefix: object) -> None:
    honest = pack_object(_StoragePrefix("__0_"))
    assert unpack_object(honest) == _StoragePrefix("__0_")
    lying = honest.replace(b'"__0_"', json.dumps(prefix).encode())
    assert lying != honest
    with pytest.raises(MalformedError) as caught:
        unpack_object(lying)
    assert caught.value.code == "bad-object"


@pytest.mark.parametrize(
    "plain",
    [
        {"class": ["os:system", {"dict": []}]},
        {"class": ["torch.distributed.checkpoint.planner:WriteItemType", {"dict": []}]},
        {"member": ["torch.distributed.checkpoint.planner:WriteItemType", "NONE"]},
        {"dtype": "load"}, {"dtype": "_dynamo"}, {"layout": "float16"}, {"unknown": 1}, {"tuple": 1, "set": 2}, {},
        {"tensor": [{"dtype": "float32"}, [3], "AAAA"]}, {"bytes": 7}, {"device": "odd"},
        {"array": ["O", [1], "AAAAAAAAAAA="]}, {"array": ["<f4", [2], "AAAA"]}, {"number": ["V4", [], "AAAAAA=="]},
        {"array": ["(2,)f4", [1], "AAAAAAAAAAA="]}, {"complex": ["1", 2]},
        {"class": ["torch.distributed._state_dict_utils:_TensorInfo", {"dict": [["a", 1]]}]},
        {"class": ["torch.distributed.pipelining._utils:_MeshCache", {"dict": []}]},
        {"path": 3}, {"dict": [[1]]}, {"set": [[1]]},
    ],
)  # fmt: skip
def test_bytes_of_a_liar_make_nothing_else(plain: object) -> None:
    with pytest.raises(MalformedError) as caught:
        unpack_object(json.dumps(plain).encode())
    assert caught.value.code == "bad-object"


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ([1 << 45], [1]),
        ([1 << 45], [0]),
        ([2, 2], [1 << 40, 1]),
        ([2], [-1]),
        ([2], []),
    ],
)
def test_a_stage_awaits_no_tensor_of_any_size(
    shape: list[int], stride: list[int]
) -> None:
    """Its next one says how large it is, and it takes the memory before."""
    told = [
        ["shape", {"size": shape}],
        ["stride", {"tuple": stride}],
        ["dtype", {"dtype": "float32"}],
        ["requires_grad", True],
    ]
    plain = {"class": [f"{_TensorMeta.__module__}:_TensorMeta", {"dict": told}]}
    with pytest.raises(MalformedError) as caught:
        unpack_object(json.dumps(plain).encode())
    assert caught.value.code == "bad-object"
    told[0][1], told[1][1] = {"size": [3, 2]}, {"tuple": [1, 3]}  # control: transposed
    assert unpack_object(json.dumps(plain).encode()).shape == torch.Size([3, 2])


@pytest.mark.parametrize("raw", [b"", b"\x80\x04K\x01.", b"[", b"[" * 100_000, b"\xff"])
def test_bytes_that_are_no_object_are_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        unpack_object(raw)
    assert caught.value.code == "bad-object"
