"""The link benchmark: its form, its rows, and a device that fails or vanishes."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import threading
from contextlib import contextmanager

import pytest

from benchmarks.__main__ import main
from benchmarks.harness import serve
from benchmarks.link import pairs, transfers
from benchmarks.link.arms import HOME, make_arm, touched_memory
from benchmarks.link.device import (
    NAIVE,
    Device,
    DevicePeer,
    choose_engine,
    two_cores,
)
from benchmarks.link.shapes import ALL, Shape
from benchmarks.link.transfers import PROFILES
from sealift.channel.link.announcement import DEFAULT_MODE
from sealift.channel.select import select_device
from sealift.errors import PeerError, UnavailableError
from tests.sim.cuda_engines import engine_on, model_gpu

pytestmark = pytest.mark.long

FIELDS = [
    "bench", "commit", "machine", "real", "modelled", "recorded", "rows", "ratios",
]  # fmt: skip
RATIOS = {
    "default_vs_plain_goodput",
    "default_vs_plain_goodput_at_16_mib",
    "reencrypt_vs_default_time",
    "naive_vs_default_time",
}


@pytest.mark.distributed
def test_the_report_has_the_agreed_form(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(transfers, "QUICK_SIZES_BYTES", (16 << 20,))
    monkeypatch.setattr(transfers, "FAILURE_BYTES", 2 << 20)
    monkeypatch.setattr(transfers, "REPEATS", 2)
    monkeypatch.setattr(pairs, "PAIRS_PER_PLACEMENT", 2)
    monkeypatch.setattr(pairs, "MOST_PER_PLACEMENT_S", 0.0)
    rows = [{transfers.inference.MISSING: "tls: there is no openssl"}]
    monkeypatch.setattr(transfers.inference, "rows", lambda quick: rows)
    monkeypatch.setattr(transfers.training, "rows", lambda quick: [])  # a minute each
    target = tmp_path / "link.json"
    cores = os.sched_getaffinity(0)
    assert main(["link", "--quick", "--json", str(target)]) == 0
    assert os.sched_getaffinity(0) == cores
    report = json.loads(target.read_text())
    assert list(report) == FIELDS
    found = {name for name in report["ratios"] if "undisturbed" not in name}
    assert found == RATIOS  # the others need a machine that is left alone
    assert "default_vs_plain_goodput" in capsys.readouterr().out
    check_rows(report["rows"])
    assert report["real"][0].startswith("transfers were opened by engine ")
    assert report["real"][-1].endswith("not measured: tls: there is no openssl")


def check_rows(rows):
    measured = [row for row in rows if "mode" in row]
    assert {row["mode"] for row in measured} == {*map(str, ALL), HOME, NAIVE}
    assert {row["memory"] for row in measured} == {"private memfd"}
    modelled = [row for row in rows if row.get("modelled")]
    assert {row["profile"] for row in modelled} == {each.name for each in PROFILES}
    assert not any("mode" in row or "gb_per_s" in row for row in modelled)
    failures = [row for row in rows if "failure" in row]
    *spoiled, control = failures
    for row in spoiled:
        assert row["refused"]
        assert (row["bytes_not_zero"], row["plaintext_found"]) == (0, 0)
    assert control["plaintext_found"] in (16, -1)  # the control: it can be found


@pytest.mark.distributed
def test_a_device_that_is_killed_is_one_line_and_exit_4():
    with DevicePeer.on(two_cores()) as peer:
        source = touched_memory(1 << 20)
        peer.ask("memory", nbytes=len(source))
        arm = make_arm(peer, "direct+parallel-auth+overlap", source)
        assert arm.timed(peer) > 0
        os.kill(peer.process, signal.SIGKILL)
        with pytest.raises(PeerError) as caught:
            arm.run()
        assert caught.value.code == "peer-closed"
        with pytest.raises(PeerError) as caught:
            peer.ask("left")
        assert (caught.value.code, caught.value.exit_code) == ("device-gone", 4)
        arm.close()


@pytest.mark.distributed
def test_a_device_without_room_is_one_line_and_exit_3():
    with DevicePeer.on(two_cores(), memory_bytes=1 << 20) as peer:
        peer.ask("memory", nbytes=1 << 20)
        with pytest.raises(UnavailableError) as caught:
            peer.ask("memory", nbytes=2 << 20)
        assert caught.value.code == "device-out-of-memory"
        assert "2,097,152 bytes" in str(caught.value)
        # It goes on.
        peer.ask("memory", nbytes=1 << 20)


def gpu_like(**_):
    return engine_on(model_gpu())


@contextmanager
def device_here(select):
    """The device's side in a thread, with an engine that is not this machine's."""
    here, there = socket.socketpair()
    selection = choose_engine([0], 1 << 20, select)

    thread = threading.Thread(
        target=serve, args=(there, lambda: Device(selection=selection)), daemon=True
    )
    thread.start()
    peer = DevicePeer(here)
    try:
        yield peer
    finally:
        peer.close()
        thread.join(300)
        there.close()
        selection.engine.close()


def test_the_gpu_that_is_there_is_what_is_measured():
    select = functools.partial(select_device, has_gpu=lambda: True, cuda=gpu_like)
    with device_here(select) as peer:
        engine = peer.ask("engine")
        assert engine["engine"] == "cuda"
        said = transfers.opened_by(engine)
        assert "engine cuda: the GPU, which passed its self-test" in said
        assert "models ran on the host" in said
        source = touched_memory(300_000)
        for name in (str(Shape.PLAIN), str(DEFAULT_MODE), NAIVE):
            peer.ask("memory", nbytes=len(source))  # zeroes again
            arm = make_arm(peer, name, source, record_bytes=64 << 10)
            assert arm.timed(peer) > 0
            zeroes = len(source) - bytes(source).count(0)
            assert peer.ask("left")["nonzero"] == zeroes
            arm.close()
            peer.ask("drop", link=arm.link)


def test_a_gpu_that_cannot_be_used_is_one_line_and_no_figures():
    def broken(**_):
        raise UnavailableError("the driver is too old", code="gpu-driver-too-old")

    select = functools.partial(select_device, has_gpu=lambda: True, cuda=broken)
    here, there = socket.socketpair()
    thread = threading.Thread(
        target=serve, args=(there, lambda: choose_engine([0], 1 << 20, select))
    )
    thread.start()
    peer = DevicePeer(here)
    with pytest.raises(UnavailableError, match="the driver is too old") as caught:
        peer.ask("engine")
    assert (caught.value.code, caught.value.exit_code) == ("gpu-driver-too-old", 3)
    thread.join()
    peer.close()
    there.close()


def test_without_a_gpu_the_host_opens_and_it_is_said():
    select = functools.partial(select_device, has_gpu=lambda: False)
    selection = choose_engine([0], 1 << 20, select)
    said = transfers.opened_by({"engine": "host", "reason": selection.reason})
    assert said.endswith("engine host: this machine has no NVIDIA GPU")
    selection.engine.close()


def test_every_modelled_row_has_a_source():
    for profile in PROFILES:
        assert profile.source
        assert profile.seconds(1 << 20, 2) >= profile.seconds(1 << 20, 1)
