"""The folder of a run: sealed model, its wrapped key, the accelerator's signed manifest.

It appears whole, with its last file synced, or not at all: until then everything lies
in a hidden folder beside it, which goes when the run fails, at whatever point of the
writing; what cannot be removed is named. A hidden file beside it says that somebody
writes it, and stays when that process is killed: whoever comes next tidies up, or finds
that the run was complete already.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Self

from sealift.channel.record.outputfile import open_output, write_failed
from sealift.codec import decode, encode
from sealift.errors import (
    MalformedError,
    PolicyError,
    SealiftError,
    Stopping,
    UnavailableError,
    UsageError,
)
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import make_folder, read_whole, write_whole
from sealift.train.loop.held import Content, pieces_of
from sealift.train.loop.statistics import STATISTICS_NAME, totals_file
from sealift.train.output.manifest import (
    MANIFEST_NAME,
    RunManifest,
    SignedManifest,
    verify_manifest,
)
from sealift.train.output.results import RunResult
from sealift.train.output.runreceipt import demand_of
from sealift.train.plans import PlannedWork
from sealift.travel.orchestrator.job import RunSummary
from sealift.travel.peers import say_ranks
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import RUN_RECEIPT_NAME, Output

MAX_OUTPUT_BYTES = 1 << 34
MAX_MANIFEST_BYTES = 4 << 20
MAX_NAME_BYTES = 4096
_ANY_PARTIAL = "[0-9a-f]" * 8 + ".partial"
OUTPUT_NAMES = re.compile(
    r"model\.sealed|receipt\.json|model\.key(\.[a-z0-9-]{1,63})?\.json|model\.share\.[a-z0-9-]{1,63}\.json"
)

FAULT_NAMES = re.compile(r"fault\.[a-z0-9-]{1,63}\.json")


@dataclass(frozen=True, slots=True)
class RunName:
    """Which run writes a folder."""

    job: str
    agreement: Digest


def require_free(path: Path) -> None:
    """Demand that no earlier run is replaced.

    Raises:
        UsageError: ``output-exists``.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            f"the folder {path} already contains a run",
            fix="Choose another folder with --output, or move this folder away",
            code="output-exists",
        )


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
        refusal: Why the receipt of the run was left out; None if it was not.
    """

    def __init__(self, path: Path, name: RunName) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        self._written_bytes = 0
        self.refusal: SealiftError | None = None
        self._above = [each for each in path.parents if not each.exists()]
        with ExitStack() as undo:
            undo.callback(self._remove_above)
            make_folder(path.parent)
            marker = path.with_name(f".{path.name}.running")
            self._marker = undo.enter_context(_Marker(marker, encode(name)))
            left = self._marker.left_behind
            self.complete = left and (path / MANIFEST_NAME).is_file()
            if not self.complete:
                require_free(self.path)
                undo.push(self.__exit__)
                self._begin()
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self._remove_partials()
        left = self._partials()
        if isinstance(error, Stopping) and (self.path / MANIFEST_NAME).is_file():
            self._marker.leave()  # as if killed: not everybody heard that it is complete
            return
        left += self._marker.remove()
        if error is not None:
            self._remove_above()
        if left and error is None:
            raise _left(left)
        if left and isinstance(error, SealiftError):
            error.fix = _left(left).fix  # and not what was said of nothing

    def _begin(self) -> None:
        self._remove_partials()  # of a process that was killed
        try:
            self._partial.mkdir()
        except OSError as error:
            raise write_failed(self.path, error) from None
        self._marker.write()

    def _partials(self) -> list[Path]:
        """Nobody else's: whoever writes here holds the marker."""
        name = f".{glob.escape(self.path.name)}.{_ANY_PARTIAL}"
        found = {self._partial, *self.path.parent.glob(name)}
        return sorted(each for each in found if each.exists())

    def _remove_partials(self) -> None:
        for partial in self._partials():
            shutil.rmtree(partial, ignore_errors=True)

    def _remove_above(self) -> None:
        """The folders that were made for this one, as far as nothing lies in them."""
        for folder in self._above:
            with suppress(OSError):
                folder.rmdir()

    def clear(self) -> None:
        """Drop what was taken so far: the output comes from the beginning."""
        try:
            for path in self._partial.iterdir():
                path.unlink()
        except OSError as error:
            raise write_failed(self.path, error) from None
        self._written_bytes = 0

    def write_output(self, output: Output) -> None:
        """Take one piece of an output.

        Raises:
            MalformedError: for a name that is no output of ours, or too much of one.
            UnavailableError: if the disk is full.
        """
        if not OUTPUT_NAMES.fullmatch(output.name):
            raise _unknown_output()
        self._written_bytes += len(output.part)
        if self._written_bytes > MAX_OUTPUT_BYTES:
            raise MalformedError(
                "the accelerator sent an output file that is too long",
                code="bad-output",
            )
        try:
            with open(
                self._partial / output.name, "ab", opener=_made_if_missing
            ) as file:
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
            raise _unknown_output()
        path = self.path.with_name(f"{self.path.name}.{output.name}")
        write_whole(path, output.part)

    def add(self, name: str, content: Content) -> None:
        """Add a whole file.

        Raises:
            UnavailableError: if the disk is full.
        """
        with open_output(self._partial / name, replace=True) as output:
            for piece in pieces_of(content):
                output.write(piece)

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
        self,
        summary: RunSummary,
        agreement: VerifiedAgreement,
        settings: JobSettings,
        complete: Callable[[RunResult], None],
    ) -> RunResult:
        """Write the manifest and let the folder appear; the summary for stdout.

        A receipt that does not hold, or says something else than the manifest and the job,
        is left out: the model is there all the same, and ``refusal`` says why.

        Args:
            summary: What the accelerator says at its end.
            agreement: It must be of.
            settings: Of the job, as the accelerator was told them.
            complete: Adds what else belongs there, once the manifest verified.

        Raises:
            SealiftError: if the manifest is not by an accelerator of the agreement.
            PolicyError: ``other-run``: it is by one, of a run before this one.
            UnavailableError: if the disk is full.
        """
        finished = summary.finished
        signed = SignedManifest(finished.manifest, finished.signature)
        manifest = verify_manifest(signed, agreement)
        if manifest.ranks != summary.instances:
            people = say_ranks(agreement.agreement)
            first = people[0] if manifest.plan == "ddp" else "the accelerator"
            raise PolicyError(
                f"{first} sent the result of another run",
                why="its manifest has other instance keys than this run's accelerators",
                code="other-run",
                ranks=(0,),
            )
        try:
            demand_of(summary.receipt, agreement, settings=settings, manifest=manifest)
        except SealiftError as error:
            self.refusal = error
            (self._partial / RUN_RECEIPT_NAME).unlink(missing_ok=True)
        self.add(MANIFEST_NAME, encode(signed))
        if manifest.statistics:
            self.add(
                STATISTICS_NAME, totals_file(manifest.statistics, manifest.prepared)
            )
        found = _summary(
            self.path, manifest, agreement, summary.visits, summary.skipped
        )
        if less := _trained_less(manifest, settings, agreement):
            found["trained_less"] = less
        complete(found)
        self.appear()
        return found

    def size_bytes(self, name: str) -> int:
        """Of a file that was taken so far; 0 if there is none."""
        path = self._partial / name
        return path.stat().st_size if path.exists() else 0

    def summary_before(self, agreement: VerifiedAgreement) -> RunResult:
        """The summary of a run that was complete before.

        Raises:
            SealiftError: if its manifest is not by an accelerator of the agreement.
        """
        raw = read_whole(self.path / MANIFEST_NAME, MAX_MANIFEST_BYTES)
        manifest = verify_manifest(decode(SignedManifest, raw), agreement)
        visits = sum(manifest.visits.values())
        return _summary(self.path, manifest, agreement, visits, 0)


