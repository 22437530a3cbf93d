"""The link benchmark: its form, its rows, and a device that fails or vanishes."""

from __future__ import annotations

import json
import os
import signal

import pytest

from sealift.bench import link
from sealift.bench.linkarms import HOME, NAIVE, make_arm, timed, touched_memory
from sealift.bench.linkpeer import device_process, two_cores
from sealift.bench.linkprofiles import PROFILES
from sealift.channel.mode import LinkMode
from sealift.cli.main import main
from sealift.errors import PeerError, UnavailableError

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
    monkeypatch.setattr(link, "QUICK_SIZES_BYTES", (16 << 20,))
    monkeypatch.setattr(link, "FAILURE_BYTES", 2 << 20)
    monkeypatch.setattr(link, "REPEATS", 2)
    for part in (link.linkinference, link.linktraining):  # a minute each
        monkeypatch.setattr(part, "rows", lambda quick: [])
    target = tmp_path / "link.json"
    cores = os.sched_getaffinity(0)
    assert main(["bench", "link", "--quick", "--json", str(target)]) == 0
    assert os.sched_getaffinity(0) == cores
    report = json.loads(target.read_text())
    assert list(report) == FIELDS
    assert set(report["ratios"]) == RATIOS
    assert "default_vs_plain_goodput" in capsys.readouterr().out
    check_rows(report["rows"])


def check_rows(rows):
    measured = [row for row in rows if "mode" in row]
    assert {row["mode"] for row in measured} == {*map(str, LinkMode), HOME, NAIVE}
    assert {row["memory"] for row in measured} == {"private memfd", "named"}
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
    with device_process(two_cores()) as peer:
        source = touched_memory(1 << 20)
        peer.ask("memory", nbytes=len(source))
        arm = make_arm(peer, "direct+parallel-auth+overlap", source)
        assert timed(peer, arm) > 0
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
    with device_process(two_cores(), memory_bytes=1 << 20) as peer:
        peer.ask("memory", nbytes=1 << 20)
        with pytest.raises(UnavailableError) as caught:
            peer.ask("memory", nbytes=2 << 20)
        assert caught.value.code == "device-out-of-memory"
        assert "2097152 bytes" in str(caught.value)
        # It goes on.
        peer.ask("memory", nbytes=1 << 20)


def test_every_modelled_row_has_a_source():
    for profile in PROFILES:
        assert profile.source
        assert profile.seconds(1 << 20, 2) >= profile.seconds(1 << 20, 1)
