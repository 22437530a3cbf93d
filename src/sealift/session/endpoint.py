"""Who takes part in a handshake, what it demands of its peer, and the proof of it.

``PeerPolicy`` is filled from the signed agreement. It refuses to be empty: a policy that
would take anybody is a mistake of the caller, not a session. Verification goes from cheap
to dear and stops at the first refusal. Everything the policy looks at is inside th1, so
it is covered by what is verified here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sealift.attest.evidence import Attester, ContinuingAttester, Evidence
from sealift.attest.policy import Appraiser, AttestationResult
from sealift.crypto.hpke import HpkePrivateKey, HpkePublicKey
from sealift.crypto.keys import Label, SecretKey
from sealift.crypto.sign import PublicKey, Signer, SigningKey
from sealift.errors import EvidenceError, PolicyError, UsageError
from sealift.ids import Digest, Role, check_name
from sealift.session.transcript import (
    KeySchedule,
    Params,
    Proof,
    Side,
    bound_value,
    signed_value,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Our own side, the same for every session of this process.

    Attributes:
        role: What this process does in the job.
        name: Its name; for a party's process the party's.
        agreement: Digest of the agreement that it works under.
        instance: Fresh key of this process, never stored.
        identity: The party's identity, if it has one here.
        attester: Makes evidence, if this process has a TEE, a TPM or a stand-in.
    """

    role: Role
    name: str
    agreement: Digest
    instance: SigningKey = field(default_factory=SigningKey.generate)
    identity: Signer | None = None
    attester: Attester | None = None

    def __post_init__(self) -> None:
        check_name(self.name, what="endpoint name")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPolicy:
    """What the peer must show.

    Attributes:
        roles: Roles that it may have.
        identities: Identity key by name; a peer that shows a key must be in it.
        require_identity: Whether it must sign with its identity key.
        require_evidence: Whether it must show acceptable evidence.
        appraiser: Decides about its evidence; None takes none.
        enrolling: Whether it may come with nothing at all: only to be enrolled, by a
            caller that gives it nothing else.
        anonymous: Whether it may come with nothing at all: to a service that is open to
            anybody, and proves itself.
        names: Names that it may have, or None for any.
        instance: The instance key that it must have, or None for any.
    """

    roles: frozenset[Role]
    identities: Mapping[str, PublicKey] | None = None
    require_identity: bool = False
    require_evidence: bool = False
    appraiser: Appraiser | None = None
    enrolling: bool = False
    anonymous: bool = False
    names: frozenset[str] | None = None
    instance: PublicKey | None = None

    def __post_init__(self) -> None:
        if not self.roles:
            raise UsageError("a peer policy must name at least one role")
        if self.require_identity and self.identities is None:
            raise UsageError("require_identity needs identity keys to compare with")
        if self.require_evidence and self.appraiser is None:
            raise UsageError("require_evidence needs an appraiser")
        demands = self.require_identity or self.require_evidence or self.instance
        if not demands and not self.enrolling and not self.anonymous:
            raise UsageError("a peer policy must demand identity, evidence or instance")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPeer:
    """A peer whose proof was verified against a policy, in one session.

    Attributes:
        role: Its role, bound in its evidence and signatures.
        name: Its name, bound likewise.
        identity: Its identity key, or None if it showed none.
        instance: Its instance key, possession proven.
        hpke: Where keys for it in this session are sent.
        agreement: Digest that both sides work under.
        result: What its evidence amounted to, or None if it showed none.
    """

    role: Role
    name: str
    identity: PublicKey | None
    instance: PublicKey
    hpke: HpkePublicKey
    agreement: Digest
    result: AttestationResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Established:
    """What a completed handshake leaves each side with.

    Attributes:
        side: Our side.
        peer: The verified peer.
        suite: Number of the AEAD suite of the session's streams.
        hpke: Our private half; the peer has the public one.
        shown: The evidence that we showed, which a renewal continues.
    """

    side: Side
    peer: VerifiedPeer
    suite: int
    hpke: HpkePrivateKey
    shown: Evidence | None = None
    keys: KeySchedule = field(repr=False)

    @property
    def th2(self) -> bytes:
        """Hash of the whole exchange: names this session."""
        return self.keys.th2

    def send_key(self) -> SecretKey:
        """Base key of the stream that we seal."""
        return self.keys.traffic_key(self.side)

    def receive_key(self) -> SecretKey:
        """Base key of the stream that we open."""
        return self.keys.traffic_key(self.side.other)

    def export(self, label: Label, context: bytes = b"") -> SecretKey:
        """The same key on both ends, for the purpose ``label``."""
        return self.keys.export(label, context)

    def wipe(self) -> None:
        """Forget the keys; nothing can be derived or sent to us any more."""
        self.keys.wipe()
        self.hpke.wipe()


