"""An owner entrusts its keys to a shared broker: what crosses, and the owner's side.

The owner dials, judges the broker's evidence in the handshake, and only then sends each
data key by HPKE to the key of that session, which the same evidence covers; what is sealed
is bound to agreement, resource, owner, session and challenge, and signed (rule C9). What
the broker may do with the keys stands in the appointment beside them. The number of uses
that it gets is counted as used up in the owner's own vault before anything leaves.
Source: spec/release.md section Shared broker (rule C10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.result import AttestationResult
from sealift.crypto.identity import Identity
from sealift.crypto.keys import TOKEN
from sealift.crypto.sign import PublicKey
from sealift.errors import EvidenceError, MalformedError, PolicyError
from sealift.ids import Role
from sealift.release.agreement import Resource, SharedBroker
from sealift.release.appointment import (
    Allotment,
    Appointment,
    SignedAppointment,
    sign_appointment,
)
from sealift.release.audit import SignedTreeHead, verify_head
from sealift.release.broker import Peer
from sealift.release.brokermessages import BrokerSession
from sealift.release.collect import refused
from sealift.release.entrustmessages import (
    EntrustAnswer,
    EntrustedKey,
    EntrustInfo,
    Entrustment,
    EntrustRequest,
    sign_entrusted,
)
from sealift.release.ledger import require_use
from sealift.release.signed import VerifiedAgreement
from sealift.release.speaking import foreign, log_owner
from sealift.release.statement import SignedStatement
from sealift.release.vault import Vault

T = TypeVar("T")
ANSWER_S: Final = 30.0
USES: Final = 8  # of each key, if the owner says nothing and its rule limits them
_STRENGTH: Final = {
    Level.DEVELOPMENT: 0,
    Level.ATTESTED_HOST: 1,
    Level.UNTRUSTED_GPU: 2,  # what is not outsourced runs in a TEE
    Level.TEE: 2,
    Level.GPU_TEE: 2,
}


@dataclass(frozen=True, slots=True)
class Terms:
    """What an owner allows.

    Attributes:
        uses: Of each key; None takes ``USES`` or what the rule leaves.
        not_after: Seconds since 1970.
    """

    uses: int | None
    not_after: int


def require_shared_broker(verified: VerifiedAgreement, owner: str) -> SharedBroker:
    """The agreement's shared broker, if this owner may entrust its keys to it.

    Raises:
        PolicyError: ``not-entrusting``.
    """
    shared = verified.agreement.shared_broker
    if shared is None or owner not in shared.owners:
        raise PolicyError(
            f"the agreement lets {owner} entrust its keys to nobody",
            fix="Run `sealift broker`, or agree on shared_broker with you among owners",
            code="not-entrusting",
        )
    return shared


def levels_for_broker(verified: VerifiedAgreement, owner: str) -> tuple[Level, ...]:
    """Levels that are good enough for a broker that keeps this owner's keys.

    Whoever can read the broker's memory can read every key: it is at least as well kept
    as the best place that the owner lets a key go to. A GPU makes no broker better.
    """
    own = verified.agreement.resources_of(owner)
    accepted = {level for each in own for level in each.accepted(verified.accept)}
    if accepted <= {Level.DEVELOPMENT}:
        return (Level.DEVELOPMENT,)
    needed = max(_STRENGTH[level] for level in accepted)
    real = (Level.TEE, Level.GPU_TEE, Level.ATTESTED_HOST)
    return tuple(level for level in real if _STRENGTH[level] >= needed)


def broker_appraiser(verified: VerifiedAgreement, owner: str) -> Appraiser:
    """Decides about a shared broker's evidence, for one owner.

    The references are the agreement's, with the broker's code in place of the recipe's.

    Raises:
        PolicyError: ``not-entrusting``.
    """
    shared = require_shared_broker(verified, owner)
    plain = verified.appraiser()
    references = replace(plain.references, code_bundle=shared.code, code_files=None)
    levels = levels_for_broker(verified, owner)
    return replace(plain, accept=levels, references=references)


def require_proven(peer: Peer, verified: VerifiedAgreement) -> AttestationResult:
    """What a broker's evidence proved, all of it once more before a key is touched.

    Raises:
        PolicyError: ``role-refused``, ``other-agreement``, ``code-bundle-differs``.
        EvidenceError: ``evidence-missing``, or the broker made no key for this owner.
    """
    shared = verified.agreement.shared_broker
    if peer.role is not Role.BROKER:
        raise PolicyError("the peer is no broker", code="role-refused")
    if peer.agreement != verified.digest:
        raise PolicyError(
            "the broker works under another agreement", code="other-agreement"
        )
    if peer.result is None or peer.identity is None:
        raise EvidenceError("the broker showed no evidence", code="evidence-missing")
    if peer.result.claims.role not in (None, Role.BROKER.value):
        raise PolicyError("the evidence is for another role", code="role-refused")
    if shared is None or peer.result.claims.code_bundle != shared.code:
        raise PolicyError(
            "the broker runs other code than the agreement names",
            code="code-bundle-differs",
        )
    return peer.result


def entrust(
    session: BrokerSession,
    verified: VerifiedAgreement,
    owner: Identity,
    vault: Vault,
    *,
    terms: Terms,
    clock: Callable[[], float],
) -> SignedAppointment:
    """Entrust all of an owner's keys to the broker at the other end.

    Args:
        session: Its peer was judged by ``broker_appraiser`` in the handshake.
        verified: The agreement.
        owner: Signs.
        vault: The owner's; remembers what is given away of its uses.
        terms: What the owner allows.
        clock: Seconds since 1970.

    Raises:
        PolicyError: ``release-refused`` with the broker's reason; ``uses-exhausted``.
        RefusedError: what it shows does not prove what was agreed on.
        UnavailableError: ``no-key``.
    """
    result = require_proven(session.peer, verified)
    require_shared_broker(verified, owner.name)
    vault.activate(verified)
    challenge = _require(_ask(session, EntrustRequest(begin=True)).challenge)
    resources = verified.agreement.resources_of(owner.name)
    allotted = tuple(_allot(each, vault, verified, terms) for each in resources)
    said = Appointment(
        agreement=verified.digest,
        owner=owner.name,
        key=_made_for(session.peer, owner),
        resources=allotted,
        level=result.standing,
        evidence=result.evidence,
        at_s=_after_withdrawals(verified, owner.name, clock()),
        not_after=terms.not_after,
    )
    signed = sign_appointment(said, owner)
    keys = tuple(_seal(vault, each, session, challenge, owner) for each in resources)
    given = Entrustment(signed, keys)
    head = _require(_ask(session, EntrustRequest(keys=given)).head)
    _require_begun(head, signed, verified)
    return signed


def withdraw(session: BrokerSession, statement: SignedStatement) -> bool:
    """Take everything back; whether there was anything.

    Raises:
        PolicyError: ``release-refused``.
        PeerError: no answer in time.
    """
    return _require(_ask(session, EntrustRequest(withdraw=statement)).withdrawn)


def _allot(
    resource: Resource, vault: Vault, verified: VerifiedAgreement, terms: Terms
) -> Allotment:
    """So many uses, taken from the owner's own count first."""
    limit, line = resource.rule.max_uses, verified.agreement.name
    if not limit:
        return Allotment(resource.name, resource.key, terms.uses or 0)
    left = limit - vault.ledger.uses(line, resource.name)
    require_use(limit - left + 1, limit, resource.name)
    uses = min(USES, left) if terms.uses is None else terms.uses or left
    vault.ledger.debit(line, resource.name, limit, uses)
    return Allotment(resource.name, resource.key, uses)


