"""N7: a key that its party changed leaves, ends and withdraws nothing any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.codec import MAX_INTEGER, encode
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import Label
from sealift.errors import SealiftError
from sealift.release.agreement import Agreement, Board
from sealift.release.agreement import successors as line
from sealift.release.agreement.signed import SignedAgreement, verify
from sealift.release.agreement.statements import (
    CLOCKS_DIFFER_S,
    SignedStatement,
    Statement,
    StatementKind,
    save_statement,
)
from sealift.release.agreement.successors import SignedLink
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.client import obey
from tests.sim.owners import NOW_S, now
from tests.worlds.consortium import Consortium, make_consortium

BOARD = Board(members=("ada", "bern", "cleo"), threshold=2, veto=("ada",))
KINDS: tuple[StatementKind, ...] = ("veto", "cancel", "leave")


class Rotated:
    """Ada's key was stolen, and she changed it: all signed number 2, which names another."""

    def __init__(self) -> None:
        first = make_consortium()
        agreement = replace(first.agreement, board=BOARD)
        self.first: Consortium = replace(first, agreement=agreement)
        self.stolen = first.identities["ada"]
        self.fresh = create_identity("ada")
        ada, *self.others = agreement.parties
        self.second = replace(
            agreement,
            number=2,
            predecessor=agreement.digest,
            parties=(replace(ada, sign=self.fresh.public_key), *self.others),
        )
        former = {"ada": self.stolen.sign(Label.AGREEMENT, encode(self.second))}
        self.links = (
            self._link(agreement, self.stolen, {}),
            self._link(self.second, self.fresh, former),
        )

    def signed(self) -> SignedAgreement:
        first, last = self.links
        return SignedAgreement(
            self.second, last.signatures, last.former, before=(first,)
        )

    def without_ada(self) -> SignedAgreement:
        """Number 3, by the two others: it needs ada's veto, or that she left."""
        third = replace(
            self.second,
            number=3,
            predecessor=self.second.digest,
            parties=tuple(self.others),
            resources=tuple(r for r in self.second.resources if r.owner != "ada"),
            board=Board(members=("bern", "cleo"), threshold=2),
        )
        signatures = self._signatures(third, "bern", "cleo")
        return SignedAgreement(third, signatures, before=self.links)

    def _link(
        self, agreement: Agreement, ada: Identity, former: dict[str, bytes]
    ) -> SignedLink:
        signatures = self._signatures(agreement, "bern", "cleo")
        signatures["ada"] = ada.sign(Label.AGREEMENT, encode(agreement))
        return SignedLink(agreement, signatures, former)

    def _signatures(self, agreement: Agreement, *names: str) -> dict[str, bytes]:
        message = encode(agreement)
        identities = self.first.identities
        return {name: identities[name].sign(Label.AGREEMENT, message) for name in names}


@pytest.fixture(scope="module")
def world() -> Rotated:
    return Rotated()


def say(
    world: Rotated, kind: StatementKind, key: Identity, at_s: float = NOW_S
) -> SignedStatement:
    said = Statement(
        kind=kind,
        line=world.second.name,
        number=2,
        digest=world.second.digest,
        party="ada",
        at_s=int(at_s),
    )
    return SignedStatement(said, key.sign(Label.STATEMENT, encode(said)))


def code_of(signed: SignedAgreement, *statements: SignedStatement) -> str:
    try:
        verify(signed, statements).require_owner_signed("ada")
    except SealiftError as error:
        return error.code
    return ""


def test_a_former_key_ends_nothing(world: Rotated) -> None:
    stolen = [say(world, kind, world.stolen) for kind in KINDS]
    assert code_of(world.signed(), *stolen) == ""


def test_the_key_of_now_does(world: Rotated) -> None:
    """Control of the one above."""
    assert code_of(world.signed(), say(world, "leave", world.fresh)) == "owner-left"
    assert (
        code_of(world.signed(), say(world, "veto", world.fresh)) == "agreement-vetoed"
    )


def test_a_former_key_strips_no_veto(world: Rotated) -> None:
    third = world.without_ada()
    assert code_of(third, say(world, "leave", world.stolen)) == "veto-unsigned"
    # control: ada herself left
    assert code_of(third, say(world, "leave", world.fresh)) == "not-a-party"


def test_where_every_key_of_the_line_counts_it_does(
    world: Rotated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the ones above."""

    def all_keys(name: str, links: tuple[SignedLink, ...]) -> object:
        found = (each.agreement.party(name).sign for each in links)
        return set(found)

    monkeypatch.setattr(line, "_lasting_keys", all_keys)
    assert code_of(world.signed(), say(world, "leave", world.stolen)) == "owner-left"


def test_before_the_change_it_was_the_key_of_now(world: Rotated) -> None:
    """Who knows number 1 alone cannot know that its key was changed."""
    said = replace(
        say(world, "leave", world.stolen).body,
        number=1,
        digest=world.first.agreement.digest,
    )
    signed = SignedStatement(said, world.stolen.sign(Label.STATEMENT, encode(said)))
    assert code_of(world.first.signed(), signed) == "owner-left"
    assert code_of(world.signed(), signed) == ""  # she signed number 2 after it


def test_brokers_keep_none_of_a_former_key(world: Rotated, tmp_path: Path) -> None:
    verified = verify(world.signed())
    desk = StatementsInForce(verified, tmp_path, clock=now)
    stolen, own = (say(world, "leave", key) for key in (world.stolen, world.fresh))
    with pytest.raises(SealiftError) as refused:
        desk.admit(stolen)
    assert refused.value.code == "former-key"
    assert list(tmp_path.iterdir()) == []
    save_statement(stolen, tmp_path)  # who writes here may also do worse
    assert desk.verified().backing.left == frozenset()
    assert obey(verified, (stolen,)).backing.left == frozenset()
    desk.admit(own)
    assert desk.verified().backing.left == {"ada"}


@pytest.mark.parametrize("at_s", [NOW_S + CLOCKS_DIFFER_S + 1, MAX_INTEGER])
def test_nothing_is_said_from_the_future(
    world: Rotated, tmp_path: Path, at_s: float
) -> None:
    """It could be replaced by nothing that its party says later."""
    desk = StatementsInForce(verify(world.signed()), tmp_path, clock=now)
    said = say(world, "leave", world.fresh, at_s)
    with pytest.raises(SealiftError) as refused:
        desk.admit(said)
    assert refused.value.code == "statement-early"
    path = save_statement(said, tmp_path)
    with pytest.raises(SealiftError) as refused:
        desk.verified()
    assert refused.value.code == "statement-early"
    path.unlink()
    desk.admit(say(world, "leave", world.fresh, NOW_S + CLOCKS_DIFFER_S))  # control
