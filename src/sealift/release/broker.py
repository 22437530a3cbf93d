"""May this peer have this key? A pure decision that names the rule which failed.

One broker serves the resources of one owner (rule C10). It decides from the agreement
that everybody signed, and from what the session proved about the peer; it reads no
clock, no file and no socket. What it grants is an ``info`` that the sealed key is bound
to (rule C9). Keys and log: ``release/brokerserver.py``.
Source: spec/release.md section Release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from sealift.attest.result import AttestationResult
from sealift.crypto.hpke import HpkePublicKey
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Digest, Role
from sealift.release.agreement import Part, Resource
from sealift.release.signed import VerifiedAgreement

CHALLENGE_BYTES: Final = 32
# Counted by the receiver from the moment it made the challenge; a release is made at
# once, so this only bounds how long a delayed answer is of use.
EXPIRY_S: Final = 60


class Asker(Protocol):
    """Who asks for a key: what every door to a broker knows, and decides by."""

    @property
    def role(self) -> Role:
        """Bound in its evidence and signatures."""
        ...

    @property
    def name(self) -> str:
        """Its name, for the log."""
        ...

    @property
    def agreement(self) -> Digest:
        """Digest of the agreement that both ends work under."""
        ...

    @property
    def result(self) -> AttestationResult | None:
        """What its evidence amounted to."""
        ...


class Peer(Asker, Protocol):
    """What a session proved about its other end (``session.VerifiedPeer``)."""

    @property
    def identity(self) -> PublicKey | None:
        """Its party's key, if it showed one."""
        ...

    @property
    def instance(self) -> PublicKey:
        """Key of its process."""
        ...

    @property
    def hpke(self) -> HpkePublicKey:
        """Where keys for it are sealed to; fresh for the session, in its transcript."""
        ...


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Asks for the data key of one resource.

    Attributes:
        purpose: What it will be used for.
        challenge: 32 fresh random bytes; the answer carries them.
    """

    resource: str
    purpose: Part
    challenge: bytes

    def __post_init__(self) -> None:
        if len(self.challenge) != CHALLENGE_BYTES:
            raise MalformedError(
                f"a challenge has {CHALLENGE_BYTES} bytes", field="challenge"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseInfo:
    """What a released key is bound to (rule C9).

    Attributes:
        recipient: th2 of the session with the recipient.
        expiry_s: Seconds after the challenge was made, by the recipient's clock.
    """

    agreement: Digest
    resource: str
    purpose: Part
    owner: str
    recipient: bytes
    challenge: bytes
    expiry_s: int


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom the broker decides: its name and its own key, not the agreement's."""

    name: str
    key: PublicKey


def authorize(
    request: ReleaseRequest,
    peer: Asker,
    th2: bytes,
    *,
    verified: VerifiedAgreement,
    owner: Owner,
    at_s: float,
) -> ReleaseInfo:
    """Decide on one request.

    Args:
        request: What is asked for.
        peer: Who asks, as the door that it came through proved.
        th2: Names the session, or what stands for it at that door.
        verified: The agreement in force.
        owner: For whom this is decided.
        at_s: Seconds since 1970, by the owner's clock.

    Raises:
        PolicyError: its ``code`` names the rule that failed.
    """
    may_keep_checkpoints(peer, verified, owner)
    resource = verified.resource(request.resource)
    _require_own_resource(resource, owner)
    _require_purpose(resource, request)
    _require_rule(resource, peer, verified, at_s)
    return ReleaseInfo(
        agreement=verified.digest,
        resource=resource.name,
        purpose=request.purpose,
        owner=owner.name,
        recipient=th2,
        challenge=request.challenge,
        expiry_s=EXPIRY_S,
    )


