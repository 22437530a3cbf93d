"""What the measurements of served models judge, and what they ask."""

from __future__ import annotations

import pytest

from sealift.bench import linkinference, linktraining
from sealift.bench.linkmodels import MAX_ROWS, NAMES, form_for
from sealift.bench.report import Row
from sealift.data.rowcheck import demand_rows
from sealift.train.modelform import form_from_plain


def row(**changes: object) -> Row:
    plain: Row = {"batch": 1, "payload_bytes": 1 << 17, "sealed_vs_plain": 1.1}
    return {**plain, "model": "gpt", **changes}  # type: ignore[dict-item]


def test_the_worst_of_batch_one_with_large_payloads_counts() -> None:
    rows = [
        row(),
        row(sealed_vs_plain=1.2),
        row(sealed_vs_plain=9.0, batch=8),
        row(sealed_vs_plain=9.0, payload_bytes=1 << 10),
    ]
    assert linkinference.ratios(rows) == {"infer_secure_vs_plain": 1.2}
    assert linkinference.ratios([]) == {}


def test_the_worst_of_the_small_gpt_counts() -> None:
    rows = [row(), row(model="mlp", sealed_vs_plain=9.0)]
    assert linktraining.ratios(rows) == {"train_secure_vs_plain": 1.1}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_asked_fits_the_form(name: str) -> None:
    form = form_for(name)
    assert form_from_plain(form.to_plain()) == form
    demand_rows(linkinference.random_rows(form.inputs, MAX_ROWS // 8), form.inputs)
