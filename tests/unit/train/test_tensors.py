"""Tensors as bytes: what torch writes and reads, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from sealift.errors import MalformedError
from sealift.train.loop.held import Held
from sealift.train.loop.states import ELEMENTS, pack_tensors, parse_tensors
from sealift.train.sandboxed.torchstate import as_tensors, tensor_bytes

SHAPES: list[tuple[int, ...]] = [(), (0,), (3,), (2, 3, 4), (5, 0)]


def every_dtype() -> dict[str, torch.Tensor]:
    found = {}
    for _size, name in ELEMENTS.values():
        for place, shape in enumerate(SHAPES):
            raw = torch.randint(0, 2, shape)
            found[f"{name}-{place}"] = raw.to(getattr(torch, name))
    return found


def test_every_dtype_and_shape_goes_through() -> None:
    tensors = every_dtype()
    blob = pack_tensors({name: tensor_bytes(each) for name, each in tensors.items()})
    back = as_tensors(blob)
    assert {n: (t.dtype, t.shape) for n, t in back.items()} == {
        n: (t.dtype, t.shape) for n, t in tensors.items()
    }
    again = {name: tensor_bytes(each) for name, each in back.items()}
    assert pack_tensors(again) == blob


def test_safetensors_reads_ours_and_we_read_theirs() -> None:
    tensors = {"a": torch.rand(3, 4), "b": torch.arange(5), "c": torch.tensor(True)}
    ours = pack_tensors({name: tensor_bytes(each) for name, each in tensors.items()})
    for found in (load(ours), as_tensors(save(tensors))):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], each) for name, each in tensors.items())


def test_tied_weights_are_written_twice() -> None:
    tied = torch.rand(4)
    blob = pack_tensors({"a": tensor_bytes(tied), "b": tensor_bytes(tied[:2])})
    assert torch.equal(as_tensors(blob)["b"], tied[:2])


def blob_of(header: Any, content: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + content


def entry(start: int, end: int, **changes: Any) -> dict[str, Any]:
    plain = {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}
    return plain | changes


GOOD = blob_of({"a": entry(0, 2), "b": entry(2, 4)}, b"abcd")


def test_the_good_blob_is_good() -> None:
    assert [bytes(t.content) for t in parse_tensors(GOOD).values()] == [b"ab", b"cd"]


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        GOOD[:7],
        GOOD[:-1],
        GOOD + b"x",
        (1 << 60).to_bytes(8, "little") + b"{}",
        blob_of(b"{"),
        blob_of(b"\xff"),
        blob_of(b"[]"),
        blob_of(b"[" * 100_000),
        blob_of(b'{"a":' + json.dumps(entry(0, 1)).encode() + b',"a":1}', b"x"),
        blob_of({"a": 1}),
        blob_of({"a": entry(0, 1, more=1)}, b"x"),
        blob_of({"a": entry(0, 1, dtype="PICKLE")}, b"x"),
        blob_of({"a": entry(0, 1, dtype=["U8"])}, b"x"),
        blob_of({"a": entry(0, 1, dtype="F32")}, b"x"),
        blob_of({"a": entry(0, 1, shape=[True])}, b"x"),
        blob_of({"a": entry(0, 1, shape=[-1])}, b"x"),
        blob_of({"a": entry(0, 1, shape=[1.0])}, b"x"),
        blob_of({"a": entry(0, 1, shape=[1] * 100)}, b"x"),
        blob_of({"a": entry(0, 1, shape=1)}, b"x"),
        blob_of({"a": entry(0, 1, data_offsets=[0])}, b"x"),
        blob_of({"a": entry(0, 1, data_offsets=[1, 0])}, b"x"),
        blob_of({"a": entry(0, 2), "b": entry(1, 3)}, b"abc"),
        blob_of({"a": entry(0, 1), "b": entry(2, 3)}, b"abc"),
        blob_of({"a": entry(1, 2)}, b"ab"),
        blob_of({"a": entry(0, 2)}, b"a"),
    ],
)
@pytest.mark.parametrize("kept", [bytes, Held.of])
def test_anything_else_is_refused(
    blob: bytes, kept: Callable[[bytes], bytes | Held]
) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_tensors(kept(blob))
    assert caught.value.code == "bad-tensors"
