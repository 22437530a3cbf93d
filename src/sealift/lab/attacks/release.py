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
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest, Role
from sealift.lab.attacks.stage import (
    ADA,
    BERN,
    CELL_ROWS,
    Office,
    Stage,
    refusal,
    train,
)
from sealift.lab.worlds.brokers import now_s
from sealift.lab.worlds.consortium import ONE_HOLDER
from sealift.release.agreement import Agreement, ReleaseRule
from sealift.release.agreement.signed import SignedAgreement, VerifiedAgreement, verify
from sealift.release.agreement.statements import require_timely, sign_statement
from sealift.release.broker.stores import keep_keys, opened_broker
from sealift.release.decision import decide
from sealift.release.facts import Ask, Kind, Owner, State
from sealift.release.grant import (
    KeyRelease,
    ReleaseInfo,
    SealedKey,
    open_release,
    seal_grant,
)
from sealift.release.log.entries import Inclusion, TreeHead, sign_head
from sealift.release.log.heads import HeadStore
from sealift.release.receipt import SignedReceipt, instance_bound, verify_receipt
from sealift.session.endpoint import VerifiedPeer

DAY_S: Final = 86400
NOTHING_FOUND: Final = "nothing found"

# Agreements, and the broker's own machine (P3, P4).


def one_signature_less(stage: Stage) -> str:
    """(P3) Everybody but the owner signed."""
    return refusal(lambda: verify(stage.office.consortium.signed(BERN)))


def changed_after_signing(stage: Stage) -> str:
    """(P3) One field was changed under the signatures."""
    signed = stage.office.consortium.signed()
    output = replace(ONE_HOLDER, digits=6)
    changed = replace(signed.agreement, output=output)
    return refusal(lambda: verify(replace(signed, agreement=changed)))


def another_form(stage: Stage) -> str:
    """(P3) The same content in other bytes."""
    raw = encode(stage.office.consortium.agreement)
    spaced = raw.replace(b'"number":1', b'"number":1.0', 1)
    return refusal(lambda: decode(Agreement, spaced))


def rolled_back(stage: Stage) -> str:
    """(P3) The broker is started with the agreement before the one in force."""
    office = stage.office
    stores = _stores(office, office.key)
    _start(office, stores, office.consortium.successor().verified())
    return refusal(lambda: _start(office, stores, office.agreement))


def edited_database(stage: Stage) -> str:
    """(P3) The broker's administrator puts another agreement and key into its files."""
    office = stage.office
    stores = _stores(office, SecretKey.generate())
    return refusal(lambda: _start(office, stores, office.agreement))


def signed_by_all(stage: Stage) -> bool:
    """(P3) What everybody signed binds, and a broker serves it."""
    office = stage.office
    stores = _stores(office, office.key)
    return not refusal(lambda: _start(office, stores, office.consortium.verified()))


def _stores(office: Office, key: SecretKey) -> tuple[Path, Path]:
    """Another vault of the same owner, with this key, and a place for its log."""
    taken = len(list(office.folder.glob("vault*")))
    vault = office.folder / f"vault{taken}.db"
    keep_keys(vault, office.identity, {train(ADA): key})
    return vault, office.folder / f"audit{taken}.db"


def _start(
    office: Office, stores: tuple[Path, Path], verified: VerifiedAgreement
) -> None:
    """Start a broker, and end it."""
    with opened_broker(*stores, office.identity, lambda ledger: verified, clock=now_s):
        pass


def search_everything(stage: Stage) -> str:
    """(P4) Search vault, log and all that crossed for the data key."""
    office = stage.office
    office.ask()
    return "" if _found(office, office.material) else NOTHING_FOUND


def search_finds(stage: Stage) -> bool:
    """(P4) The same search finds what is there: the salt and the recipient's name."""
    office = stage.office
    with closing(sqlite3.connect(office.folder / "vault.db")) as connection:
        (salt,) = connection.execute("SELECT salt FROM keys").fetchone()
    crossed = office.agreement.digest.to_text().encode()
    return _found(office, salt) and any(crossed in each for each in office.box.crossed)


def _found(office: Office, secret: bytes) -> bool:
    files = (path for path in office.folder.glob("*.db*") if path.is_file())
    places = (*(path.read_bytes() for path in files), *office.box.crossed)
    return any(secret in place or secret.hex().encode() in place for place in places)


# One decision, whatever kind of secret it is (N1).


def decided(kind: Kind, **facts: Any) -> Callable[[Stage], str]:
    """An ask for ada's first resource, where these facts are otherwise."""
    return lambda stage: _decide(stage, kind, **facts)


