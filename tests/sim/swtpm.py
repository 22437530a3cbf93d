"""Software TPMs: really manufactured, really answering, one process each.

Manufacturing takes a second, so it happens once a run and number; every TPM that a
test starts is a copy of that state. Two numbers are two machines by one maker.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

from sealift.attest.tpm.client import Command, TpmClient
from sealift.crypto.certificate import Certificate, certificates_from_pem
from tests.sim.runfolder import made_once


@dataclass(frozen=True)
class Maker:
    """Who certifies the software TPMs of this run."""

    folder: Path

    @property
    def root(self) -> Certificate:
        return self._read("swtpm-localca-rootca-cert.pem")

    @property
    def issuers(self) -> tuple[bytes, ...]:
        return (self._read("issuercert.pem").der, self.root.der)

    def _read(self, name: str) -> Certificate:
        return certificates_from_pem((self.folder / "ca" / name).read_bytes())[0]


def maker(name: str) -> Maker:
    """A maker of TPMs, with a root of its own."""
    return Maker(made_once(f"swtpm-{name}", _establish))


def _establish(folder: Path) -> None:
    (folder / "ca").mkdir()
    options = folder / "options"
    options.write_text(
        "--platform-manufacturer None\n--platform-version 1\n--platform-model None\n"
    )
    (folder / "localca.conf").write_text(
        f"statedir = {folder}/ca\nsigningkey = {folder}/ca/signkey.pem\n"
        f"issuercert = {folder}/ca/issuercert.pem\n"
        f"certserial = {folder}/ca/certserial\n"
    )
    (folder / "setup.conf").write_text(
        "create_certs_tool = /usr/bin/swtpm_localca\n"
        f"create_certs_tool_config = {folder}/localca.conf\n"
        f"create_certs_tool_options = {options}\n"
    )


def manufactured(number: int, by: str) -> Path:
    """The state of a TPM as it leaves its maker."""
    settings = maker(by).folder / "setup.conf"

    def manufacture(folder: Path) -> None:
        subprocess.run(
            [
                *("swtpm_setup", "--tpm2", "--tpmstate", str(folder)),
                *("--config", str(settings), "--create-ek-cert", "--ecc"),
                *("--pcr-banks", "sha256,sha384"),
            ],
            check=True,
            capture_output=True,
        )

    return made_once(f"swtpm-{by}-{number}", manufacture)


@dataclass
class SoftwareTpm:
    """One running TPM. ``reset`` is a power cycle; the state stays."""

    folder: Path
    maker: Maker
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def name(self) -> str:
        """How ``open_link`` names it."""
        return f"unix:{self.socket}"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                *("swtpm", "socket", "--tpm2"),
                *("--tpmstate", f"dir={self.folder}"),
                *("--server", f"type=unixio,path={self.socket}"),
                *("--flags", "not-need-init"),
            ],
            stderr=subprocess.DEVNULL,
        )
        _wait_for(self.socket, self.process)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(300)
            self.process = None

    def reset(self) -> None:
        self.stop()
        self.start()


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < until:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            if path.exists() and probe.connect_ex(str(path)) == 0:
                return
        time.sleep(0.005)
    raise RuntimeError(f"swtpm did not start: {process.poll()}")


@contextlib.contextmanager
def software_tpm(number: int = 0, by: str = "maker") -> Iterator[SoftwareTpm]:
    """A running TPM, fresh from its maker."""
    with tempfile.TemporaryDirectory(prefix="tpm-") as folder:
        shutil.copytree(manufactured(number, by), folder, dirs_exist_ok=True)
        tpm = SoftwareTpm(Path(folder), maker(by))
        tpm.start()
        try:
            yield tpm
        finally:
            tpm.stop()


class TestCommand(IntEnum):
    """Commands that the product has no use for."""

    __test__ = False

    EVICT_CONTROL = 0x120
    SHUTDOWN = 0x145
    SIGN = 0x15D
    HASH = 0x17D


def run_command(
    client: TpmClient, command: TestCommand, *args: Any, **kwargs: Any
) -> Any:
    """Run a command of the tests' own."""
    return client.run(cast(Command, command), *args, **kwargs)


def shut_down(client: TpmClient) -> None:
    """What Linux says to a TPM before the power goes."""
    run_command(client, TestCommand.SHUTDOWN, parameters=bytes(2))
