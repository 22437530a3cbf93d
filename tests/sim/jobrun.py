"""The roles of one job as real processes that a test can watch, stop and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import sealift
from sealift.demo.folder import World
from sealift.train.job.roleprocesses import RoleEvent, RoleResult, parse_line

WAIT_S = 600.0
SOURCE = str(Path(sealift.__file__).parent.parent)
PLACES = f"{SOURCE}:{Path(__file__).parents[2]}"  # and of faulty roles, tests.sim


class Running:
    """One process of `sealift`, what it told, and how it ended."""

    def __init__(
        self,
        name: str,
        words: list[str | Path],
        cwd: Path,
        *,
        module: tuple[str, ...] = ("sealift",),
        enter: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.events: list[RoleEvent] = []
        self.results: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [*enter, sys.executable, "-m", *module, *map(str, words)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": PLACES, "XDG_STATE_HOME": str(cwd)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        readers = ((self.process.stdout, self._hear), (self.process.stderr, self._note))
        self._readers = [
            threading.Thread(target=_read, args=pair, daemon=True) for pair in readers
        ]
        for reader in self._readers:
            reader.start()

    def wait_event(self, kind: str, *, after: int = 0, **fields: object) -> RoleEvent:
        """The first event of a kind with these fields, at place ``after`` or later."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                for event in self.events[after:]:
                    if event.kind == kind and fields.items() <= event.fields.items():
                        return event
                left_s = deadline - time.monotonic()
                # What it said last may be read when it has ended.
                if left_s <= 0 or not self._readers[0].is_alive():
                    told = [event.kind for event in self.events[-12:]]
                    raise AssertionError(
                        f"{self.name}: no {kind} {fields}: {told} {self.errors[-3:]}"
                    )
                self._changed.wait(min(left_s, 0.2))

    def wait_line(self, part: str) -> str:
        """The first line of stderr that has this in it."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                found = next((line for line in self.errors if part in line), None)
                if found is not None:
                    return found
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"{self.name}: no line with {part!r}: {self.errors}"
                self._changed.wait(left_s)

    def end(self, timeout_s: float = WAIT_S) -> int:
        """The exit code, once everything was read."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(WAIT_S)
        return code

    def error(self) -> str:
        """The one line that it ended with; there must be no traceback and no other."""
        lines = [line for line in self.errors if line.endswith("]")]
        assert len(lines) == 1, self.errors
        assert not any("Traceback" in line for line in self.errors)
        return lines[0]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def _hear(self, line: str) -> None:
        told = parse_line(self.name, line)
        with self._changed:
            if isinstance(told, RoleEvent):
                self.events.append(told)
            elif isinstance(told, RoleResult):
                self.results.append(dict(told.content))
            self._changed.notify_all()

    def _note(self, line: str) -> None:
        with self._changed:
            self.errors.append(line.rstrip("\n"))
            self._changed.notify_all()


class JobRun:
    """Starts roles against one orchestrator; ends whatever is left."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.roles: dict[str, Running] = {}
        self.address = ""

    def __getitem__(self, name: str) -> Running:
        return self.roles[name]

    def start(
        self, name: str, *words: str | Path, module: tuple[str, ...] = ("sealift",)
    ) -> Running:
        path, enter = self.world.path, self.enter(name)
        self.roles[name] = Running(name, list(words), path, module=module, enter=enter)
        return self.roles[name]

    def enter(self, name: str) -> Sequence[str]:
        """What a role's command begins with: how its host is entered."""
        return ()

    def orchestrator(self, *more: str) -> Running:
        """Start it, and wait until it listens."""
        role = self._start_role("orchestrator", "cloud", *more)
        event = role.wait_event("orchestrator.listening")
        self.address = f"127.0.0.1:{event.fields['port']}"
        return role

    def accelerator(self, name: str = "accelerator", *more: str) -> Running:
        words = (*self._dial(), *more)
        return self._start_role("accelerator", "gpu-host", *words, name=name)

    def accelerator_of(self, *module: str) -> Running:
        """One that has a fault, from another module, which takes words of its own."""
        home = self.world.home("gpu-host")
        words = (*home.unlocking, "--events", "-", *self._dial())
        name, more = "accelerator", "--keep-freed-memory"  # else it starts itself again
        return self.start(name, name, self.world.job, *words, more, module=module)

    def broker(self, owner: str, *more: str) -> Running:
        stores = self.world.home(owner).stores
        words = (*stores, *self._dial(), *more)
        return self._start_role("broker", owner, *words, name=f"broker-{owner}")

    def holder(
        self, owner: str, *, name: str = "", with_broker: bool = True
    ) -> Running:
        home = self.world.home(owner)
        words: list[str | Path] = [*home.stores, *home.cargo, *self._dial()]
        if not with_broker:
            words.append("--holder-only")
        return self._start_role("join", owner, *words, name=name or f"holder-{owner}")

    def train(self, *more: str | Path, noun: str = "train") -> Running:
        """`sealift train` or `resume`: orchestrator and accelerator as its children."""
        host = self.world.home("gpu-host")
        attester = ("--attester-key", host.key)
        attester += ("--attester-passphrase-file", host.passphrase)
        words = (*self.world.home("cloud").unlocking, *attester, *more)
        role = self.start(noun, noun, self.world.job, "--json", *words)
        line = role.wait_line("waiting at ")
        self.address = line.split("waiting at ")[1].split()[0]
        return role

    def everybody(self, *owners: str) -> None:
        """All roles; accelerator first, since torch takes its time."""
        self.orchestrator()
        self.accelerator()
        for owner in owners:
            self.broker(owner)
            self.holder(owner, with_broker=False)

    def stop(self) -> None:
        for role in self.roles.values():
            if role.process.poll() is None:
                role.signal(signal.SIGCONT)
                role.process.kill()
        for role in self.roles.values():
            role.end()

    def _dial(self) -> tuple[str, ...]:
        return ("--orchestrator", self.address)

    def _start_role(
        self, noun: str, party: str, *words: str | Path, name: str = ""
    ) -> Running:
        home = self.world.home(party)
        return self.start(
            name or noun,
            noun,
            self.world.job,
            *home.unlocking,
            "--events",
            "-",
            *words,
        )


@contextmanager
def job_run(world: World) -> Iterator[JobRun]:
    """A run whose processes all end with the block."""
    run = JobRun(world)
    try:
        yield run
    finally:
        run.stop()


def _read(stream: IO[str], take: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            take(line)
