"""A run's roles as processes: started, listened to, and ended, all of them, within 10 s.

Every role is a real process with a key of its own; they meet over TCP on loopback. Each
child leads its own process group, so that Ctrl-C reaches their parent alone, and it ends
its children in order. Should it be killed itself, the children lose their relay and the
pipe they print into, and end by themselves.

A role prints events, one JSON object per line, written and read here. What is no event
is kept as a result: the orchestrator's last line is its summary.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, TextIO

from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    RefusedError,
    SealiftError,
    UnavailableError,
    UsageError,
    require_value,
)
from sealift.events import Event
from sealift.release.files import handed_on


@dataclass(frozen=True, slots=True)
class RoleEvent:
    """One event of one process.

    Attributes:
        process: Which process told it, such as ``holder-north``.
        t_s: Monotonic seconds of this machine.
        kind: Dotted name.
        fields: Everything else.
    """

    process: str
    t_s: float
    kind: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A field as text, empty without it."""
        return str(self.fields.get(name, ""))


@dataclass(frozen=True, slots=True)
class RoleResult:
    """A process's result: the JSON object on stdout that is no event."""

    process: str
    content: Mapping[str, Any]


def parse_line(process: str, line: str) -> RoleEvent | RoleResult | None:
    """What a line of stdout is; None for anything that is not a JSON object."""
    try:
        plain = json.loads(line)
    except ValueError:
        return None
    if not isinstance(plain, dict):
        return None
    if "kind" not in plain or "t_s" not in plain:
        return RoleResult(process, plain)
    kind, t_s = str(plain.pop("kind")), float(plain.pop("t_s"))
    return RoleEvent(process, t_s, kind, plain)


class EventLines:
    """A sink that writes one JSON line per event, at once.

    Args:
        stream: Where to; stdout, or a file.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write seconds on the monotonic clock, kind and fields."""
        line = {"t_s": round(time.monotonic(), 6), "kind": event.kind, **event.fields}
        with self._lock:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()


STOP_S: Final = 6.0  # then SIGKILL; a role needs far less to scrub and leave
KEPT_LINES: Final = 20
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_ERROR_LINE = re.compile(r"sealift: (?P<line>.*) \[(?P<code>[a-z0-9-]+)\]\Z")
CLASS_FOR_EXIT: Final[Mapping[int, type[SealiftError]]] = {
    kind.exit_code: kind
    for kind in (
        UsageError, UnavailableError, PeerError, RefusedError, MalformedError, JobError,
    )
}  # fmt: skip


def error_said(
    name: str, last: str, exit_code: int, *, about: str = ""
) -> SealiftError:
    """What a process said last, as an error with its exit code.

    Args:
        name: The process's.
        last: Its last line on stderr.
        exit_code: Not 0.
        about: What the error's line begins with.
    """
    if exit_code == -signal.SIGKILL:  # it could not say why
        return JobError(
            f"the process {name} was killed",
            why="a user stopped it, or Linux did because the machine's memory ran out",
            fix="Free memory, or use a smaller model or smaller buffers; then start the "
            "same command again",
            code="role-ended",
        )
    match = _ERROR_LINE.match(last)
    if match is None or exit_code not in CLASS_FOR_EXIT:
        return JobError(
            f"the process {name} ended before the job was finished",
            why=last or _say_exit(exit_code),
            code="role-ended",
        )
    found = CLASS_FOR_EXIT[exit_code](f"{about}{match['line']}", fix=None)
    found.code = match["code"]
    return found


class Ended:
    """A process has closed its stdout: it is ending."""

    def __init__(self, process: str) -> None:
        self.process = process


ProcessMessage = RoleEvent | RoleResult | Ended


class Child:
    """One process and the threads that read it."""

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[str],
        told: queue.SimpleQueue[ProcessMessage],
    ) -> None:
        self.name = name
        self.process = process
        self._told = told
        self._errors: deque[str] = deque(maxlen=KEPT_LINES)
        self._readers = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait(self, timeout_s: float) -> int:
        """The exit code, once everything that it printed was read."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def error(self) -> SealiftError:
        """What the process said last, as an error with its exit code."""
        last = self._errors[-1] if self._errors else ""
        code = self.process.returncode
        return error_said(self.name, last, code, about=f"{self.name}: ")

    def _read_stdout(self) -> None:
        for line in _lines(self.process.stdout):
            told = parse_line(self.name, line)
            if told is not None:
                self._told.put(told)
        self._told.put(Ended(self.name))

    def _read_stderr(self) -> None:
        for line in _lines(self.process.stderr):
            if line.strip():
                self._errors.append(line.strip())


class RoleProcesses:
    """All processes of one run.

    Args:
        cwd: Where they run.
        environment: Added to this process's own environment, for all of them.
    """

    def __init__(self, cwd: Path, environment: Mapping[str, str] = _NOTHING) -> None:
        self._cwd = cwd
        self._environment = {**os.environ, **environment}
        self._told: queue.SimpleQueue[ProcessMessage] = queue.SimpleQueue()
        self.children: dict[str, Child] = {}

    def start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str | Path],
        environment: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Start ``python -m module arguments`` under a name.

        Args:
            name: What events and errors call it.
            module: What runs.
            arguments: Of its command line.
            environment: Added to what all of them get.
        """
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=self._cwd,
            env={**self._environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
            pass_fds=handed_on(arguments),
        )
        self.children[name] = Child(name, process, self._told)

    def listen(self, timeout_s: float) -> Iterator[ProcessMessage]:
        """What the processes tell, as it comes.

        Raises:
            PeerError: if none of them tells anything for so long.
        """
        while True:
            try:
                yield self._told.get(timeout=timeout_s)
            except queue.Empty:
                raise PeerError(
                    f"no process of the job reported anything for {timeout_s:g} s",
                    fix=(
                        "Run it again with --keep, and start each role separately to "
                        "see which one stops"
                    ),
                    code="peer-timeout",
                ) from None

    def ends_within(self, name: str, timeout_s: float) -> bool:
        """Whether a process ends in time."""
        try:
            self.children[name].process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def was_killed(self, name: str) -> bool:
        """Whether a process that is ending was ended by a signal that it cannot handle."""
        if not self.ends_within(name, STOP_S):
            return False
        code = self.children[name].process.returncode
        return code is not None and code < 0

    def require_success(self, name: str) -> None:
        """Wait for a process that is ending; it must have succeeded.

        Raises:
            SealiftError: what it said last, with its exit code.
        """
        child = self.children[name]
        if child.wait(STOP_S):
            raise child.error()

    def stop(self) -> None:
        """End every process: SIGTERM to all, SIGKILL to whoever is left."""
        deadline = time.monotonic() + STOP_S
        for child in self.children.values():
            if child.process.poll() is None:
                child.process.terminate()
        for child in self.children.values():
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def kill(self) -> None:
        """End every process at once: the last act of a second signal.

        A second signal makes each of them leave at once, the accelerator after a scrub.
        """
        for pause_s in (0.2, 0.5):
            for child in self.children.values():
                child.process.terminate()
            time.sleep(pause_s)
        for child in self.children.values():
            child.process.kill()

    def __enter__(self) -> RoleProcesses:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _lines(stream: IO[str] | None) -> Iterator[str]:
    stream = require_value(stream, "both streams are pipes")
    with stream:
        yield from stream


def _say_exit(code: int) -> str:
    if code < 0:
        return f"it was ended by signal {-code}"
    return f"it ended with exit code {code}"
