"""A real browser, driven over its debugging pipe: pages, clicks, pictures, requests.

Chromium reads commands from descriptor 3 and answers on 4, each ended by a zero byte.
Source: the DevTools protocol, chromedevtools.github.io/devtools-protocol.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.sim.browser import CHROMIUM

ANSWER_S = 60.0
PLACE = """
import os, sys
ends = [os.dup(int(each)) for each in sys.argv[1:3]]
spare = [os.dup2(each, 20 + n) for n, each in enumerate(ends)]
for n, each in enumerate(spare):
    os.dup2(each, 3 + n)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._number += 1
        words: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            words["sessionId"] = self._session
        os.write(self._send, json.dumps(words).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._number:
                assert "error" not in told, told["error"]
                found: dict[str, Any] = told["result"]
                return found
            self.events.append(told)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._receive, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def open(self, url: str) -> None:
        """Go there, and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.until(
            "document.readyState == 'complete' && location.href != 'about:blank'"
        )

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, within_s: float = ANSWER_S) -> None:
        """Wait for an expression to hold; a page that is left has none for a moment."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            with suppress(AssertionError):  # navigated meanwhile
                found = self.call(
                    "Runtime.evaluate", expression=script, returnByValue=True
                )
                if found["result"].get("value") is True:
                    return
            time.sleep(0.05)
        raise AssertionError(f"never: {script}\n{self.run('document.body.innerText')}")

    def text(self) -> str:
        """What a person reads."""
        return str(self.run("document.body.innerText"))

    def press(self, key: str, code: int) -> None:
        """A key of the keyboard."""
        for kind in ("keyDown", "keyUp"):
            extra = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, **extra,
            )  # fmt: skip

    def picture(
        self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False
    ) -> None:
        """The whole page as PNG."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def requested(self) -> list[str]:
        """Addresses that were asked for so far."""
        return [
            each["params"]["request"]["url"]
            for each in self.events
            if each.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """What the browser refused or found wrong."""
        return [
            each["params"]["entry"]["text"]
            for each in self.events
            if each.get("method") == "Log.entryAdded"
        ]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A fresh one, with a profile in the folder."""
    assert CHROMIUM is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    words = [
        sys.executable, "-c", PLACE, str(theirs_in), str(theirs_out),
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
        "--no-first-run", "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
        f"--user-data-dir={folder / 'profile'}", "about:blank",
    ]  # fmt: skip
    stack = ExitStack()  # a socket in it has a short name
    short = stack.enter_context(TemporaryDirectory(prefix="browser"))
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            words,
            pass_fds=(theirs_in, theirs_out),
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": short},
        )
    for each in (theirs_in, theirs_out):
        os.close(each)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        process.terminate()
        process.wait(20)
        stack.close()
