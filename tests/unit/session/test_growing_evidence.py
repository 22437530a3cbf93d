"""Renewals of a session continue growing evidence: only what is new travels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from sealift.attest import Claims, Evidence, Level
from sealift.attest.level import TrustVector
from sealift.attest.reference import AppraisalBasis
from sealift.attest.verifier import VerifierKind, check, check_bound
from sealift.errors import EvidenceError, SealiftError
from sealift.session.session import Session
from tests.sim.attested import Cast, both

MEDIA_TYPE = "application/vnd.example.growing"


@dataclass
class GrowingAttester:
    """Shows a list: 32 bytes bound, then the first entry's number, then entries."""

    entries: bytearray = field(default_factory=lambda: bytearray(b"abc"))
    sizes: list[int] = field(default_factory=list)
    media_type: str = MEDIA_TYPE

    def collect(self, bound: bytes) -> Evidence:
        return self._show(bound, 0)

    def continue_from(self, earlier: Evidence, bound: bytes) -> Evidence:
        return self._show(bound, earlier.body[32] + len(earlier.body) - 33)

    def _show(self, bound: bytes, first: int) -> Evidence:
        body = bound + bytes([first]) + bytes(self.entries[first:])
        self.sizes.append(len(body))
        return Evidence("growing", MEDIA_TYPE, body)


def examine_growing(
    evidence: Evidence, basis: AppraisalBasis, earlier: Claims | None = None
) -> Claims:
    first, entries = evidence.body[32], evidence.body[33:]
    if first != (earlier.progress if earlier else 0):
        raise EvidenceError("a gap in the list", code="list-gap")
    clean = check(b"!" not in entries, "list", "", "", "bad")
    return Claims(
        level=Level.DEVELOPMENT,
        attester="growing",
        trust=TrustVector(hardware=97),
        checks=(check_bound(evidence.body[:32], basis.bound, "bound"), clean),
        progress=first + len(entries),
    )


GROWING = VerifierKind(
    frozenset({Level.DEVELOPMENT}),
    lambda: examine_growing,
    grows=True,
    result_media_type=MEDIA_TYPE,
)


@pytest.fixture
def attester() -> GrowingAttester:
    return GrowingAttester()


@pytest.fixture
def cast(attester: GrowingAttester) -> Cast:
    cast = Cast()
    assert cast.of_accelerator.appraiser
    appraiser = replace(cast.of_accelerator.appraiser, verifiers={MEDIA_TYPE: GROWING})
    cast.of_accelerator = replace(cast.of_accelerator, appraiser=appraiser)
    cast.accelerator = replace(cast.accelerator, attester=attester)
    return cast


def test_only_new_entries_travel(cast: Cast, attester: GrowingAttester) -> None:
    here, there = cast.sessions()
    for added in (b"", b"de", b"f"):
        attester.entries += added
        both(lambda: renew(here), lambda: there.receive(60))
    assert attester.sizes == [36, 33, 35, 34]
    assert here.peer.result is not None
    assert here.peer.result.claims.progress == len(b"abcdef")


def renew(session: Session) -> None:
    session.rekey()
    session.send(b"on")


def test_a_bad_new_entry_ends_the_session(
    cast: Cast, attester: GrowingAttester
) -> None:
    here, there = cast.sessions()
    attester.entries += b"!"
    with pytest.raises(SealiftError) as refusal:
        both(here.rekey, lambda: there.receive(60))
    assert refusal.value.code == "bad"


def test_a_fresh_session_starts_from_the_first_entry(
    cast: Cast, attester: GrowingAttester
) -> None:
    cast.sessions()
    attester.entries += b"d"
    cast.sessions()
    assert attester.sizes == [36, 37]


def test_a_gap_is_refused(cast: Cast, attester: GrowingAttester) -> None:
    """Positive control of the verifier: entries left out do not go unnoticed."""
    here, there = cast.sessions()
    attester.continue_from = lambda earlier, bound: attester._show(bound, 4)  # type: ignore[method-assign]
    attester.entries += b"!e"
    with pytest.raises(SealiftError) as refusal:
        both(here.rekey, lambda: there.receive(60))
    assert refusal.value.code == "list-gap"
