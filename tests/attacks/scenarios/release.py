"""Attacks on agreements, on brokers and on what they hand out.

Papers and files of a broker (P3, P4), the one decision (N1), what parties say of their
agreements (N7), keys (C9), logs (H6) and receipts (M4) on the way.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sealift.codec import decode, encode
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import Label, SecretKey
from sealift.crypto.sign import SigningKey, sign_document
from sealift.errors import require_value
from sealift.ids import Digest, Role
from sealift.release.agreement import Agreement, ReleaseRule
from sealift.release.agreement.signed import SignedAgreement, VerifiedAgreement, verify
from sealift.release.agreement.statements import require_timely, sign_statement
from sealift.release.broker.stores import keep_keys, opened_broker
from sealift.release.decision import decide
from sealift.release.facts import Owner, ReleaseKind, ReleaseQuestion, ReleaseState
from sealift.release.grant import (
    KeyRelease,
    ReleaseInfo,
    SealedKey,
    open_release,
    seal_grant,
)
from sealift.release.log.entries import Inclusion, TreeHead
from sealift.release.log.heads import HeadStore
from sealift.release.receipt import SignedReceipt, instance_bound, verify_receipt
from sealift.session.endpoint import VerifiedPeer
from tests.attacks.scenarios.world import (
    ADA,
    BERN,
    CELL_ROWS,
    AttackWorld,
    BrokerWorld,
    refusal,
    train,
)
from tests.worlds.brokers import now_s
from tests.worlds.consortium import ONE_HOLDER, RUN

DAY_S: Final = 86400
NOTHING_FOUND: Final = "nothing found"

# Agreements, and the broker's own machine (P3, P4).


def one_signature_less(world: AttackWorld) -> str:
    """(P3) Everybody but the owner signed."""
    return refusal(lambda: verify(world.broker.consortium.signed(BERN)))


def changed_after_signing(world: AttackWorld) -> str:
    """(P3) One field was changed under the signatures."""
    signed = world.broker.consortium.signed()
    output = replace(ONE_HOLDER, digits=6)
    changed = replace(signed.agreement, output=output)
    return refusal(lambda: verify(replace(signed, agreement=changed)))


def another_form(world: AttackWorld) -> str:
    """(P3) The same content in other bytes."""
    raw = encode(world.broker.consortium.agreement)
    spaced = raw.replace(b'"number":1', b'"number":1.0', 1)
    return refusal(lambda: decode(Agreement, spaced))


def rolled_back(world: AttackWorld) -> str:
    """(P3) The broker is started with the agreement before the one in force."""
    broker = world.broker
    stores = _stores(broker, broker.key)
    _start(broker, stores, broker.consortium.successor().verified())
    return refusal(lambda: _start(broker, stores, broker.agreement))


def edited_database(world: AttackWorld) -> str:
    """(P3) The broker's administrator puts another agreement and key into its files."""
    broker = world.broker
    stores = _stores(broker, SecretKey.generate())
    return refusal(lambda: _start(broker, stores, broker.agreement))


def signed_by_all(world: AttackWorld) -> bool:
    """(P3) What everybody signed binds, and a broker serves it."""
    broker = world.broker
    stores = _stores(broker, broker.key)
    return not refusal(lambda: _start(broker, stores, broker.consortium.verified()))


def _stores(broker: BrokerWorld, key: SecretKey) -> tuple[Path, Path]:
    """Another vault of the same owner, with this key, and a place for its log."""
    taken = len(list(broker.folder.glob("vault*")))
    vault = broker.folder / f"vault{taken}.db"
    keep_keys(vault, broker.identity, {train(ADA): key})
    return vault, broker.folder / f"audit{taken}.db"


def _start(
    broker: BrokerWorld, stores: tuple[Path, Path], verified: VerifiedAgreement
) -> None:
    """Start a broker, and end it."""
    with opened_broker(*stores, broker.identity, lambda ledger: verified, clock=now_s):
        pass


def search_everything(world: AttackWorld) -> str:
    """(P4) Search vault, log and all that crossed for the data key."""
    broker = world.broker
    broker.ask()
    return "" if _found(broker, broker.material) else NOTHING_FOUND


def search_finds(world: AttackWorld) -> bool:
    """(P4) The same search finds what is there: the salt and the recipient's name."""
    broker = world.broker
    with closing(sqlite3.connect(broker.folder / "vault.db")) as connection:
        (salt,) = connection.execute("SELECT salt FROM keys").fetchone()
    crossed = broker.agreement.digest.to_text().encode()
    return _found(broker, salt) and any(crossed in each for each in broker.box.crossed)


def _found(broker: BrokerWorld, secret: bytes) -> bool:
    files = (path for path in broker.folder.glob("*.db*") if path.is_file())
    places = (*(path.read_bytes() for path in files), *broker.box.crossed)
    return any(secret in place or secret.hex().encode() in place for place in places)


# One decision, whatever kind of secret it is (N1).


def decided(kind: ReleaseKind, **facts: Any) -> Callable[[AttackWorld], str]:
    """An ask for ada's first resource, where these facts are otherwise."""
    return lambda world: _decide(world, kind, **facts)


def lets_out(world: AttackWorld) -> bool:
    """Every one of these kinds leaves for the agreed accelerator, in time."""
    kinds = (
        ReleaseKind.DATA_KEY,
        ReleaseKind.CHECKPOINT_SHARE,
        ReleaseKind.ROWS,
        ReleaseKind.FED_DEVICE,
    )
    return not any(_decide(world, kind) for kind in kinds)


