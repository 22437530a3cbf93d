"""The GPU's bench on a stand-in: all arms run and are named; no figure of it counts."""

from __future__ import annotations

import pytest

from sealift.channel.cuda.opening import open_cuda
from sealift.errors import UnavailableError
from sealift.lab.bench import gpu
from tests.sim.cuda_engines import engine_on, model_gpu

ARMS = {"copy", "open", "pipelined", "seal"}


def test_every_arm_is_measured_for_both_suites(monkeypatch):
    monkeypatch.setattr(gpu, "REPEATS", 1)
    monkeypatch.setattr(gpu, "BATCH_RECORDS", 3)
    report = gpu.run(
        open_engine=lambda: engine_on(model_gpu()), sizes=(32 << 10,), record_bytes=4096
    )
    assert {row["arm"] for row in report.rows} == ARMS
    assert {row["suite"] for row in report.rows} == {"AES_256_GCM", "CHACHA20_POLY1305"}
    assert len(report.ratios) == 6
    assert report.real[0].startswith("no GPU: stand-in")


def test_without_a_gpu_one_row_says_why():
    def refuses():
        raise UnavailableError("there is no NVIDIA GPU to use here", code="no-gpu")

    report = gpu.run(open_engine=refuses)
    assert report.real == ["nothing"]
    said = "arm=none  why=there is no NVIDIA GPU to use here. "
    assert report.to_text().startswith(said)


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_on_a_gpu_opening_is_no_slower_than_the_copy_to_it():
    report = gpu.run(quick=True, open_engine=open_cuda)
    print(report.to_text())
    slowest = min(v for k, v in report.ratios.items() if k.startswith("open_vs_copy"))
    assert slowest > 0, report.ratios  # the bars are read off the printed report
