"""The command line as text: each ``*.txt`` here is a script of commands and answers.

::

    $ sealift key new ada --passphrase-file pw     a command, run as a real process
    1| key    ada.key                              a line of its stdout
    2| sealift: ...                                a line of its stderr; ... is anything
    exit 2                                         its exit code, 0 if not said
    -- pw --                                       a file that is there at the start
    correct horse

All of stdout and stderr has to be there. ``1| ...`` alone stands for any lines. Beside
`sealift` there are the commands of ``BUILTINS``.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import sealift
from tests.sim.paperwork import write_paperwork
from tests.sim.warmroles import read_early

HERE = Path(__file__).parent
SOURCE = str(Path(sealift.__file__).parent.parent)


@dataclass
class Step:
    """One command and what it must say."""

    line: int
    command: str
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    exit_code: int = 0


@dataclass
class Answer:
    """What a command said."""

    out: str = ""
    err: str = ""
    exit_code: int = 0


def parse_script(text: str) -> tuple[list[Step], dict[str, str]]:
    body, *parts = re.split(r"^-- (\S+) --\n", text, flags=re.M)
    files = dict(zip(parts[::2], parts[1::2], strict=True))
    steps: list[Step] = []
    for number, line in enumerate(body.splitlines(), 1):
        if line.startswith("$ "):
            steps.append(Step(number, line[2:]))
        elif line.startswith("1|"):
            steps[-1].out.append(line[3:])
        elif line.startswith("2|"):
            steps[-1].err.append(line[3:])
        elif line.startswith("exit "):
            steps[-1].exit_code = int(line[5:])
        else:
            assert not line or line.startswith("#"), f"line {number}: {line}"
    return steps, files


def matches(expected: list[str], said: str) -> bool:
    """Whether the lines fit; ``...`` is anything in a line, or any lines."""
    parts = [
        r"(?:.*\n)*" if line == "..." else _line_pattern(line) for line in expected
    ]
    return re.fullmatch("".join(parts), said) is not None


def _line_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("...")) + r"\n"


def run_sealift(words: list[str], **options: object) -> Answer:
    environment = {
        **read_early(os.environ),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": SOURCE,
        "XDG_STATE_HOME": str(Path.cwd() / ".state"),
        "COLUMNS": "100",
    }
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    assert words.pop(0) == "sealift", "not a command"
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(
        [sys.executable, "-m", "sealift", *words],
        stdin=subprocess.DEVNULL, text=True, check=False, env=environment,
        **(defaults | options),  # type: ignore[call-overload]
    )  # fmt: skip
    return Answer(done.stdout or "", done.stderr, done.returncode)


def ls(words: list[str]) -> Answer:
    """Every name here, hidden ones too, one per line."""
    names = sorted(path.name for path in Path(*words).iterdir())
    return Answer("".join(f"{name}\n" for name in names))


def replace(words: list[str]) -> Answer:
    """Replace text in a file: FILE OLD NEW."""
    path = Path(words[0])
    before = path.read_text()
    assert words[1] in before, "nothing to replace"
    path.write_text(before.replace(words[1], words[2], 1))
    return Answer()


def copy(words: list[str]) -> Answer:
    Path(words[1]).write_bytes(Path(words[0]).read_bytes())
    return Answer()


def remove(words: list[str]) -> Answer:
    for word in words:
        Path(word).unlink()
    return Answer()


def paperwork(words: list[str]) -> Answer:
    """The files of a small run: logs, heads, receipts, a signed agreement."""
    write_paperwork(Path.cwd())
    return Answer()


def file_limit(words: list[str]) -> Answer:
    """Run a command whose files cannot grow beyond N bytes, like on a full disk."""
    limit = int(words.pop(0))

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return run_sealift(words, preexec_fn=set_limit)


def full_output(words: list[str]) -> Answer:
    """Run a command whose stdout goes to a full disk."""
    with open("/dev/full", "w") as full:
        return run_sealift(words, stdout=full)


BUILTINS: dict[str, Callable[[list[str]], Answer]] = {
    "ls": ls,
    "replace": replace,
    "copy": copy,
    "remove": remove,
    "paperwork": paperwork,
    "file-limit": file_limit,
    "full-output": full_output,
}


def run(command: str) -> Answer:
    words = shlex.split(command)
    builtin = BUILTINS.get(words[0])
    return builtin(words[1:]) if builtin else run_sealift(words)


def problems(step: Step, answer: Answer) -> Iterator[str]:
    if answer.exit_code != step.exit_code:
        yield f"exit {answer.exit_code}, expected {step.exit_code}"
    for name, expected, said in (
        ("stdout", step.out, answer.out),
        ("stderr", step.err, answer.err),
    ):
        if not matches(expected, said):
            wanted = "".join(f"  {line}\n" for line in expected)
            found = "".join(f"  {line}\n" for line in said.splitlines())
            yield f"{name}:\n{found}expected:\n{wanted}"


@pytest.mark.distributed
@pytest.mark.parametrize("script", sorted(HERE.glob("*.txt")), ids=lambda p: p.stem)
def test_script(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, files = parse_script(script.read_text())
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o600)  # some are passphrases, which are their owner's
    for step in steps:
        answer = run(step.command)
        assert "Traceback" not in answer.err
        wrong = "\n".join(problems(step, answer))
        assert not wrong, f"{script.name}:{step.line} $ {step.command}\n{wrong}"


@pytest.mark.parametrize(
    ("expected", "said", "fits"),
    [
        (["a"], "a\n", True),
        (["a"], "a\nb\n", False),
        (["a", "b"], "a\n", False),
        (["a...c"], "abbc\n", True),
        (["a", "..."], "a\nb\nc\n", True),
        ([], "", True),
        ([], "a\n", False),
        (["a.c"], "abc\n", False),
    ],
)
def test_the_comparison_itself(expected: list[str], said: str, fits: bool) -> None:
    assert matches(expected, said) is fits
