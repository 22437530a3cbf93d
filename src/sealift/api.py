"""`sealift.host`, `sealift.join` and `sealift.run`: the commands, typed from Python.

::

    import sealift

    with sealift.host("recipe", ["north", "east"], folder="host") as meeting:
        print(meeting.invitations)  # to be mailed; each owner calls sealift.join
        model = meeting.wait()

Each call runs the very command of its name as a child process, in the folder in which
a person would type it: same words, same files, same errors, and the same call again goes
on. Nobody is asked at this process's terminal. Paths are as typed in that folder. What a
command says goes to this process's stderr, or line by line to ``talk``, which is called
in a thread of its own; what ``talk`` raises ends the command and is raised here.
Invitations, questions and errors come as data through a pipe (``train.job.caller``);
of what is printed, only the last line is read, and only if the command was ended before it
could say more. The child ends with this process, and with an exception that ends the
call. No torch here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TextIO, cast

from sealift.errors import SealiftError, UsageError, require_value, unreadable
from sealift.train.job.caller import CALLER
from sealift.train.job.roleprocesses import CLASS_FOR_EXIT, error_said
from sealift.train.job.signals import GRACE_S, followed
from sealift.train.output.results import PartResult, RunResult

Word = str | Path
Option = Word | int | bool | list[Word] | None
Talk = Callable[[str], object]

STOP_S: Final = GRACE_S + 3.0  # a command ends itself before


@dataclass(frozen=True, slots=True)
class Question:
    """What an owner is asked in a meeting.

    Attributes:
        about: What a yes does: ``compare`` the table with a declaration, or ``sign`` terms.
        digest: Of the declaration or of the terms, ``sha256:...``.
        lines: The sentences that the screen shows.
        words: To be compared with another party's, by telephone; empty before terms are there.
    """

    about: Literal["compare", "sign"]
    digest: str
    lines: tuple[str, ...]
    words: str = ""

    def __str__(self) -> str:
        """The question as a screen shows it."""
        words = [f"words     {self.words}"] if self.words else []
        return "\n".join([*self.lines, *words, f"digest    {self.digest}"])


def host(
    recipe: Word,
    invite: Sequence[str],
    *,
    folder: Word = ".",
    listen: str | None = None,
    address: str | None = None,
    days: int | None = None,
    talk: Talk | None = None,
) -> Meeting:
    """Call a meeting, as ``sealift host``; it runs on while its invitations are mailed.

    Args:
        recipe: A folder with recipe.py and schema.toml.
        invite: Parties, by name; the same when the call goes on.
        folder: Where it is typed, and where the model will lie.
        listen: ``HOST:PORT``.
        address: What parties dial, if it is not ``listen``.
        days: Until no key is released.
        talk: Gets each line for people; stderr without it.

    Raises:
        SealiftError: what the command said, if it ended before it had invited all.
    """
    names = [invite] if isinstance(invite, str) else [*invite]
    count = max(1, len(names))  # without a name the command says so
    more = {"listen": listen, "address": address, "days": days}
    words = ["host", recipe, "--invite", *names, *_typed(more)]
    command = _Command(words, folder, talk)
    try:
        invitations = command.wait_invitations(count)
        if len(invitations) < count:  # it failed; or its model lies there already
            command.wait()
    except BaseException:
        command.stop()
        raise
    return Meeting(command, Path(folder), invitations)


class Meeting:
    """A meeting that was called. Left as a context manager, it ends its command.

    Attributes:
        invitations: By party, the line to mail it: a secret until that party has used it.
            Empty if the model lies in the folder already.
    """

    def __init__(
        self, command: _Command, folder: Path, invitations: dict[str, str]
    ) -> None:
        self.invitations = invitations
        self._command, self._folder = command, folder

    def wait(self) -> Path:
        """Wait until the job is over; where its model lies.

        Raises:
            SealiftError: what the command said, with its exit code.
        """
        self._command.wait()
        return self._folder / "model.safetensors"

    @property
    def printed(self) -> list[str]:
        """What the command has printed by now: invitations, then the job's results."""
        return [*self._command.printed]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._command.stop()


