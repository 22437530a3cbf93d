"""The travel benchmark runs with real processes, and writes what every benchmark writes."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.harness import End, Peer
from benchmarks.shipping import make_certificate
from benchmarks.travel import network, visits
from benchmarks.travel.ends import RECORD_BYTES
from benchmarks.travel.visits import RECORDED
from sealift.errors import JobError

pytestmark = pytest.mark.distributed

MIB = 1 << 20
TINY = visits.Sizes(
    cargo_bytes=8 * MIB,
    model_bytes=MIB,
    repeats=1,
    small={500: (2, 4)},
    small_models={},
    capped_repeats=1,
    recorded=RECORDED[-3:],
)


@pytest.mark.long
def test_without_a_shaper_the_link_is_modelled_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network.shutil, "which", lambda name: None)
    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    monkeypatch.setattr(visits, "QUICK", TINY)
    monkeypatch.setattr(visits, "measure_overlap", lambda report, quick: None)
    target = tmp_path / "travel.json"
    assert main(["travel", "--quick", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    (modelled,) = report["modelled"]
    assert modelled.endswith(
        "a token bucket in this process: ip and tc not installed (iproute2)"
    )
    assert next(row["cap"] for row in report["rows"] if "cap" in row) == "100 Mbit/s"
    assert report["ratios"]["rate_vs_plain_copy"] > 0
    phases = report["rows"][0]
    assert phases["where"] == "same host"
    assert all(phases[f"{name}_s"] >= 0 for name in visits.PHASES)
    assert "rate_vs_plain_copy" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(
    bool(network.unlimited()),
    reason="this machine lacks a link that can be capped",
)
def test_every_cap_beside_the_papers_numbers() -> None:
    report = visits.measure(TINY)
    rows = [row for row in report.rows if "cap" in row]
    assert [row["cap"] for row in rows] == ["100 Mbit/s", "500 Mbit/s", "uncapped"]
    assert [row["recorded_ship_s"] for row in rows] == [60.36, 15.86, 7.34]
    assert [row["scaled"] for row in rows] == [False, True, False]
    wire_s = 8 * MIB * 8 / 100e6  # a real cap lets nobody be faster
    assert float(rows[0]["ship_s"]) > 0.8 * wire_s
    assert float(rows[0]["travel_remote_s"]) > 0.8 * wire_s
    ratios = {"remote_vs_ship", "ship_vs_same_host", "ship_vs_same_host_100"}
    assert ratios <= set(report.ratios)
    assert not _left_over()


def _left_over() -> list[str]:
    """Devices that a measurement of this process's namespace left behind."""
    return [name for name in os.listdir("/sys/class/net") if name.startswith("sl")]


def test_only_travel_is_measured_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handshake", "--full"]) == 2
    assert "--full" in capsys.readouterr().err


class Absent(End):
    """Of a module that its process cannot find."""


def test_a_process_that_ends_ends_the_measurement() -> None:
    child = Peer.start(Absent)
    with pytest.raises(JobError):
        child.ask("make")
    child.close()


def test_shipping_trusts_its_own_certificate_only(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours, other = (
        make_certificate(folder, "here.invalid")
        for folder in (tmp_path, tmp_path / "other")
    )
    for trusted, refused in ((ours, False), (other, True)):
        client = ssl.create_default_context(cadata=trusted.read_text())
        assert _meets(client, ours) is not refused


def _meets(client: ssl.SSLContext, certificate: Path) -> bool:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname="here.invalid"),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(8):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
            ends.remove(end)
    return not ends


def test_a_bucket_lets_nobody_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(network.time, "monotonic", lambda: now[0])
    slept: list[float] = []
    monkeypatch.setattr(network.time, "sleep", slept.append)
    bucket = network.TokenBucket()
    bucket.take(1000)
    bucket.set_rate(1000.0)
    bucket.take(500)
    bucket.take(500)
    now[0] += 5
    bucket.take(250)
    assert slept == [0.5, 1.0, 0.25]


@pytest.mark.parametrize("sizes", [visits.USUAL, visits.QUICK, visits.FULL])
def test_small_cargoes_are_whole_records(sizes: visits.Sizes) -> None:
    """A record crosses whole, so part of one would cost as much as all of it."""
    for small in (*sizes.small.values(), *sizes.small_models.values()):
        assert all(mib * MIB % RECORD_BYTES == 0 for mib in small)
        assert all(mib * MIB <= sizes.cargo_bytes for mib in small)
