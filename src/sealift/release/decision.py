"""May this leave, to this asker, now? One pure decision for every kind of secret (rule N1).

Each rule stands once, in ``RULES``, in the order in which they are asked, with the kinds
that it cannot apply to and why. Facts are arguments: nothing here reads a clock, a file
or a socket. Who asks (``release/broker/keyrelease.py``, ``release/broker/checkpoints.py``, the holder in
``travel/holder/jobs.py``, the fed device's in ``feed/terms.py``) gather the facts, ask, log
and sync, then let go; none of them has a rule of its own.
Source: spec/release.md section Decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sealift.errors import PolicyError, StaleError
from sealift.ids import Role
from sealift.release.agreement import KeyLease, PrivacyBudget, Resource
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import ENDS
from sealift.release.facts import (
    Owner,
    ReleaseKind,
    ReleaseQuestion,
    ReleaseState,
    Spending,
    require_latest,
)
from sealift.session.endpoint import VerifiedPeer

# A renewal is judged on the way, and machines pause; less than the second that
# revocation may take beyond a heartbeat.
GRACE_S: Final = 0.5
# Of a key that goes without a lease, too: nothing bounds it once it is out.
_UNLEASED: Final = KeyLease(lease_s=60.0, heartbeat_s=60.0)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    Attributes:
        name: For people, and for the table in the specification.
        require: Raises, with the stable name of what does not hold.
        not_for: Kinds to which it cannot apply, each with the reason.
    """

    name: str
    require: Callable[[ReleaseQuestion, ReleaseState], None]
    not_for: Mapping[ReleaseKind, str] = field(default_factory=dict)


def decide(ask: ReleaseQuestion, state: ReleaseState) -> None:
    """Return if it may leave.

    Raises:
        RefusedError: its ``code`` names the first rule that does not hold.
    """
    for rule in RULES:
        if ask.kind not in rule.not_for:
            rule.require(ask, state)


def require_in_force(state: ReleaseState) -> None:
    """What must hold for anything at all: signed by the owner, ended by nobody, the last.

    Raises:
        PolicyError, StaleError: see ``_unended``, ``_signed`` and ``_in_force``.
    """
    _unended(state)
    _signed(state)
    _in_force(state)


def require_reader(peer: VerifiedPeer, verified: VerifiedAgreement) -> None:
    """Heads, proofs and statements are for parties of the agreement and its accelerator.

    Raises:
        PolicyError: for anybody else.
    """
    require_same_agreement(peer, verified)
    if peer.identity not in {party.sign for party in verified.agreement.parties}:
        _accelerator(peer)
        _evidence(peer, verified)


def require_home(owner: Owner, verified: VerifiedAgreement, at_s: float) -> None:
    """What an owner finds out at home, before it meets anybody to feed.

    Raises:
        PolicyError: ``not-a-party``, ``owner-unsigned``, ``owner-left``,
            ``not-a-data-owner``; the time of the agreement or a resource is not now.
    """
    state = ReleaseState(
        owner=owner, verified=verified, at_s=at_s, ended=None, revoked=""
    )
    resources = verified.agreement.resources_of(owner.name)
    _signed(state)
    _own(resources, state)
    _time(resources, state)


def require_use(count: int, limit: int, resource: str) -> None:
    """Refuse a use beyond the limit; raises ``uses-exhausted``."""
    if limit and count > limit:
        raise PolicyError(
            f"the key of {resource} was already released {limit} times, the most that its owner allows",
            why="every release counts, also to resumed jobs",
            code="uses-exhausted",
        )


def require_visits(count: float, limit: int, owner: str) -> None:
    """Refuse a visit beyond the limit; raises ``too-many-visits``."""
    if count > limit:
        raise PolicyError(
            f"the agreement allows {limit} visits to {owner} for one purpose",
            why=f"this would be visit {count:g}; visits of all jobs count, also of restarted ones",
            code="too-many-visits",
        )


def require_budget(budget: PrivacyBudget, spent: Spending, resource: str) -> None:
    """Refuse a round that costs more than is left; raises ``privacy-budget-spent``."""
    if not spent.after <= budget.epsilon:
        left = max(0.0, budget.epsilon - spent.before)
        raise PolicyError(
            f"the privacy budget of {resource} does not allow another round",
            why=f"epsilon {spent.before:.4g} is spent, with this round it would be {spent.after:.4g}, and {left:.4g} is left of "
            f"{budget.epsilon:g} (delta {budget.delta:g}); rounds of all jobs count, also of restarted ones",
            code="privacy-budget-spent",
        )


