"""The benchmark of sums on GPUs runs, with stand-ins for them, and measures what it says."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import pytest

from benchmarks import deviceranks
from benchmarks.__main__ import main
from benchmarks.deviceranks import DeviceRankEnd, measure
from benchmarks.harness import Peer, serve
from benchmarks.report import start_report
from tests.sim.cuda_engines import gcc_engine

pytestmark = pytest.mark.long

KIB = 1 << 10


class StandInEnd(DeviceRankEnd):
    def open_engine(self):
        return gcc_engine()


def be(control: socket.socket, rank: int, world: int) -> None:
    with control:
        serve(control, lambda: StandInEnd(str(rank), str(world)))


@pytest.mark.parametrize("world", [2, 3])
def test_every_arm_gets_the_sum(world, monkeypatch) -> None:
    monkeypatch.setattr(
        deviceranks, "find_spec", lambda name: None
    )  # gloo is for processes
    monkeypatch.setattr(deviceranks, "SEGMENTS", (4 * KIB, 64 * KIB))
    report = start_report("allreduce")
    with ExitStack() as stack:
        peers, threads = [], []
        for rank in range(world):
            ours, theirs = socket.socketpair()
            threads.append(threading.Thread(target=be, args=(theirs, rank, world)))
            threads[-1].start()
            peers.append(stack.enter_context(Peer(ours)))
        measure(report, peers, (12 * KIB,), repeats=1)
        for peer in peers:
            peer.control.shutdown(socket.SHUT_RDWR)
        for each in threads:
            each.join(60)
    kinds = [row["where"] for row in report.rows if "where" in row]
    assert kinds == ["memfd", "tcp"]
    assert all(
        row[f"{arm}_ms"] > 0 for row in report.rows[:2] for arm in deviceranks.ARMS
    )
    assert set(report.rows[2]) >= {"segments_of_0 MiB_ms"}


def test_without_a_gpu_it_says_so(capsys) -> None:
    assert main(["allreduce", "--device", "cuda"]) == 3
    assert "GPU" in capsys.readouterr().err


def test_other_benches_have_no_device(capsys) -> None:
    assert main(["channel", "--device", "cuda"]) == 2
    assert "allreduce" in capsys.readouterr().err
