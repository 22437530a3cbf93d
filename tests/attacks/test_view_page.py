"""The page of a run: other sites, other names, wrong codes, and what its process can do."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sealift.cli import view
from sealift.train.sandbox import landlock
from tests.sim.viewed import CODE, Viewed, place_in, viewed

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def page() -> Iterator[Viewed]:
    with viewed() as found:
        yield found


def test_the_code_lets_in_and_stands_in_no_address(page: Viewed) -> None:
    with page.client() as client:
        assert "The code from the terminal" in client.get("/").text
        told = client.post("/enter", data={"code": CODE})
        cookie = told.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert CODE not in cookie
        assert "location" not in told.headers
        place = place_in(told.text)
        assert f"Path={place}" in cookie
        assert "first" not in client.get("/").text  # the cookie does not go there
        shown = client.get(place)
        assert "<h1>first</h1>" in shown.text
        assert CODE not in shown.text + str(shown.headers) + str(shown.url)


@pytest.mark.parametrize(
    "code", ["", "wrong", CODE[:-1], CODE + "x", "é", CODE.upper()]
)
def test_another_code_does_not(page: Viewed, code: str) -> None:
    with page.client() as client:
        told = client.post("/enter", data={"code": code})
        assert told.status_code == 403
        assert "set-cookie" not in told.headers
        assert "first" not in told.text + client.get("/").text


@pytest.mark.parametrize("path", ["/events", "/view.js", "/nothing"])
def test_without_the_cookie_there_is_nothing(page: Viewed, path: str) -> None:
    with page.client() as client:
        assert client.get(path).status_code == 403


@pytest.mark.parametrize(
    "cookie", ["", "x", "sealift-view=", "sealift-view={code}", "=;=;", '"']
)
def test_another_cookie_is_none(page: Viewed, cookie: str) -> None:
    with page.guest() as inside:
        place = str(inside.base_url)
    words = {"cookie": cookie.format(code=CODE)}
    with page.client(base_url=place, headers=words) as client:
        assert client.get("events").status_code == 403


@pytest.mark.parametrize("before", ['a={"x":1}; ', "n\u00e9=1; ", "a b; ", "=; "])
def test_cookies_of_others_on_this_machine_are_passed_over(
    page: Viewed, before: str
) -> None:
    with page.guest() as inside:
        place, [own] = str(inside.base_url), list(inside.cookies.jar)
    raw = f"{before}{own.name}={own.value}".encode()
    with page.client(base_url=place, headers={"cookie": raw}) as client:
        assert client.get("").status_code == 200


def test_the_cookie_goes_to_no_other_server_of_this_machine(page: Viewed) -> None:
    """Cookies know no ports; this one's path is a secret that another server cannot name."""
    with page.guest() as inside:
        [own] = list(inside.cookies.jar)
    assert own.path.startswith("/")
    assert len(own.path) > 30
    assert not {own.value, CODE} & {own.path.strip("/")}


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "[::1]:80"]
)
def test_a_name_that_leads_here_is_refused(page: Viewed, host: str) -> None:
    """DNS rebinding: the browser thinks that another site is at this address."""
    with page.guest() as client:
        told = client.get("/", headers={"host": host})
        assert told.status_code == 421
        assert "first" not in told.text