def lets_out(stage: Stage) -> bool:
    """Every one of these kinds leaves for the agreed accelerator, in time."""
    kinds = (Kind.DATA_KEY, Kind.CHECKPOINT_SHARE, Kind.ROWS, Kind.FED_DEVICE)
    return not any(_decide(stage, kind) for kind in kinds)


def _decide(
    stage: Stage,
    kind: Kind,
    *,
    unproven: bool = False,
    late_s: int = 0,
    used: int = 0,
    **facts: Any,
) -> str:
    """The decision, under a rule and an end of its own."""
    rule = ReleaseRule(max_uses=3, lease_s=600.0, heartbeat_s=30.0)
    resources = stage.consortium.agreement.resources
    verified = stage.consortium.changed(
        resources=tuple(replace(each, rule=rule) for each in resources),
        not_after=int(now_s()) + DAY_S,
    ).verified()
    own = stage.endpoint
    assert own.attester is not None
    bound = instance_bound(own.instance.public_key, verified.digest)
    result = verified.appraiser().appraise(own.attester.collect(bound), bound)
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
        "owner": Owner(ADA, stage.identities[ADA].public_key),
        "verified": verified,
        "at_s": now_s() + late_s,
        "ended": None,
        "revoked": "",
        "in_force": verified.digest,
        "evidence_age_s": 0.0,
        "uses": {train(ADA): used},
        "held": frozenset((train(ADA),)),
        "fresh": True,
    }
    ask = Ask(kind=kind, peer=peer, resource=train(ADA), purpose="train")
    return refusal(lambda: decide(ask, State(**(known | facts))))


# What parties say of their agreements (N7).


def former_key(stage: Stage) -> str:
    """A stolen key that was changed since says that its party leaves."""
    return _said_by(stage, former=True)


def key_of_now(stage: Stage) -> bool:
    """The same words with the key of now are obeyed."""
    return _said_by(stage, former=False) == "owner-left"


def _said_by(stage: Stage, *, former: bool) -> str:
    """What becomes of "ada leaves": ``owner-left``, or the refusal of who said it."""
    first = stage.consortium.agreement
    stolen, fresh = stage.identities[ADA], create_identity(ADA)
    parties = tuple(
        replace(each, sign=fresh.public_key) if each.name == ADA else each
        for each in first.parties
    )
    after = stage.consortium.successor(parties=parties)
    words = encode(after.agreement)
    line = SignedAgreement(
        after.agreement,
        {
            ADA: fresh.sign(Label.AGREEMENT, words),
            BERN: stage.identities[BERN].sign(Label.AGREEMENT, words),
        },
        {ADA: stolen.sign(Label.AGREEMENT, words)},
        before=after.before,
    )
    about, signer = (first, stolen) if former else (after.agreement, fresh)
    said = sign_statement("leave", about, signer, now_s())
    obeyed = refusal(lambda: verify(line, [said]).require_owner_signed(ADA))
    return obeyed or "former-key"


def from_tomorrow(stage: Stage) -> str:
    """A statement that nothing said later could replace."""
    return _timely(stage, DAY_S)


def of_today(stage: Stage) -> bool:
    """The same of this moment counts."""
    return not _timely(stage, 0)


def _timely(stage: Stage, ahead_s: int) -> str:
    agreement, at_s = stage.consortium.agreement, now_s() + ahead_s
    said = sign_statement("leave", agreement, stage.identities[ADA], at_s)
    return refusal(lambda: require_timely(said.statement, now_s()))


# Keys, logs and receipts on the way (C9, H6, M4).


def plants_a_key(stage: Stage) -> str:
    """A key of one's own, sealed to the accelerator in the owner's place."""
    private, stranger = HpkePrivateKey.generate(), SigningKey.generate()
    resource = stage.resource(train(ADA))
    info = ReleaseInfo(
        agreement=stage.agreement.digest,
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
    shown = b"", Inclusion(0, ()), sign_head(head, stranger)
    release = KeyRelease(*shown, SealedKey(info, sealed, signature))
    return refusal(
        lambda: open_release(
            release,
            expected=info,
            owner=stage.agreement.party(ADA),
            resource=resource,
            private=private,
        )
    )


def another_history(stage: Stage) -> str:
    """A log that was written anew, of the same length."""
    return _shown(stage, b"another")


def same_history(stage: Stage) -> bool:
    """The head that was seen before is taken again."""
    return not _shown(stage, b"first")


def _shown(stage: Stage, then: bytes) -> str:
    identity = create_identity("log")
    store = HeadStore(stage.folder / f"{identity.public_key.raw.hex()[:16]}.heads")

    def show(entry: bytes) -> None:
        head = TreeHead(identity.public_key, 1, Digest.of(entry), int(now_s()))
        store.admit(sign_head(head, identity))

    show(b"first")
    return refusal(lambda: show(then))


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
