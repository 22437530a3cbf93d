"""The channel benchmark runs, and writes what every benchmark writes."""

from __future__ import annotations

import json

import pytest

from benchmarks import channel
from benchmarks.__main__ import main
from benchmarks.report import start_report

pytestmark = pytest.mark.long

FIELDS = [
    "bench",
    "commit",
    "machine",
    "real",
    "modelled",
    "recorded",
    "rows",
    "ratios",
]


def test_the_report_has_the_agreed_form(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(channel, "SIZES_BYTES", (2 << 20,))
    target = tmp_path / "channel.json"
    words = ["channel", "--quick", "--json", str(target)]
    assert main(words) == 0
    report = json.loads(target.read_text())
    assert list(report) == FIELDS
    carriers = ("memfd", "tcp", "relay")
    pipes = {f"pipe {kind}" for kind in carriers}
    asked = {"bell there and back", "bucket there and back"}
    rows = {row["where"]: row for row in report["rows"]}
    assert set(rows) == {"one core", "tcp", *pipes, *asked}
    copies = rows["bucket there and back"]
    assert (copies["copies_out"], copies["copies_in"]) == (1.0, 1.0)
    assert set(report["ratios"]) == {
        "seal_vs_memcpy",
        "sealed_vs_plain_tcp",
        "bell_p50_ms",
        *(f"pipe_{kind}_sealed_vs_plain_time" for kind in carriers),
    }
    assert all(ratio > 0 for ratio in report["ratios"].values())
    assert "sealed_vs_plain" in capsys.readouterr().out


def test_a_report_names_its_machine():
    machine = start_report("x").machine
    assert {"system", "processor", "cores", "python"} <= set(machine)
