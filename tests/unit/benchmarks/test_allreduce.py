"""The benchmark of sums runs, and writes what every benchmark writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import allreduce
from benchmarks.__main__ import main

pytestmark = pytest.mark.long

RATIOS = {  # DESIGN section 6
    "planned_vs_gloo_tcp_worst",
    "planned_vs_gloo_shm_worst",
    "sealed_vs_plain_same_transport",
    "planned_vs_tls_worst",
    "algorithm_a_vs_gloo",
}


@pytest.mark.distributed
def test_the_report_has_the_agreed_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (allreduce.KIB, 25 * allreduce.MIB)
    monkeypatch.setattr(allreduce, "SIZES", (*sizes, 0, 0))
    monkeypatch.setattr(allreduce, "_TOTAL_BYTES", 8)  # one call a repeat
    target = tmp_path / "allreduce.json"
    assert main(["allreduce", "--quick", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert set(report["ratios"]) == RATIOS
    measured = {(r["where"], r["kib"]) for r in report["rows"] if "kib" in r}
    assert measured == {
        (kind, size >> 10) for kind in ("memfd", "tcp") for size in sizes
    }
    counted = {r["arm"]: r for r in report["rows"] if "arm" in r}
    assert counted["A"]["one_after_the_other"] == 4
    assert counted["C"]["crypto_bytes_per_byte"] == pytest.approx(2.0, abs=0.01)