def _require_rule(
    resource: Resource, peer: Asker, verified: VerifiedAgreement, at_s: float
) -> None:
    """(7) The owner's own rule for this resource: its time, and its levels."""
    verified.agreement.require_time(at_s)
    resource.require_time(at_s)
    accepted = resource.accepted(verified.accept)
    level = peer.result.level if peer.result else None
    if level not in accepted:
        raise PolicyError(
            f"{resource.owner} releases the key of {resource.name} at other levels",
            why=f"the evidence proves {level or 'none'}; "
            f"the owner's rule accepts {', '.join(accepted) or 'none'}",
            fix="Run the job at a level that every owner accepts",
            code="owner-level-refused",
        )


def may_keep_checkpoints(
    peer: Asker, verified: VerifiedAgreement, owner: Owner
) -> None:
    """Rules 1 to 4, which do not ask for a resource: what a checkpoint needs.

    Raises:
        PolicyError: its ``code`` names the rule that failed.
    """
    _require_own_agreement(verified, owner)
    _require_same_agreement(peer, verified)
    _require_accelerator(peer)
    _require_evidence(peer.result, verified)


def may_read_heads(peer: Peer, verified: VerifiedAgreement) -> None:
    """Heads and proofs are for parties of the agreement and its accelerator.

    Raises:
        PolicyError: for anybody else.
    """
    _require_same_agreement(peer, verified)
    keys = {party.sign for party in verified.agreement.parties}
    if peer.identity in keys:
        return
    _require_accelerator(peer)
    _require_evidence(peer.result, verified)


def _require_own_agreement(verified: VerifiedAgreement, owner: Owner) -> None:
    """(1) The owner itself signed, and with this broker's key, not another one."""
    if verified.require_owner_signed(owner.name).sign != owner.key:
        raise PolicyError(
            f"the agreement was not signed by this {owner.name}",
            why="it names another key",
            fix="Release keys only under agreements that you signed",
            code="owner-unsigned",
        )


def _require_same_agreement(peer: Asker, verified: VerifiedAgreement) -> None:
    """(2) Both ends work under the agreement in force here."""
    if peer.agreement != verified.digest:
        raise PolicyError(
            "the peer works under another agreement",
            why=f"{peer.agreement.short}, in force here is {verified.digest.short}",
            fix="Start the job with the agreement that everybody signed",
            code="other-agreement",
        )


def _require_accelerator(peer: Asker) -> None:
    """(3) Keys go to accelerators only."""
    if peer.role is not Role.ACCELERATOR:
        raise PolicyError(
            "data keys go to an accelerator only",
            why=f"the peer is a {peer.role}",
            code="role-refused",
        )


def _require_evidence(
    result: AttestationResult | None, verified: VerifiedAgreement
) -> None:
    """(4) Its evidence proved an accepted level, the role, and the agreed code."""
    if result is None:
        raise PolicyError("the peer showed no evidence", code="evidence-missing")
    if result.level not in verified.accept:
        raise PolicyError(
            "evidence of a level that is not accepted",
            why=f"{result.level}; the agreement accepts {', '.join(verified.accept)}",
            code="level-refused",
        )
    if result.claims.role not in (None, Role.ACCELERATOR.value):
        raise PolicyError("the evidence is for another role", code="role-refused")
    if result.claims.code_bundle != verified.agreement.code.digest:
        raise PolicyError(
            "the peer runs other code than the agreement names",
            code="code-bundle-differs",
        )


def _require_own_resource(resource: Resource, owner: Owner) -> None:
    """(5) The resource is this owner's."""
    if resource.owner != owner.name:
        raise PolicyError(
            f"{resource.name} belongs to {resource.owner}",
            why=f"this is the broker of {owner.name}",
            fix="Ask the owner's broker",
            code="not-the-owner",
        )


def _require_purpose(resource: Resource, request: ReleaseRequest) -> None:
    """(6) Held-out rows are never trained on, and the other way round."""
    if request.purpose != resource.part:
        raise PolicyError(
            f"{resource.name} is not for this purpose",
            why=f"it is for {resource.part}, not {request.purpose}",
            code="purpose-refused",
        )
