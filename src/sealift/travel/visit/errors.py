"""Errors that an accelerator tells: said again by the same name, with the same exit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    PolicyError,
    SealiftError,
    StaleError,
    UnavailableError,
    UsageError,
)
from sealift.travel.visit.messages import FailedError

# Refusals that do not depend on the holder: asking again changes nothing.
NEVER_LATER: Final = frozenset(
    {
        "no-such-resource",
        "too-many-visits",
        "bad-rows",
        "off-grid",
        "not-planned",
        "bad-row",
    }
)
_KIND_FOR_CODE: Final[Mapping[str, type[SealiftError]]] = {
    "output-withheld": PolicyError,
    "owner-left": PolicyError,
    "agreement-vetoed": PolicyError,
    "agreement-cancelled": PolicyError,
    "lease-silent": PolicyError,
    "statistics-withheld": JobError,
    "bad-entry": MalformedError,
    "bundle-hides-module": MalformedError,
    "bad-recipe": JobError,
    "recipe-error": JobError,
    "not-finite": JobError,
    "state-changed": JobError,
    "buffer-too-large": UnavailableError,
    "cargo-not-agreed": PolicyError,
    "other-shape": PolicyError,
    "checkpoint-stale": StaleError,
    "checkpoint-rolled-back": StaleError,
    "checkpoint-damaged": IntegrityError,
    "checkpoint-forked": IntegrityError,
    "checkpoint-other-job": PolicyError,
    "instance-superseded": PolicyError,
    "bad-checkpoint": MalformedError,
    "checkpoint-version": MalformedError,
    "checkpoint-missing": UnavailableError,
    "no-descriptors": UnavailableError,
    "no-memory": UnavailableError,
    "disk-full": UnavailableError,
    "cannot-write": UnavailableError,
    "nothing-to-resume": UsageError,
}


def job_failed(code: str, line: str) -> SealiftError:
    """The error of a job that a visit's work ended: of the kind that its code names."""
    kind = _KIND_FOR_CODE.get(code, JobError)
    return kind("the job failed", why=line, code=code)


@contextmanager
def named_errors() -> Iterator[None]:
    """Where the accelerator says why the job ends, end for the same reason."""
    try:
        yield
    except FailedError as error:
        kind = _KIND_FOR_CODE.get(error.failed.code)
        if kind is None:
            raise
        told = kind(error.failed.line)
        told.code = error.failed.code
        raise told from None