def _made_for(peer: Peer, owner: Identity) -> PublicKey:
    """The key that the broker made for this owner; its evidence covers it.

    Raises:
        PolicyError: ``appointment-foreign``: it stands at another owner's desk.
    """
    if peer.identity is None or peer.name != owner.name:
        raise foreign("for another owner")
    return peer.identity


def _after_withdrawals(verified: VerifiedAgreement, owner: str, at_s: float) -> int:
    """Now, and later than whatever this owner took back."""
    return max(int(at_s), verified.backing.withdrawn.get(owner, -1) + 1)


def _seal(
    vault: Vault,
    resource: Resource,
    session: BrokerSession,
    challenge: bytes,
    owner: Identity,
) -> EntrustedKey:
    info = EntrustInfo(
        agreement=session.peer.agreement,
        resource=resource.name,
        owner=owner.name,
        recipient=session.th2,
        challenge=challenge,
    )
    data_key = vault.fetch(resource.name)
    try:
        return sign_entrusted(info, data_key.reveal(TOKEN), session.peer.hpke, owner)
    finally:
        data_key.wipe()


def _require_begun(
    head: SignedTreeHead, signed: SignedAppointment, verified: VerifiedAgreement
) -> None:
    verify_head(head)
    if head.appointment != signed or not head.size:
        raise foreign("not the one that was just made")
    log_owner(head, verified)


def _ask(session: BrokerSession, request: EntrustRequest) -> EntrustAnswer:
    session.send_message(request)
    answer = session.receive_message(EntrustAnswer, ANSWER_S)
    if answer.refusal is not None:
        raise refused(answer.refusal)
    return answer


def _require(part: T | None) -> T:
    if part is None:
        raise MalformedError("the broker answered something else", code="bad-answer")
    return part
