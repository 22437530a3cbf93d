"""Prove afterwards at which level a run was made: its manifest, and the owners' logs.

The manifest's evidence binds the key that signed it; it is judged again, with the
agreement. An owner's log shows what its broker released to that instance, on which
evidence and at which level: it must say the same as the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

from sealift.crypto.sign import PublicKey
from sealift.errors import IntegrityError, PolicyError
from sealift.ids import Digest
from sealift.release.log.entries import Entry, LogEntry, SignedTreeHead
from sealift.train.output.manifest import RunManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRelease:
    """What one owner's log says of a run.

    Attributes:
        log: The key that signs it.
        resources: What its broker released to the instance.
        evidence: Digests of the evidence that it was released on.
    """

    log: PublicKey
    resources: tuple[str, ...]
    evidence: tuple[Digest, ...]


def head_of(manifest: RunManifest, log: PublicKey) -> SignedTreeHead:
    """The head of a log that the accelerator was shown, from a verified manifest.

    Raises:
        IntegrityError: ``other-log``: that log released nothing to this run.
    """
    for head in manifest.heads:
        if head.log == log:
            return head
    raise IntegrityError(
        "the manifest shows no head of this log",
        why="its broker released no key to this run",
        fix="Give the log of an owner whose rows the run read",
        code="other-log",
    )


def prove_releases(
    manifest: RunManifest, log: PublicKey, entries: Iterable[Entry]
) -> ShownRelease:
    """Compare a verified log with a verified manifest.

    Args:
        manifest: Verified.
        log: The key that signs the log.
        entries: All of its entries, the log verified against ``head_of``.

    Raises:
        PolicyError: ``other-level``: a key went to this instance at another level.
        IntegrityError: ``no-release``: none went to it at all.
    """
    releases = [each for each in entries if _went_to(each, manifest)]
    if not releases:
        raise IntegrityError(
            "the log shows no release to the instance that signed the manifest",
            code="no-release",
        )
    for each in releases:
        if each.level != manifest.level:
            raise PolicyError(
                f"{each.subject} was released at another level than the manifest's",
                why=f"{each.level}; the manifest says {manifest.level}",
                code="other-level",
            )
    return ShownRelease(
        log=log,
        resources=tuple(each.resource for each in releases),
        evidence=tuple(dict.fromkeys(e.evidence for e in releases if e.evidence)),
    )


def _went_to(entry: Entry, manifest: RunManifest) -> TypeGuard[LogEntry]:
    return (
        isinstance(entry, LogEntry)
        and entry.kind == "release"
        and entry.instance == manifest.instance
        and entry.agreement == manifest.agreement
    )
