"""H7: k others cannot rewrite a single owner's rule; whoever signs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.codec import encode
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import TOKEN, Label
from sealift.errors import IntegrityError, PolicyError, SealiftError
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Board, Party
from sealift.release.agreement import successors as line
from sealift.release.agreement.resources import GroupRule
from sealift.release.agreement.signed import (
    VerifiedAgreement,
    add_former_key,
    verify,
)
from sealift.release.agreement.statements import (
    SignedStatement,
    StatementKind,
    sign_statement,
)
from sealift.release.client import collect_release
from sealift.release.decision import decide
from sealift.release.facts import Owner, ReleaseKind, ReleaseQuestion, ReleaseState
from tests.sim.owners import NOW_S, make_broker, session_pair, start_broker
from tests.worlds.consortium import OUTPUT, RUN, Consortium, make_consortium

BOARD = Board(members=("ada", "bern", "cleo"), threshold=2)
COMMON: dict[str, Any] = {"not_after": 2_000_000_000}  # changes what nobody brought


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


# --- what belongs to nobody alone ------------------------------------------------


def test_the_board_changes_what_is_common(consortium: Consortium) -> None:
    """Control of all below: two of three, and nobody's own part changed."""
    after = consortium.successor(**COMMON)
    verified = verify(after.signed("bern", "cleo"))
    assert verified.signers == {"bern", "cleo"}
    verified.require_owner_signed("bern")


def test_one_less_than_the_threshold(consortium: Consortium) -> None:
    after = consortium.successor(**COMMON)
    error = refused(after, "cleo")
    assert error.code == "board-unsigned"
    assert "cleo signed" in str(error)


def test_the_boards_own_rules_decide_about_the_next_board(
    consortium: Consortium,
) -> None:
    """A successor that names an easier board is judged by the board before it."""
    easier = Board(members=("cleo",), threshold=1)
    after = consortium.successor(board=easier)
    assert refused(after, "cleo").code == "board-unsigned"
    # ada and bern lose their seats by it: that is their own part
    error = refused(after, "bern", "cleo")
    assert error.code == "owner-part-changed"
    assert "ada" in str(error)


def test_who_has_a_veto_must_sign() -> None:
    first = veto_of("ada")
    after = first.successor(**COMMON)
    error = refused(after, "bern", "cleo")
    assert error.code == "veto-unsigned"
    assert verify(after.signed("ada", "cleo")).signers == {"ada", "cleo"}


# --- what belongs to one owner ---------------------------------------------------


def with_rule(agreement: Agreement, **changes: Any) -> Agreement:
    resources = tuple(
        replace(entry, rule=replace(entry.rule, **changes))
        if entry.name == "ada-train"
        else entry
        for entry in agreement.resources
    )
    return replace(agreement, resources=resources)


def with_party(agreement: Agreement, **changes: Any) -> Agreement:
    parties = tuple(
        replace(party, **changes) if party.name == "ada" else party
        for party in agreement.parties
    )
    return replace(agreement, parties=parties)


def without(agreement: Agreement, name: str) -> Agreement:
    return replace(
        agreement,
        parties=tuple(each for each in agreement.parties if each.name != name),
        resources=tuple(each for each in agreement.resources if each.owner != name),
        board=replace(BOARD, members=("bern", "cleo")),
    )


def with_content(agreement: Agreement) -> Agreement:
    first, *rest = agreement.resources
    other = replace(first, content=Digest.of(b"other rows"))
    return replace(agreement, resources=(other, *rest))


OWN: dict[str, Callable[[Agreement], Agreement]] = {
    "more uses": lambda a: with_rule(a, max_uses=1000),
    "a later end": lambda a: with_rule(a, not_after=2_000_000_000),
    "other purposes": lambda a: with_rule(a, purposes=("prepare",)),
    "a lease": lambda a: with_rule(a, lease_s=9.0, heartbeat_s=3.0),
    "other rows": with_content,
    "a resource less": lambda a: replace(
        a, resources=tuple(r for r in a.resources if r.name != "ada-heldout")
    ),
    "another key for its mail": lambda a: with_party(
        a, hpke=create_identity("ada").card.hpke
    ),
    "another role": lambda a: with_party(a, roles=("data_owner", "code_owner")),
    "no seat": lambda a: replace(a, board=Board(members=("bern", "cleo"), threshold=2)),
    "a veto": lambda a: replace(a, board=replace(BOARD, veto=("ada",))),
}

