"""The folder of a run: sealed model, its wrapped key, the accelerator's signed manifest.

It appears whole, with its last file synced, or not at all: until then everything lies
in a hidden folder beside it, which goes when the run fails.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Self

from sealift.channel.outputfile import write_failed
from sealift.codec import encode
from sealift.errors import MalformedError, UsageError
from sealift.release.files import write_whole
from sealift.release.signed import VerifiedAgreement
from sealift.train.manifest import MANIFEST_NAME, SignedManifest, verify_manifest
from sealift.travel.messages import Output
from sealift.travel.orchestrator import RunSummary

MAX_OUTPUT_BYTES = 1 << 34
OUTPUT_NAMES = frozenset({"model.sealed", "model.key.json"})


class RunFolder:
    """Collects what a run hands out.

    Args:
        path: Must be free: an earlier run is never replaced.

    Raises:
        UsageError: ``output-exists``.
        UnavailableError: if the folder cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        self._written_bytes = 0
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(
                f"{path} holds a run already",
                fix="Name another folder with --output, or move that one away",
                code="output-exists",
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._partial.mkdir()
        except OSError as error:
            raise write_failed(path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)

    def write_output(self, output: Output) -> None:
        """Take one piece of an output.

        Raises:
            MalformedError: for a name that is no output of ours, or too much of one.
            UnavailableError: if the disk is full.
        """
        if output.name not in OUTPUT_NAMES:
            raise MalformedError("an output of an unknown name", code="bad-output")
        self._written_bytes += len(output.part)
        if self._written_bytes > MAX_OUTPUT_BYTES:
            raise MalformedError("an output is too long", code="bad-output")
        try:
            with (self._partial / output.name).open("ab") as file:
                file.write(output.part)
        except OSError as error:
            raise write_failed(self.path / output.name, error) from None

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
        self.appear()
        return {
            "run": str(self.path),
            "visits": summary.visits,
            "skipped": summary.skipped,
            "level": manifest.level,
            "metrics": manifest.metrics,
            "weights": manifest.weights.to_text(),
        }
