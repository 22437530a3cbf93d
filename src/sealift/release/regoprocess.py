"""The process that evaluates policies, kept ready: starting it takes longer than they do.

It has no environment, and one question at a time; each is answered by a fork of it that
ends with the answer (``release/regoworker.py``). After anything but an answer in time the
process and its forks are killed, and the next question starts another.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from sealift.channel.transports.transport import Deadline
from sealift.errors import UnavailableError

_WORKER: Final = Path(__file__).with_name("regoworker.py")


class PolicyProcess:
    """Answers questions, one after the other.

    Args:
        limit_s: How long one may take, with the start of the process.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def ask(self, question: bytes) -> bytes:
        """The answer; empty if what evaluated it was killed.

        Raises:
            TimeoutError: if it took longer than the limit.
            UnavailableError: if no process can be started.
        """
        with self._lock:
            deadline = Deadline(self._limit_s)
            try:
                answer = self._exchange(question, deadline)
            except BaseException:
                self._stop()
                raise
            if not answer:
                self._stop()
            return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _exchange(self, question: bytes, deadline: Deadline) -> bytes:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(len(question).to_bytes(4, "big") + question)
        except BrokenPipeError:
            return b""
        reader = process.stdout.fileno()
        length = int.from_bytes(_read(reader, 4, deadline), "big")
        return _read(reader, length, deadline)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._stop()  # it ended meanwhile, which says nothing about this question
        if self._process is None:
            self._process = _start()
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:  # else the number may be another's by now
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it forked
        with process:  # closes its lines, and waits
            pass

    def _forget(self) -> None:
        """In a forked child: the process is its parent's."""
        self._lock = threading.Lock()
        self._process = None


def _start() -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - our own file, no shell
            [sys.executable, "-I", "-B", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={},
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(
            "no process for a policy could be started", why=error.strerror or ""
        ) from None


def _read(descriptor: int, wanted: int, deadline: Deadline) -> bytes:
    """So many bytes, fewer if the process ended."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    parts = b""
    while len(parts) < wanted:
        if not poller.poll(deadline.remaining_ms()):
            raise TimeoutError
        part = os.read(descriptor, wanted - len(parts))
        if not part:
            break
        parts += part
    return parts
