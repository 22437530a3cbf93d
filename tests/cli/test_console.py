"""Questions at a terminal."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import sealift.cli.main as command
import sealift.train.__main__ as rank
from sealift.cli.console import ask_afresh, ask_line, confirm, say, show
from sealift.errors import UsageError
from sealift.train.job.caller import CALLER, Caller
from sealift.train.job.talk import Talk


def ask_to_confirm(question: str, default: str) -> str:
    """As before a signature or a statement."""
    try:
        confirm(question, yes=False)
    except UsageError:
        return default
    return "y"


@pytest.mark.parametrize(
    ("ask", "answer"),
    [(ask_afresh, "no"), (ask_to_confirm, "n"), (ask_line, "y")],
    ids=["afresh", "confirm", "control"],
)
def test_what_was_typed_before_a_question_was_shown_does_not_answer_it(
    monkeypatch: pytest.MonkeyPatch, ask: object, answer: str
) -> None:
    keyboard, terminal = os.openpty()
    os.write(keyboard, b"y\n")  # typed by somebody who waited
    shown, screen = os.pipe()
    with (
        os.fdopen(terminal, "r") as stdin,
        os.fdopen(screen, "w", buffering=1) as stderr,
    ):
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stderr", stderr)

        def read() -> None:
            while b"Sign" not in os.read(shown, 100):
                pass
            os.write(keyboard, b"no\n")

        person = threading.Thread(target=read)
        person.start()
        assert ask("Sign? (y/N)", "n") == answer  # type: ignore[operator]
        person.join()
    os.close(keyboard)
    os.close(shown)


class Screen(io.StringIO):
    """A terminal that says nothing of its size."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "tell",
    [say, command._say, rank._say, lambda line: Talk(sys.stderr).say(line)],
    ids=["console", "command", "rank", "talk"],
)
def test_each_line_for_people_is_folded_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    """Text of others never stands at the beginning of a line, and nothing is lost."""
    line = f'"{"a" * 62} sealift: all is well"'
    for stream, rows in ((io.StringIO(), 1), (Screen(), 2)):
        monkeypatch.setattr("sys.stderr", stream)
        tell(line)
        shown = stream.getvalue().removeprefix("\x1b[K").splitlines()
        assert len(shown) == rows
        assert shown[0].startswith('sealift: "a')
        assert all(each.startswith("    ") for each in shown[1:])
        assert " ".join(each.strip() for each in shown) == f"sealift: {line}"


def test_a_caller_is_told_and_no_child_inherits_it() -> None:
    """In a process of its own, as the descriptor belongs to a process."""
    program = (
        "import os\n"
        "from sealift.train.job.caller import CALLER, Caller\n"
        "number = int(os.environ[CALLER])\n"
        "Caller.attend()\n"
        "assert CALLER not in os.environ and not os.get_inheritable(number)\n"
        "assert Caller.hand_on() == ({CALLER: str(number)}, [number])\n"
        "Caller.tell('error', line='first\\nsecond', code='no-answer')\n"
    )
    reader, writer = os.pipe()
    with open(reader) as told:
        environment = {**os.environ, CALLER: str(writer)}
        ran = [sys.executable, "-c", program]
        subprocess.run(ran, env=environment, pass_fds=[writer], check=True)
        os.close(writer)
        lines = told.read().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"kind": "error", "line": "first\nsecond", "code": "no-answer"}
    ]


@pytest.mark.parametrize("number", ["", "no number", "1000000", "9" * 30])
def test_a_descriptor_that_is_not_there_is_no_caller(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CALLER, number)
    Caller.attend()
    Caller.tell("question", about="sign")
    assert Caller.hand_on() == ({}, [])


def test_each_of_several_numbers_has_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers = {"loss": 0.5, "alone.east.balanced_accuracy": 0.829}
    show({"level": "tee", "metrics": numbers}, as_json=False, width=10)
    assert capsys.readouterr().out.splitlines() == [
        "level       tee",
        "metrics     loss                          0.5",
        "            alone.east.balanced_accuracy  0.829",
    ]
    show({"metrics": {}}, as_json=False, width=10)
    assert capsys.readouterr().out == "metrics     none\n"
