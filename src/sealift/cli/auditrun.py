"""`sealift audit verify RUN`: prove the level of a run from what it left."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from sealift.attest.level import protects_nobody
from sealift.cli.attestfiles import parse_time
from sealift.cli.judging import equip_from
from sealift.codec import decode
from sealift.errors import UsageError
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.files import read_whole
from sealift.release.log.heads import log_owner
from sealift.release.log.verify import read_entries, read_head, verify_log
from sealift.train.levelproof import ShownRelease, head_of, prove_releases
from sealift.train.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    RunManifest,
    SignedManifest,
    verify_manifest,
)

NOBODY: Final = "; development keeps nobody out"


def is_run(path: Path) -> bool:
    """Whether a path is a run's folder or its manifest, not a log."""
    return path.is_dir() or path.name == MANIFEST_NAME


def verify_run(args: argparse.Namespace) -> None:
    """Verify a run's manifest, and the logs that are given, and say what they prove.

    Raises:
        UsageError: without the agreement.
        RefusedError: if anything does not hold.
    """
    if args.agreement is None:
        raise UsageError(
            "a run's level is proved under its agreement",
            fix="Name the signed agreement with --agreement FILE",
        )
    at_s = parse_time(args.at)
    verified = equip_from(args, load_verified(args.agreement), clock=lambda: at_s)
    manifest = _read(args.log, verified)
    shown = [_compare(manifest, path) for path in args.with_log]
    facts = _facts(manifest, verified, shown)
    if args.json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        for line in value if isinstance(value, list) else [value]:
            print(f"{name:<11}  {line}")


def _read(path: Path, verified: VerifiedAgreement) -> RunManifest:
    file = path / MANIFEST_NAME if path.is_dir() else path
    raw = read_whole(file, MAX_MANIFEST_BYTES)
    signed = decode(SignedManifest, raw, max_bytes=MAX_MANIFEST_BYTES)
    return verify_manifest(signed, verified)


def _compare(manifest: RunManifest, path: Path) -> ShownRelease:
    log = read_head(path).log
    verify_log(path, head_of(manifest, log))
    return prove_releases(manifest, log, read_entries(path))


def _facts(
    manifest: RunManifest, verified: VerifiedAgreement, shown: list[ShownRelease]
) -> dict[str, Any]:
    proven = "signature, evidence, agreement" + (", logs" if shown else "")
    nobody = NOBODY if protects_nobody(manifest.level) else ""
    return {
        "job": manifest.job,
        "agreement": verified.digest.to_text(),
        "level": manifest.level,
        "instance": manifest.instance.to_text(),
        "evidence": f"{manifest.evidence.kind} {manifest.evidence.digest}",
        "released": [_line(each, manifest, verified) for each in shown],
        "verified": proven + nobody,
    }


def _line(
    shown: ShownRelease, manifest: RunManifest, verified: VerifiedAgreement
) -> str:
    owner = log_owner(head_of(manifest, shown.log), verified).name
    on = " ".join(digest.to_text() for digest in shown.evidence)
    return f"{owner}: {', '.join(shown.resources)} on evidence {on}"
