"""What a holder demands to see before its rows leave (rule H6)."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sealift.crypto.identity import create_identity
from sealift.errors import PolicyError, StaleError
from sealift.ids import Digest, Role
from sealift.release.appointment import Allotment, Appointment, sign_appointment
from sealift.release.audit import SignedTreeHead, TreeHead, sign_head
from sealift.release.heads import HeadStore
from sealift.release.signed import VerifiedAgreement
from sealift.release.statement import save_statement, sign_statement
from sealift.release.statementdesk import StatementDesk
from sealift.session.endpoint import Endpoint
from sealift.travel.attendance import Attendance
from tests.sim.owners import NOW_S, Consortium, make_consortium
from tests.sim.shared_broker import entrusting, equipped


@pytest.fixture
def consortium() -> Consortium:
    return make_consortium()


def attendance(
    consortium: Consortium,
    folder: Path,
    owner: str = "ada",
    agreement: VerifiedAgreement | None = None,
) -> Attendance:
    verified = agreement or consortium.verified()
    identity = consortium.identities[owner]
    endpoint = Endpoint(
        role=Role.HOLDER, name=owner, agreement=verified.digest, identity=identity
    )
    return Attendance(
        cast(Any, None),
        endpoint,
        verified,
        held={},
        heads=HeadStore(folder / "heads.json"),
        receipts=folder,
        job="digits",
        clock=lambda: 0.0,
        statements=StatementDesk(verified, folder),
    )


def head(consortium: Consortium, owner: str) -> SignedTreeHead:
    identity = consortium.identities[owner]
    tree = TreeHead(identity.public_key, 1, Digest.of(owner.encode()), 0)
    return sign_head(tree, identity)


def test_the_head_of_the_own_log_is_enough(
    consortium: Consortium, tmp_path: Path
) -> None:
    attendance(consortium, tmp_path)._check_heads((head(consortium, "ada"),))


@pytest.mark.parametrize("others", [(), ("bern",), ("bern", "cleo")])
def test_without_the_own_log_nothing_leaves(
    consortium: Consortium, tmp_path: Path, others: tuple[str, ...]
) -> None:
    heads = tuple(head(consortium, owner) for owner in others)
    with pytest.raises(PolicyError) as refused:
        attendance(consortium, tmp_path)._check_heads(heads)
    assert refused.value.code == "head-missing"


def test_a_log_of_no_party_is_refused(consortium: Consortium, tmp_path: Path) -> None:
    stranger = make_consortium()
    heads = (head(consortium, "ada"), head(stranger, "bern"))
    with pytest.raises(PolicyError) as refused:
        attendance(consortium, tmp_path)._check_heads(heads)
    assert refused.value.code == "other-log"


def entrusted_head(verified: VerifiedAgreement, owner: Consortium) -> SignedTreeHead:
    """Of ada's log at a shared broker."""
    deputy = create_identity("ada")
    said = Appointment(
        agreement=verified.digest,
        owner="ada",
        key=deputy.public_key,
        resources=tuple(
            Allotment(each.name, each.key, 3)
            for each in verified.agreement.resources_of("ada")
        ),
        level="development",
        evidence=Digest.of(b"evidence"),
        at_s=int(NOW_S),
        not_after=int(NOW_S) + 600,
    )
    tree = TreeHead(deputy.public_key, 1, Digest.of(b"root"), int(NOW_S))
    appointment = sign_appointment(said, owner.identities["ada"])
    return replace(sign_head(tree, deputy), appointment=appointment)


def test_withdrawn_while_the_holder_runs(tmp_path: Path) -> None:
    """The statement lies beside the agreement: the very next rows stay at home."""
    consortium = entrusting()
    verified = equipped(consortium)
    holder = attendance(consortium, tmp_path, agreement=verified)
    shown = entrusted_head(verified, consortium)
    holder._check_heads((shown,))
    ada = consortium.identities["ada"]
    save_statement(sign_statement("withdraw", verified.agreement, ada, NOW_S), tmp_path)
    with pytest.raises(StaleError, match="withdrew"):
        holder._check_heads((shown,))