def join(
    invitation: Word,
    data: Word,
    *,
    folder: Word = ".",
    heldout: Word | None = None,
    compare: str | None = None,
    sign: str | Callable[[Question], bool] | None = None,
    allow: Sequence[str] = (),
    talk: Talk | None = None,
) -> PartResult:
    """Take part in a meeting and its job, as ``sealift join``; what that prints.

    Args:
        invitation: A file with the line; or the line, which then crosses a pipe.
        data: This owner's rows, a .csv file.
        folder: This owner's, where it is typed.
        heldout: Rows that are measured on only.
        compare: The digest of the declaration that the table may be compared with.
        sign: The digest of the terms that are to be signed, and no others; both say, too, that
            the words were compared. Or what gets a ``Question`` and answers it: first whether
            to compare, then whether to sign. False declines: the others are told. What is
            declared or shown otherwise later is asked about again.
        allow: What may be signed although it is below the floor, as ``--allow`` names it.
        talk: Gets each line for people; stderr without it.

    Raises:
        UsageError: ``not-confirmed``, after the question was shown: without an answer to it, or
            if it is about something else than the digest.
        RefusedError: ``meeting-declined``, if a party, this one too, said no.
        SealiftError: whatever else the command said, with its exit code.
    """
    line = str(invitation)
    secret = line if line.startswith("sealift-invitation-") else ""  # else it is a file
    given = "-" if secret else invitation
    more: Mapping[str, Option] = {"heldout": heldout, "allow": [*allow]}
    words: list[Word] = ["join", given, data, *_typed(more)]
    if not callable(sign):
        answers = _typed({"compare_if": compare, "sign_if": sign})
        command = _Command([*words, *answers], folder, talk, secret)
        return cast("PartResult", _result(command))
    answer: dict[str, Option] = {"compare_if": compare}
    while True:
        command = _Command([*words, *_typed(answer)], folder, talk, secret, asks=True)
        try:
            return cast("PartResult", _result(command))
        except UsageError as error:
            if error.code != "not-confirmed" or command.question is None:
                raise
        asked = command.question
        yes = sign(asked)
        answer |= {f"{asked.about}_if": asked.digest} if yes else {"decline": True}


def run(
    job: Word, *, folder: Word = ".", talk: Talk | None = None, **options: Option
) -> RunResult:
    """Run a job, as ``sealift train``; what that prints with ``--json``.

    Args:
        job: A TOML file.
        folder: Where it is typed.
        talk: Gets each line for people; stderr without it.
        options: The command's own, ``passphrase_file`` for ``--passphrase-file``; one that is
            said several times is a list, a flag is True.

    Raises:
        SealiftError: what the command said, with its exit code.
    """
    words: list[Word] = ["train", job, "--json", *_typed(options)]
    return cast("RunResult", _result(_Command(words, folder, talk)))


def _typed(options: Mapping[str, Option]) -> Iterator[str]:
    """What a person would type for them."""
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif value is not None and value is not False:
            several = value if isinstance(value, list) else [value]
            yield from (f"{option}={each}" for each in several)


