"""The door of the command line: bugs, signals, closed pipes, and what gets imported."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import sealift
from sealift.cli import main as door
from sealift.cli.main import NOUNS, parser_adder

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sealift.__file__).parent.parent)}


def break_audit(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A noun whose verb raises something unexpected."""

    def add_parser(subparsers: object) -> None:
        noun = subparsers.add_parser("audit")  # type: ignore[attr-defined]
        noun.set_defaults(run=run)

    def run(args: object) -> int:
        raise error

    broken = types.SimpleNamespace(add_parser=add_parser)
    monkeypatch.setattr(door.importlib, "import_module", lambda name: broken)
    monkeypatch.setattr(door, "install_stop_signals", lambda: None)


def test_a_bug_is_one_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    break_audit(monkeypatch, KeyError("row 17 of a patient"))
    assert door.main(["audit"]) == 1
    said = capsys.readouterr()
    (log,) = (tmp_path / "sealift").iterdir()
    assert said.out == ""
    assert said.err == (
        f"sealift: a bug in sealift: KeyError. Please report it with {log} [bug]\n"
    )
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert "patient" not in said.err + log.read_text()


def test_a_bug_without_a_place_for_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "file"))
    break_audit(monkeypatch, RuntimeError())
    assert door.main(["audit"]) == 1
    assert capsys.readouterr().err.endswith(
        "its traceback could not be written [bug]\n"
    )


def test_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the process, what it asked for, had, and could have had."""
    break_audit(monkeypatch, MemoryError("Unable to allocate 7.45 GiB"))
    assert door.main(["audit"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "sealift: the process sealift audit ran out of memory: Unable to allocate 7.45 GiB; it had "
    )
    assert re.search(
        r"it had [\d.]+ [MG]B, and [\d.]+ [MG]B are free on this machine", line
    )
    assert line.endswith("then start the same command again [no-memory]")


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`sealift key new` that waits at a terminal for a passphrase."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "sealift", "key", "new", "ada"],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=tmp_path, env=ENVIRONMENT, start_new_session=True,
    ) as child:  # fmt: skip
        os.close(theirs)
        try:
            wait_for_prompt(child)
            yield child, ours
        finally:
            child.kill()
            os.close(ours)


def wait_for_prompt(child: subprocess.Popen[bytes]) -> None:
    assert child.stderr is not None
    prompt = b""
    while not prompt.endswith(b": "):
        byte = child.stderr.read(1)
        assert byte, prompt
        prompt += byte


@pytest.mark.distributed
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_in_their_code_and_leave_nothing(
    asking: tuple[subprocess.Popen[bytes], int], tmp_path: Path, number: signal.Signals
) -> None:
    child, _ = asking
    child.send_signal(number)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 128 + number
    assert out == b""
    assert err.strip() == f"sealift: stopped by {number.name}".encode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.distributed
def test_two_different_passphrases(
    asking: tuple[subprocess.Popen[bytes], int], tmp_path: Path
) -> None:
    child, terminal = asking
    os.write(terminal, b"correct horse\n")
    wait_for_prompt(child)  # what is typed before it is thrown away
    os.write(terminal, b"battery staple\n")
    _, err = child.communicate(timeout=300)
    assert child.returncode == 2
    assert b"[passphrases-differ]" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.distributed
def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "sealift", "explain"],
        stdout=writer, stderr=subprocess.PIPE, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("noun", NOUNS)
def test_every_noun_has_its_module(noun: str) -> None:
    assert callable(parser_adder(noun))


LIGHT = ("agreement", "audit", "explain", "key", "receipt")


@pytest.mark.distributed
@pytest.mark.parametrize("noun", LIGHT)
def test_trust_core_nouns_load_nothing_heavy(noun: str) -> None:
    program = (
        "import sys\n"
        "from sealift.cli.main import main\n"
        f"main([{noun!r}, '--help'])\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'rich'} & set(sys.modules)\n"
        "sys.exit(9 if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, env=ENVIRONMENT,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
