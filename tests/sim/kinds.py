"""The verifier behind a kind of evidence, its room loaded; and with roots of a test's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from sealift.attest.policy import VERIFIER_FOR_MEDIA_TYPE
from sealift.attest.verifier import Examine, VerifierKind


def loaded(media_type: str) -> Examine:
    return VERIFIER_FOR_MEDIA_TYPE[media_type].load()


def with_roots(media_type: str, **roots: Any) -> VerifierKind:
    kind = VERIFIER_FOR_MEDIA_TYPE[media_type]
    return replace(kind, load=lambda: partial(kind.load(), **roots))
