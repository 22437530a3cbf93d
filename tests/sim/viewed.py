"""The page's own process, as `sealift view` starts it, fed by the test."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

CODE = "abcdef-ghijkl-mnopqr-stuvwx"


@dataclass
class Viewed:
    """The process and where it listens."""

    process: subprocess.Popen[str]
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, name: str, html: str) -> None:
        """A fragment, as the drawing process writes it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"name": name, "html": html}) + "\n")
        self.process.stdin.flush()

    def client(self, **terms: object) -> httpx.Client:
        """A browser that was not let in yet."""
        return httpx.Client(**{"base_url": self.address, "timeout": 20.0, **terms})  # type: ignore[arg-type]

    def guest(self) -> httpx.Client:
        """One that was."""
        with self.client() as client:
            told = client.post("/enter", data={"code": CODE})
            assert told.status_code == 200
            return self.client(
                base_url=f"{self.address}{place_in(told.text)}", cookies=client.cookies
            )


def place_in(html: str) -> str:
    """Where a browser that was let in is sent."""
    found = re.search(r"url=(/[0-9a-f]{32}/)", html)
    assert found is not None, html
    return found[1]


@contextmanager
def viewed() -> Iterator[Viewed]:
    """A page of one banner and one fragment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        descriptor = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sealift.view.server", str(descriptor)],
            stdin=subprocess.PIPE,
            pass_fds=[descriptor],
            text=True,
        )
        found = Viewed(process, listening.getsockname()[1])
    assert process.stdin is not None
    process.stdin.write(f"{CODE}\n")
    found.put("banner", '<div id="banner"></div>')
    found.put("status", '<div id="status"><h1>first</h1></div>')
    try:
        with found.client() as client:
            client.get("/style.css")  # waits until it answers
        yield found
    finally:
        process.stdin.close()
        process.wait(20)
