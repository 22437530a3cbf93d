"""The loader benchmark runs, and writes what every benchmark writes."""

from __future__ import annotations

import json

import pytest

from benchmarks import loader
from benchmarks.__main__ import main

pytestmark = pytest.mark.long


def test_the_report_has_the_agreed_form(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loader, "TABLE_BYTES", 1 << 20)
    monkeypatch.setattr(loader, "SHAPES", {"table": ("float32", (64,))})
    target = tmp_path / "loader.json"
    assert main(["loader", "--quick", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    (row,) = report["rows"]
    assert {name for name in row if name.endswith("_gb_per_s")} == {
        "dataloader_gb_per_s",
        "indexed_gb_per_s",
        "sealed_gb_per_s",
        "sealed-process_gb_per_s",
        "sealed-engine_gb_per_s",
    }
    assert set(report["ratios"]) == {"sealed_vs_dataloader", "sealed_vs_indexed"}
    assert "sealed_vs_dataloader" in capsys.readouterr().out
