"""Agreements as documents: one encoding each, and no change goes unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sealift.codec import decode, encode, to_plain
from sealift.crypto.sign import SigningKey
from sealift.errors import MalformedError, SealiftError
from sealift.release.agreement import Agreement, OutputRule, TravelRule
from sealift.release.agreement.signed import SignedAgreement, verify
from tests.sim.examples import examples
from tests.worlds.consortium import make_consortium

CONSORTIUM = make_consortium(("ada", "bern"), cell_rows=100)
AGREEMENT = CONSORTIUM.agreement
SIGNED = CONSORTIUM.signed()
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)

OUTPUTS = st.builds(
    OutputRule,
    metrics=st.lists(NAMES, max_size=3, unique=True).map(tuple),
    digits=st.integers(0, 6),
    values_per_visit=st.integers(1, 100),
    metric_rows=st.integers(1, 100),
    audience=st.sampled_from(["everyone", "owner"]),
    min_visits=st.integers(1, 3),
    max_visits=st.integers(3, 9),
    min_holders=st.integers(1, 2),
    min_rows=st.integers(1, 80),
    baseline_alone=st.booleans(),
    recipe_text=st.booleans(),
)
AGREEMENTS = st.builds(
    lambda name, output, lease_s: replace(
        AGREEMENT, name=name, output=output, travel=TravelRule(1, lease_s)
    ),
    NAMES,
    OUTPUTS,
    st.floats(0.001, 604_800.0),
)


@given(AGREEMENTS)
def test_one_value_one_encoding(agreement: Agreement) -> None:
    raw = encode(agreement)
    again = decode(Agreement, raw)
    assert again == agreement
    assert encode(again) == raw
    assert again.digest == agreement.digest


@given(AGREEMENTS, AGREEMENTS)
def test_different_agreements_have_different_digests(
    first: Agreement, second: Agreement
) -> None:
    assert (first == second) is (first.digest == second.digest)


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Path of every leaf of a JSON value."""
    if isinstance(plain, dict):
        return [p for key, item in plain.items() for p in places(item, (*path, key))]
    if isinstance(plain, list):
        return [p for i, item in enumerate(plain) for p in places(item, (*path, i))]
    return [path]


PLAIN = to_plain(SIGNED.agreement)
PLACES = places(PLAIN)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 99), st.floats(0, 1), NAMES, st.just([])
)


@given(st.sampled_from(PLACES), VALUES)
@examples(200)
def test_any_changed_field_breaks_the_signatures(
    place: tuple[Any, ...], value: Any
) -> None:
    changed = json.loads(json.dumps(PLAIN))
    target = changed
    for key in place[:-1]:
        target = target[key]
    before, target[place[-1]] = target[place[-1]], value
    assume(before != value or type(before) is not type(value))
    raw = encode({**to_plain(SIGNED), "agreement": changed})
    assume(raw != encode(SIGNED))  # 1.0 and 1 are one number in JSON
    with pytest.raises(SealiftError) as caught:
        verify(decode(SignedAgreement, raw, max_bytes=4 << 20))
    assert "\n" not in str(caught.value)


@given(st.sampled_from(PLACES), NAMES)
def test_unknown_fields_are_named(place: tuple[Any, ...], name: str) -> None:
    changed = json.loads(json.dumps(PLAIN))
    target = changed
    for key in place[:-1]:
        target = target[key]
    assume(isinstance(target, dict) and name not in target)
    assume(not {"schema", "files"} & set(place))  # free keys in there
    target[name] = 1
    with pytest.raises(MalformedError) as caught:
        decode(Agreement, encode(changed))
    assert caught.value.field.endswith(name)


def test_untouched_document_verifies() -> None:
    """Control of the two tests above."""
    raw = encode({**to_plain(SIGNED), "agreement": PLAIN})
    verify(decode(SignedAgreement, raw, max_bytes=4 << 20))
    assert SigningKey.generate().public_key not in [p.sign for p in AGREEMENT.parties]