def require_run(count: int, limit: int) -> None:
    """Refuse a run beyond the limit; raises ``too-many-runs``."""
    if limit and count > limit:
        raise PolicyError(
            f"the agreement allows {limit} runs, and {limit} runs were started",
            why="a job with another name or another setting counts as another run",
            code="too-many-runs",
        )


def require_good(revoked: str) -> None:
    """Refuse an instance that was revoked: ``lease-revoked``, or what ended its keys."""
    if revoked in ENDS:
        raise PolicyError(
            "a statement ended the use of this key",
            fix="Read the statement beside the agreement: it names who ended it",
            code=revoked,
        )
    if revoked:
        raise StaleError(
            "this instance was revoked",
            why=f"it sent no acceptable evidence while it held keys [{revoked}]",
            code="lease-revoked",
        )


def require_same_host(lease: str, attester: str) -> None:
    """A host that turned bad must not show the evidence of a clean one instead.

    Raises:
        PolicyError: ``attester-differs``.
    """
    if lease and lease != attester:
        raise PolicyError(
            "the lease was opened with evidence of another host",
            why="an instance is one process on one host",
            code="attester-differs",
        )


def _unended(state: ReleaseState) -> None:
    if state.ended is not None:
        raise state.ended


def _signed(state: ReleaseState) -> None:
    """The owner itself signed, and with this side's key, not another one."""
    if state.verified.require_owner_signed(state.owner.name).sign != state.owner.key:
        raise PolicyError(
            f"the agreement was not signed by {state.owner.name} with this key",
            why="the agreement names another key",
            fix="Sign the agreement with the identity that this broker uses",
            code="owner-unsigned",
        )


def _in_force(state: ReleaseState) -> None:
    if state.in_force != state.verified.digest:
        raise StaleError(
            "a successor of this agreement is in force", code="agreement-superseded"
        )


def require_same_agreement(peer: VerifiedPeer, verified: VerifiedAgreement) -> None:
    """Raises ``other-agreement``."""
    if peer.agreement != verified.digest:
        raise PolicyError(
            "the peer uses another agreement",
            why=f"it uses {peer.agreement.short}; {verified.digest.short} is in force here",
            fix="Start the job with the agreement in force",
            code="other-agreement",
        )


def _accelerator(peer: VerifiedPeer) -> None:
    if peer.role is not Role.ACCELERATOR:
        raise PolicyError(
            "keys and rows are released only to an accelerator",
            why=f"the peer has the role {peer.role}",
            code="role-refused",
        )


def _evidence(peer: VerifiedPeer, verified: VerifiedAgreement) -> None:
    """It proved an accepted level, the role, and the agreed code."""
    result = peer.result
    if result is None:
        raise PolicyError("the peer sent no evidence", code="evidence-missing")
    if result.level not in verified.accept:
        raise PolicyError(
            "the evidence proves a level that the agreement does not accept",
            why=f"it proves {result.level}; the agreement accepts {', '.join(verified.accept)}",
            code="level-refused",
        )
    if result.claims.role not in (None, Role.ACCELERATOR.value):
        raise PolicyError("the evidence was made for another role", code="role-refused")
    if result.claims.code_bundle != verified.agreement.code.digest:
        raise PolicyError(
            "the peer runs other code than the agreement names",
            code="code-bundle-differs",
        )


def _at_home(ask: ReleaseQuestion, state: ReleaseState) -> None:
    """Where rows stay at home, the accelerator is the owner's own: it has its key."""
    if state.verified.agreement.rows_at_home and ask.peer.identity != state.owner.key:
        raise PolicyError(
            f"the rows of {state.owner.name} must stay on its own machine",
            why="the accelerator did not prove itself with that owner's key",
            fix=f"Start the accelerator on a machine of {state.owner.name}, with its identity",
            code="not-at-home",
        )


def _own(resources: tuple[Resource, ...], state: ReleaseState) -> None:
    if not resources:
        raise PolicyError(
            f"{state.owner.name} has no resources in this agreement",
            code="not-a-data-owner",
        )
    for resource in resources:
        if resource.owner != state.owner.name:
            raise PolicyError(
                f"{resource.name} belongs to {resource.owner}",
                why=f"this broker decides only for {state.owner.name}",
                code="not-the-owner",
            )


def _purpose(ask: ReleaseQuestion, state: ReleaseState) -> None:
    """Held-out rows are never trained on; a visit is for what the owner's rule names."""
    for resource in ask.resources(state):
        if ask.kind in (ReleaseKind.ROWS, ReleaseKind.PASSES):
            resource.require_purpose(ask.purpose)
        elif ask.purpose != resource.part or (
            (ask.kind is ReleaseKind.MODEL_KEY) is not (resource.part == "model")
        ):
            raise PolicyError(
                f"{resource.name} may not be used for this purpose",
                why=f"it is for {resource.part}, and it was requested for {ask.purpose}",
                code="purpose-refused",
            )


