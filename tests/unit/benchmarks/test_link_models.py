"""What the measurements of served models judge, and what they ask."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.link import inference, training
from benchmarks.link.arms import LinkArm
from benchmarks.link.server import MAX_ROWS, NAMES, form_for, random_rows
from benchmarks.link.transfers import best_plain_goodput
from benchmarks.report import Row
from sealift.crypto.sign import SigningKey
from sealift.data.schema.rows import demand_rows
from sealift.session.session import Session
from sealift.train.output.modelform import form_from_plain

pytestmark = pytest.mark.long


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
    assert inference.ratios(rows) == {"infer_secure_vs_plain": 1.2}
    assert inference.ratios([]) == {}


def test_the_worst_of_the_small_gpt_counts() -> None:
    rows = [row(), row(model="mlp", sealed_vs_plain=9.0)]
    assert training.ratios(rows) == {"train_secure_vs_plain": 1.1}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_asked_fits_the_form(name: str) -> None:
    form = form_for(name)
    assert form_from_plain(form.to_plain()) == form
    demand_rows(random_rows(form.inputs, MAX_ROWS // 8), form.inputs)


def test_an_arm_that_cannot_be_measured_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the openssl program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    sessions: dict[str, Session] = {}
    key = SigningKey.generate().public_key
    with ExitStack() as stack:
        missing = inference._add_tls(sessions, stack, tmp_path, 1, key)
    assert not sessions
    said = "tls: no certificate for the TLS arm: "
    assert str(missing["not_measured"]).startswith(said)
    (line,) = inference.left_out([row(), row(**missing), row(**missing)])
    assert line.startswith(f"inference: not measured: {said}")
    assert not inference.left_out([row()])


@pytest.mark.soak
@pytest.mark.parametrize("openssl", [False, True])
def test_all_arms_of_a_model_that_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, openssl: bool
) -> None:
    monkeypatch.setattr(inference, "QUICK_S", 0.0)
    monkeypatch.setattr(inference, "MIN_PAIRS", 1)
    if not openssl:
        monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = inference.rows(quick=True, names=("mlp",))
    assert found["sealed_ms"]
    assert ("tls_ms" in found) == openssl
    assert ("not_measured" in found) != openssl


class Silent:
    """A device that is told, and says nothing."""

    def ask(self, *_: object, **__: object) -> dict[str, object]:
        return {}

    def hear(self) -> dict[str, object]:
        return {}


def test_processor_time_of_sealing_ahead_is_counted() -> None:
    def busy() -> None:
        began = time.process_time()
        while time.process_time() - began < 0.02:
            pass

    arm = LinkArm("seal-ahead", lambda: None, lambda: None, busy)
    arm.timed(Silent())  # type: ignore[arg-type]
    assert arm.cpu_s >= 0.02


def test_the_default_is_judged_beside_the_best_plain_copy_of_any_shape() -> None:
    times = {"plain 1024x4": [2.0], "plain 512x8": [1.6], "plain 256x4": [9.0]}
    default = {"direct+parallel-auth+overlap 1024x4": [2.0]}
    assert best_plain_goodput(times | default, "1024x4") == pytest.approx(0.8)
