"""Who takes part in a handshake, what it demands of its peer, and what it got.

``PeerPolicy`` is filled from the signed agreement. It refuses to be empty: a policy that
would take anybody is a mistake of the caller, not a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sealift.attest.evidence import Attester, Evidence
from sealift.attest.policy import Appraiser, AttestationResult
from sealift.crypto.hpke import HpkePrivateKey, HpkePublicKey
from sealift.crypto.keys import Label, SecretKey
from sealift.crypto.sign import PublicKey, Signer, SigningKey
from sealift.errors import UsageError
from sealift.ids import Digest, Role, check_name
from sealift.session.transcript import KeySchedule, Side


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
            raise UsageError("a peer policy names at least one role")
        if self.require_identity and self.identities is None:
            raise UsageError("require_identity needs the identity keys to compare with")
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
