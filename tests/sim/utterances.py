"""Whatever a holder could say: every kind of message with any content, and raw frames.

``example`` builds a value of any type that messages are made of, from a seeded generator,
with the sizes and texts that parsers dislike; ``spoilt`` breaks it as plain JSON.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from sealift.codec import encode, to_plain
from sealift.crypto.sign import SIGNATURE_BYTES, SignedDocument
from sealift.errors import SealiftError
from sealift.travel.visit import messages
from sealift.travel.visit.messages import message_name

ANY = tuple(
    each
    for each in vars(messages).values()
    if dataclasses.is_dataclass(each) and each.__module__ == messages.__name__
)
NUMBERS = (0, 1, -1, 2, 255, 1 << 20, 1 << 31, (1 << 53) - 1, -(1 << 53) + 1)
TEXTS = ("", "ada-train", "read", "../../etc/passwd", "a" * 4000, "\u0000", "0x7f00")
SIZES = (0, 1, 16, 32, 64, 120, 4096)


class Draw:
    """The same draws for the same name, on every machine."""

    def __init__(self, name: str) -> None:
        self._generator = np.random.default_rng(zlib.crc32(name.encode()))

    def below(self, limit: int) -> int:
        return int(self._generator.integers(limit))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def bytes(self, length: int) -> bytes:
        return self._generator.bytes(length)


def example(kind: Any, draw: Draw) -> Any:
    """Some value of this type; None if it cannot be made."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return draw.one_of(arguments)
    if origin is Union or origin is types.UnionType:
        return example(draw.one_of(arguments), draw)
    if origin is tuple:
        wanted = arguments[:1] * draw.one_of((0, 1, 5))
        parts = wanted if arguments[-1] is Ellipsis else arguments
        return tuple(example(part, draw) for part in parts)
    if origin is dict:
        return {text[:40]: example(arguments[1], draw) for text in TEXTS[1:3]}
    if origin is SignedDocument:
        body = example(arguments[0], draw)
        return (
            None if body is None else SignedDocument(body, draw.bytes(SIGNATURE_BYTES))
        )
    return _simple(kind, draw)


def _simple(kind: Any, draw: Draw) -> Any:
    if kind is bool:
        return draw.below(2) == 1
    if kind in (int, float):
        return kind(draw.one_of(NUMBERS))
    if kind is str:
        return draw.one_of(TEXTS)
    if kind is bytes:
        return draw.bytes(draw.one_of(SIZES))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return draw.one_of(list(kind))
    if dataclasses.is_dataclass(kind):
        return _instance(kind, draw)
    return None


def _instance(kind: Any, draw: Draw) -> Any:
    hints = get_type_hints(kind)
    if set(hints) == {"raw"}:
        for size in (32, 16):
            try:
                return kind(draw.bytes(size))
            except SealiftError:
                continue
    for _ in range(50):
        values = {
            field.name: example(hints[field.name], draw)
            for field in dataclasses.fields(kind)
        }
        try:
            return kind(**values)
        except (SealiftError, TypeError, ValueError):
            continue
    return None


def spoilt(plain: Any, draw: Draw) -> Any:
    """The same JSON with one thing wrong."""
    body = dict(plain["body"]) if isinstance(plain["body"], dict) else {}
    names = sorted(body) or ["none"]
    name = draw.one_of(names)
    match draw.below(5):
        case 0:
            body.pop(name, None)
        case 1:
            body["offset"] = 0  # a field that no message of a holder has
        case 2:
            body[name] = draw.one_of((None, [], {}, "A" * 300, 1 << 40, -5))
        case 3:
            return {**plain, "type": "read-memory"}
        case _:
            return {"type": plain["type"], "body": [body]}
    return {**plain, "body": body}


def utterances(draw: Draw) -> Iterator[tuple[str, bytes]]:
    """Every kind of message once as it should be and once spoilt; then noise."""
    for kind in ANY:
        made, name = example(kind, draw), message_name(kind)
        body = to_plain(made) if made is not None else {}
        plain = {"type": name, "body": body}
        yield name, encode(plain)
        yield f"{name}, spoilt", json.dumps(spoilt(plain, draw)).encode()
    yield "noise", draw.bytes(200)
    yield "empty", b""
    yield "deep", b"[" * 5000


def raw_frames(frame: bytes, draw: Draw) -> Iterator[tuple[str, bytes]]:
    """Frames that are none, and spoilt copies of one that is."""
    yield "empty", b""
    yield "short", frame[:90]
    yield "noise", draw.bytes(len(frame))
    yield "long", frame + draw.bytes(1 << 16)
    for position in (0, 1, 3, 4, 8, 16, 32, 40, 48, 80, len(frame) - 1):
        changed = bytearray(frame)
        changed[position] ^= 1 << draw.below(8)
        yield f"bit at {position}", bytes(changed)
