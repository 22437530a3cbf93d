"""The way to the relay through an HTTPS proxy: tunnels, refusals, and proxies that look in."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from sealift.errors import PeerError, SealiftError, UnavailableError, UsageError
from sealift.session.relay.client import RelayClient
from sealift.session.relay.proxy import (
    MAX_ANSWER_BYTES,
    Proxy,
    dial_relay,
    proxy_for,
    require_tunnel,
)
from sealift.session.relay.server import Relay
from tests.sim.proxies import ALERT, FAR, OPEN, PAGE, LittleProxy, little_proxy, status

FIRST = b"HTTP/1.1 400 Bad Request\r\n\r\n"
SECRET = "pass%3aword"  # the colon of a password


@pytest.fixture
def relay() -> Iterator[Relay]:
    with Relay.listen() as found:
        yield found


def use(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.delenv(name.lower(), raising=False)


def refusal(
    monkeypatch: pytest.MonkeyPatch, proxy: LittleProxy, given: str = ""
) -> SealiftError:
    use(monkeypatch, proxy.environment(given))
    with pytest.raises(SealiftError) as caught:
        RelayClient.dial(FAR, "hospital-a", timeout_s=60).close()
    return caught.value


def test_a_tunnel_carries_circuits(
    monkeypatch: pytest.MonkeyPatch, relay: Relay
) -> None:
    with little_proxy(relay.address) as proxy:
        use(monkeypatch, proxy.environment())
        with RelayClient.dial(FAR, "near") as near, RelayClient.dial(FAR, "far") as far:
            there = near.open("far")
            there.send(b"hello" * 1000)
            assert far.accept(60).receive(60) == b"hello" * 1000
    assert proxy.requests[0].startswith("CONNECT relay.example:7410 HTTP/1.1\r\n")
    assert "Authorization" not in proxy.requests[0]


def test_a_password_is_sent_and_never_said(
    monkeypatch: pytest.MonkeyPatch, relay: Relay
) -> None:
    with little_proxy(relay.address, password="ada:pass:word") as proxy:
        use(monkeypatch, proxy.environment(f"ada:{SECRET}"))
        RelayClient.dial(FAR, "hospital-a").close()
        found = proxy_for(FAR[0], proxy.environment(f"ada:{SECRET}"))
        wrong = refusal(monkeypatch, proxy, "ada:guess")
    assert found is not None
    assert "Basic" not in repr(found)
    assert wrong.code == "proxy-password"
    assert "guess" not in str(wrong)


def test_a_proxy_that_wants_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with little_proxy(password="ada:word") as proxy:
        error = refusal(monkeypatch, proxy)
    assert isinstance(error, UnavailableError)
    assert (error.code, error.exit_code) == ("proxy-password", 3)
    assert "USER:PASSWORD@" in str(error)
    assert len(proxy.requests) == 1  # it is not asked again and again


def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with little_proxy(answer=status("403 Forbidden")) as proxy:
        error = refusal(monkeypatch, proxy)
    assert (error.code, error.exit_code) == ("proxy-refused", 3)
    assert "403" in str(error)
    assert "relay.example:7410" in str(error)


@pytest.mark.parametrize("instead", [ALERT, FIRST, PAGE], ids=["TLS", "HTTP", "page"])
def test_a_proxy_that_looks_into_the_connection(
    monkeypatch: pytest.MonkeyPatch, instead: bytes
) -> None:
    with little_proxy(instead=instead) as proxy:
        error = refusal(monkeypatch, proxy)
    assert (error.code, error.exit_code) == ("proxy-breaks", 3)
    assert "inspects the connection" in str(error)


def test_a_portal_answers_with_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    with little_proxy(answer=OPEN + b"\r\n" + PAGE) as proxy:
        assert refusal(monkeypatch, proxy).code == "proxy-breaks"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_ANSWER_BYTES,
        b"HTTP/1.1 2000 OK\r\n\r\n",
        ALERT,
        b"",
    ],
    ids=["ssh", "endless", "status", "TLS", "nothing"],
)
def test_an_answer_that_is_no_http(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    with little_proxy(answer=answer) as proxy:
        assert refusal(monkeypatch, proxy).code == "proxy-breaks"


def test_a_proxy_that_reaches_nobody_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, relay: Relay
) -> None:
    """The host may not be there yet: that is no refusal."""
    with little_proxy(relay.address, answer=status("502 Bad Gateway")) as proxy:
        use(monkeypatch, proxy.environment())
        with pytest.raises(PeerError) as caught:
            RelayClient.dial(FAR, "hospital-a", timeout_s=0.3)
    assert caught.value.code == "peer-unreachable"
    assert len(proxy.requests) > 1


def test_no_proxy_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with little_proxy() as proxy:
        gone = proxy.environment()
    use(monkeypatch, gone)
    with pytest.raises(PeerError) as caught:
        dial_relay(FAR, timeout_s=60)
    assert caught.value.code == "proxy-unreachable"


def test_what_the_relay_says_at_once_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes behind the proxy's header are the relay's."""
    with little_proxy(answer=OPEN + b"\r\n\0\0\0\2ab\0\0\0\1c") as proxy:
        use(monkeypatch, proxy.environment())
        transport = dial_relay(FAR, timeout_s=60)
        assert [transport.receive(60), transport.receive(60)] == [b"ab", b"c"]
        transport.close()


