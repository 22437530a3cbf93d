"""`sealift attest verify` over a real quote: a table, a verdict, an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift import codec
from sealift.attest.collateral import pack_bundle
from sealift.attest.reference import (
    ReferenceSet,
    sign_set,
)
from sealift.cli.main import main
from sealift.crypto.sign import SigningKey
from tests.sim.tdx_vectors import (
    V4,
    collateral_of,
    evidence_of,
    references_of,
    td_report,
)
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors
THAT_DAY = "2025-06-19T11:20:00Z"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    quote = vector(V4)
    values = references_of(td_report(quote))
    given = ReferenceSet(name="guest", number=1, made_at_s=0, values=values)
    files = {
        "evidence.json": codec.encode(evidence_of(quote)),
        "references.json": codec.encode(sign_set(given, SigningKey.generate())),
        "bundle.json": pack_bundle(collateral_of(V4)),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return [
        "attest", "verify", str(tmp_path / "evidence.json"),
        "--references", str(tmp_path / "references.json"),
        "--collateral", str(tmp_path / "bundle.json"),
    ]  # fmt: skip


def test_a_genuine_quote(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--unbound", "--at", THAT_DAY]) == 0
    shown = capsys.readouterr().out
    assert "TCB status of the platform" in shown
    assert "platform TCB UpToDate" in shown
    assert "affirming" in shown


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--unbound", "--at", "2025-07-29"], "crl-expired"),
        (["--bound", "00" * 32, "--at", THAT_DAY], "evidence-unbound"),
    ],
)
def test_a_quote_of_another_time_or_challenge(
    command: list[str],
    options: list[str],
    shown: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*command, *options]) == 5
    assert shown in "".join(capsys.readouterr())
