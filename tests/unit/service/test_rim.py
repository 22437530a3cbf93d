"""Health, metrics, TLS, and the command's part of it."""

from __future__ import annotations

import ssl
from argparse import Namespace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sealift.cli.brokerhttp import MAX_BUGS, first_bugs, http_rim, make_metrics
from sealift.crypto.keys import TOKEN
from sealift.crypto.selfsigned import make_certificate
from sealift.errors import SealiftError
from sealift.events import Event
from sealift.ids import Digest
from sealift.release.brokerserver import Broker
from sealift.service.app import make_application
from sealift.service.kbsclient import KbsClient
from sealift.service.metrics import MAX_LABELS, Metrics
from sealift.service.server import RimServer, TlsFiles, is_loopback
from tests.sim.kbs_world import development, kbs_world, open_to_kbs, problem
from tests.sim.owners import BrokerBox, make_broker, make_consortium


def samples(text: str) -> dict[str, float]:
    """Name with labels -> value, of well-formed lines."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def test_health_and_metrics(tmp_path: Path) -> None:
    with kbs_world(tmp_path) as world:
        guest = world.client()
        assert guest.get("/healthz").text == "ok\n"
        assert guest.get("/readyz").text == "ready\n"
        guest.token()
        guest.get()
        guest.attest(code=Digest.of(b"other"))
        answer = guest.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = samples(answer.text)
        assert found["sealift_releases_total"] == 1
        assert found['sealift_refusals_total{rule="code-bundle-differs"}'] == 1
        assert found["sealift_leases_open"] == 0
        assert found["sealift_log_entries"] == 3
        assert found['sealift_http_requests_total{step="attest",status="401"}'] == 1
        assert found["sealift_http_request_seconds_count"] >= 7
        assert found['sealift_http_request_seconds_bucket{le="+Inf"}'] >= 7
        # No names, no addresses.
        for secret in ("ada", "127.0.0.1", "joint-digits", "kbs-sealift"):
            assert secret not in answer.text


def test_not_ready_when_superseded(tmp_path: Path) -> None:
    with kbs_world(tmp_path) as world:
        world.box.vault.activate(world.consortium.successor().verified())
        answer = world.client().get("/readyz")
        assert problem(answer) == (503, "PluginInternalError", "agreement-superseded")
        assert world.client().get("/healthz").status_code == 200


def test_strangers_do_not_make_labels_without_end() -> None:
    metrics = Metrics()
    sink = metrics.sink(lambda event: None)
    for number in range(2 * MAX_LABELS):
        sink(Event("release.refused", {"rule": f"rule-{number}"}))
    sink(Event("something.else"))
    found = samples(metrics.to_text())
    assert len(found) < MAX_LABELS + 30
    assert found['sealift_refusals_total{rule="other"}'] == MAX_LABELS


def test_nothing_secret_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    with kbs_world(tmp_path) as world:
        guest = world.client()
        token = guest.token()
        guest.get(token="x" * 100)
        guest.http.post("/kbs/v0/attest", content=b"\xff")
        guest.open(guest.get(token=token))
        key = world.consortium.keys["ada-train"].reveal(TOKEN)
    said = "".join(capfd.readouterr()) + caplog.text
    for secret in (token, key.hex(), "Traceback"):
        assert secret not in said


def test_bug_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise KeyError("/secret/place")

    with kbs_world(tmp_path) as world:
        monkeypatch.setattr(Broker, "require_ready", fail)
        answer = world.client().get("/readyz")
        assert answer.status_code == 500
        assert b"secret" not in answer.content
        assert [type(bug) for bug in world.bugs] == [KeyError]


def test_bugs_are_recorded_so_many_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    report = first_bugs()
    for _ in range(MAX_BUGS + 5):
        report(KeyError("/secret/place"))
    files = list((tmp_path / "sealift").iterdir())
    assert len(files) == MAX_BUGS
    assert all("secret" not in file.read_text() for file in files)
    assert "secret" not in capsys.readouterr().err


# the command


def arguments(**changes: Any) -> Namespace:
    none = {"http": None, "tls_cert": None, "tls_key": None}
    return Namespace(**{**none, **changes})


def refusal(box: BrokerBox, args: Namespace) -> str:
    with (
        pytest.raises(SealiftError) as caught,
        http_rim(args, box.broker, make_metrics(args)),
    ):
        pass
    return caught.value.code


@pytest.fixture
def box(tmp_path: Path) -> Any:
    made = make_broker(open_to_kbs(make_consortium()), "ada", tmp_path)
    yield made
    made.close()


def test_no_rim_unless_asked(box: BrokerBox) -> None:
    args = arguments()
    assert make_metrics(args) is None
    with http_rim(args, box.broker, None):
        pass


def test_rim_of_the_command(box: BrokerBox, capsys: pytest.CaptureFixture[str]) -> None:
    args = arguments(http="127.0.0.1:0")
    with http_rim(args, box.broker, make_metrics(args)):
        said = capsys.readouterr().err
        address = said.split()[-1]
        assert httpx.get(f"http://{address}/readyz").status_code == 200
    assert "TLS" not in said


def test_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate("localhost")
    (tmp_path / "c.pem").write_bytes(certificate)
    (tmp_path / "k.pem").write_bytes(key)
    with kbs_world(tmp_path) as world:
        application = make_application(
            world.box.broker,
            Metrics(),
            clock=lambda: world.time_s[0],
            report_bug=world.bugs.append,
        )
        tls = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem")
        with RimServer(application, ("127.0.0.1", 0), tls=tls) as server:
            trusted = ssl.create_default_context(cadata=certificate.decode())
            client = KbsClient(
                url=f"https://localhost:{server.address[1]}",
                attester=development(world),
                agreement=world.consortium.agreement.digest,
                tls=trusted,
            )
            found = client.fetch("joint-digits/train/ada-train")
            assert found == world.consortium.keys["ada-train"].reveal(TOKEN)
            stranger = KbsClient(
                url=client.url, attester=client.attester, agreement=client.agreement
            )
            with pytest.raises(SealiftError) as caught:
                stranger.fetch("joint-digits/train/ada-train")
            assert caught.value.code == "kbs-unreachable"


def test_bad_arguments(box: BrokerBox, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    half = arguments(http="127.0.0.1:0", tls_cert=bad)
    assert refusal(box, half) == "tls-unusable"
    both = arguments(http="127.0.0.1:0", tls_cert=bad, tls_key=bad)
    assert refusal(box, both) == "tls-unusable"
    assert refusal(box, arguments(http="nowhere")) == "bad-address"
    assert refusal(box, arguments(http="192.0.2.1:1")) == "cannot-listen"


@pytest.mark.parametrize(
    ("host", "only_here"),
    [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("192.0.2.1", False)],
)
def test_loopback(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here
