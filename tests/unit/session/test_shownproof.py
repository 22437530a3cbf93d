from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.crypto.sign import SigningKey
from sealift.errors import MalformedError, PolicyError, RefusedError, SealiftError
from sealift.session.shownproof import ShownProof
from sealift.session.transcript import Side
from tests.sim.attested import Cast, run_handshake


@pytest.fixture
def cast() -> Cast:
    return Cast()


def test_what_a_peer_showed_verifies_later(cast: Cast) -> None:
    here, there = run_handshake(cast.initiator(), cast.responder())
    shown = ShownProof.parse(here.shown)
    assert shown.side is Side.RESPONDER
    assert shown.verify(cast.of_accelerator) == here.peer
    assert ShownProof.parse(there.shown).verify(cast.of_holder) == there.peer


def test_it_is_bound_to_one_instance(cast: Cast) -> None:
    here, _ = run_handshake(cast.initiator(), cast.responder())
    shown = ShownProof.parse(here.shown)
    other = replace(shown.responder, instance=SigningKey.generate().public_key)
    with pytest.raises(RefusedError):
        replace(shown, responder=other).verify(cast.of_accelerator)


def test_it_satisfies_no_other_policy(cast: Cast) -> None:
    here, _ = run_handshake(cast.initiator(), cast.responder())
    with pytest.raises(PolicyError):
        ShownProof.parse(here.shown).verify(cast.of_holder)


def test_the_other_side_cannot_be_claimed(cast: Cast) -> None:
    """One's own proof is not the peer's."""
    here, _ = run_handshake(cast.initiator(), cast.responder())
    shown = ShownProof.parse(here.shown)
    with pytest.raises(SealiftError):
        replace(shown, side=Side.INITIATOR).verify(cast.of_holder)


def test_garbage_is_malformed() -> None:
    with pytest.raises(MalformedError):
        ShownProof.parse(b"{}")
