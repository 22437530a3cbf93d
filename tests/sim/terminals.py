"""A tutorial as a session: its boxes are read from markdown and typed into terminals.

A box is a fenced block. Its first line says who types it::

    ```console role=north          commands after `$ `, each followed by what it says
    ```console role=each           everybody, at the same time; $ME is who one is
    ```console role=north stays    the last command runs on; the next terminal's turn
    ```toml role=south file=PATH   a file that this role writes

What a command says is compared line by line; ``...`` is anything in a line, or any
lines. A command fails exactly if the last line shown is an error with its [code].
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.test_text import matches

END = "\x1e"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.M | re.S)
ERROR = re.compile(r"(sealift|error): .*\[[a-z-]+\]")


@dataclass(frozen=True)
class Typed:
    """A command and what it must say."""

    command: str
    said: tuple[str, ...]

    @property
    def fails(self) -> bool:
        return bool(self.said) and ERROR.fullmatch(self.said[-1]) is not None


@dataclass(frozen=True)
class Box:
    """One fenced block."""

    line: int
    language: str
    words: Mapping[str, str]
    text: str

    @property
    def role(self) -> str:
        return self.words["role"]

    @property
    def typed(self) -> tuple[Typed, ...]:
        """What is typed in it, in order."""
        first, *parts = re.split(r"^\$ ", self.text, flags=re.M)
        assert not first, f"line {self.line}: a console box begins with $"
        steps = []
        for part in parts:
            lines = part.replace("\\\n", "").splitlines()
            steps.append(Typed(lines[0], tuple(lines[1:])))
        return tuple(steps)


def read_boxes(text: str) -> list[Box]:
    """Every box; one without a role is an error: nobody would type it."""
    boxes = []
    for found in FENCE.finditer(text):
        language, *words = found[1].split() or [""]
        named = dict(f"{word}=".split("=")[:2] for word in words)
        line = text[: found.start()].count("\n") + 1
        assert named.get("role"), f"line {line}: a box without a role"
        boxes.append(Box(line, language, named, found[2]))
    assert text.count("\n```") == 2 * len(boxes), "a fence is not closed"
    return boxes


@dataclass
class Terminal:
    """A shell with a home of its own, in which commands are typed one after the other."""

    name: str
    home: Path
    environment: Mapping[str, str]
    lines: queue.Queue[str] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        own = {"HOME": str(self.home), "ME": self.name}
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, cwd=self.home, env={**self.environment, **own},
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def type(self, command: str) -> None:
        assert self.process.stdin is not None
        ask = f"{{ {command}\n}} </dev/null\nprintf '{END}%d\\n' $?\n"
        self.process.stdin.write(ask)
        self.process.stdin.flush()

    def answer(self, wait_s: float = 150) -> tuple[str, int]:
        """All that the last command said, and its exit code."""
        said, until = "", time.monotonic() + wait_s
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"{self.name} still runs; it said\n{said}"
                ) from None
            before, end, code = line.partition(END)
            said += before + ("\n" if end and before else "")
            if end:
                return said, int(code)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(300)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self.process.stdout:
                self.lines.put(line)


class Session:
    """Some terminals side by side, and what was typed into them.

    Args:
        place: Gets a folder for each terminal; ``setup`` types in the place itself.
        names: Of the terminals.
        environment: Of all of them.
    """

    def __init__(
        self, place: Path, names: tuple[str, ...], environment: Mapping[str, str]
    ) -> None:
        homes = {"setup": place, **{name: place / name for name in names}}
        self.names = names
        self.terminals = {
            name: Terminal(name, home, environment) for name, home in homes.items()
        }
        self.executed: list[int] = []
        self._waiting: dict[str, tuple[Box, Typed]] = {}

    def run(self, box: Box) -> None:
        """Type one box, and compare."""
        names = self.names if box.role == "each" else (box.role,)
        for name in names:
            self.settle(name)
        if "file" in box.words:
            (self.terminals[box.role].home / box.words["file"]).write_text(box.text)
        else:
            self._type(box, names)
        self.executed.append(box.line)

    def settle(self, name: str) -> None:
        """Wait for what still runs in a terminal, and compare."""
        if name in self._waiting:
            self._compare(name, *self._waiting.pop(name))

    def close(self) -> None:
        for terminal in self.terminals.values():
            terminal.close()

    def _type(self, box: Box, names: tuple[str, ...]) -> None:
        steps = box.typed
        assert steps, f"line {box.line}: nothing to type"
        for typed in steps:
            for name in names:
                self.terminals[name].type(typed.command)
            stays = "stays" in box.words and typed is steps[-1]
            for name in names:
                if stays:
                    self._waiting[name] = box, typed
                else:
                    self._compare(name, box, typed)

    def _compare(self, name: str, box: Box, typed: Typed) -> None:
        said, code = self.terminals[name].answer()
        expected = [line.replace("$ME", name) for line in typed.said]
        fits = matches(expected, said) and bool(code) is typed.fails
        shown = "".join(f"  {line}\n" for line in expected)
        assert fits, (
            f"line {box.line}, {name} $ {typed.command}\nexit {code}\n{said}"
            f"expected:\n{shown}"
        )


@contextlib.contextmanager
def session(
    place: Path, names: tuple[str, ...], environment: Mapping[str, str]
) -> Iterator[Session]:
    """Terminals that are closed in the end, with all that runs in them."""
    opened = Session(place, names, environment)
    try:
        yield opened
    finally:
        opened.close()
