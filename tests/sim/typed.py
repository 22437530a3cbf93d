"""Commands typed at terminals of their own, and answered there."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path

WAIT_S = 600.0


class Typed:
    """One command at one terminal.

    Args:
        folder: Where it is typed.
        words: Behind ``sealift``.
        answers: What is answered to which question, in order.
    """

    def __init__(
        self, folder: Path, *words: str, answers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, 1000))  # so wide that no line is folded
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sealift", *words],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""
        self._left = list(answers)
        self._answered = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_text(self, part: str) -> None:
        """Until the screen has shown it."""
        deadline = time.monotonic() + WAIT_S
        while part not in self.text:
            assert time.monotonic() < deadline, self.text[-3000:]
            if self.process.poll() is not None:
                self._reader.join(WAIT_S)  # what it said last
                assert part in self.text, self.text[-3000:]
            time.sleep(0.02)

    def end(self) -> int:
        """The exit code."""
        code = self.process.wait(WAIT_S)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        """Without a chance to do anything; its children go with it."""
        self.process.kill()
        self.process.wait(WAIT_S)
        self._reader.join(5)

    def interrupt(self) -> None:
        """Ctrl-C, which everything hears that this command started."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(WAIT_S)
        self._reader.join(5)

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self._ours, 1 << 16).decode(errors="replace")
            except OSError:
                break
            self.text += found
            while self._left and self._left[0][0] in self.text[self._answered :]:
                question, answer = self._left.pop(0)
                self._answered = self.text.index(question, self._answered) + len(
                    question
                )
                os.write(self._ours, f"{answer}\n".encode())
        os.close(self._ours)
