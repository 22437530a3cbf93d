"""Each rule of the decision, by the name that its refusal carries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    MalformedError,
    PolicyError,
    RefusedError,
    SealiftError,
    UnavailableError,
)
from sealift.ids import Digest, Role
from sealift.release.broker import (
    EXPIRY_S,
    Owner,
    ReleaseRequest,
    authorize,
    may_read_heads,
)
from sealift.release.files import is_about_peer
from tests.sim.owners import (
    SimPeer,
    accelerator_peer,
    broker_peer,
    evidence_result,
    make_consortium,
)

CONSORTIUM = make_consortium()
VERIFIED = CONSORTIUM.verified()
ADA = Owner("ada", CONSORTIUM.identities["ada"].public_key)
PEER = accelerator_peer(CONSORTIUM, HpkePrivateKey.generate().public)
REQUEST = ReleaseRequest("ada-train", "train", bytes(32))
TH2 = bytes(range(32))


def decide(
    request: ReleaseRequest = REQUEST, peer: SimPeer = PEER, owner: Owner = ADA
) -> str:
    """``released``, or the name of the rule that failed."""
    try:
        info = authorize(request, peer, TH2, verified=VERIFIED, owner=owner, at_s=0)
    except PolicyError as error:
        return error.code
    assert (info.recipient, info.challenge) == (TH2, request.challenge)
    assert (info.agreement, info.expiry_s) == (VERIFIED.digest, EXPIRY_S)
    return "released"


def test_release() -> None:
    assert decide() == "released"


DECISIONS: dict[str, tuple[Callable[[], str], str]] = {
    "another agreement": (
        lambda: decide(peer=replace(PEER, agreement=Digest.of(b"x"))),
        "other-agreement",
    ),
    "a holder asks": (
        lambda: decide(peer=replace(PEER, role=Role.HOLDER)),
        "role-refused",
    ),
    "the orchestrator asks": (
        lambda: decide(peer=replace(PEER, role=Role.ORCHESTRATOR)),
        "role-refused",
    ),
    "no evidence": (
        lambda: decide(peer=replace(PEER, result=None)),
        "evidence-missing",
    ),
    "evidence of a holder": (
        lambda: decide(
            peer=replace(PEER, result=evidence_result(CONSORTIUM, role=Role.HOLDER))
        ),
        "role-refused",
    ),
    "other code": (
        lambda: decide(
            peer=replace(
                PEER, result=evidence_result(CONSORTIUM, code=Digest.of(b"other"))
            )
        ),
        "code-bundle-differs",
    ),
    "unknown resource": (
        lambda: decide(replace(REQUEST, resource="zoe-train")),
        "no-resource",
    ),
    "another owner's resource": (
        lambda: decide(replace(REQUEST, resource="bern-train")),
        "not-the-owner",
    ),
    "training on held-out rows": (
        lambda: decide(replace(REQUEST, resource="ada-heldout")),
        "purpose-refused",
    ),
    "a key that ada does not have": (
        lambda: decide(owner=Owner("ada", SigningKey.generate().public_key)),
        "owner-unsigned",
    ),
    "an owner who is no party": (
        lambda: decide(owner=Owner("zoe", ADA.key)),
        "not-a-party",
    ),
}


@pytest.mark.parametrize(("run", "rule"), DECISIONS.values(), ids=DECISIONS.keys())
def test_refusal_names_its_rule(run: Callable[[], str], rule: str) -> None:
    assert run() == rule


def test_level_must_be_accepted() -> None:
    """Evidence of a level that this agreement does not accept."""
    strict = make_consortium()
    from sealift.attest.level import Level

    agreement = replace(strict.agreement, accept=(Level.TEE,))
    verified = replace(strict, agreement=agreement).verified()
    peer = replace(
        accelerator_peer(strict, HpkePrivateKey.generate().public),
        agreement=verified.digest,
    )
    owner = Owner("ada", strict.identities["ada"].public_key)
    with pytest.raises(PolicyError) as caught:
        authorize(REQUEST, peer, TH2, verified=verified, owner=owner, at_s=0)
    assert caught.value.code == "level-refused"


def test_challenge_has_its_length() -> None:
    with pytest.raises(MalformedError):
        ReleaseRequest("ada-train", "train", b"short")


def test_heads_are_for_parties_and_accelerators() -> None:
    may_read_heads(PEER, VERIFIED)
    for name in CONSORTIUM.identities:
        holder = replace(broker_peer(CONSORTIUM, name), role=Role.HOLDER)
        may_read_heads(holder, VERIFIED)
    stranger = replace(
        broker_peer(CONSORTIUM, "ada"), identity=SigningKey.generate().public_key
    )
    nobody = replace(PEER, result=None)
    elsewhere = replace(broker_peer(CONSORTIUM, "ada"), agreement=Digest.of(b"x"))
    for peer in (stranger, nobody, elsewhere):
        with pytest.raises(PolicyError):
            may_read_heads(peer, VERIFIED)


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("the vault /home/ada/x does not open", code="vault-locked"),
        MalformedError("/home/ada/x is not a database", code="bad-database"),
        UnavailableError("cannot read /home/ada/x"),
    ],
)
def test_lines_about_own_files_are_not_for_peers(error: SealiftError) -> None:
    assert not is_about_peer(error)
    assert is_about_peer(PolicyError("no", code="role-refused"))