OF_ALL_OWNERS: dict[str, Callable[[Agreement], Agreement]] = {
    "the model for it": lambda a: replace(
        a, output=replace(a.output, model_to=("ada", "cleo"))
    ),
    "its approval": lambda a: replace(
        a, output=replace(a.output, approved_by=("ada",))
    ),
    "more numbers": lambda a: replace(a, output=replace(OUTPUT, values_per_visit=64)),
    "more visits": lambda a: replace(a, output=replace(OUTPUT, max_visits=99)),
    "statistics": lambda a: replace(a, output=replace(OUTPUT, statistics=("sums",))),
    "the recipe's text": lambda a: replace(a, output=replace(OUTPUT, recipe_text=True)),
    "the model for another": lambda a: replace(
        a, output=replace(OUTPUT, model_to=("bern", "cleo"))
    ),
    "rows of several owners in a batch": lambda a: replace(
        a, travel=replace(a.travel, mixed=True)
    ),
    "several accelerators": lambda a: replace(a, group=GroupRule(2, "share")),
}


def amended(
    consortium: Consortium, change: Callable[[Agreement], Agreement]
) -> Consortium:
    after = consortium.successor()
    return replace(after, agreement=change(after.agreement))


@pytest.mark.parametrize("change", OWN.values(), ids=OWN.keys())
def test_no_threshold_rewrites_what_is_one_owners(
    consortium: Consortium, change: Callable[[Agreement], Agreement]
) -> None:
    """Both others sign, which is more than the threshold: refused, naming the owner."""
    error = refused(amended(consortium, change), "bern", "cleo")
    assert error.code == "owner-part-changed"
    assert "ada" in str(error)


@pytest.mark.parametrize("change", OF_ALL_OWNERS.values(), ids=OF_ALL_OWNERS.keys())
def test_what_becomes_of_rows_needs_every_owner_of_some(
    consortium: Consortium, change: Callable[[Agreement], Agreement]
) -> None:
    """Two of three are the threshold: those who are both owners may, others may not."""
    after = amended(consortium, change)
    for owner, other in (("ada", "bern"), ("bern", "ada")):
        error = refused(after, other, "cleo")
        assert error.code == "owner-part-changed"
        assert owner in str(error)
    assert verify(after.signed("ada", "bern", "cleo"))


@pytest.mark.parametrize("change", OWN.values(), ids=OWN.keys())
def test_the_owner_itself_may(
    consortium: Consortium, change: Callable[[Agreement], Agreement]
) -> None:
    """Control: with the owner's signature, and one more, each change goes through."""
    assert verify(amended(consortium, change).signed("ada", "cleo"))


@pytest.mark.parametrize("number", [1, 3, 5])
def test_any_number_of_others(number: int) -> None:
    """k others out of k + 1 on the board, k of them enough."""
    names = ("ada", *(f"owner{index}" for index in range(number)), "cleo")
    first = make_consortium(names)
    board = Board(members=names, threshold=len(names) - 1)
    first = replace(first, agreement=replace(first.agreement, board=board))
    after = amended(first, lambda a: with_rule(a, max_uses=7))
    assert refused(after, *names[1:]).code == "owner-part-changed"