def _result(command: _Command) -> dict[str, Any]:
    """Wait for a command's end; the line of JSON that it printed last."""
    try:
        printed = command.wait()
    finally:
        command.stop()
    found: dict[str, Any] = json.loads(printed[-1])
    return found


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class _Command:
    """A command as a child process, and the threads that hear it.

    The kernel ends the child with the thread that started it, so that thread is one of
    ours and stays until the child has ended, whatever becomes of the caller's.

    Args:
        words: Behind ``sealift``.
        folder: Where it is typed.
        talk: Gets each line for people.
        given: What it reads from standard input, in one line.
        asks: Whether the caller answers questions; then the error of one that nobody has
            answered yet is not said to people.

    Attributes:
        printed: Lines of its stdout.
        question: The last one that it asked.

    Raises:
        UnavailableError: ``cannot-read``, if there is no such folder.
    """

    def __init__(
        self,
        words: Sequence[Word],
        folder: Word,
        talk: Talk | None,
        given: str = "",
        *,
        asks: bool = False,
    ) -> None:
        self._given, self._asks = given, asks
        self.printed: list[str] = []
        self.question: Question | None = None
        self._invitations: dict[str, str] = {}
        self._error: dict[str, Any] | None = None
        self._name = f"sealift {words[0]}"
        self._talk = talk or _say
        self._last = ""
        self._failure: Exception | None = None
        self._process: subprocess.Popen[str] | None = None
        self._changed = threading.Condition()
        self._told_all = False
        started = threading.Event()
        place = (list(map(str, words)), Path(folder), started)
        self._thread = threading.Thread(target=self._attend, args=place, daemon=True)
        self._thread.start()
        started.wait()

    def wait_invitations(self, count: int) -> dict[str, str]:
        """Lines to mail by party, once there are so many, or there will be no more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._told_all or len(self._invitations) >= count
            )
            return {**self._invitations}

    def wait(self) -> list[str]:
        """What it has printed, once it has ended well.

        Raises:
            SealiftError: what it said last, with its exit code; or what ``talk`` raised.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        if code := require_value(self._process).returncode:
            raise _error_told(self._error, code) or error_said(
                self._name, self._last, code
            )
        return self.printed

    def stop(self) -> None:
        """End it, if it runs."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
        self._thread.join()

    def _attend(self, words: list[str], folder: Path, started: threading.Event) -> None:
        ours, theirs = ExitStack(), ExitStack()
        try:
            heard, tells = os.pipe()
            theirs.callback(os.close, tells)
            told = ours.enter_context(os.fdopen(heard, encoding="utf-8"))
            self._process = process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-P", "-m", "sealift", *words],
                cwd=folder,
                env={**os.environ, **followed(), CALLER: str(tells)},
                pass_fds=[tells],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                process_group=0,  # Ctrl-C is for this process, which ends its children
            )
        except (OSError, ValueError) as error:  # ValueError: a zero byte in an argument
            self._failure = (
                unreadable(folder, error) if isinstance(error, OSError) else error
            )
            self._told_all = True
            ours.close()
            return
        finally:
            theirs.close()
            started.set()
        readers = [
            threading.Thread(target=self._read, args=(process,), daemon=True),
            threading.Thread(target=self._attend_events, args=(told,), daemon=True),
        ]
        for reader in readers:
            reader.start()
        with suppress(BrokenPipeError), require_value(process.stdin) as given:
            given.write(self._given)
        with require_value(process.stderr) as stderr:
            for line in stderr:
                self._hear(line.rstrip("\n"), process)
        for reader in readers:
            reader.join()
        process.wait()

    def _hear(self, line: str, process: subprocess.Popen[str]) -> None:
        self._last = line
        answered = self._asks and line.endswith("[not-confirmed]")
        if self._failure is not None or answered:
            return
        try:
            self._talk(line)
        except Exception as error:  # the caller's: raised where it waits
            self._failure = error
            process.terminate()

    def _read(self, process: subprocess.Popen[str]) -> None:
        with require_value(process.stdout) as stdout:
            self.printed.extend(line.rstrip("\n") for line in stdout)

    def _attend_events(self, told: TextIO) -> None:
        """Take in what the command tells its caller, until it closes the pipe."""
        try:
            with told:
                for line in told:
                    if line.endswith("\n"):  # else the command was killed as it wrote
                        self._take_in(json.loads(line))
        finally:
            with self._changed:
                self._told_all = True
                self._changed.notify_all()

    def _take_in(self, event: dict[str, Any]) -> None:
        with self._changed:
            match event.pop("kind"):
                case "invitation":
                    self._invitations[event["party"]] = event["line"]
                case "question":
                    lines = tuple(event.pop("lines"))
                    self.question = Question(lines=lines, **event)
                case "error":
                    self._error = event
            self._changed.notify_all()


def _error_told(told: dict[str, Any] | None, exit_code: int) -> SealiftError | None:
    """The error that a command ended with, of the class that has its exit code."""
    kind = CLASS_FOR_EXIT.get(exit_code)
    if told is None or kind is None:
        return None
    error = kind(told["line"], fix=None)
    error.code = told["code"]
    return error