def _summary(
    path: Path,
    manifest: RunManifest,
    agreement: VerifiedAgreement,
    visits: int,
    skipped: int,
) -> RunResult:
    found: RunResult = {"run": str(path)}
    if manifest.plan != "ddp":
        found["visits"], found["skipped"] = visits, skipped
    found["level"] = manifest.level
    found["metrics"] = manifest.metrics
    if manifest.weights:
        found["weights"] = manifest.weights.to_text()
    if totals := manifest.statistics:
        found["prepared"] = manifest.prepared
        found["statistics"] = {n: each.nested() for n, each in totals.items()}
    alone = agreement.agreement.output_rule.baseline_alone
    if alone and manifest.plan == "ddp" and manifest.resumed:
        found["no_baselines"] = (
            "the run continued from a checkpoint, which has no model of one owner's rows alone"
        )
    return found


def _trained_less(
    manifest: RunManifest, settings: JobSettings, agreement: VerifiedAgreement
) -> str:
    """Owners whose rows were used less often than the job plans, of a model that left."""
    planned = PlannedWork.of(settings, agreement.agreement.resources).visits
    less = [
        f"{owner} {visits:,} of {planned[owner, 'train']:,} times"
        for owner, visits in manifest.visits.items()
        if visits < planned[owner, "train"]
    ]
    return ", ".join(less)


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing was begun: leave it as it was found."""
        if not self._file.closed and not self._found:
            self.remove()
        self._file.close()

    @property
    def left_behind(self) -> bool:
        """Whether a process that wrote the same run was killed."""
        return self._found == self._name

    def write(self) -> None:
        """This process's run is the one that is written."""
        try:
            descriptor = self._file.fileno()
            os.ftruncate(descriptor, 0)
            written = 0
            while written < len(self._name):  # on a disk with little room, in parts
                written += os.pwrite(descriptor, self._name[written:], written)
            os.fsync(descriptor)
        except OSError as error:
            raise write_failed(self._path, error) from None

    def remove(self) -> list[Path]:
        """Nobody writes the run any more; what could not be removed."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            return [self._path]
        finally:
            self._file.close()
        return []

    def leave(self) -> None:
        """It stays, and says to whoever comes that this process did not end."""
        self._file.close()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is writing {self._path.name}",
                fix=(
                    "Choose another folder with --output, or wait until that run has "
                    "ended"
                ),
                code="output-exists",
            ) from None
        self._found = os.pread(self._file.fileno(), MAX_NAME_BYTES, 0)


def _unknown_output() -> MalformedError:
    return MalformedError(
        "the accelerator sent an unknown output file", code="bad-output"
    )


def _made_if_missing(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _left(paths: Sequence[Path]) -> UnavailableError:
    return UnavailableError(
        "files of an unfinished run could not be removed",
        fix=f"Remove {', '.join(map(str, paths))}",
        code="cannot-write",
    )
