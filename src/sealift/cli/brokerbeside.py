"""The broker that `sealift join` runs beside the holder, in a process of its own.

Without its broker an owner takes no part: one that ends with an error ends the holder.
One that was killed is started again, a few times; its vault and log are made for that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final, Self

from sealift.cli.judging import JUDGING, option_words
from sealift.cli.signals import followed, on_second_signal, stop_postponed

STOP_S: Final = 10.0
OWN_FAILURES: Final = frozenset({1, 2, 3, 5, 6, 7})  # 4 is a peer's, a signal is ours
MAX_RESTARTS: Final = 20
_PASSED_ON: Final = (
    "key", "passphrase_file", "orchestrator", "vault", "log", "status",
)  # fmt: skip


class BrokerBeside:
    """Starts, watches and ends it.

    Args:
        command: What runs.
        ended: Called when it ended with an error of its own.
        say: Gets a line for people.
    """

    def __init__(
        self,
        command: list[str],
        *,
        ended: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._command = command
        self._ended = ended
        self._say = say
        self._lock = threading.Lock()
        self._stopping = False
        self._restarts = 0
        with stop_postponed():
            self._process = self._start()
            on_second_signal(self._kill)
        threading.Thread(target=self._watch, name="broker's end", daemon=True).start()

    @property
    def failed(self) -> bool:
        """Whether it ended with an error of its own."""
        return self._process.poll() in OWN_FAILURES

    def stop(self) -> None:
        """Ask it to stop, wait, and end it if it does not."""
        with self._lock:
            self._stopping = True
            process = self._process
        stop_process(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env={**os.environ, **followed()})  # noqa: S603 - ourselves

    def _watch(self) -> None:
        while True:
            code = self._process.wait()
            if code in OWN_FAILURES:
                self._ended()
            if code >= 0 or not self._start_again():
                return

    def _start_again(self) -> bool:
        with self._lock:
            if self._stopping or self._restarts >= MAX_RESTARTS:
                return False
            self._restarts += 1
            self._process = self._start()
        self._say("the broker was killed; started again")
        return True

    def _kill(self) -> None:
        self._stopping = True
        self._process.kill()


def broker_command(args: argparse.Namespace) -> list[str]:
    """`sealift broker` with what `sealift join` was given."""
    command = [sys.executable, "-m", "sealift", "broker", str(args.job)]
    return command + option_words(args, (*_PASSED_ON, *JUDGING))


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Ask a child to stop, wait, and end it if it does not."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
