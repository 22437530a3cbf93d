"""Orders to the processes of a measurement, and their answers: a JSON line each.

Nothing secret of a party crosses here but the bench's own data key, which a broker
would release: every process makes its own identity.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sealift.errors import JobError

Answer = dict[str, Any]
STOP_S = 10.0


class Doer(Protocol):
    """A process's end: one public method per order."""

    def close(self) -> None:
        """End everything."""
        ...


def serve(doer: Doer) -> None:
    """Do what stdin says until it ends."""
    try:
        for line in sys.stdin:
            order = json.loads(line)
            answer = getattr(doer, order.pop("do"))(**order)
            print(json.dumps(answer or {}), flush=True)
    finally:
        doer.close()


class Child:
    """A process that serves orders."""

    def __init__(self, command: Sequence[str], module: str) -> None:
        words = [*command, sys.executable, "-P", "-m", module]
        self._process = subprocess.Popen(  # noqa: S603 - our own modules
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, order: str, **arguments: Any) -> None:
        """Send an order and go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": order, **arguments}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Answer:
        """The answer to the oldest order.

        Raises:
            JobError: if the process ended instead; what it said stands on stderr.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise JobError("a process of the measurement ended", code="role-ended")
        answer: Answer = json.loads(line)
        return answer

    def ask(self, order: str, **arguments: Any) -> Answer:
        """Send an order and wait for its answer."""
        self.tell(order, **arguments)
        return self.hear()

    def close(self) -> None:
        """Let it end; end it if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(STOP_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def pack(raw: bytes) -> str:
    """Bytes in an order."""
    return base64.b64encode(raw).decode()


def unpack(text: str) -> bytes:
    """And back."""
    return base64.b64decode(text)


def numbers(answer: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an answer."""
    return {k: float(v) for k, v in answer.items() if isinstance(v, int | float)}
