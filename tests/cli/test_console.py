"""Questions at a terminal."""

from __future__ import annotations

import os
import threading

import pytest

from sealift.cli.console import ask_afresh, ask_line


@pytest.mark.parametrize(
    ("ask", "answer"), [(ask_afresh, "no"), (ask_line, "y")], ids=["afresh", "control"]
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
