"""Attacks on the one decision and on what its parties say (N1, N7); keys (C9), logs (H6)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sealift.codec import encode
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.kdf import Label
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.ids import Digest, Role
from sealift.lab.attacks.office import now_s
from sealift.lab.attacks.stage import CELL_ROWS, OWNERS, Stage
from sealift.release.agreement import ReleaseRule
from sealift.release.audit import Inclusion, TreeHead, sign_head
from sealift.release.decision import decide
from sealift.release.facts import Ask, Kind, Owner, State
from sealift.release.grant import KeyRelease, ReleaseInfo, open_release, seal_key
from sealift.release.heads import HeadStore
from sealift.release.line import SignedLink
from sealift.release.receipt import SignedReceipt, instance_bound, verify_receipt
from sealift.release.signed import SignedAgreement, verify
from sealift.release.statement import require_timely, sign_statement
from sealift.session.endpoint import VerifiedPeer

DAY_S = 86400


def refusal(step: Callable[[], object]) -> str:
    """The stable name of what refuses a step; empty if nothing does."""
    try:
        step()
    except SealiftError as error:
        return error.code
    return ""


# One decision, whatever kind of secret it is (N1).


def share_after_end(stage: Stage) -> str:
    """A checkpoint's share when the agreement is over, from the broker that has it."""
    return _decided(stage, Kind.CHECKPOINT_SHARE, at_s=now_s() + 2 * DAY_S)


def share_of_another(stage: Stage) -> str:
    """A share for an instance that never got the owner's keys."""
    return _decided(stage, Kind.CHECKPOINT_SHARE, held=frozenset())


def rows_of_revoked(stage: Stage) -> str:
    """Rows for an instance whose proof was refused."""
    return _decided(stage, Kind.ROWS, revoked="ima-entry-unlisted")


def key_once_more(stage: Stage) -> str:
    """A key more often than its owner allowed."""
    return _decided(stage, Kind.DATA_KEY, uses=dict.fromkeys(_resources(stage), 3))


def fed_without_evidence(stage: Stage) -> str:
    """A device that shows nothing is fed."""
    return _decided(stage, Kind.FED_DEVICE, unproven=True)


def lets_out(stage: Stage) -> bool:
    """Every one of these kinds leaves for the agreed accelerator, in time."""
    kinds = (Kind.DATA_KEY, Kind.CHECKPOINT_SHARE, Kind.ROWS, Kind.FED_DEVICE)
    return not any(_decided(stage, kind) for kind in kinds)


def _decided(stage: Stage, kind: Kind, *, unproven: bool = False, **facts: Any) -> str:
    """The decision about ada's first resource, under a rule and an end of its own."""
    draft = stage.agreement.agreement
    rule = ReleaseRule(max_uses=3, lease_s=600.0, heartbeat_s=30.0)
    ruled = replace(
        draft,
        resources=tuple(replace(each, rule=rule) for each in draft.resources),
        not_after=int(now_s()) + DAY_S,
    )
    verified = verify(stage.agree(ruled))
    evidence = stage.endpoint.attester
    assert evidence is not None
    bound = instance_bound(stage.instance, verified.digest)
    result = verified.appraiser().appraise(evidence.collect(bound), bound)
    peer = VerifiedPeer(
        role=Role.ACCELERATOR,
        name="accelerator",
        identity=None,
        instance=stage.instance,
        hpke=HpkePrivateKey.generate().public,
        agreement=verified.digest,
        result=None if unproven else result,
    )
    known: dict[str, Any] = {
        "owner": Owner(OWNERS[0], stage.identities[OWNERS[0]].public_key),
        "verified": verified,
        "at_s": now_s(),
        "ended": None,
        "revoked": "",
        "in_force": verified.digest,
        "evidence_age_s": 0.0,
        "uses": dict.fromkeys(_resources(stage), 0),
        "held": frozenset(_resources(stage)),
        "fresh": True,
    }
    ask = Ask(kind=kind, peer=peer, resource=f"{OWNERS[0]}-train", purpose="train")
    return refusal(lambda: decide(ask, State(**(known | facts))))


def _resources(stage: Stage) -> tuple[str, ...]:
    mine = stage.agreement.agreement.resources_of(OWNERS[0])
    return tuple(each.name for each in mine)


# What parties say of their agreements (N7).