@pytest.mark.parametrize(
    ("date", "time_s"),
    [
        (b"Tue, 24 Nov 2026 10:00:00 GMT", 1795514400.0),
        (b"Tue, 24 Nov 2026 10:00:00 -0000", None),  # no zone: not this machine's
        (b"Tue, 24 Nov 2026 10:00:00 +0900", None),
        (b"Tue, 31 Feb 2026 10:00:00 GMT", None),
        (b"Mon, 01 Jan 0001 00:00:00 -9999", None),
    ],
)
def test_the_date_is_heard(
    monkeypatch: pytest.MonkeyPatch, date: bytes, time_s: float | None
) -> None:
    answer = OPEN + b"Date: " + date + b"\r\n\r\n"
    with little_proxy(answer=answer) as proxy:
        use(monkeypatch, proxy.environment())
        transport = dial_relay(FAR, timeout_s=60)
        assert transport.date_s == time_s
        transport.close()


def test_an_address_cannot_write_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    with little_proxy() as proxy:
        use(monkeypatch, proxy.environment())
        with pytest.raises(PeerError):
            dial_relay(("a\r\nProxy-Authorization: x", 1), timeout_s=60)
    assert not [each for each in proxy.requests if each]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0"])
def test_this_machine_is_dialled_straight(host: str) -> None:
    assert proxy_for(host.strip("[]"), {"HTTPS_PROXY": "http://p:1"}) is None


@pytest.mark.parametrize(
    ("listed", "straight"),
    [
        ("*", True),
        ("relay.example", True),
        ("a, .example", True),
        ("*.example", True),
        ("ay.example", False),
        ("", False),
        (" , .", False),
    ],
)
def test_no_proxy_lists_ends_of_names(listed: str, straight: bool) -> None:
    environment = {"https_proxy": "p.example:3128", "no_proxy": listed}
    found = proxy_for(FAR[0], environment)
    assert found == (None if straight else Proxy("p.example", 3128))


@pytest.mark.parametrize(
    "url", ["https://p:1", "socks5://p:1", "http://", "http://p:x"]
)
def test_what_is_no_proxy_is_said_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        proxy_for("far", {"HTTPS_PROXY": url.replace("p:", "ada:secret@p:")})
    assert caught.value.code == "proxy-address"
    assert "secret" not in str(caught.value)


def test_credentials_are_decoded() -> None:
    found = proxy_for("far", {"HTTPS_PROXY": "http://a%40b:%C3%BC@p:1"})
    assert found is not None
    assert base64.b64decode(found.authorization.split()[1]) == "a@b:ü".encode()


def test_any_success_opens() -> None:
    require_tunnel(b"HTTP/1.0 204\r\n\r\n", FAR)


def test_the_relay_says_what_time_it_is() -> None:
    with Relay.listen(clock=lambda: 1_800_000_000.5) as relay:
        link = RelayClient.dial(relay.address, "hospital-a")
        link.close()
    assert link.clock_s == 1_800_000_000


def test_a_relay_may_keep_its_clock_to_itself(relay: Relay) -> None:
    with RelayClient.dial(relay.address, "hospital-a") as link:
        assert link.clock_s is None