def test_mutant_without_the_owners_own_part(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: without that one check, the others rewrite ada's rule."""
    monkeypatch.setattr(line, "_require_own_part", lambda *args: None)
    after = amended(consortium, OWN["more uses"])
    assert verify(after.signed("bern", "cleo"))


def test_nobody_is_left_out(consortium: Consortium) -> None:
    after = consortium.successor()
    after = replace(after, agreement=without(after.agreement, "ada"))
    assert refused(after, "bern", "cleo").code == "party-removed"
    left = say(consortium, "leave", "ada")
    assert verify(after.signed("bern", "cleo"), [left])


def test_another_key_in_its_place(consortium: Consortium) -> None:
    """The others name a key of their own for ada, and sign as ada."""
    eve = create_identity("ada")
    after = amended(consortium, lambda a: with_party(a, sign=eve.public_key))
    after = replace(after, identities={**after.identities, "ada": eve})
    assert refused(after).code == "key-change-unsigned"
    forged = replace(after.signed(), former={"ada": eve.sign(*_as_agreement(after))})
    with pytest.raises(IntegrityError) as caught:
        verify(forged)
    assert caught.value.code == "agreement-altered"


def test_a_new_key_with_the_word_of_the_old_one(consortium: Consortium) -> None:
    """Control: ada itself changes its key."""
    old, new = consortium.identities["ada"], create_identity("ada")
    after = amended(
        consortium,
        lambda a: with_party(a, sign=new.public_key, hpke=new.card.hpke),
    )
    after = replace(after, identities={**after.identities, "ada": new})
    assert verify(add_former_key(after.signed(), old)).signers >= {"ada"}
    with pytest.raises(PolicyError) as caught:
        add_former_key(after.signed(), new)
    assert caught.value.code == "other-key"


def _as_agreement(after: Consortium) -> tuple[Label, bytes]:
    return Label.AGREEMENT, encode(after.agreement)


def test_who_is_new_signs_itself(consortium: Consortium) -> None:
    dora = create_identity("dora")
    after = consortium.successor()
    party = Party("dora", (), dora.public_key, dora.card.hpke)
    parties = (*after.agreement.parties, party)
    after = replace(after, agreement=replace(after.agreement, parties=parties))
    assert refused(after, "bern", "cleo").code == "owner-part-changed"
    after = replace(after, identities={**after.identities, "dora": dora})
    assert verify(after.signed("bern", "cleo", "dora"))


# --- silence is no ----------------------------------------------------------------


def release_key(
    consortium: Consortium, verified: VerifiedAgreement, folder: Path
) -> bytes:
    box = make_broker(consortium, "ada", folder)
    try:
        box.broker = broker_of(consortium, verified, box)
        session = session_pair(consortium, box.broker, "ada")
        key, _ = collect_release(
            session, verified, "ada-train", clock=lambda: 0.0, run=RUN
        )
        return key.reveal(TOKEN)
    finally:
        box.close()


def broker_of(consortium: Consortium, verified: VerifiedAgreement, box: Any) -> Any:
    from sealift.release.broker.server import Broker

    return Broker(
        verified, consortium.identities["ada"],
        vault=box.vault, log=box.log, clock=lambda: NOW_S,
    )  # fmt: skip


def test_the_key_of_an_owner_who_did_not_sign_stays(
    consortium: Consortium, tmp_path: Path
) -> None:
    """In force by two of three: ada's broker does not serve, a job does not start."""
    after = consortium.successor(**COMMON)
    verified = verify(after.signed("bern", "cleo"))
    box = make_broker(consortium, "ada", tmp_path)
    with pytest.raises(PolicyError, match="ada") as caught:
        broker_of(after, verified, box)
    assert caught.value.code == "owner-unsigned"
    session = session_pair(consortium, box.broker, "ada")
    with pytest.raises(PolicyError, match="ada") as caught:
        collect_release(session, verified, "ada-train", clock=lambda: 0.0, run=RUN)
    assert caught.value.code == "owner-unsigned"
    with pytest.raises(PolicyError, match="ada"):
        verified.require_owners_signed()
    box.close()


def test_mutant_that_takes_silence_for_yes(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: without that question, ada's broker releases under what it never saw."""
    monkeypatch.setattr(
        VerifiedAgreement,
        "require_owner_signed",
        lambda self, name: self.agreement.party(name),
    )
    after = consortium.successor(**COMMON)
    verified = verify(after.signed("bern", "cleo"))
    monkeypatch.setattr(Consortium, "verified", lambda self: verify(self.signed()))
    key = release_key(after, verified, tmp_path)
    assert key == consortium.keys["ada-train"].reveal(TOKEN)


def test_who_left_gets_nothing_released(consortium: Consortium) -> None:
    """Also under agreements that it signed; the others stay bound."""
    left = say(consortium, "leave", "ada")
    for each in (consortium, consortium.successor()):
        verified = verify(each.signed(), [left])
        with pytest.raises(PolicyError) as caught:
            verified.require_owner_signed("ada")
        assert caught.value.code == "owner-left"
        verified.require_owner_signed("bern")
    assert verify(consortium.signed()).require_owner_signed("ada")  # control


def test_broker_refuses_who_did_not_sign_at_each_request(
    consortium: Consortium, tmp_path: Path
) -> None:
    """The decision itself asks again, whoever made the broker."""
    after = consortium.successor()
    verified = verify(after.signed("bern", "cleo"))
    session = session_pair(after, start(consortium, tmp_path), "ada")
    asked = ReleaseQuestion(
        kind=ReleaseKind.DATA_KEY, peer=session.other.peer, resource="ada-train"
    )
    state = ReleaseState(
        owner=Owner("ada", consortium.identities["ada"].public_key),
        verified=verified,
        at_s=0.0,
        ended=None,
        revoked="",
        in_force=verified.digest,
    )
    with pytest.raises(PolicyError) as caught:
        decide(asked, state)
    assert caught.value.code == "owner-unsigned"


def start(consortium: Consortium, folder: Path) -> Any:
    box = make_broker(consortium, "ada", folder)
    return start_broker(consortium, "ada", box.vault, box.log)


def test_an_owner_that_let_one_pass_serves_the_next_that_it_signs(
    consortium: Consortium, tmp_path: Path
) -> None:
    """The second came into force without ada; the third carries its line."""
    box = make_broker(consortium, "ada", tmp_path)
    second = consortium.successor(**COMMON)
    third = replace(
        second,
        agreement=replace(
            second.agreement, number=3, predecessor=second.agreement.digest
        ),
        before=second.signed("bern", "cleo").line,
    )
    assert start_broker(third, "ada", box.vault, box.log).verified == third.verified()
    # another line of the same name and length does not follow what was in force
    other = replace(consortium, agreement=replace(consortium.agreement, not_before=1))
    elsewhere = other.successor().successor().successor()
    with pytest.raises(SealiftError) as caught:
        start_broker(elsewhere, "ada", box.vault, box.log)
    assert caught.value.code == "agreement-line"
    box.close()
