"""A model's form: written by people, kept in the agreement, obeyed by answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sealift.codec import decode, encode
from sealift.crypto.identity import create_identity
from sealift.data.schema.schema import Field, Schema
from sealift.errors import JobError, MalformedError
from sealift.serve.modelworker import let_out_rows
from sealift.train.output.modelform import Fields, form_from_plain, load_form
from tests.sim.served import FORM
from tests.sim.servinghowto import boxes


def test_it_comes_back_through_canonical_json() -> None:
    plain = decode(dict, encode(FORM.to_plain()))
    assert form_from_plain(plain) == FORM


def test_people_write_toml_and_name_cards(tmp_path: Path) -> None:
    card = create_identity("ada").card
    (tmp_path / "ada.card.json").write_bytes(encode(card))
    path = tmp_path / "form.toml"
    form, _job = boxes("toml")
    path.write_text(form.replace("clients = []", 'clients = ["ada.card.json"]'))
    form = load_form(path)
    assert form.clients == {"ada": card.sign}
    assert form.outputs is not None
    assert form.outputs.digits == {"probability": 3}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"outputs": None, "tokens": None}, "outputs"),
        ({"max_rows": 0}, "max_rows"),
        ({"mixed": 1}, "mixed"),
        ({"more": 1}, "more"),
        ({"format": "table"}, "format"),
        ({"outputs": {"fields": [{"name": "y", "dtype": "float32"}]}}, "y.digits"),
        (
            {"outputs": {"fields": [{"name": "y", "dtype": "int64", "digits": 2}]}},
            "y.digits",
        ),
        ({"clients": {"ada": "not a key"}}, None),
    ],
)
def test_what_does_not_fit_is_named(change: dict, field: str | None) -> None:
    plain = {k: v for k, v in {**FORM.to_plain(), **change}.items() if v is not None}
    with pytest.raises(MalformedError) as caught:
        form_from_plain(plain)
    assert field is None or caught.value.field == field


Y = Fields(
    Schema(
        (Field("y", "float32", minimum=-1, maximum=1), Field("n", "int8", classes=3))
    ),
    {"y": 2},
)


def packed(y: float, n: int) -> bytearray:
    row = bytearray(Y.schema.row_bytes)
    row[:4] = np.float32(y).tobytes()
    row[8] = n
    return row


def test_numbers_are_rounded() -> None:
    found = let_out_rows(packed(0.123456, 2), Y)
    assert np.frombuffer(found[:4], np.float32)[0] == np.float32(0.12)
    assert found[8] == 2


@pytest.mark.parametrize(("y", "n"), [(np.nan, 0), (np.inf, 0), (1.5, 0), (0.0, 3)])
def test_what_the_form_forbids_does_not_leave(y: float, n: int) -> None:
    with pytest.raises(JobError) as caught:
        let_out_rows(packed(y, n), Y)
    assert caught.value.code == "answer-refused"


def test_nothing_hides_in_the_gaps_of_a_row() -> None:
    row = packed(0.0, 0)
    row[5] = 7  # between two fields
    with pytest.raises(JobError):
        let_out_rows(row, Y)
