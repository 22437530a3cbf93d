"""What the verbs of `sealift attest` read: evidence, bound values, times, bundles."""

from __future__ import annotations

import argparse
import datetime as dt
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.attest.collateral import MAX_BUNDLE_BYTES, Collateral, parse_bundle
from sealift.attest.evidence import BOUND_BYTES, MAX_BODY_BYTES, Evidence
from sealift.codec import decode
from sealift.errors import MalformedError, UsageError
from sealift.release.files import read_whole

MAX_FILE_BYTES: Final = 2 * MAX_BODY_BYTES  # the body in base64, and a little


@dataclass(frozen=True, slots=True)
class LoadedEvidence:
    """Evidence of a file.

    Attributes:
        evidence: As it is, or wrapped.
        form: What else the file was; empty for a file of ours.
    """

    evidence: Evidence
    form: str = ""


def add_collateral_argument(parser: argparse.ArgumentParser) -> None:
    """Add the bundle."""
    parser.add_argument("--collateral", type=Path, metavar="FILE", help="a bundle")


def add_time_argument(parser: argparse.ArgumentParser) -> None:
    """Add the time to judge at."""
    parser.add_argument("--at", metavar="TIME", help="judge at this time (RFC 3339)")


def load_evidence(path: Path) -> LoadedEvidence:
    """The evidence of a file.

    Raises:
        MalformedError: ``bad-evidence-file``.
    """
    raw = read_whole(path, MAX_FILE_BYTES)
    try:
        return LoadedEvidence(decode(Evidence, raw, max_bytes=MAX_FILE_BYTES))
    except MalformedError as error:
        raise MalformedError(
            f"{path} is not a file of evidence",
            why=str(error),
            fix="Give a file that `sealift attest collect` wrote",
            code="bad-evidence-file",
        ) from None


def load_collateral(path: Path | None) -> Collateral:
    """The bundle of a file; nothing without one."""
    if path is None:
        return Collateral()
    return parse_bundle(read_whole(path, 2 * MAX_BUNDLE_BYTES))


def parse_bound(text: str) -> bytes:
    """The 32 bytes that evidence must carry.

    Raises:
        UsageError: for anything else.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != BOUND_BYTES:
        raise UsageError(f"--bound takes {BOUND_BYTES} bytes in hex", code="usage")
    return raw


def parse_time(text: str | None, option: str = "--at") -> float:
    """Seconds since 1970 of a time that a person wrote; without one, now.

    Raises:
        UsageError: if it is no time.
    """
    if text is None:
        return time.time()  # noqa: TID251 - the end of the command line
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text[:40]!r} is no time", fix="Write 2026-01-31 or RFC 3339"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp()


def require_absent(path: Path) -> None:
    """Refuse to replace a file.

    Raises:
        UsageError: ``exists``.
    """
    if path.exists():
        raise UsageError(
            f"{path} exists", fix="Name another file with -o", code="exists"
        )
