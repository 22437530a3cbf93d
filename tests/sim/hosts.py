"""Hosts of a test: network namespaces on one bridge, whose every frame is captured.

Names carry the process's number; what a killed run left goes when the next one begins.
It needs root and iproute2: the marker ``hosts`` (tests/conftest.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from tests.sim.capture import Capture

ROOT = Path(__file__).parents[2]
RATE = "1gbit"
END_S = 120.0  # how long a test waits for what a process must do
_PREFIX = "sealift-test"
_NUMBERS = count()
_PIPED = {"stdout": subprocess.PIPE}
_RECEIVE = [
    sys.executable,
    "-c",
    """
import socket, sys
with socket.create_server((sys.argv[1], 7)) as listener:
    print("listens", flush=True)
    with listener.accept()[0] as peer, peer.makefile("rb") as told:
        sys.stdout.buffer.write(told.read())
""",
]
_SEND = [
    sys.executable,
    "-c",
    """
import socket, sys
with socket.create_connection((sys.argv[1], 7)) as peer:
    peer.sendall(bytes.fromhex(sys.argv[2]))
""",
]


@cache
def lacks_hosts() -> str | None:
    """What the machine lacks for namespaces, or None."""
    if missing := [each for each in ("ip", "tc") if shutil.which(each) is None]:
        return f"{missing[0]} (apt-get install iproute2)"
    try:
        with hosts(1):
            return None
    except (OSError, subprocess.CalledProcessError):
        return "permission to make network namespaces"


def run(*command: str) -> str:
    """What a command says."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


class Told:
    """A process in a host that tells what it does, one JSON object a line.

    Attributes:
        lines: What it has told so far.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __getitem__(self, event: str) -> dict[str, Any]:
        """The last line that tells ``event``."""
        return next(each for each in reversed(self.lines) if each["event"] == event)

    def count(self, event: str) -> int:
        """How often it told that."""
        return sum(each["event"] == event for each in self.lines)

    def wait(self, event: str, times: int = 1) -> dict[str, Any]:
        """Wait until it told ``event`` so often; the last such line."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or self.count(event) >= times, END_S
            )
        assert self.count(event) >= times, self.lines[-3:]
        return self[event]

    def end(self) -> int:
        """Its exit status, once it has ended."""
        status = self.process.wait(END_S)
        self._reader.join(END_S)
        return status

    def kill(self) -> None:
        self.process.kill()
        self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Hosts:
    """Namespaces ``0`` to ``count - 1`` and their bridge; made by ``hosts``.

    Attributes:
        addresses: Of each host.
        capture: Of what the hosts send each other.
    """

    def __init__(self, number: int, stack: ExitStack, rate: str) -> None:
        self._prefix = f"{_PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
        self._bridge = f"{self._prefix}-bridge"
        self._stack = stack
        self.addresses = [f"10.77.0.{host + 1}" for host in range(number)]
        self._make_space(self._bridge)
        run("ip", "-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self._bridge, "link", "set", "bridge", "up")
        for host in range(number):
            self._join(host, rate)
        self.capture = stack.enter_context(Capture.begin(self._bridge))

    def _make_space(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._stack.callback(run, "ip", "netns", "del", name)
        self._stack.callback(_end_processes, name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def _join(self, host: int, rate: str) -> None:
        name, port = self._name(host), f"port{host}"
        self._make_space(name)
        run(
            *("ip", "-n", self._bridge, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", name),
        )
        for space, device in ((name, "eth0"), (self._bridge, port)):
            run(
                *("tc", "-n", space, "qdisc", "add", "dev", device, "root"),
                *("tbf", "rate", rate, "burst", "256kb", "latency", "100ms"),
            )
            run("ip", "-n", space, "link", "set", device, "up")
        address = f"{self.addresses[host]}/24"
        run("ip", "-n", name, "address", "add", address, "dev", "eth0")
        self.restore(host)

    def _name(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def cut(self, host: int) -> None:
        """Nothing it sends arrives any more, nothing reaches it; nobody is told."""
        run("ip", "-n", self._bridge, "link", "set", f"port{host}", "nomaster")

    def restore(self, host: int) -> None:
        """It is on the bridge again."""
        run("ip", "-n", self._bridge, "link", "set", f"port{host}", "master", "bridge")

    def send_plain(self, source: int, target: int, message: bytes) -> None:
        """Send a few bytes as they are, over TCP."""
        listener = self.popen(target, [*_RECEIVE, self.addresses[target]], **_PIPED)
        assert listener.stdout.readline() == b"listens\n"
        sender = [*_SEND, self.addresses[target], message.hex()]
        assert self.popen(source, sender).wait(END_S) == 0
        assert listener.communicate(timeout=END_S)[0] == message

    def enter(self, host: int) -> list[str]:
        """What the command of a process there begins with."""
        return ["ip", "netns", "exec", self._name(host)]

    def popen(self, host: int, command: Sequence[str], **how: Any) -> Any:
        """Start a process there, as ``subprocess.Popen`` does."""
        entered = [*self.enter(host), *command]
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        kept = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": path}}
        return subprocess.Popen(entered, **{**kept, **how})

    def start(self, host: int, module: str, **settings: Any) -> Told:
        """Start a module of ``tests.sim`` there, told its settings as JSON."""
        command = [sys.executable, "-m", f"tests.sim.{module}", json.dumps(settings)]
        told = Told(self.popen(host, command, stdout=subprocess.PIPE, text=True))
        self._stack.callback(told.kill)
        return told


@contextmanager
def hosts(number: int, *, rate: str = RATE) -> Iterator[Hosts]:
    """So many hosts; in the end everything is gone that ran in them."""
    _clear_former()
    with ExitStack() as stack:
        yield Hosts(number, stack, rate)


def _clear_former() -> None:
    folder = Path("/run/netns")
    for each in folder.glob(f"{_PREFIX}-*") if folder.is_dir() else ():
        if not Path("/proc", each.name.split("-")[2]).exists():
            _end_processes(each.name)
            with suppress(subprocess.CalledProcessError):  # another run was quicker
                run("ip", "netns", "del", each.name)


def _end_processes(space: str) -> None:
    with suppress(subprocess.CalledProcessError, ProcessLookupError):
        for process in run("ip", "netns", "pids", space).split():
            os.kill(int(process), 9)
