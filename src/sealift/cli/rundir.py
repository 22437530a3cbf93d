"""The folder of a run: sealed model, its wrapped key, the accelerator's signed manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sealift.codec import encode
from sealift.errors import MalformedError, UnavailableError
from sealift.release.files import write_whole
from sealift.train.manifest import MANIFEST_NAME, SignedManifest
from sealift.travel.messages import Output
from sealift.travel.orchestrator import RunSummary

MAX_OUTPUT_BYTES = 1 << 34
OUTPUT_NAMES = frozenset({"model.sealed", "model.key.json"})


class RunFolder:
    """Collects what the accelerator hands out; files appear whole or not at all.

    Args:
        path: Made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: dict[str, list[bytes]] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnavailableError(
                f"cannot make {path}", why=error.strerror or "", code="disk"
            ) from None

    def write_output(self, output: Output) -> None:
        """Take one piece of an output.

        Raises:
            MalformedError: for a name that is no output of ours, or too much of one.
        """
        if output.name not in OUTPUT_NAMES:
            raise MalformedError("an output of an unknown name", code="bad-output")
        parts = self._parts.setdefault(output.name, [])
        parts.append(output.part)
        if sum(map(len, parts)) > MAX_OUTPUT_BYTES:
            raise MalformedError("an output is too long", code="bad-output")
        if output.last:
            write_whole(self.path / output.name, b"".join(self._parts.pop(output.name)))

    def finish(self, summary: RunSummary) -> dict[str, Any]:
        """Write the manifest; return the summary for stdout."""
        finished = summary.finished
        signed = SignedManifest(finished.manifest, finished.signature)
        write_whole(self.path / MANIFEST_NAME, encode(signed))
        manifest = json.loads(finished.manifest)
        return {
            "run": str(self.path),
            "visits": summary.visits,
            "skipped": summary.skipped,
            "level": manifest["level"],
            "metrics": manifest["metrics"],
            "weights": manifest["weights"],
        }
