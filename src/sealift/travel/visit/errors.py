"""What the other end says of a failure.

What an accelerator tells is said again by the same name, with the same exit. A party that
gives up says so in the session, whichever path its frames take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from sealift.channel.transport.transport import peer_timeout
from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
    StaleError,
    UnavailableError,
    UsageError,
    require_kind,
)
from sealift.session.session import Session
from sealift.travel.visit.messages import Failed, FailedError, parse_message

TIMEOUT: Final = peer_timeout().code
SERVER_GONE: Final = "server-gone"  # of shares: whoever asked it lives, and gives up
# Asking again changes nothing; another file than agreed is not swapped back in a minute.
NEVER_LATER: Final = frozenset({
    "no-such-resource", "content-mismatch", "too-many-visits", "bad-rows", "off-grid",
    "not-planned", "bad-row", "privacy-budget-spent",
})  # fmt: skip
_CODES: Final[Mapping[type[SealiftError], tuple[str, ...]]] = {
    PolicyError: (
        "output-withheld", "owner-left", "agreement-vetoed", "agreement-cancelled",
        "lease-silent", "cargo-not-agreed", "other-shape", "checkpoint-other-job",
        "instance-superseded", "identity-differs", "servers-not-apart",
    ),
    JobError: (
        "statistics-withheld", "bad-recipe", "recipe-error", "not-finite",
        "state-changed", "other-operations", "operand-not-finite",
        "products-exceed-limits",
    ),
    MalformedError: (
        "bad-entry", "bundle-hides-module", "bad-checkpoint", "checkpoint-version",
        "bad-share",
    ),
    PeerError: (SERVER_GONE,),
    RefusedError: ("server-refuses",),
    UnavailableError: (
        "buffer-too-large", "checkpoint-missing", "no-descriptors", "no-memory",
        "disk-full", "cannot-write", "no-device", "device-lost",
    ),
    StaleError: (
        "checkpoint-stale", "checkpoint-rolled-back",
    ),
    IntegrityError: (
        "checkpoint-damaged", "checkpoint-forked", "wrong-product", "product-wrapped",
    ),
    UsageError: (
        "nothing-to-resume", "buffer-unsaid",
    ),
}  # fmt: skip
_KIND_FOR_CODE: Final = {code: kind for kind, codes in _CODES.items() for code in codes}


def job_failed(code: str, line: str) -> SealiftError:
    """The error of a job that a visit's work ended: of the kind that its code names."""
    kind = _KIND_FOR_CODE.get(code, JobError)
    return kind("the job failed", why=line, fix=None, code=code)


@contextmanager
def named_errors() -> Iterator[None]:
    """Where the accelerator says why the job ends, end for the same reason."""
    try:
        yield
    except FailedError as error:
        kind = _KIND_FOR_CODE.get(error.failed.code)
        if kind is None:
            raise
        told = kind(error.failed.line, fix=None)
        told.code = error.failed.code
        raise told from None


@contextmanager
def last_words(session: Session, wait_s: float) -> Iterator[None]:
    """A direct path that ends: its other end may have said why, in the session."""
    try:
        yield
    except PeerError as error:
        incoming = None
        if error.code != TIMEOUT:
            with suppress(PeerError):
                incoming = session.receive_any(wait_s)
        if incoming is None or incoming.raw:
            raise
        raise gave_up(incoming.payload) from None


def gave_up(message: bytes) -> SealiftError:
    """The error that a message is where a frame should be."""
    try:
        failed = parse_message(message, (Failed,))
    except MalformedError:
        return MalformedError(
            "a raw frame was expected",
            why="a message came instead",
            code="unexpected-frame",
        )
    failed = require_kind(failed, Failed)
    return FailedError(failed)