def _time(resources: tuple[Resource, ...], state: ReleaseState) -> None:
    state.verified.agreement.require_time(state.at_s)
    for resource in resources:
        resource.require_time(state.at_s)


def _level(ask: ReleaseQuestion, state: ReleaseState) -> None:
    """The owner's own levels, for each resource."""
    level = ask.peer.result.level if ask.peer.result else None
    for resource in ask.resources(state):
        accepted = resource.accepted(state.verified.accept)
        if level not in accepted:
            raise PolicyError(
                f"{resource.owner} does not release {resource.name} at this level",
                why=f"the evidence proves {level or 'no level'}; the owner's "
                f"rule accepts {', '.join(accepted) or 'none'}",
                code="owner-level-refused",
            )


def _same_host(ask: ReleaseQuestion, state: ReleaseState) -> None:
    if ask.peer.result is not None:
        require_same_host(state.host, ask.peer.result.claims.attester)


def _fresh_evidence(ask: ReleaseQuestion, state: ReleaseState) -> None:
    """A session may stay open for hours: its beginning says nothing of the host of now."""
    for resource in ask.resources(state):
        fed = ask.kind is ReleaseKind.FED_DEVICE
        if fed and not resource.rule.lease_s:
            continue  # nobody keeps a device's lease: none by default
        lease = resource.lease or _UNLEASED
        longest_s = lease.lease_s if fed else lease.heartbeat_s + GRACE_S
        if state.evidence_age_s >= longest_s:
            raise StaleError(
                f"the evidence is too old for {resource.name}",
                why=f"it may be {state.evidence_age_s:.1f} s old; the owner's rule allows {longest_s:g} s",
                code="evidence-old",
            )


def _uses(ask: ReleaseQuestion, state: ReleaseState) -> None:
    """Shares and passes are no uses: they go where all keys went, which were counted."""
    for resource in ask.resources(state):
        limit = resource.rule.max_uses
        if ask.kind not in (ReleaseKind.CHECKPOINT_SHARE, ReleaseKind.PASSES):
            require_use(state.uses.get(resource.name, limit) + 1, limit, resource.name)
        elif resource.name not in state.held:
            raise PolicyError(
                f"the key of {resource.name} was not released to this instance",
                why="results of rows are released only to an instance that may read the rows",
                code="share-before-keys",
            )


def _settings(ask: ReleaseQuestion, state: ReleaseState) -> None:
    """What the job sets is what the parties agreed on (rule O1)."""
    if ask.run is None:
        raise PolicyError(
            "the peer did not send its job's settings", code="settings-differ"
        )
    state.verified.agreement.training_rule.require(ask.run)


def _runs(ask: ReleaseQuestion, state: ReleaseState) -> None:
    agreement = state.verified.agreement
    limit, known = agreement.training_rule.runs, state.runs
    if known is None:
        require_run(limit + 1, limit)
    elif ask.run is None or ask.run.digest(agreement.digest) not in known:
        require_run(len(known) + 1, limit)


def _visits(ask: ReleaseQuestion, state: ReleaseState) -> None:
    limit = state.verified.agreement.output_rule.max_visits
    require_visits(state.visits + ask.visits, limit, state.owner.name)


def _budget(ask: ReleaseQuestion, state: ReleaseState) -> None:
    """Held-out rows cost nothing: with private steps no measure of rows is told."""
    for resource in ask.resources(state):
        if resource.rule.privacy is None or resource.part != "train":
            continue
        if ask.visits != len(ask.resources(state)):
            raise PolicyError(
                f"{resource.name} has a privacy budget and is to be visited in parts",
                why="rows are drawn by chance from the whole table; a part of it would cost more",
                code="privacy-not-enforced",
            )
        spent = state.epsilons.get(resource.name, Spending(math.inf, math.inf))
        require_budget(resource.rule.privacy, spent, resource.name)


def _challenge(ask: ReleaseQuestion, state: ReleaseState) -> None:
    if not state.fresh:
        raise StaleError("this challenge was used before", code="challenge-replayed")


_NO_VAULT: Final = "the process has no vault: it sends under the agreement it was given"
_ITS_BROKER: Final = "its broker asks, and lets no key go that would open these rows"
_OWN_PROCESS: Final = "the owner's own process chooses what it feeds, batch by batch"
_SERVED: Final = "a model is served, not trained"
_SAME_RUN: Final = (
    "it goes where all keys of the run went, whose settings were compared"
)
_AT_THE_KEY: Final = "the run was counted when its keys were let go"
_NO_VISIT: Final = (
    "no row is worked on yet: each pass is asked for, or each visit counted"
)
_TRANSCRIPT: Final = "the evidence is bound to this session's own transcript"