def former_key(stage: Stage) -> str:
    """A stolen key that was changed since says that its party leaves."""
    return _said_by(stage, former=True)


def key_of_now(stage: Stage) -> bool:
    """The same words with the key of now are obeyed."""
    return _said_by(stage, former=False) == "owner-left"


def _said_by(stage: Stage, *, former: bool) -> str:
    """What becomes of "ada leaves": ``owner-left``, or the refusal of who said it."""
    first = stage.agreement.agreement
    stolen, fresh = stage.identities[OWNERS[0]], create_identity(OWNERS[0])
    parties = tuple(
        replace(each, sign=fresh.public_key) if each.name == OWNERS[0] else each
        for each in first.parties
    )
    second = replace(first, number=2, predecessor=first.digest, parties=parties)
    signers = {OWNERS[0]: fresh, OWNERS[1]: stage.identities[OWNERS[1]]}
    line = SignedAgreement(
        second,
        {
            name: each.sign(Label.AGREEMENT, encode(second))
            for name, each in signers.items()
        },
        {OWNERS[0]: stolen.sign(Label.AGREEMENT, encode(second))},
        before=(SignedLink(first, stage.agree(first).signatures),),
    )
    about = first if former else second
    said = sign_statement("leave", about, stolen if former else fresh, now_s())
    obeyed = refusal(lambda: verify(line, [said]).require_owner_signed(OWNERS[0]))
    return obeyed or "former-key"


def from_tomorrow(stage: Stage) -> str:
    """A statement that nothing said later could replace."""
    return _timely(stage, DAY_S)


def of_today(stage: Stage) -> bool:
    """The same of this moment counts."""
    return not _timely(stage, 0)


def _timely(stage: Stage, ahead_s: int) -> str:
    ada: Identity = stage.identities[OWNERS[0]]
    at_s = now_s() + ahead_s
    said = sign_statement("leave", stage.agreement.agreement, ada, at_s)
    return refusal(lambda: require_timely(said.statement, now_s()))


# Keys, logs and receipts on the way (C9, H6, M4).


def plants_a_key(stage: Stage) -> str:
    """A key of one's own, sealed to the accelerator in the owner's place."""
    private, stranger = HpkePrivateKey.generate(), SigningKey.generate()
    resource = stage.held[OWNERS[0]].resource
    info = ReleaseInfo(
        agreement=stage.agreement.digest,
        resource=resource.name,
        purpose="train",
        owner=resource.owner,
        recipient=secrets.token_bytes(32),
        challenge=secrets.token_bytes(32),
        expiry_s=60,
    )
    planted = SecretKey.generate()
    sealed = seal_key(planted, info, recipient=private.public, owner=stranger)
    head = sign_head(
        TreeHead(stranger.public_key, 1, Digest.of(b""), int(now_s())), stranger
    )
    release = KeyRelease(sealed, b"", Inclusion(0, ()), head)
    return refusal(
        lambda: open_release(
            release,
            expected=info,
            owner=stage.agreement.party(resource.owner),
            resource=resource,
            private=private,
        )
    )


def another_history(stage: Stage) -> str:
    """A log that was written anew, of the same length."""
    return _shown(stage, b"first", b"another")


def same_history(stage: Stage) -> bool:
    """The head that was seen before is taken again."""
    return not _shown(stage, b"same", b"same")


def _shown(stage: Stage, first: bytes, second: bytes) -> str:
    identity = create_identity("log")
    store = HeadStore(stage.folder / f"{identity.public_key.raw.hex()[:16]}.heads")

    def show(entry: bytes) -> None:
        head = TreeHead(identity.public_key, 1, Digest.of(entry), int(now_s()))
        store.admit(sign_head(head, identity))

    show(first)
    return refusal(lambda: show(second))


def fewer_rows(stage: Stage) -> str:
    """A receipt that says less than was brought."""
    signed = _receipt(stage)
    changed = replace(signed, receipt=replace(signed.receipt, rows=CELL_ROWS))
    return refusal(lambda: verify_receipt(changed))


def as_signed(stage: Stage) -> bool:
    """The receipt as the accelerator signed it."""
    return not refusal(lambda: verify_receipt(_receipt(stage)))


def _receipt(stage: Stage) -> SignedReceipt:
    receipt = stage.visit().receipt
    assert receipt is not None, "the honest visit gets its receipt"
    return receipt
