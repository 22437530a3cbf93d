"""A software TPM, with an endorsement certificate by a maker of its own; to rehearse.

Its maker's root is nobody's: evidence of it never amounts to more than `development`.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from sealift.crypto.certificate import Certificate
from sealift.errors import UnavailableError

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


_TIMEOUT_S: Final = 60
_START_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Maker:
    """Who certifies software TPMs here.

    Attributes:
        folder: Keeps its keys and certificates; made by ``new_maker``.
    """

    folder: Path

    @property
    def root(self) -> Certificate:
        """The root of its certificates."""
        return self._read("swtpm-localca-rootca-cert.pem")

    @property
    def issuers(self) -> tuple[Certificate, ...]:
        """From the issuer of endorsement certificates up to the root."""
        return (self._read("issuercert.pem"), self.root)

    def _read(self, name: str) -> Certificate:
        return Certificate.from_pem((self.folder / name).read_bytes())


def new_maker(folder: Path) -> Maker:
    """A maker that keeps its files in ``folder``; its keys appear with its first TPM."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options").write_text(
        "--platform-manufacturer None\n--platform-version 1\n--platform-model None\n"
    )
    (folder / "localca.conf").write_text(
        f"statedir = {folder}\n"
        f"signingkey = {folder}/signkey.pem\n"
        f"issuercert = {folder}/issuercert.pem\n"
        f"certserial = {folder}/certserial\n"
    )
    (folder / "setup.conf").write_text(
        "create_certs_tool = /usr/bin/swtpm_localca\n"
        f"create_certs_tool_config = {folder}/localca.conf\n"
        f"create_certs_tool_options = {folder}/options\n"
    )
    return Maker(folder)


def manufacture(maker: Maker, state: Path) -> None:
    """Make a TPM, as its maker would: its state in ``state``, only SHA-256 registers.

    Raises:
        UnavailableError: ``guest-tpm``.
    """
    state.mkdir(parents=True)
    command = [
        *("swtpm_setup", "--tpm2", "--tpmstate", str(state)),
        *("--config", str(maker.folder / "setup.conf")),
        *("--create-ek-cert", "--ecc", "--pcr-banks", "sha256"),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stdout", b"") or b""
        raise UnavailableError(
            "no software TPM could be made",
            why=said.decode(errors="replace").strip()[-300:] or str(error),
            fix="apt-get install swtpm swtpm-tools",
            code="guest-tpm",
        ) from None


def tpm_command(state: Path, control: Path) -> list[str]:
    """The command that runs it until whoever uses ``control`` hangs up."""
    return [
        *("swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}"),
        *("--ctrl", f"type=unixio,path={control}", "--terminate"),
    ]


@contextlib.contextmanager
def running_tpm(state: Path, place: Path) -> Iterator[str]:
    """Run it at a socket; yields how ``open_link`` names that.

    Args:
        state: What ``manufacture`` made.
        place: Path of the socket; short, as all paths of sockets.

    Raises:
        UnavailableError: ``guest-tpm``, if it does not start.
    """
    command = [
        *("swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}"),
        *("--server", f"type=unixio,path={place}", "--flags", "not-need-init"),
    ]
    process = start_leashed(command)
    try:
        _await_socket(place, process)
        yield f"unix:{place}"
    finally:
        end_leashed(process, _TIMEOUT_S)


def _await_socket(place: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < until:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            if place.exists() and probe.connect_ex(str(place)) == 0:
                return
        time.sleep(0.005)
    raise UnavailableError("the software TPM did not start", code="guest-tpm")