@pytest.mark.parametrize(
    "words",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/events", "/view.js"])
def test_another_site_reads_nothing(
    page: Viewed, words: dict[str, str], path: str
) -> None:
    with page.guest() as client:
        assert client.get(path, headers=words).status_code == 403


def test_another_site_cannot_try_codes(page: Viewed) -> None:
    with page.client() as client:
        words = {"origin": "http://evil.example"}
        told = client.post("/enter", data={"code": CODE}, headers=words)
        assert told.status_code == 403
        assert "set-cookie" not in told.headers


def test_a_file_of_this_machine_brings_the_code(page: Viewed) -> None:
    with page.client() as client:
        told = client.post("/enter", data={"code": CODE}, headers={"origin": "null"})
        assert told.status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_there_is_nothing_to_write(page: Viewed, method: str) -> None:
    with page.guest() as client:
        assert client.request(method, "/").status_code == 405


def test_a_long_form_is_not_read(page: Viewed) -> None:
    with page.client() as client:
        told = client.post("/enter", data={"more": "x" * 10_000, "code": CODE})
        assert told.status_code == 403
        assert "set-cookie" not in told.headers


def test_every_answer_has_the_policy(page: Viewed) -> None:
    with page.guest() as client:
        for path in ("/", "/style.css", "/view.js", "/nothing"):
            headers = client.get(path).headers
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["cross-origin-opener-policy"] == "same-origin"


def told(stream: httpx.Response) -> Iterator[dict[str, str]]:
    for line in stream.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_fragments_come_as_they_change(page: Viewed) -> None:
    with page.guest() as client, client.stream("GET", "/events") as stream:
        found = told(stream)
        names = {next(found)["name"] for _ in range(2)}
        assert names == {"banner", "status"}
        page.put("status", '<div id="status"><h1>second</h1></div>')
        assert "second" in next(found)["html"]
    page.put("status", '<div id="status"><h1>first</h1></div>')


@pytest.mark.parametrize(
    ("since", "comes"),
    [
        ("99999", ":"),
        ("0", "event:"),
        ("x", "event:"),
        ("-1", "event:"),
        ("1" * 99, "event:"),
    ],
)
def test_what_the_page_has_does_not_come_again(
    page: Viewed, since: str, comes: str
) -> None:
    with page.guest() as client, client.stream("GET", f"/events?since={since}") as got:
        assert next(got.iter_lines()).startswith(comes)


def test_browsers_that_went_away_make_room(page: Viewed) -> None:
    """More than may be there at once, one after the other."""
    with page.guest() as client:
        for _ in range(24):
            with client.stream("GET", "/events") as stream:
                assert stream.status_code == 200
                next(told(stream))
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline:
                if client.get("/").status_code == 200:
                    break


def test_too_many_pages_at_once(page: Viewed) -> None:
    with page.guest() as client:
        streams = []
        codes = []
        for _ in range(17):
            request = client.build_request("GET", "/events")
            streams.append(client.send(request, stream=True))
            codes.append(streams[-1].status_code)
        for each in streams:
            each.close()
        assert codes == [200] * 16 + [503]


def test_two_pages_have_two_places(page: Viewed) -> None:
    """Who knows the place of one is told no cookie of another."""
    with viewed() as other, page.client() as here, other.client() as there:
        places = {
            place_in(each.post("/enter", data={"code": CODE}).text)
            for each in (here, there)
        }
    assert len(places) == 2


def test_the_process_that_the_command_starts_has_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loopback alone, nothing of the environment, and no way to files once it answers."""
    monkeypatch.setenv("SEALIFT_SECRET", "of the party")
    with view._listen(0) as listening, view._Server(listening, CODE) as server:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=300.0) as client:
            assert client.get("/").status_code == 200
        folder = Path("/proc", str(server._process.pid))
        assert b"SEALIFT_SECRET" not in (folder / "environ").read_bytes()
        if landlock.version():
            assert "NoNewPrivs:\t1\n" in (folder / "status").read_text()


@pytest.mark.skipif(not landlock.version(), reason="this machine lacks Landlock")
def test_its_process_opens_no_file(tmp_path: Path) -> None:
    """Whoever takes the HTTP process over finds no key to read: nothing can be opened."""
    (tmp_path / "north.key").write_text("secret")
    script = (
        "import socket, sys\n"
        "from sealift.view import server\n"
        "print(open(sys.argv[1]).read())\n"  # control: before, it can
        "server._give_up_files()\n"
        "try:\n    open(sys.argv[1])\n"
        "except PermissionError:\n    print('refused')\n"
        "try:\n    socket.create_connection(('127.0.0.1', int(sys.argv[2])))\n"
        "except OSError as error:\n    print(type(error).__name__)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        words = [sys.executable, "-c", script, str(tmp_path / "north.key"), port]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    dialled = ["PermissionError"] if landlock.version() >= view.NET_VERSION else []
    assert done.stdout.split() == ["secret", "refused", *dialled]


def test_it_ends_with_who_draws() -> None:
    with viewed() as found:
        assert found.process.stdin is not None
        found.process.stdin.close()
        assert found.process.wait(20) == 0
