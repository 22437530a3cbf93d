"""``python -m sealift.lab.demo.standinkernel``: a program in the place of Linux's IMA.

A software TPM beside a running system has no kernel that measures into it. This program
does what IMA would: it writes a line for each file that was "executed" into a list, and
extends register 10 with it. Whoever runs it can leave a file out, so it protects nobody;
it makes the steps of an attested host visible where there is none. The guest that
``make guest`` builds has a real kernel.
Source: the kernel's Documentation/security/IMA-templates.rst.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from sealift.attest.attesters.tpm.client import TpmClient
from sealift.attest.attesters.tpm.link import open_link
from sealift.attest.attesters.tpm.registers import extend, read_registers
from sealift.attest.formats.ima import template_data
from sealift.attest.tpm import IMA_PCR
from sealift.crypto.hash import HashName, digest
from sealift.errors import SealiftError, UnavailableError

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


class StandInKernel:
    """Extends register 10 and writes the list, as Linux does.

    Args:
        client: The TPM.
        ima_list: The list; made if it is missing.
        banks: Of the TPM, each of which is extended.
    """

    def __init__(
        self, client: TpmClient, ima_list: Path, banks: Sequence[HashName] = ("sha256",)
    ) -> None:
        self.client = client
        self.ima_list = ima_list
        self._banks = banks

    def boot(self) -> None:
        """Begin a list: first what registers 0 to 9 amount to."""
        self.ima_list.write_bytes(b"")
        found = read_registers(self.client, "sha256", _BOOT_PCRS)
        values = b"".join(found[number] for number in _BOOT_PCRS)
        self.measure("boot_aggregate", digest("sha256", values))

    def measure(self, path: str, file_digest: bytes) -> None:
        """One file was executed."""
        content = template_data(
            "ima-ng", b"sha256:\0" + file_digest, path.encode() + b"\0"
        )
        with self.ima_list.open("ab") as file:
            file.write(binary_entry(content))
        named = {bank: digest(bank, content) for bank in self._banks}
        extend(self.client, IMA_PCR, named)


def main(arguments: list[str]) -> int:
    """Measure the files; the exit code."""
    args = _parser().parse_args(arguments)
    try:
        _measure_all(args.tpm, args.list, args.files)
    except SealiftError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sealift.lab.demo.standinkernel",
        description="Measures files into a software TPM, as a kernel with IMA would "
        "when they are executed. It protects nobody.",
    )
    parser.add_argument("--tpm", required=True, metavar="PLACE", help="unix:PATH")
    parser.add_argument(
        "--list", type=Path, required=True, metavar="FILE", help="begun if missing"
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    return parser


def _measure_all(tpm: str, ima_list: Path, files: Sequence[Path]) -> None:
    with closing(TpmClient(open_link(tpm))) as client:
        client.begin()
        kernel = StandInKernel(client, ima_list)
        if not ima_list.exists():
            kernel.boot()
        for path in files:
            file_digest = digest("sha256", _read(path))
            kernel.measure(str(path.absolute()), file_digest)
            sys.stdout.write(f"measured {path}\n")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnavailableError(
            f"cannot read {path}", why=str(error.strerror), code="disk"
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
