"""The GPU's bench on a stand-in: all arms run and are named; no figure of it counts."""

from __future__ import annotations

import pytest

from benchmarks import computing, gpu
from benchmarks.report import start_report
from sealift.channel.cuda.opening import open_cuda
from sealift.errors import UnavailableError
from tests.sim.cuda_engines import engine_on, model_gpu

pytestmark = pytest.mark.long

ARMS = {"copy", "open", "pipelined", "seal"}


def nothing(_report, *, quick):
    assert not quick


def test_every_arm_is_measured_for_both_suites(monkeypatch):
    monkeypatch.setattr(gpu, "REPEATS", 1)
    report = gpu.run(
        open_engine=lambda: engine_on(model_gpu()),
        sizes=(32 << 10,),
        record_bytes=4096,
        compute=nothing,
    )
    assert {row["arm"] for row in report.rows} == ARMS
    assert {row["suite"] for row in report.rows} == {"AES_256_GCM", "CHACHA20_POLY1305"}
    assert len(report.ratios) == 6
    assert report.real[0].startswith("no GPU: stand-in")


def test_without_a_gpu_one_row_says_why():
    def refuses():
        raise UnavailableError("there is no NVIDIA GPU to use here", code="no-gpu")

    report = gpu.run(open_engine=refuses, compute=nothing)
    assert report.real == ["opening: nothing"]
    said = "arm=none  why=there is no NVIDIA GPU to use here. "
    assert report.to_text().startswith(said)


def test_what_is_computed_is_measured_wherever_it_is(monkeypatch):
    monkeypatch.setattr(computing, "QUICK_REPEATS", 1)
    report = start_report("gpu")
    computing.measure(report, quick=True, rows=512, width=2)
    arms = {row["arm"]: row for row in report.rows}
    assert {"plain", "task", "visit", "plain answer", "answer"} < set(arms)
    assert all(row["ms"] > 0 for row in arms.values())
    wanted = {f"{each}_vs_plain" for each in ("task", "visit", "answer", "answers")}
    assert set(report.ratios) - {"step_vs_plain"} == wanted


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_on_a_gpu_opening_is_no_slower_than_the_copy_to_it():
    report = gpu.run(quick=True, open_engine=open_cuda)
    print(report.to_text())
    slowest = min(v for k, v in report.ratios.items() if k.startswith("open_vs_copy"))
    assert slowest > 0, report.ratios  # the bars are read off the printed report