def make_proof(
    endpoint: Endpoint, side: Side, th1: bytes, shown: Evidence | None = None
) -> Proof:
    """Sign th1 and collect evidence bound to it.

    Args:
        endpoint: Ours.
        side: Ours.
        th1: Of this handshake.
        shown: What we showed in the session that this one renews.

    Raises:
        UnavailableError: if evidence cannot be collected.
    """
    message = signed_value(side, endpoint.role, th1)
    identity = endpoint.identity
    bound = bound_value(side, endpoint.role, th1)
    return Proof(
        evidence=_collect(endpoint.attester, bound, shown),
        identity=identity.sign(Label.IDENTITY_PROOF, message) if identity else None,
        instance=endpoint.instance.sign(Label.INSTANCE_PROOF, message),
    )


def _collect(
    attester: Attester | None, bound: bytes, shown: Evidence | None
) -> Evidence | None:
    if attester is None:
        return None
    if shown is not None and isinstance(attester, ContinuingAttester):
        return attester.continue_from(shown, bound)
    return attester.collect(bound)


def verify_peer(
    policy: PeerPolicy,
    params: Params,
    proof: Proof,
    *,
    side: Side,
    th1: bytes,
    earlier: AttestationResult | None = None,
) -> VerifiedPeer:
    """Verify the peer's proof; ``side`` is the peer's.

    Args:
        policy: What it must show.
        params: What it brought.
        proof: What it shows.
        side: The peer's.
        th1: Of this handshake.
        earlier: What its evidence amounted to in the session that this one renews.

    Raises:
        AuthenticationError: a signature does not verify.
        EvidenceError: evidence is missing, not genuine, or bound to something else.
        PolicyError: genuine, but not what the policy allows.
    """
    message = signed_value(side, params.role, th1)
    params.instance.verify(Label.INSTANCE_PROOF, message, proof.instance)
    _verify_identity(policy, params, proof, message)
    bound = bound_value(side, params.role, th1)
    return VerifiedPeer(
        role=params.role,
        name=params.name,
        identity=params.identity,
        instance=params.instance,
        hpke=params.hpke,
        agreement=params.agreement,
        result=_verify_evidence(policy, params, proof, bound, earlier),
    )


def screen_params(policy: PeerPolicy, params: Params, agreement: Digest) -> None:
    """Refuse what no proof could make acceptable, before work is spent on it.

    Raises:
        PolicyError: role, name, instance or agreement is not the expected one.
    """
    if params.agreement != agreement:
        raise PolicyError(
            "the peer uses another agreement",
            why=f"it uses {params.agreement.short}; this process uses {agreement.short}",
            code="agreement-differs",
        )
    if params.role not in policy.roles:
        raise PolicyError(
            f"the peer has the role {params.role}",
            why=f"only {', '.join(sorted(policy.roles))} may connect here",
            code="role-refused",
        )
    if policy.names is not None and params.name not in policy.names:
        raise PolicyError(
            f"the peer has the name {params.name}",
            why=f"expected {', '.join(sorted(policy.names))}",
            code="name-refused",
        )
    if policy.instance is not None and params.instance != policy.instance:
        raise PolicyError(
            f"{params.name} is not the expected instance",
            why="a process makes a new instance key at every start",
            code="instance-differs",
        )


def _verify_identity(
    policy: PeerPolicy, params: Params, proof: Proof, message: bytes
) -> None:
    if (params.identity is None) != (proof.identity is None):
        raise PolicyError(
            "an identity key and its signature must come together",
            code="identity-incomplete",
        )
    if params.identity is None or proof.identity is None:
        if policy.require_identity:
            raise PolicyError(
                f"{params.name} sent no identity key", code="identity-missing"
            )
        return
    params.identity.verify(Label.IDENTITY_PROOF, message, proof.identity)
    if policy.identities is None:
        return
    expected: PublicKey | None = policy.identities.get(params.name)
    if params.identity != expected:
        raise PolicyError(
            f"{params.name} has another identity key than the agreement names",
            code="identity-differs",
        )


def _verify_evidence(
    policy: PeerPolicy,
    params: Params,
    proof: Proof,
    bound: bytes,
    earlier: AttestationResult | None,
) -> AttestationResult | None:
    if proof.evidence is None:
        if policy.require_evidence:
            accepted = ", ".join(policy.appraiser.accept) if policy.appraiser else "it"
            raise EvidenceError(
                f"{params.name} sent no evidence",
                why=f"the agreement requires {accepted}",
                code="evidence-missing",
            )
        return None
    if policy.appraiser is None:
        raise PolicyError(
            f"{params.name} sent evidence, and none is expected",
            why="no accepted level is set, and none is accepted by default",
            code="evidence-refused",
        )
    result = policy.appraiser.appraise(proof.evidence, bound, earlier)
    _require_role(result, params)
    return result


def _require_role(result: AttestationResult, params: Params) -> None:
    if result.claims.role not in (None, params.role.value):
        raise EvidenceError(
            f"a {params.role} sent the evidence of a {result.claims.role}",
            code="evidence-role",
        )
