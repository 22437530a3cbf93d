"""Two documents that look equal and are not: refused, or shown so that it is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from sealift.codec import MAX_DEPTH, decode, encode, to_plain
from sealift.errors import MalformedError, SealiftError, ascii_only
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Party, bundle_digest
from sealift.release.agreement.explain import explain, explain_lines
from sealift.release.agreement.signed import (
    MAX_AGREEMENT_BYTES,
    SignedAgreement,
    load_signed,
    verify,
)
from sealift.release.agreement.statements import (
    SignedStatement,
    load_statement,
    sign_statement,
)
from tests.sim.owners import NOW_S
from tests.worlds.consortium import make_consortium

CONSORTIUM = make_consortium(("ada", "bern"))
SIGNED = CONSORTIUM.signed()
RAW = encode(SIGNED)
PLAIN = to_plain(SIGNED)


def reject(raw: bytes) -> SealiftError:
    with pytest.raises(SealiftError) as caught:
        verify(decode(SignedAgreement, raw, max_bytes=MAX_AGREEMENT_BYTES))
    return caught.value


TEXT: dict[str, tuple[str, str]] = {
    "a key twice": ('"number":1', '"number":1,"number":1'),
    "a key twice, another value first": ('"number":1', '"number":2,"number":1'),
    "a key with an escape": ('"number":1', '"n\\u0075mber":1'),
    "a value with an escape": ('"name":"ada"', '"name":"\\u0061da"'),
    "a number with a point": ('"number":1', '"number":1.0'),
    "a number with an exponent": ('"number":1', '"number":1e0'),
    "a number with a sign": ('"number":1', '"number":+1'),
    "a number with a zero before": ('"number":1', '"number":01'),
    "minus zero": ('"digits":3', '"digits":-0'),
    "a number too large": ('"digits":3', '"digits":9007199254740993'),
    "a boolean for a number": ('"digits":3', '"digits":true'),
    "text for a number": ('"digits":3', '"digits":"3"'),
    "not a number": ('"digits":3', '"digits":NaN'),
    "infinity": ('"lease_s":60', '"lease_s":Infinity'),
    "a space": ('"digits":3', '"digits": 3'),
    "a comment": ('"digits":3', '"digits":3/* 6 */'),
    "a comma more": ('"digits":3', '"digits":3,'),
    "null for a default": ('"max_uses":0', '"max_uses":null'),
    "a mark of order": ('{"agreement"', '\ufeff{"agreement"'),
}


@pytest.mark.parametrize(("old", "new"), TEXT.values(), ids=TEXT.keys())
def test_another_form_of_the_same_document(old: str, new: str) -> None:
    """One document has one form; whatever else a parser would take is refused."""
    text = RAW.decode()
    assert old in text
    error = reject(text.replace(old, new, 1).encode())
    assert error.exit_code in (5, 6)


def test_control_the_one_form_is_taken() -> None:
    assert verify(decode(SignedAgreement, RAW, max_bytes=MAX_AGREEMENT_BYTES))


def test_a_default_left_out_is_refused() -> None:
    """What is not said is not guessed: two parsers could guess differently."""
    changed = json.loads(json.dumps(PLAIN))
    del changed["agreement"]["board"]
    error = reject(rfc8785.dumps(changed))
    assert error.field == "agreement.board"


LOOKALIKES = (
    "\u0430da",  # Cyrillic a
    "a\u0501a",  # Komi d
    "ada\u200b",  # a space of no width
    "ad\u00e1",  # a letter with its accent
    "ada\u0301",  # and with the accent after it
    "\uff41da",  # full width
    "ADA",
    "ada ",
    "ada\u202e",  # from right to left
    "ada\n",
    "",
)


@pytest.mark.parametrize("name", LOOKALIKES, ids=ascii)
def test_names_that_look_like_another(name: str) -> None:
    ada, bern = CONSORTIUM.agreement.parties
    with pytest.raises(MalformedError):
        Party(name, bern.roles, bern.sign, bern.hpke)
    with pytest.raises(MalformedError):
        replace(CONSORTIUM.agreement, name=name)
    with pytest.raises(MalformedError):
        replace(CONSORTIUM.agreement.resources[0], name=name)
    with pytest.raises(MalformedError):
        replace(CONSORTIUM.agreement.output, metrics=(name,))
    assert ada.name == "ada"


@pytest.mark.parametrize("name", ["r\u0435cipe.py", "recipe.py\u200b", "a\nb.py"])
def test_files_that_look_like_another(name: str) -> None:
    code = CONSORTIUM.agreement.code
    files = {**code.files, name: Digest.of(b"another")}
    with pytest.raises(MalformedError) as caught:
        replace(code, files=files, digest=bundle_digest(files))
    assert caught.value.field == "files"


def test_free_text_is_shown_so_that_it_is_seen() -> None:
    """A schema's column names are the owner's; on a screen they are plain ASCII."""
    first, *rest = CONSORTIUM.agreement.resources
    schema = {
        "fields": [{"name": "s\u0430lary\u202e", "dtype": "float64", "shape": [2]}]
    }
    agreement = replace(
        CONSORTIUM.agreement, resources=(replace(first, schema=schema), *rest)
    )
    shown = "\n".join(map(ascii_only, explain_lines(explain(agreement))))
    assert shown.isascii()
    assert r"s\u0430lary\u202e" in shown


DEEP: dict[str, Callable[[int], Any]] = {
    "lists": lambda depth: _nested(depth, lambda inner: [inner]),
    "objects": lambda depth: _nested(depth, lambda inner: {"fields": inner}),
}


def _nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("shape", DEEP.values(), ids=DEEP.keys())
@pytest.mark.parametrize("depth", [MAX_DEPTH, 1000, 100_000])
def test_deeply_nested(shape: Callable[[int], Any], depth: int) -> None:
    """In the one field whose content is free; refused before anything recurses."""
    marker = '"schema":'
    before, after = RAW.decode().split(marker, 1)
    nested = _as_text(shape, depth)
    error = reject(f'{before}{marker}{{"x":{nested}}},"y":{after}'.encode())
    assert "nested" in str(error)


def _as_text(shape: Callable[[int], Any], depth: int) -> str:
    left, right = json.dumps(shape(1)).replace(" ", "").split("1")
    return left * depth + "1" + right * depth


def test_oversized(tmp_path: Path) -> None:
    path = tmp_path / "agreement.json"
    path.write_bytes(RAW + b" " * MAX_AGREEMENT_BYTES)
    with pytest.raises(MalformedError) as caught:
        load_signed(path)
    assert caught.value.code == "too-large"
    said = sign_statement(
        "leave", CONSORTIUM.agreement, CONSORTIUM.identities["ada"], NOW_S
    )
    path.write_bytes(encode(said) + b" " * (1 << 14))
    with pytest.raises(MalformedError) as caught:
        load_statement(path)
    assert caught.value.code == "too-large"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"kind":"leave"', '"kind":"leave","kind":"veto"'),
        ('"kind":"leave"', '"kind":"stay"'),
        ('"number":1', '"number":1.0'),
        ('"party":"ada"', '"party":"\u0430da"'),
        ('"version":1', '"version":2'),
    ],
)
def test_another_form_of_a_statement(tmp_path: Path, old: str, new: str) -> None:
    said = sign_statement(
        "leave", CONSORTIUM.agreement, CONSORTIUM.identities["ada"], NOW_S
    )
    text = encode(said).decode()
    assert old in text
    path = tmp_path / "ada.statement.json"
    path.write_text(text)
    assert load_statement(path) == said  # control
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(MalformedError) as caught:
        load_statement(path)
    assert caught.value.code == "bad-statement"


def test_an_agreement_is_no_statement_and_the_other_way_round() -> None:
    said = sign_statement(
        "leave", CONSORTIUM.agreement, CONSORTIUM.identities["ada"], NOW_S
    )
    for cls, raw in ((SignedStatement, RAW), (SignedAgreement, encode(said))):
        with pytest.raises(MalformedError):
            decode(cls, raw)
    with pytest.raises(MalformedError):
        decode(Agreement, RAW)
