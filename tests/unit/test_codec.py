"""The canonical encoding: its form, and everything that decoding refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NewType

import pytest

from sealift.codec import decode, encode, parse, parse_toml
from sealift.errors import MalformedError, UsageError
from sealift.ids import Digest, Role

DIGEST = Digest.of(b"x")


PartyId = NewType("PartyId", str)


@dataclass(frozen=True)
class Point:
    x: int
    y: float


@dataclass(frozen=True)
class Everything:
    text: str
    flag: bool
    raw: bytes
    role: Role
    digest: Digest
    party: PartyId
    maybe: int | None
    kind: Literal["a", 1]
    scalar: str | float | bool
    pair: tuple[int, str]
    points: tuple[Point, ...]
    named: dict[str, Point]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Picky:
    even: int

    def __post_init__(self) -> None:
        if self.even % 2:
            raise UsageError("odd", why="one over", fix="Add one", code="odd-number")


@dataclass(frozen=True)
class Outer:
    inner: Picky


SAMPLE = Everything(
    "é\n", True, b"\xff\xfe\xfd\xfc", Role.HOLDER, DIGEST, PartyId("clinic"), None, 1,
    2.5, (1, "b"), (Point(1, 1.0), Point(2, 1e20)), {"p": Point(3, 0.5)}, {"n": 4},
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        # RFC 8785 section 3.2.2 and appendix B
        ([333333333.33333329, 1e30, 4.50, 2e-3, 1e-27],
         b"[333333333.3333333,1e+30,4.5,0.002,1e-27]"),
        ("€$\x0f\nA'B\"\\\\\"/", '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()),
        ((None, True, False), b"[null,true,false]"),
        ([0.0, -0.0, 5e-324, 1.7976931348623157e308], b"[0,0,5e-324,1.7976931348623157e+308]"),
        ([9007199254740992.0, 295147905179352830000.0, 999999999999999700000.0],
         b"[9007199254740992,295147905179352830000,999999999999999700000]"),
        # section 3.2.3: keys by UTF-16 code units, so U+1F600 before U+FB33
        ({"\r": 1, "1": 2, "\U0001f600": 3, "\ufb33": 4, "é": 5},
         '{"\\r":1,"1":2,"é":5,"\U0001f600":3,"\ufb33":4}'.encode()),
        (b"\xff\xfe\xfd\xfc", b'"__79_A"'),
        (b"", b'""'),
        (DIGEST, b'"' + DIGEST.to_text().encode() + b'"'),
        (Point(1, 2.0), b'{"x":1,"y":2}'),
        (Role.BROKER, b'"broker"'),
    ],
)  # fmt: skip
def test_canonical_form(value: object, raw: bytes) -> None:
    assert encode(value) == raw


def test_everything_round_trips() -> None:
    assert decode(Everything, encode(SAMPLE)) == SAMPLE


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), 1 << 53, -(1 << 53), "\ud800", {"\ud800": 1},
        {1: 2}, {1, 2}, object(),
    ],
)  # fmt: skip
def test_no_canonical_form(value: object) -> None:
    with pytest.raises(MalformedError, match="no canonical form"):
        encode({"field": value})


@pytest.mark.parametrize(
    ("kind", "raw", "field"),
    [
        (Point, b'{"x":1}', "y"),
        (Point, b'{"x":1,"y":2,"z":3}', "z"),
        (Point, b"[]", "(root)"),
        (Point, b'{"x":true,"y":1}', "x"),
        (Point, b'{"x":1,"y":true}', "y"),
        (Point, b'{"x":1.5,"y":1}', "x"),
        (Point, b'{"x":9007199254740992,"y":1}', "x"),
        (Point, b'{"x":"1","y":1}', "x"),
        (tuple[Point, ...], b'[{"x":1,"y":1},{"x":1,"y":null}]', "[1].y"),
        (dict[str, tuple[int, ...]], b'{"k":[1,2,"3"]}', "k[2]"),
        (tuple[int, str], b"[1]", "(root)"),
        (tuple[int, str], b'[1,"a",2]', "(root)"),
        (Literal[1], b"true", "(root)"),
        (Literal["a"], b'"b"', "(root)"),
        (Literal["a"], b"[]", "(root)"),
        (int | str, b"true", "(root)"),
        (int | str, b"1.5", "(root)"),
        (int | None, b'"1"', "(root)"),
        (bool, b"1", "(root)"),
        (str, b"null", "(root)"),
        (Role, b'"auditor"', "(root)"),
        (Role, b"{}", "(root)"),
        (bytes, b'"YQ=="', "(root)"),
        (bytes, b'"YR"', "(root)"),
        (bytes, b'"Y"', "(root)"),
        (bytes, b'"Y Q"', "(root)"),
        (bytes, b'"+/8"', "(root)"),
        (bytes, '"é"'.encode(), "(root)"),
        (bytes, b"[]", "(root)"),
        (tuple[Digest, ...], b'["sha256:00"]', "[0]"),
        (Digest, b"7", "(root)"),
        (Outer, b'{"inner":{"even":"2"}}', "inner.even"),
    ],
)
def test_field_that_does_not_fit(kind: Any, raw: bytes, field: str) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(kind, raw)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("raw", "offset"),
    [
        (b"", 0),
        (b"nul", 0),
        (b"{", 1),
        (b'{"a":1,x}', 7),
        (b"[1] ", 3),
        (b"[1, 2]", 3),
        (b"[1,2]x", 5),
        (b'{"b":1,"a":2}', 2),
        (b'{"a":1,"a":2}', 5),  # a duplicate field
        (b'{"a":1,"a":1}', 6),
        (b"[01]", 2),
        (b"[1.0]", 2),
        (b"[-0]", 1),
        (b"[1e2]", 2),
        (b"[9007199254740993]", 16),
        (b'["\\u0041"]', 2),
        (b'["\\/"]', 2),
        (b'"\xff"', 1),
        ('["é",x]'.encode(), 6),  # bytes, not characters
        (b"\xef\xbb\xbf1", 0),
    ],
)
def test_offset_of_what_is_not_canonical(raw: bytes, offset: int) -> None:
    with pytest.raises(MalformedError) as caught:
        parse(raw)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    "raw", [b"NaN", b"-Infinity", b"1e400", b"9" * 400, b"9" * 5000, b'"\\ud800"']
)
def test_numbers_and_text_without_canonical_form(raw: bytes) -> None:
    with pytest.raises(MalformedError, match="no canonical form"):
        parse(raw)


def test_size_limit() -> None:
    raw = encode("x" * 98)
    assert parse(raw, max_bytes=100) == "x" * 98
    with pytest.raises(MalformedError, match="limit is 99"):
        parse(raw, max_bytes=99)
    with pytest.raises(MalformedError, match="limit is 1,048,576"):
        parse(b" " * ((1 << 20) + 1))


@pytest.mark.parametrize(("left", "right"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_limit(left: bytes, right: bytes) -> None:
    parse(left * 16 + b"1" + right * 16)
    with pytest.raises(MalformedError, match="deeper than 16") as caught:
        parse(left * 17 + b"1" + right * 17)
    assert caught.value.offset == 16 * len(left)
    with pytest.raises(MalformedError, match="deeper"):
        parse(left * 100_000)


def test_depth_does_not_count_brackets_in_text() -> None:
    assert parse(b'"' + b"[" * 99 + b'\\""') == "[" * 99 + '"'


@pytest.mark.parametrize(
    "unit", [b'\\"', b"\\\\", b'"', b"[]", b'""', b"\\", b'"\\"', b"1,"]
)
@pytest.mark.timeout(20)
def test_hostile_megabyte_ends(unit: bytes) -> None:
    # Each byte is read once. With a pattern that starts over at each quote, escaped
    # quotes without an end take hours, and the timeout fails the test.
    with pytest.raises(MalformedError):
        parse(b'"' + unit * ((1 << 20) // len(unit) - 1))


def test_constructors_refusal_names_the_field_and_keeps_the_rest() -> None:
    with pytest.raises(MalformedError) as caught:
        decode(Outer, b'{"inner":{"even":3}}')
    error = caught.value
    told = (error.what, error.why, error.fix, error.code, error.field)
    assert told == ("odd", "one over", "Add one", "odd-number", "inner")


def test_hostile_field_name_is_short_and_printable() -> None:
    raw = encode({"x": 1, "y": 1, "\x1b[2J\n" + "z" * 9999: 1})
    with pytest.raises(MalformedError, match="unknown field") as caught:
        decode(Point, raw)
    assert len(str(caught.value)) < 120
    assert str(caught.value).isprintable()


def test_mutable_and_shared_buffers_are_accepted() -> None:
    raw = encode(Point(1, 2.0))
    assert decode(Point, bytearray(raw)) == decode(Point, memoryview(raw))  # type: ignore[arg-type]


def test_kinds_that_the_codec_does_not_know_are_our_bug() -> None:
    with pytest.raises(TypeError, match="does not support"):
        decode(complex, b"1")


@pytest.mark.parametrize("raw", [b"a = ", b"\xff", b"a = " + b"7" * 5000])
def test_what_is_no_toml_is_refused_by_name(raw: bytes) -> None:
    with pytest.raises(MalformedError, match=r"^x\.toml is not TOML: ") as refusal:
        parse_toml(raw, source="x.toml")
    assert refusal.value.code == "bad-toml"
    assert parse_toml(b"a = 7", source="x.toml") == {"a": 7}
