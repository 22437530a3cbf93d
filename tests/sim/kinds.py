"""The verifier behind a kind of evidence, its room loaded."""

from __future__ import annotations

from sealift.attest.kinds import VERIFIER_FOR_MEDIA_TYPE, Kind
from sealift.attest.verifier import Verifier


def loaded(media_type: str) -> Verifier:
    kind = VERIFIER_FOR_MEDIA_TYPE[media_type]
    assert isinstance(kind, Kind)
    return kind.load()
