from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import handshake
from benchmarks.__main__ import main

pytestmark = pytest.mark.long


def test_report_has_the_common_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(handshake, "QUICK_REPEATS", 3)
    target = tmp_path / "report.json"
    words = ["handshake", "--quick", "--json", str(target)]
    assert main(words) == 0
    report = json.loads(target.read_text())
    assert report["bench"] == "handshake"
    assert [row["transport"] for row in report["rows"]] == ["memory", "relay"]
    assert set(report["ratios"]) == {
        "handshake_memory_p50_ms",
        "handshake_relay_p50_ms",
    }
    assert report["real"]
    assert "transport=relay" in capsys.readouterr().out
