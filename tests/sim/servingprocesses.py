"""Server and broker of the how-to as processes, and clients of theirs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from typing import IO

import sealift
from sealift.release.files import PASSPHRASE_VARIABLE
from sealift.serve.client import Client
from tests.sim.servinghowto import PASSPHRASE, ServingHowTo


class Served:
    """Server and broker as processes, in the folder where the how-to was followed."""

    def __init__(self, howto: ServingHowTo) -> None:
        self.howto = howto
        with contextlib.chdir(howto.path):
            howto.prepare()
        self.lines: list[str] = []
        self.start_server()
        self.broker = self._start("broker")
        self.wait_until_ready()

    def start_server(self) -> None:
        """Until it listens; a broker that was here before comes again by itself."""
        self.server = self._start("serve")
        self.wait_for(r"(listens at )")

    def wait_until_ready(self) -> None:
        """Until it has the model, and clients are let in."""
        self.wait_for(r"(is loaded and answers)")
        threading.Thread(target=self._drain, daemon=True).start()

    def predict(
        self, *more: str, stdout: IO[str] | int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """`sealift predict`, as whoever stands in the folder."""
        return self.run(*self.predict_words(*more), stdout=stdout)

    def predict_words(self, *more: str) -> list[str]:
        """The page's command for rows, about other files."""
        plain, _, _ = self.howto.commands("predict")
        address, agreement = plain[1], plain[3:-2]
        return ["predict", address, *agreement, "--development", *more]

    def _start(self, role: str) -> subprocess.Popen[str]:
        (words,) = self.howto.commands(role)
        return self.run(*words)

    def run(
        self, *words: str, stdout: IO[str] | int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Any command of ours."""
        return subprocess.Popen(
            [sys.executable, "-m", "sealift", *words],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.howto.path,
            env={**os.environ, PASSPHRASE_VARIABLE: PASSPHRASE},
        )

    def wait_for(self, pattern: str) -> str:
        assert self.server.stderr is not None
        for line in self.server.stderr:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError("".join(self.lines))

    def _drain(self) -> None:
        assert self.server.stderr is not None
        self.lines += list(self.server.stderr)

    def connect(self) -> Client:
        return sealift.connect(
            self.howto.address,
            agreement=self.howto.path / "serving.json",
            owner=self.howto.path / "lab.card.json",
            development=True,
        )

    def async_client(self) -> sealift.AsyncClient:
        return sealift.AsyncClient(
            self.howto.address,
            agreement=self.howto.path / "serving.json",
            owner=self.howto.path / "lab.card.json",
            development=True,
        )

    def kill(self) -> None:
        """The server alone, at once."""
        self.server.kill()
        self.server.wait(300)

    def stop(self) -> None:
        for each in (self.server, self.broker):
            if each.poll() is None:
                each.terminate()
            each.communicate(timeout=300)
