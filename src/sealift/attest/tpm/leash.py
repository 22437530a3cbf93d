"""Start a foreign program that ends when this process does, however this one ends.

Our own roles watch their parent themselves; swtpm and QEMU do not, and a `kill -9` would
leave them running. So a shell stands between: it holds the reading end of a pipe whose
only writing end is here, and ends the program when nobody holds that any more. (Linux's
parent-death signal is no use: it comes when the starting *thread* ends.)
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import IO, Any, Final

# The program gets no standard input; the leash is descriptor 3, for the watcher alone.
_SCRIPT: Final = """\
asked= program=
exec 3<&0 </dev/null
trap 'asked=1; kill $program 2>/dev/null' TERM INT
"$@" 3<&- & program=$!
[ -z "$asked" ] || kill $program 2>/dev/null
{ read -r _ <&3; kill -9 $program 2>/dev/null; } >/dev/null 2>&1 & watcher=$!
exec 3<&-
while :; do
    wait $program; code=$?
    kill -0 $program 2>/dev/null || break
done
kill -9 $watcher 2>/dev/null
exit $code
"""


def start_leashed(
    command: Sequence[str],
    *,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``command``; it gets SIGKILL when this process is gone.

    ``terminate`` reaches the program, ``wait`` and ``poll`` tell its exit code; end it
    with ``end_leashed``.

    Raises:
        OSError: if there is no shell.
    """
    return subprocess.Popen(  # noqa: S603 - a fixed script; the command is its argument
        ("/bin/sh", "-c", _SCRIPT, "leash", *command),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
    )


def end_leashed(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Ask the program to end, and end it when it has not after ``timeout_s``."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.stdin is not None:
            process.stdin.close()  # the leash is let go
        process.wait()
