"""A host as any machine can stand in for one: a software TPM, and a program for a kernel.

``software_host`` runs one. Quotes, keys, enrolment and lists are what a real host shows;
that the list names what really ran is this program's word, and the TPM's maker is our
own, so it amounts to ``development`` and nothing else (rule H11).

``python -m tests.worlds.softwarehost`` measures files into a software TPM by hand,
as Linux's IMA would when they are executed: it writes a line for each file into a list,
and extends register 10 with it. Whoever runs it can leave a file out, so it protects
nobody; the guest that ``make guest`` builds has a real kernel.
Source: the kernel's Documentation/security/IMA-templates.rst.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from sealift.attest.reference import ImaReferences, TpmReferences, TpmRoot
from sealift.attest.tpm.attester import TpmAttester, TpmSources
from sealift.attest.tpm.client import TpmClient, open_link
from sealift.attest.tpm.evidence import IMA_PCR
from sealift.attest.tpm.ima import template_data
from sealift.attest.tpm.registers import extend, read_registers
from sealift.crypto.certificate import Certificate
from sealift.crypto.hash import HashName, digest
from sealift.errors import SealiftError, UnavailableError
from sealift.ids import Digest

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
    return subprocess.Popen(
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
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
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
def _running_tpm(state: Path, place: Path) -> Iterator[str]:
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


_BOOT_PCRS: Final = range(10)


def binary_entry(content: bytes, template: bytes = b"ima-ng") -> bytes:
    """One entry of ``binary_runtime_measurements``."""
    return (
        IMA_PCR.to_bytes(4, "little")
        + digest("sha1", content)
        + len(template).to_bytes(4, "little")
        + template
        + len(content).to_bytes(4, "little")
        + content
    )


@dataclass(slots=True)
class StandInKernel:
    """Extends register 10 and writes the list, as Linux does.

    Attributes:
        client: The TPM.
        ima_list: The list.
        banks: Of the TPM, each of which is extended.
        allowed: What ran and may run, as reference values.
    """

    client: TpmClient
    ima_list: Path
    banks: Sequence[HashName] = ("sha256",)
    allowed: dict[str, tuple[Digest, ...]] = field(default_factory=dict)

    def boot(self) -> None:
        """Begin a list: first what registers 0 to 9 amount to."""
        self.ima_list.write_bytes(b"")
        found = read_registers(self.client, "sha256", _BOOT_PCRS)
        values = b"".join(found[number] for number in _BOOT_PCRS)
        self.measure("boot_aggregate", digest("sha256", values))

    def run(self, path: str, content: bytes, *, allow: bool = True) -> None:
        """A file was executed."""
        named = Digest.of(content)
        if allow:
            self.allowed[path] = (*self.allowed.get(path, ()), named)
        self.measure(path, named.raw)

    def measure(self, path: str, file_digest: bytes) -> None:
        """The same for a file whose digest is known."""
        content = template_data(
            "ima-ng", b"sha256:\0" + file_digest, path.encode() + b"\0"
        )
        with self.ima_list.open("ab") as file:
            file.write(binary_entry(content))
        named = {bank: digest(bank, content) for bank in self.banks}
        extend(self.client, IMA_PCR, named)


def software_references(
    attester: TpmAttester, kernel: StandInKernel, root: Certificate, must: str
) -> TpmReferences:
    """References that accept this host, and all that its kernel allowed so far.

    Args:
        root: Of its TPM's maker.
        must: The program without which it is another host.
    """
    own = Certificate(attester.enrolment_request().certificates[0])
    return TpmReferences(
        roots=(TpmRoot(name="software", key=root.spki_digest, operator="software"),),
        endorsement_keys=(own.spki_digest,),
        pcrs={str(number): (bytes(32),) for number in _BOOT_PCRS},
        ima=ImaReferences(allow=dict(kernel.allowed), must=(must,)),
        revocation="none",  # its maker is a program and revokes nothing
    )


@dataclass(frozen=True, slots=True)
class SoftwareHost:
    """One running host.

    Attributes:
        maker: Vouches for its TPM.
        kernel: Measures what it is told.
    """

    maker: Maker
    attester: TpmAttester
    kernel: StandInKernel

    def references(self) -> TpmReferences:
        """References that accept it; the first that it ran is what it must run."""
        must = next(iter(self.kernel.allowed))
        return software_references(self.attester, self.kernel, self.maker.root, must)


@contextmanager
def software_host(
    folder: Path, programs: Iterable[tuple[str, bytes]]
) -> Iterator[SoftwareHost]:
    """A host that booted and ran ``programs``.

    Args:
        folder: Empty; for the TPM, its maker and the list. Its path must be short.
        programs: Path and content of files that ran since.

    Raises:
        UnavailableError: ``guest-tpm``, without swtpm.
    """
    maker = new_maker(folder / "maker")
    manufacture(maker, folder / "tpm")
    list_file = folder / "ima"
    list_file.write_bytes(b"")
    with (
        _running_tpm(folder / "tpm", folder / "s") as place,
        TpmAttester(
            TpmSources(
                tpm=place,
                state=folder / "state",
                event_log=None,
                ima_list=list_file,
                issuers=tuple(each.der for each in maker.issuers),
            )
        ) as attester,
    ):
        kernel = StandInKernel(attester.client, list_file)
        kernel.boot()
        for path, content in programs:
            kernel.run(path, content)
        yield SoftwareHost(maker, attester, kernel)


def main(arguments: list[str]) -> int:
    """Measure the files; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.worlds.softwarehost",
        description="Measures files into a software TPM, as a kernel with IMA would "
        "when they are executed. It protects nobody.",
    )
    parser.add_argument("--tpm", required=True, metavar="PLACE", help="unix:PATH")
    parser.add_argument(
        "--list", type=Path, required=True, metavar="FILE", help="begun if missing"
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    args = parser.parse_args(arguments)
    try:
        _measure_all(args.tpm, args.list, args.files)
    except SealiftError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _measure_all(tpm: str, ima_list: Path, files: Sequence[Path]) -> None:
    with closing(TpmClient(open_link(tpm))) as client:
        client.begin()
        kernel = StandInKernel(client, ima_list)
        if not ima_list.exists():
            kernel.boot()
        for path in files:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise UnavailableError(
                    f"cannot read {path}", why=error, code="disk"
                ) from None
            kernel.run(str(path.absolute()), content)
            sys.stdout.write(f"measured {path}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
