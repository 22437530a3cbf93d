"""The release benchmark runs with real processes, and writes what every one writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.release import costs, keys

pytestmark = pytest.mark.distributed

TINY = keys.Sizes(
    rounds=1, quoted=3, clients=2, together=2, entries=20, lengths=(20, 60),
    renewals=2, ima=500, losses=1,
    guest=False,
)  # fmt: skip
RATIOS = {
    "release_p50_ms", "release_p99_ms", "releases_per_s", "ima_entries_per_s",
    "revocation_s", "heartbeat_s", "standing_releases_per_s",
}  # fmt: skip


@pytest.mark.long
def test_every_figure_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keys, "QUICK", TINY)
    monkeypatch.delenv("SEALIFT_VECTORS", raising=False)
    target = tmp_path / "release.json"
    assert main(["release", "--quick", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert report["ratios"].keys() == RATIOS
    assert all(value > 0 for value in report["ratios"].values())
    assert not report["modelled"]
    lengths = [row["list_entries"] for row in report["rows"] if "list_entries" in row]
    assert lengths == [20, 20, 60]
    missing = [
        row for row in report["rows"] if "not on this machine" in row.get("is", "")
    ]
    assert len(missing) == len(keys.ELSEWHERE) + len(costs.KINDS)
    assert "release_p50_ms" in capsys.readouterr().out


@pytest.mark.vectors
def test_every_kind_of_evidence_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.sim.vectors import vectors_folder

    monkeypatch.setenv("SEALIFT_VECTORS", str(vectors_folder()))
    rows = costs.measure_reports(2)
    assert len(rows) == len(costs.KINDS)
    assert all(float(row["p50_ms"]) > 0 for row in rows)
