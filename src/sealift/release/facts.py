"""What a decision is about: kinds of secrets, who asks, what the owner's side knows now.

A door fills these in; ``release/decision.py`` decides by them and by nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sealift.crypto.sign import PublicKey
from sealift.errors import SealiftError
from sealift.ids import Digest
from sealift.release.agreement import Resource
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.rollback import Sighting
from sealift.session.endpoint import VerifiedPeer


class Kind(StrEnum):
    """What can leave. A new kind needs its row in the table of rules and kinds."""

    DATA_KEY = "data-key"
    MODEL_KEY = "model-key"
    CHECKPOINT_SHARE = "checkpoint-share"
    FED_DEVICE = "fed-device"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom it is decided: its name and its own key, not the agreement's."""

    name: str
    key: PublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the owner's side knows at this moment. What is left out refuses.

    Attributes:
        verified: The agreement that is served, with what is known of it now.
        at_s: Seconds since 1970, by this side's clock.
        ended: What statements known here ended it; None for nothing.
        in_force: The agreement of this line that the owner's vault has in force.
        sightings: What other owners' brokers said that they serve.
        revoked: The rule for which the asker's instance was revoked, or empty.
        host: What made the evidence that its open lease began with; empty without one.
        evidence_age_s: Seconds since a time before which its evidence was not judged.
        uses: How often each resource's key was released.
        held: Resources whose keys this very instance got.
        fresh: Whether the challenge was never used before.
    """

    owner: Owner
    verified: VerifiedAgreement
    at_s: float
    ended: SealiftError | None
    revoked: str
    in_force: Digest | None = None
    sightings: tuple[Sighting, ...] = ()
    host: str = ""
    evidence_age_s: float = math.inf
    uses: Mapping[str, int] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question.

    Attributes:
        peer: Who asks, as its session proved it.
        resource: Its name; shares and fed devices are about all that the owner brings.
        purpose: What it will be used for.
    """

    kind: Kind
    peer: VerifiedPeer
    resource: str = ""
    purpose: str = ""

    def resources(self, state: State) -> tuple[Resource, ...]:
        """What it is about: every rule must hold for every one."""
        if self.kind in (Kind.CHECKPOINT_SHARE, Kind.FED_DEVICE):
            return state.verified.agreement.resources_of(state.owner.name)
        return (state.verified.resource(self.resource),)