RULES: Final[tuple[Rule, ...]] = (
    Rule("ended by nobody", lambda ask, state: _unended(state)),
    Rule("signed by this owner", lambda ask, state: _signed(state)),
    Rule(
        "in force here",
        lambda ask, state: _in_force(state),
        {ReleaseKind.FED_DEVICE: _NO_VAULT, ReleaseKind.ROWS: _ITS_BROKER},
    ),
    Rule(
        "the last one",
        lambda ask, state: require_latest(state.verified.agreement, state.sightings),
        {ReleaseKind.FED_DEVICE: _NO_VAULT, ReleaseKind.ROWS: _ITS_BROKER},
    ),
    Rule(
        "the same agreement",
        lambda ask, state: require_same_agreement(ask.peer, state.verified),
    ),
    Rule("an accelerator", lambda ask, state: _accelerator(ask.peer)),
    Rule("its evidence", lambda ask, state: _evidence(ask.peer, state.verified)),
    Rule("the owner's", lambda ask, state: _own(ask.resources(state), state)),
    Rule(
        "the purpose",
        _purpose,
        {
            ReleaseKind.CHECKPOINT_SHARE: "states are of the whole job; each key had its purpose",
            ReleaseKind.FED_DEVICE: _OWN_PROCESS,
        },
    ),
    Rule("in its time", lambda ask, state: _time(ask.resources(state), state)),
    Rule("the owner's levels", _level),
    Rule(
        "not revoked",
        lambda ask, state: require_good(state.revoked),
        {
            ReleaseKind.FED_DEVICE: "nobody keeps its lease: how long it lasts is bounded instead"
        },
    ),
    Rule(
        "the host of its lease",
        _same_host,
        {
            ReleaseKind.FED_DEVICE: "it has no lease",
            ReleaseKind.ROWS: "its broker compares, and the holder asks the broker",
        },
    ),
    Rule(
        "fresh evidence",
        _fresh_evidence,
        {
            ReleaseKind.ROWS: "its broker judges renewals; its word is part of `not revoked`",
            ReleaseKind.PASSES: "nothing leaves by it; its keys' lease is part of `not revoked`",
        },
    ),
    Rule(
        "uses",
        _uses,
        {
            ReleaseKind.FED_DEVICE: "no data key leaves",
            ReleaseKind.ROWS: "the key that opens them is counted; the holder counts visits",
        },
    ),
    Rule(
        "a fresh challenge",
        _challenge,
        {
            ReleaseKind.FED_DEVICE: _TRANSCRIPT,
            ReleaseKind.ROWS: _TRANSCRIPT,
            ReleaseKind.PASSES: "nothing leaves by it that could be shown again",
        },
    ),
    Rule(
        "at home",
        _at_home,
        {
            ReleaseKind.FED_DEVICE: _OWN_PROCESS,
            ReleaseKind.MODEL_KEY: "a model is served under an agreement that has no group",
        },
    ),
    Rule(
        "the job's settings",
        _settings,
        {
            ReleaseKind.CHECKPOINT_SHARE: _SAME_RUN,
            ReleaseKind.FED_DEVICE: _OWN_PROCESS,
            ReleaseKind.MODEL_KEY: _SERVED,
        },
    ),
    Rule(
        "runs",
        _runs,
        {
            ReleaseKind.CHECKPOINT_SHARE: _SAME_RUN,
            ReleaseKind.FED_DEVICE: _OWN_PROCESS,
            ReleaseKind.MODEL_KEY: _SERVED,
            ReleaseKind.PASSES: _AT_THE_KEY,
            ReleaseKind.ROWS: _AT_THE_KEY,
        },
    ),
    Rule(
        "visits",
        _visits,
        {
            ReleaseKind.CHECKPOINT_SHARE: _NO_VISIT,
            ReleaseKind.DATA_KEY: _NO_VISIT,
            ReleaseKind.FED_DEVICE: _OWN_PROCESS,
            ReleaseKind.MODEL_KEY: _SERVED,
            ReleaseKind.ROWS: "asked for each frame: the holder counts a visit once, on its disk",
        },
    ),
    Rule(
        "the privacy budget",
        _budget,
        {
            ReleaseKind.CHECKPOINT_SHARE: "it holds what was computed of rounds that were debited",
            ReleaseKind.DATA_KEY: _NO_VISIT,
            ReleaseKind.MODEL_KEY: _SERVED,
            ReleaseKind.ROWS: "the accelerator that opens them has each visit debited at the owner's broker before it works on them",
        },
    ),
)
