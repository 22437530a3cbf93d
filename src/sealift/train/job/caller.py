"""The program that runs a command, and commands that go on for another one.

`sealift.api` runs commands, and hears what they have for it as lines of JSON through a pipe,
so that it has to read nothing out of sentences.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import ClassVar, Final, TextIO

from sealift.release.files import handed_on
from sealift.train.job.signals import followed, stop_postponed

CALLER: Final = "SEALIFT_CALLER"  # names the descriptor of the pipe
STOP_S: Final = 10.0  # a command ends itself before


class Caller:
    """The program that runs this command, if there is one that hears."""

    _stream: ClassVar[TextIO | None] = None

    @classmethod
    def attend(cls) -> None:
        """Find it; a process that this one starts does only where it is handed on."""
        number = os.environ.pop(CALLER, "")
        if number.isdecimal():
            with suppress(OSError, OverflowError):  # a number of no descriptor
                os.set_inheritable(int(number), False)
                cls._stream = open(int(number), "w", encoding="utf-8")  # noqa: SIM115

    @classmethod
    def hand_on(cls) -> tuple[dict[str, str], list[int]]:
        """Variables and descriptors by which a command that goes on for this one finds it."""
        if cls._stream is None:
            return {}, []
        return {CALLER: str(cls._stream.fileno())}, [cls._stream.fileno()]

    @classmethod
    def tell(cls, kind: str, **fields: object) -> None:
        """Tell it an event; it may be gone."""
        if cls._stream is not None:
            with suppress(OSError):
                cls._stream.write(json.dumps({"kind": kind, **fields}) + "\n")
                cls._stream.flush()


def long_command(words: list[str], *, prints: bool = True) -> int:
    """A long command, as anybody would type it, which says itself what is wrong; its exit code.

    It ends with this one. Without ``prints`` its results, on standard output, are not shown.
    """
    command = [sys.executable, "-P", "-m", "sealift", *words]
    caller, descriptors = Caller.hand_on()
    with stop_postponed():
        process = subprocess.Popen(  # noqa: S603 - ourselves
            command,
            stdout=None if prints else subprocess.DEVNULL,
            env={**os.environ, **followed(), **caller},
            pass_fds=[*handed_on(command), *descriptors],
        )
    try:
        code = process.wait()
    except BaseException:  # asked to stop: so is it
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait()
        raise
    return code if code >= 0 else 128 - code  # as shells say a signal
