"""The folder of a run: sealed model, its wrapped key, the accelerator's signed manifest.

It appears whole, with its last file synced, or not at all: until then everything lies
in a hidden folder beside it, which goes when the run fails. A hidden file beside it says
that somebody writes it, and stays when that process is killed: whoever comes next tidies
up, or finds that the run was complete already.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Self

from sealift.channel.outputfile import write_failed
from sealift.codec import decode, encode
from sealift.errors import MalformedError, UsageError
from sealift.ids import Digest
from sealift.release.files import make_folder, read_whole, write_whole
from sealift.release.signed import VerifiedAgreement
from sealift.train.manifest import (
    MANIFEST_NAME,
    RunManifest,
    SignedManifest,
    verify_manifest,
)
from sealift.train.totals import STATISTICS_NAME, totals_file
from sealift.travel.messages import Output
from sealift.travel.orchestrator import RunSummary

MAX_OUTPUT_BYTES = 1 << 34
MAX_MANIFEST_BYTES = 4 << 20
MAX_NAME_BYTES = 4096
_ANY_PARTIAL = "[0-9a-f]" * 8 + ".partial"
OUTPUT_NAMES = re.compile(
    r"model\.sealed|model\.key(\.[a-z0-9-]{1,63})?\.json|model\.share\.[a-z0-9-]{1,63}\.json"
)

FAULT_NAMES = re.compile(r"fault\.[a-z0-9-]{1,63}\.json")


@dataclass(frozen=True, slots=True)
class RunName:
    """Which run writes a folder."""

    job: str
    agreement: Digest


class RunFolder:
    """Collects what a run hands out.

    Args:
        path: Must be free: an earlier run is never replaced.
        name: Of the run, for whoever comes after this process was killed.

    Raises:
        UsageError: ``output-exists``.
        UnavailableError: if the folder cannot be made.

    Attributes:
        complete: Whether this very run was complete before, and only its process was
            killed before it could end: nothing is written then.
    """

    def __init__(self, path: Path, name: RunName) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        self._written_bytes = 0
        make_folder(path.parent)
        self._marker = _Marker(path.with_name(f".{path.name}.running"), encode(name))
        self.complete = self._marker.left_behind and (path / MANIFEST_NAME).is_file()
        try:
            if not self.complete:
                self._begin()
                self._marker.write()
        except BaseException:
            self._marker.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._marker.remove()

    def _begin(self) -> None:
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise _holds_a_run(self.path)
        for partial in self.path.parent.glob(f".{self.path.name}.{_ANY_PARTIAL}"):
            shutil.rmtree(partial, ignore_errors=True)  # its process was killed
        try:
            self._partial.mkdir()
        except OSError as error:
            raise write_failed(self.path, error) from None

    def clear(self) -> None:
        """Drop what was taken so far: the output comes from the beginning."""
        for path in self._partial.iterdir():
            path.unlink()
        self._written_bytes = 0

    def write_output(self, output: Output) -> None:
        """Take one piece of an output.

        Raises:
            MalformedError: for a name that is no output of ours, or too much of one.
            UnavailableError: if the disk is full.
        """
        if not OUTPUT_NAMES.fullmatch(output.name):
            raise MalformedError("an output of an unknown name", code="bad-output")
        self._written_bytes += len(output.part)
        if self._written_bytes > MAX_OUTPUT_BYTES:
            raise MalformedError("an output is too long", code="bad-output")
        try:
            with (self._partial / output.name).open("ab") as file:
                file.write(output.part)
        except OSError as error:
            raise write_failed(self.path / output.name, error) from None

    def keep_fault(self, output: Output) -> None:
        """Where a recipe failed, sealed for one party, beside the folder: RUN.fault.NAME.json.

        Raises:
            MalformedError: for anything else.
            UnavailableError: if the disk is full.
        """
        if not FAULT_NAMES.fullmatch(output.name) or not output.last:
            raise MalformedError("an output of an unknown name", code="bad-output")
        path = self.path.with_name(f"{self.path.name}.{output.name}")
        write_whole(path, output.part)

    def add(self, name: str, content: bytes) -> None:
        """Add a whole file.

        Raises:
            UnavailableError: if the disk is full.
        """
        write_whole(self._partial / name, content)

    def appear(self) -> None:
        """Nothing more comes: give the folder its name.

        Raises:
            UnavailableError: if the disk is full.
        """
        try:
            for path in self._partial.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            self._partial.rename(self.path)
        except OSError as error:
            raise write_failed(self.path, error) from None

    def finish(
        self, summary: RunSummary, agreement: VerifiedAgreement
    ) -> dict[str, Any]:
        """Write the manifest and let the folder appear; the summary for stdout.

        Raises:
            SealiftError: if the manifest is not by an accelerator of the agreement.
            UnavailableError: if the disk is full.
        """
        finished = summary.finished
        signed = SignedManifest(finished.manifest, finished.signature)
        manifest = verify_manifest(signed, agreement)
        self.add(MANIFEST_NAME, encode(signed))
        if manifest.statistics:
            self.add(
                STATISTICS_NAME, totals_file(manifest.statistics, manifest.prepared)
            )
        self.appear()
        return self._summary(manifest, summary.visits, summary.skipped)

    def summary_before(self, agreement: VerifiedAgreement) -> dict[str, Any]:
        """The summary of a run that was complete before.

        Raises:
            SealiftError: if its manifest is not by an accelerator of the agreement.
        """
        raw = read_whole(self.path / MANIFEST_NAME, MAX_MANIFEST_BYTES)
        manifest = verify_manifest(decode(SignedManifest, raw), agreement)
        return self._summary(manifest, sum(manifest.visits.values()), 0)

    def _summary(
        self, manifest: RunManifest, visits: int, skipped: int
    ) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "visits": visits,
            "skipped": skipped,
            "level": manifest.level,
            "metrics": manifest.metrics,
            **_weights(manifest),
            **_statistics(manifest),
        }


class _Marker:
    """A file that one process holds while it writes a run, and removes at its end."""

    def __init__(self, path: Path, name: bytes) -> None:
        self._path = path
        self._name = name
        self._found = b""
        try:
            self._file = FileIO(path, "r+", opener=_made_if_missing)
        except OSError as error:
            raise write_failed(path, error) from None
        try:
            self._hold()
        except BaseException:
            self._file.close()
            raise

    @property
    def left_behind(self) -> bool:
        """Whether a process that wrote the same run was killed."""
        return self._found == self._name

    def write(self) -> None:
        """This process's run is the one that is written."""
        try:
            descriptor = self._file.fileno()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._name, 0)
            os.fsync(descriptor)
        except OSError as error:
            raise write_failed(self._path, error) from None

    def close(self) -> None:
        """Leave it as it was found."""
        if not self._found:
            self._path.unlink(missing_ok=True)
        self._file.close()

    def remove(self) -> None:
        """Nobody writes the run any more."""
        self._path.unlink(missing_ok=True)
        self._file.close()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process writes {self._path.name}",
                fix="Name another folder with --output, or wait for that run",
                code="output-exists",
            ) from None
        self._found = os.pread(self._file.fileno(), MAX_NAME_BYTES, 0)


def _made_if_missing(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)


def _holds_a_run(path: Path) -> UsageError:
    return UsageError(
        f"{path} holds a run already",
        fix="Name another folder with --output, or move that one away",
        code="output-exists",
    )


def _weights(manifest: RunManifest) -> dict[str, Any]:
    return {"weights": manifest.weights.to_text()} if manifest.weights else {}


def _statistics(manifest: RunManifest) -> dict[str, Any]:
    if not manifest.statistics:
        return {}
    found = {name: each.nested() for name, each in manifest.statistics.items()}
    return {"prepared": manifest.prepared, "statistics": found}
