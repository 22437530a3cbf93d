"""What ends an agreement, and what its line must show: vetoes, departures, forks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sealift.codec import encode
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import Label
from sealift.errors import SealiftError, StaleError
from sealift.release.agreement import Agreement, Board
from sealift.release.agreement import successors as line
from sealift.release.agreement.signed import SignedAgreement, verify
from sealift.release.agreement.statements import (
    SignedStatement,
    StatementKind,
    sign_statement,
)
from sealift.release.agreement.successors import SignedLink
from tests.sim.owners import NOW_S
from tests.worlds.consortium import OUTPUT, Consortium, make_consortium

BOARD = Board(members=("ada", "bern", "cleo"), threshold=2)


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    """Two of three members may bring a successor into force."""
    first = make_consortium()
    return replace(first, agreement=replace(first.agreement, board=BOARD))


def veto_of(*names: str) -> Consortium:
    first = make_consortium()
    board = replace(BOARD, veto=names)
    return replace(first, agreement=replace(first.agreement, board=board))


def say(consortium: Consortium, kind: StatementKind, name: str) -> SignedStatement:
    return sign_statement(
        kind, consortium.agreement, consortium.identities[name], NOW_S
    )


def refused(amended: Consortium, *signers: str, statements: Any = ()) -> SealiftError:
    with pytest.raises(SealiftError) as caught:
        verify(amended.signed(*signers), statements)
    return caught.value


# --- ended ------------------------------------------------------------------------


def test_vetoed_once_is_vetoed_for_ever() -> None:
    first = veto_of("ada")
    after = first.successor()
    vetoed = say(after, "veto", "ada")
    assert verify(after.signed())  # where the veto is not known
    assert refused(after, statements=[vetoed]).code == "agreement-vetoed"
    # nothing follows it, and the one before stands
    assert refused(after.successor(), statements=[vetoed]).code == "agreement-vetoed"
    assert verify(first.signed(), [vetoed])


def test_a_veto_is_named_before_missing_signatures() -> None:
    """Nobody is sent to sign what nobody can bring into force."""
    after = veto_of("ada").successor()
    assert refused(after, "bern").code == "veto-unsigned"
    vetoed = say(after, "veto", "ada")
    assert refused(after, "bern", statements=[vetoed]).code == "agreement-vetoed"


def test_a_veto_without_a_right_to_it_is_none() -> None:
    first = veto_of("ada")
    after = first.successor()
    assert verify(after.signed(), [say(after, "veto", "bern")])


def test_without_a_board_everybody_has_a_veto() -> None:
    first = make_consortium()
    vetoed = say(first, "veto", "bern")
    assert refused(first, statements=[vetoed]).code == "agreement-vetoed"


def test_cancelled_by_the_threshold(consortium: Consortium) -> None:
    one, two = (say(consortium, "cancel", name) for name in ("ada", "bern"))
    assert verify(consortium.signed(), [one, one])
    assert refused(consortium, statements=[one, two]).code == "agreement-cancelled"
    after = consortium.successor()
    assert refused(after, statements=[one, two]).code == "agreement-cancelled"


@pytest.mark.parametrize("kind", ["veto", "cancel", "leave"])
def test_nobody_speaks_for_another(consortium: Consortium, kind: StatementKind) -> None:
    said = say(consortium, kind, "bern")
    forged = replace(said, body=replace(said.body, party="ada"))
    assert refused(consortium, statements=[forged]).code == "statement-altered"
    other = replace(said.body, kind="leave" if kind == "veto" else "veto")
    forged = replace(said, body=other)
    assert refused(consortium, statements=[forged]).code == "statement-altered"


def test_a_signature_under_the_agreement_is_no_statement(
    consortium: Consortium,
) -> None:
    said = say(consortium, "leave", "bern")
    bern = consortium.identities["bern"]
    wrong = bern.sign(Label.AGREEMENT, encode(said.body))
    forged = replace(said, signature=wrong)
    assert refused(consortium, statements=[forged]).code == "statement-altered"


def test_statements_of_another_line_do_not_count(consortium: Consortium) -> None:
    elsewhere = replace(
        consortium, agreement=replace(consortium.agreement, name="another")
    )
    assert verify(consortium.signed(), [say(elsewhere, "veto", "ada")])


def link_by(agreement: Agreement, *signers: Identity) -> SignedLink:
    message = encode(agreement)
    signatures = {each.name: each.sign(Label.AGREEMENT, message) for each in signers}
    return SignedLink(agreement, signatures)


def thrown_out() -> tuple[Consortium, SignedAgreement, SignedStatement]:
    """Bern and cleo take ada, who has a veto, out, and bring an ada of their own in."""
    first = veto_of("ada")
    ada, *others = first.agreement.parties
    bern, cleo = first.identities["bern"], first.identities["cleo"]
    second = replace(
        first.successor().agreement,
        parties=tuple(others),
        resources=tuple(r for r in first.agreement.resources if r.owner != "ada"),
        board=Board(members=("bern", "cleo"), threshold=2),
    )
    stand_in = create_identity("ada")
    again = replace(ada, sign=stand_in.public_key, roles=())
    third = replace(
        second, number=3, predecessor=second.digest, parties=(again, *others)
    )
    before = (first.signed().link, link_by(second, bern, cleo))
    signed = link_by(third, bern, cleo, stand_in).signatures
    left = sign_statement("leave", third, stand_in, NOW_S)
    return first, SignedAgreement(third, signed, before=before), left


def test_a_later_key_cannot_say_that_its_party_had_left() -> None:
    """The veto of a party is not got rid of by a key that others chose for it."""
    _, signed, left = thrown_out()
    with pytest.raises(SealiftError) as caught:
        verify(signed, [left])
    assert caught.value.code == "veto-unsigned"


def test_where_any_key_of_the_line_counts_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant of the one above: every statement counts from the first agreement on."""
    monkeypatch.setattr(line, "_since", lambda signer, links: 0)
    _, signed, left = thrown_out()
    assert verify(signed, [left]).agreement.number == 3


