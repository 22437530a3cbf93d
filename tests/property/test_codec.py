"""Any value comes back from its bytes; any bytes are a value or malformed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from sealift.codec import MAX_INTEGER, decode, encode, parse
from sealift.errors import MalformedError
from sealift.ids import Digest, Role


@dataclass(frozen=True)
class Leaf:
    count: int
    share: float
    name: str
    raw: bytes
    flag: bool


@dataclass(frozen=True)
class Branch:
    role: Role
    digest: Digest
    mode: Literal["x", 0, 1]
    scalar: str | bool | float
    maybe: Leaf | None
    leaves: tuple[Leaf, ...]
    named: dict[str, Leaf]


# Text and numbers that JSON can carry: no lone surrogates, nothing infinite.
texts = st.text(st.characters(codec="utf-8"))
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-MAX_INTEGER, MAX_INTEGER)
leaves = st.builds(Leaf, integers, floats, texts, st.binary(), st.booleans())
branches = st.builds(
    Branch,
    role=st.sampled_from(Role),
    digest=st.binary(min_size=32, max_size=32).map(Digest),
    mode=st.sampled_from(["x", 0, 1]),
    scalar=texts | st.booleans() | floats,
    maybe=st.none() | leaves,
    leaves=st.lists(leaves, max_size=3).map(tuple),
    named=st.dictionaries(texts, leaves, max_size=3),
)
plain = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=12,
)


@given(branches)
def test_round_trip(value: Branch) -> None:
    raw = encode(value)
    assert decode(Branch, raw) == value
    assert encode(decode(Branch, raw)) == raw


@given(plain)
def test_canonical_bytes_are_json_and_unique(value: Any) -> None:
    raw = encode(value)
    assert json.loads(raw, parse_int=float) == value  # JSON has one kind of number
    assert encode(parse(raw, max_depth=64)) == raw


def refuses_or_agrees(raw: bytes) -> None:
    with contextlib.suppress(MalformedError):
        assert encode(decode(Branch, raw)) == raw
    with contextlib.suppress(MalformedError):
        assert encode(parse(raw)) == raw


@given(st.binary())
@example(b'"\\ud800"')
@example(b"1E400")
@example(b"-0")
def test_any_bytes(raw: bytes) -> None:
    refuses_or_agrees(raw)


@given(plain.map(lambda value: json.dumps(value).encode()))
def test_any_json(raw: bytes) -> None:
    refuses_or_agrees(raw)


@given(branches, st.data())
def test_one_changed_byte(value: Branch, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    refuses_or_agrees(bytes(raw))


@given(plain)
def test_the_fast_writer_is_the_canonical_one(value: Any) -> None:
    """Whatever way it takes, ``encode`` writes what the reference writer writes."""
    assert encode(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        {"\ue000": 1, "\U00010000": 2},  # another order in UTF-16 than by code point
        {"b": 1, "a": {"d": 1, "c": [True, None]}},
        ['\x00\x1f\x7f"\\/\b\f\n\r\t', "\u2028", "é"],
        [1e-7, 1e21, 1e16, -0.0, 0.1, 5.0, 2**53 - 1, -(2**53) + 1],
    ],
)
def test_where_writers_of_json_differ(value: Any) -> None:
    assert encode(value) == rfc8785.dumps(value)
    assert encode(parse(encode(value))) == encode(value)


@pytest.mark.parametrize("value", [2**53, {1: 2}, [{None: 1}], "\ud800", {"\ud800": 1}])
def test_what_has_no_canonical_form(value: Any) -> None:
    """What JSON's own writer would have written all the same."""
    with pytest.raises(MalformedError):
        encode(value)


def test_long_messages_are_refused_unparsed() -> None:
    raw = encode("x" * 98)
    assert parse(raw, max_bytes=100) == "x" * 98
    with pytest.raises(MalformedError, match="limit is 99"):
        parse(raw, max_bytes=99)


@pytest.mark.parametrize("pair", ["[]", '{"[":}'])
def test_deep_messages_are_refused_unparsed(pair: str) -> None:
    begin, end = pair[:-1], pair[-1]
    raw = (begin * 4 + "0" + end * 4).encode()
    assert parse(raw, max_depth=4)
    with pytest.raises(MalformedError, match="nested deeper than 3"):
        parse(raw, max_depth=3)
