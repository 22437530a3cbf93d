"""A broker obeys statements that come while it runs, and shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from sealift.codec import encode
from sealift.crypto.keys import Label
from sealift.errors import MalformedError, SealiftError, UnavailableError
from sealift.ids import Digest, Role
from sealift.release.agreement.statements import (
    SignedStatement,
    StatementKind,
    save_statement,
    sign_statement,
)
from sealift.release.broker import inforce as statementdesk
from sealift.release.broker.inforce import MAX_RIVALS, StatementsInForce
from sealift.release.broker.messages import BrokerAnswer, BrokerRequest
from sealift.release.client import obey
from tests.sim.owners import (
    NOW_S,
    BrokerSide,
    accelerator_peer,
    ask,
    broker_peer,
    make_broker,
    now,
    session_pair,
)
from tests.worlds.consortium import Consortium, make_consortium


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


def say(
    consortium: Consortium, kind: StatementKind, name: str, at_s: float = NOW_S
) -> SignedStatement:
    return sign_statement(kind, consortium.agreement, consortium.identities[name], at_s)


def code_of(desk: StatementsInForce) -> str:
    try:
        desk.verified()
    except SealiftError as error:
        return error.code
    return ""


def test_a_file_put_beside_the_agreement(
    consortium: Consortium, tmp_path: Path
) -> None:
    desk = StatementsInForce(consortium.verified(), tmp_path, clock=now)
    assert (code_of(desk), desk.known()) == ("", ())
    said = say(consortium, "veto", "bern")
    path = save_statement(said, tmp_path)
    assert code_of(desk) == "agreement-vetoed"
    path.unlink()  # what was known once stays known
    assert (code_of(desk), desk.known()) == ("agreement-vetoed", (said,))


def test_a_file_that_nobody_signed(consortium: Consortium, tmp_path: Path) -> None:
    """Refused, like one that lies there at the start; and over when it is gone."""
    desk = StatementsInForce(consortium.verified(), tmp_path, clock=now)
    said = say(consortium, "veto", "bern")
    path = save_statement(replace(said, signature=bytes(64)), tmp_path)
    assert code_of(desk) == "statement-altered"
    path.unlink()
    assert code_of(desk) == ""


def test_on_the_disk_before_it_counts(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = StatementsInForce(consortium.verified(), tmp_path, clock=now)
    said = say(consortium, "leave", "ada")

    def full(*args: object) -> None:
        raise UnavailableError("no space", code="disk-full")

    with monkeypatch.context() as patched:
        patched.setattr(statementdesk, "save_statement", full)
        with pytest.raises(UnavailableError):
            desk.admit(said)
    assert desk.known() == ()
    desk.admit(said)
    assert (tmp_path / said.body.file_name).exists()
    again = StatementsInForce(
        consortium.verified(), tmp_path, clock=now
    )  # after a restart
    assert again.verified().backing.left == {"ada"}


def test_an_older_word_changes_nothing(consortium: Consortium, tmp_path: Path) -> None:
    desk = StatementsInForce(consortium.verified(), tmp_path, clock=now)
    later = say(consortium, "leave", "ada", NOW_S + 5)
    desk.admit(later)
    desk.admit(say(consortium, "leave", "ada", NOW_S))
    assert desk.known() == (later,)
    again = StatementsInForce(consortium.verified(), tmp_path, clock=now)
    assert again.known() == (later,)


@pytest.mark.parametrize(
    "changes", [{"line": "another"}, {"number": 7}, {"digest": None}, {"party": "bern"}]
)
def test_a_message_about_something_else(
    consortium: Consortium, changes: dict[str, object]
) -> None:
    desk = StatementsInForce(consortium.verified(), clock=now)
    said = say(consortium, "veto", "ada")
    if "digest" in changes:
        changes = {"digest": consortium.agreement.code.digest}
    forged = replace(said, body=replace(said.body, **changes))  # type: ignore[arg-type]
    with pytest.raises(SealiftError) as caught:
        desk.admit(forged)
    assert caught.value.code in ("bad-statement", "statement-altered")
    assert code_of(desk) == ""


def told(consortium: Consortium, folder: Path, side: BrokerSide) -> BrokerAnswer:
    """What ada's broker says to bern's veto, brought by this peer."""
    box = make_broker(consortium, "ada", folder)
    try:
        said = say(consortium, "veto", "bern")
        answer = ask(box.broker, side, BrokerRequest(statement=said))
        release = session_pair(consortium, box.broker, "ada")
        box.broker.obey_statements()
        after = ask(box.broker, release.other, BrokerRequest(statements=True))
        assert (answer.statements == (said,)) is (after.statements == (said,))
        return answer
    finally:
        box.close()


def test_a_party_brings_one_and_others_are_shown_it(
    consortium: Consortium, tmp_path: Path
) -> None:
    holder = replace(broker_peer(consortium, "bern"), role=Role.HOLDER)
    answer = told(consortium, tmp_path, BrokerSide(holder, bytes(32)))
    assert answer.statements is not None
    with pytest.raises(SealiftError) as caught:
        obey(consortium.verified(), answer.statements)
    assert caught.value.code == "agreement-vetoed"


def test_a_stranger_brings_none(consortium: Consortium, tmp_path: Path) -> None:
    peer = accelerator_peer(consortium, broker_peer(consortium, "ada").hpke)
    stranger = BrokerSide(replace(peer, result=None), bytes(32))
    answer = told(consortium, tmp_path, stranger)
    assert answer.refusal is not None
    assert answer.refusal.rule == "evidence-missing"


def test_what_a_broker_made_up_is_dropped(consortium: Consortium) -> None:
    said = replace(say(consortium, "veto", "bern"), signature=bytes(64))
    verified = consortium.verified()
    assert obey(verified, (said,)) is verified


def rival(
    consortium: Consortium, name: str, number: int, which: int, at_s: int
) -> SignedStatement:
    """A veto of another agreement of some number."""
    said = replace(
        say(consortium, "veto", name).body,
        number=number,
        digest=Digest.of(bytes([which])),
        at_s=at_s,
    )
    signature = consortium.identities[name].sign(Label.STATEMENT, encode(said))
    return SignedStatement(said, signature)


def test_a_veto_of_a_rival_takes_nothing_back(
    consortium: Consortium, tmp_path: Path
) -> None:
    """For ever: also after another veto of the same number, and a restart."""
    desk = StatementsInForce(consortium.verified(), tmp_path, clock=now)
    first = say(consortium, "veto", "bern")
    save_statement(first, tmp_path)
    assert code_of(desk) == "agreement-vetoed"
    later = rival(consortium, "bern", first.body.number, 1, int(NOW_S) + 9)
    save_statement(later, tmp_path)
    for each in (desk, StatementsInForce(consortium.verified(), tmp_path, clock=now)):
        assert code_of(each) == "agreement-vetoed"
        assert set(each.known()) == {first, later}
    save_statement(first, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_vetoes_of_successors(consortium: Consortium, tmp_path: Path) -> None:
    """All are kept, but no party fills the place of the others' words."""
    desk = StatementsInForce(consortium.verified(), tmp_path, clock=now)
    number = consortium.agreement.number + 1
    vetoes = [rival(consortium, "bern", number, i, int(NOW_S) + i) for i in range(20)]
    for each in vetoes[:2]:
        desk.admit(each)
    assert set(desk.known()) == set(vetoes[:2])
    for each in vetoes[:MAX_RIVALS]:
        desk.admit(each)
    with pytest.raises(MalformedError, match="too many"):
        desk.admit(vetoes[MAX_RIVALS])
    desk.admit(say(consortium, "leave", "ada"))
    assert len(desk.known()) == MAX_RIVALS + 1
    assert (
        StatementsInForce(consortium.verified(), tmp_path, clock=now).known()
        == desk.known()
    )


def test_a_file_that_cannot_be_read_just_now(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused until it can be, and not for longer."""
    desk = StatementsInForce(consortium.verified(), tmp_path, clock=now)
    save_statement(say(consortium, "leave", "ada"), tmp_path)

    def exhausted(*args: object) -> NoReturn:
        raise UnavailableError("too many open files", code="unreadable")

    with monkeypatch.context() as patched:
        patched.setattr(statementdesk, "load_statements", exhausted)
        assert code_of(desk) == "unreadable"
    assert code_of(desk) == ""
    assert desk.verified().backing.left == {"ada"}