def test_who_left_by_its_own_key_may_be_left_out() -> None:
    """Control: the same line, and ada itself said that it leaves."""
    first, signed, _ = thrown_out()
    assert verify(signed, [say(first, "leave", "ada")])


# --- the line ---------------------------------------------------------------------


def test_a_successor_comes_with_its_line(consortium: Consortium) -> None:
    """Without it nobody could tell whose signatures it needs: refused, if all signed."""
    after = consortium.successor()
    stripped = replace(after.signed(), before=())
    with pytest.raises(StaleError) as caught:
        verify(stripped)
    assert caught.value.code == "agreement-line"


def test_a_line_cannot_be_cut_or_mixed(consortium: Consortium) -> None:
    third = consortium.successor().successor()
    signed = third.signed()
    other = make_consortium().signed().link
    for before in (
        signed.before[1:],
        signed.before[::-1],
        (*signed.before, signed.before[-1]),
        (other, *signed.before[1:]),
    ):
        with pytest.raises(SealiftError) as caught:
            verify(replace(signed, before=before))
        assert caught.value.code in {"agreement-line", "agreement-unsigned"}
    assert verify(signed).agreement.number == 3


def test_a_line_whose_past_was_not_signed(consortium: Consortium) -> None:
    """Everybody signs the third; too few had signed the second."""
    second = consortium.successor(output=replace(OUTPUT, digits=6))
    before = (*second.before, second.signed("cleo").link)
    third = replace(second.successor(), before=before)
    assert refused(third).code == "board-unsigned"


def test_each_altered_byte_of_the_past_is_noticed(consortium: Consortium) -> None:
    signed = consortium.successor().signed()
    first = signed.before[0]
    altered = replace(first.agreement, output=replace(OUTPUT, digits=6))
    with pytest.raises(SealiftError) as caught:
        verify(replace(signed, before=(replace(first, agreement=altered),)))
    assert caught.value.code == "agreement-altered"