def _decide(
    world: AttackWorld,
    kind: ReleaseKind,
    *,
    unproven: bool = False,
    late_s: int = 0,
    used: int = 0,
    **facts: Any,
) -> str:
    """The decision, under a rule and an end of its own."""
    rule = ReleaseRule(max_uses=3, lease_s=600.0, heartbeat_s=30.0)
    resources = world.consortium.agreement.resources
    verified = world.consortium.changed(
        resources=tuple(replace(each, rule=rule) for each in resources),
        not_after=int(now_s()) + DAY_S,
    ).verified()
    own = world.endpoint
    bound = instance_bound(own.instance.public_key, verified.digest)
    result = verified.appraiser().appraise(
        require_value(own.attester).collect(bound), bound
    )
    peer = VerifiedPeer(
        role=Role.ACCELERATOR,
        name="accelerator-0",
        identity=None,
        instance=own.instance.public_key,
        hpke=HpkePrivateKey.generate().public,
        agreement=verified.digest,
        result=None if unproven else result,
    )
    known: dict[str, Any] = {
        "owner": Owner(ADA, world.identities[ADA].public_key),
        "verified": verified,
        "at_s": now_s() + late_s,
        "ended": None,
        "revoked": "",
        "in_force": verified.digest,
        "evidence_age_s": 0.0,
        "uses": {train(ADA): used},
        "held": frozenset((train(ADA),)),
        "fresh": True,
        "runs": frozenset(),
        "visits": 0,
    }
    ask = ReleaseQuestion(
        kind=kind, peer=peer, resource=train(ADA), purpose="train", run=RUN, visits=1
    )
    return refusal(lambda: decide(ask, ReleaseState(**(known | facts))))


# What parties say of their agreements (N7).


def former_key(world: AttackWorld) -> str:
    """A stolen key that was changed since says that its party leaves."""
    return _said_by(world, former=True)


def key_of_now(world: AttackWorld) -> bool:
    """The same words with the key of now are obeyed."""
    return _said_by(world, former=False) == "owner-left"


def _said_by(world: AttackWorld, *, former: bool) -> str:
    """What becomes of "ada leaves": ``owner-left``, or the refusal of who said it."""
    first = world.consortium.agreement
    stolen, fresh = world.identities[ADA], create_identity(ADA)
    parties = tuple(
        replace(each, sign=fresh.public_key) if each.name == ADA else each
        for each in first.parties
    )
    after = world.consortium.successor(parties=parties)
    words = encode(after.agreement)
    line = SignedAgreement(
        after.agreement,
        {
            ADA: fresh.sign(Label.AGREEMENT, words),
            BERN: world.identities[BERN].sign(Label.AGREEMENT, words),
        },
        {ADA: stolen.sign(Label.AGREEMENT, words)},
        before=after.before,
    )
    about, signer = (first, stolen) if former else (after.agreement, fresh)
    said = sign_statement("leave", about, signer, now_s())
    obeyed = refusal(lambda: verify(line, [said]).require_owner_signed(ADA))
    return obeyed or "former-key"


def from_tomorrow(world: AttackWorld) -> str:
    """A statement that nothing said later could replace."""
    return _timely(world, DAY_S)


def of_today(world: AttackWorld) -> bool:
    """The same of this moment counts."""
    return not _timely(world, 0)


def _timely(world: AttackWorld, ahead_s: int) -> str:
    agreement, at_s = world.consortium.agreement, now_s() + ahead_s
    said = sign_statement("leave", agreement, world.identities[ADA], at_s)
    return refusal(lambda: require_timely(said.body, now_s()))


# Keys, logs and receipts on the way (C9, H6, M4).


def plants_a_key(world: AttackWorld) -> str:
    """A key of one's own, sealed to the accelerator in the owner's place."""
    private, stranger = HpkePrivateKey.generate(), SigningKey.generate()
    resource = world.resource(train(ADA))
    info = ReleaseInfo(
        agreement=world.agreement.digest,
        resource=resource.name,
        purpose="train",
        owner=ADA,
        recipient=secrets.token_bytes(32),
        challenge=secrets.token_bytes(32),
        expiry_s=60,
    )
    sealed, signature = seal_grant(
        SecretKey.generate(),
        info,
        recipient=private.public,
        signer=stranger,
        label=Label.RELEASE,
    )
    head = TreeHead(stranger.public_key, 1, Digest.of(b""), int(now_s()))
    shown = b"", Inclusion(0, ()), sign_document(head, stranger)
    release = KeyRelease(*shown, SealedKey(info, sealed, signature))
    return refusal(
        lambda: open_release(
            release,
            expected=info,
            owner=world.agreement.party(ADA),
            resource=resource,
            private=private,
        )
    )


def another_history(world: AttackWorld) -> str:
    """A log that was written anew, of the same length."""
    return _shown(world, b"another")


def same_history(world: AttackWorld) -> bool:
    """The head that was seen before is taken again."""
    return not _shown(world, b"first")


def _shown(world: AttackWorld, then: bytes) -> str:
    identity = create_identity("log")
    store = HeadStore(world.folder / f"{identity.public_key.raw.hex()[:16]}.heads")

    def show(entry: bytes) -> None:
        head = TreeHead(identity.public_key, 1, Digest.of(entry), int(now_s()))
        store.admit(sign_document(head, identity))

    show(b"first")
    return refusal(lambda: show(then))


def fewer_rows(world: AttackWorld) -> str:
    """A receipt that says less than was brought."""
    signed = _receipt(world)
    changed = replace(signed, body=replace(signed.body, rows=CELL_ROWS))
    return refusal(lambda: verify_receipt(changed))


def as_signed(world: AttackWorld) -> bool:
    """The receipt as the accelerator signed it."""
    return not refusal(lambda: verify_receipt(_receipt(world)))


def _receipt(world: AttackWorld) -> SignedReceipt:
    return require_value(world.visit().receipt, "the honest visit gets its receipt")
