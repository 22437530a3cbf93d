"""``sealift view``: a page of a run on this machine, live, in a process without files."""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from sealift.cli.arguments import Parser
from sealift.cli.console import say
from sealift.errors import PeerError, UnavailableError, UsageError, require_value
from sealift.events import wall_clock
from sealift.release.files import write_whole
from sealift.train.job.journal import SUFFIX, JournalReader
from sealift.train.job.signals import followed
from sealift.train.sandbox import landlock
from sealift.view.kept import Papers
from sealift.view.live import LiveRun, replay
from sealift.view.livepage import fragments, report
from sealift.view.markup import element

LOOPBACK: Final = "127.0.0.1"
LOOK_S: Final = 0.5
REST: Final = 4  # times as long as drawing took: a fifth of one core at most
CODE_BYTES: Final = 15
NET_VERSION: Final = 4  # of Landlock, from which on it knows connections
PASSED: Final = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "VIRTUAL_ENV")


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "view",
        run=run,
        description="Shows a job's progress, results, rows in use, key releases, evidence and "
        "receipts, from the files in FOLDER. The page can be opened on this machine only, "
        "and asks for the code that this command prints.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the folder with job.toml, or of its run; default: .",
    )
    parser.add_argument("--port", type=int, default=0, help="default: any free port")


def add_view_argument(parser: Parser) -> None:
    """Add ``--view``."""
    parser.add_flag(
        "--view", "show the run on a page in the browser, like `sealift view`"
    )


def run(args: argparse.Namespace) -> int:
    """Show the page until a signal comes."""
    folder, job = _find_run(args.folder)
    show(folder, job, port=args.port)
    return 0


def _find_run(place: Path) -> tuple[Path, str]:
    """The folder of a job and the job's name: of the journal that was last written to.

    Raises:
        UsageError: ``no-run``.
    """
    folder = place.resolve()
    if folder.name.endswith(SUFFIX):
        return folder.parent, folder.name.removesuffix(SUFFIX)
    within = (
        filter(Path.is_file, each.glob(f"*{SUFFIX}"))
        for each in (folder, folder.parent)
    )
    found = next(filter(None, map(list, within)), [])
    if not found:
        raise UsageError(
            f"there is no run in {place}",
            why=f"the folder has no file *{SUFFIX}",
            code="no-run",
        )
    newest = max(found, key=lambda path: path.stat().st_mtime)
    return newest.parent, newest.name.removesuffix(SUFFIX)


@contextmanager
def view_beside(folder: Path, job: str, *, wanted: bool) -> Iterator[None]:
    """A page beside a run, in processes of its own, which end with it."""
    if not wanted:
        yield
        return
    journal = folder / f"{job}{SUFFIX}"
    words = [sys.executable, "-P", "-m", "sealift", "view", str(journal)]
    journal.touch(mode=0o600)
    process = subprocess.Popen(  # noqa: S603 - ourselves
        words, env={**os.environ, **followed()}, stderr=subprocess.PIPE
    )
    stderr = require_value(process.stderr, "it was asked for")
    sys.stderr.write(
        stderr.readline().decode()
    )  # the address and the code come before other lines
    sys.stderr.flush()
    rest = threading.Thread(target=_pass_on, args=(stderr,), daemon=True)
    rest.start()
    try:
        yield
    finally:
        time.sleep(2 * LOOK_S)  # so that the page shows the last events, too
        process.terminate()
        process.wait()
        rest.join()


def _pass_on(stream: IO[bytes]) -> None:
    with stream:
        for line in stream:
            sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()


def show(folder: Path, job: str, *, port: int = 0) -> None:
    """Draw what changes until a signal comes, or the page's process ends."""
    code = base64.b32encode(secrets.token_bytes(CODE_BYTES)).decode().lower()
    code = "-".join(code[at : at + 6] for at in range(0, len(code), 6))
    with _listen(port) as listening, ExitStack() as stack:
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        pipe = stack.enter_context(_Server(listening, code))
        say(f"the page is at {address}; the code is {code}")
        if landlock.version() < NET_VERSION:
            say(
                "warning: this kernel cannot keep the page's process from opening files "
                "or connections"
            )
        _open_browser(address, code, stack)
        _draw(pipe, JournalReader(folder / f"{job}{SUFFIX}"), Papers(folder, job))


def write_report(folder: Path, job: str, home: Path) -> Path:
    """What this party's page shows in the end, as a file beside its papers.

    Args:
        folder: Where the job lies.
        job: Its name.
        home: Where the papers lie, and the report will.

    Raises:
        UnavailableError: if it cannot be written.
    """
    run = replay(JournalReader(folder / f"{job}{SUFFIX}").read())
    kept = Papers(folder, job, home).keep(run)
    path = home / "report.html"
    write_whole(path, report(run, kept, wall_clock()).encode())
    return path


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        raise UnavailableError(
            f"cannot listen on {LOOPBACK}:{port}",
            why=error,
            fix="Choose another port",
            code="cannot-listen",
        ) from None


def _draw(pipe: _Server, journal: JournalReader, papers: Papers) -> None:
    shown: dict[str, str] = {}
    found = LiveRun()
    while True:
        began_s = time.monotonic()
        found = replay(journal.read(), found)
        drawn = fragments(found, papers.keep(found), wall_clock())
        for name, html in drawn.items():
            if shown.get(name) != html:
                shown[name] = html
                pipe.put(name, html)
        # A long run takes longer to read and to draw; it keeps the machine.
        time.sleep(max(LOOK_S, REST * (time.monotonic() - began_s)))


class _Server:
    """The process that speaks HTTP; a context manager."""

    def __init__(self, listening: socket.socket, code: str) -> None:
        descriptor = listening.fileno()
        words = [sys.executable, "-P", "-m", "sealift.view.server", str(descriptor)]
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            words,
            stdin=subprocess.PIPE,
            pass_fds=[descriptor],
            text=True,
            env={each: os.environ[each] for each in PASSED if each in os.environ},
        )
        self._write(code)

    def put(self, name: str, html: str) -> None:
        """Show a fragment.

        Raises:
            PeerError: ``role-ended``, if the process is gone.
        """
        self._write(json.dumps({"name": name, "html": html}))

    def _write(self, line: str) -> None:
        pipe = require_value(self._process.stdin, "it was asked for")
        try:
            pipe.write(line + "\n")
            pipe.flush()
        except OSError:
            raise PeerError("the page's process has ended", code="role-ended") from None

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            require_value(self._process.stdin).close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _open_browser(address: str, code: str, stack: ExitStack) -> None:
    """Where there is a screen: by a file of this user's alone, which brings the code."""
    if not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        return
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    form = element(
        "form",
        element("input", type="hidden", name="code", value=code),
        element("button", "Open the page"),
        method="post",
        action=f"{address}/enter",
    )
    script = element("script", "document.forms[0].submit()")
    write_whole(folder / "view.html", f"<!doctype html>{form}{script}".encode())
    webbrowser.open((folder / "view.html").as_uri())
