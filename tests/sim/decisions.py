"""For each kind of secret a world, a question and the facts that allow it; and ways out of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sealift.attest.level import Level
from sealift.crypto.hpke import HpkePrivateKey
from sealift.errors import SealiftError
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    Board,
    GroupRule,
    ReleaseRule,
    RollbackRule,
)
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.decision import decide
from sealift.release.facts import (
    Owner,
    ReleaseKind,
    ReleaseQuestion,
    ReleaseState,
    Sighting,
)
from tests.sim.owners import NOW_S, accelerator_peer
from tests.worlds.consortium import RUN, Consortium, make_consortium

OTHER = Digest.of(b"something else")
PURPOSES = {
    ReleaseKind.DATA_KEY: "train",
    ReleaseKind.MODEL_KEY: "model",
    ReleaseKind.ROWS: "train",
    ReleaseKind.PASSES: "train",
}
OTHER_RUN = replace(RUN, job="another").digest(Digest.of(b"any"))
LEASED = ReleaseRule(max_uses=3, lease_s=60.0, heartbeat_s=4.0)


@dataclass(frozen=True)
class Case:
    """A kind's world, its question and its facts, which allow it."""

    consortium: Consortium
    ask: ReleaseQuestion
    state: ReleaseState

    def run(self, **facts: Any) -> str:
        """``allowed``, or the code of the rule that failed."""
        try:
            decide(self.ask, replace(self.state, **facts))
        except SealiftError as error:
            return error.code
        return "allowed"

    def asking(self, **changes: Any) -> str:
        return replace(self, ask=replace(self.ask, **changes)).run()

    def by(self, **changes: Any) -> str:
        return self.asking(peer=replace(self.ask.peer, **changes))  # type: ignore[type-var]

    def proving(self, **claims: Any) -> str:
        result = self.ask.peer.result
        assert result is not None
        return self.by(result=replace(result, claims=replace(result.claims, **claims)))

    def under(self, verified: VerifiedAgreement) -> str:
        """The same question under another agreement, which both ends work under."""
        peer = replace(self.ask.peer, agreement=verified.digest)  # type: ignore[type-var]
        facts = replace(
            self.state,
            verified=verified,
            in_force=verified.digest,
            sightings=sightings(verified.agreement),
        )
        return Case(self.consortium, replace(self.ask, peer=peer), facts).run()

    def agreed(self, **changes: Any) -> str:
        agreement = replace(self.consortium.agreement, **changes)
        return self.under(replace(self.consortium, agreement=agreement).verified())

    def ruled(self, **changes: Any) -> str:
        """Under an agreement whose rule for one of ada's resources differs."""
        return self.agreed(
            resources=ruled(self.consortium, self.last_resource, changes)
        )

    @property
    def last_resource(self) -> str:
        """The last that the question is about: a rule of the first alone is no rule."""
        return self.ask.resources(self.state)[-1].name


def away_from_home(case: Case) -> str:
    """Rows stay at home, and the asker has another owner's key, not this one's."""
    at_home = GroupRule(len(case.consortium.agreement.data_owners), "owner")
    agreement = replace(case.consortium.agreement, group=at_home)
    verified = replace(case.consortium, agreement=agreement).verified()
    own = replace(case.ask.peer, identity=case.state.owner.key)  # type: ignore[type-var]
    assert replace(case, ask=replace(case.ask, peer=own)).under(verified) == "allowed"
    other = case.consortium.identities["bern"].public_key
    return replace(
        case,
        ask=replace(case.ask, peer=replace(own, identity=other)),
    ).under(verified)


def ruled(consortium: Consortium, name: str, changes: dict[str, Any]) -> Any:
    return tuple(
        replace(each, rule=replace(each.rule, **changes)) if each.name == name else each
        for each in consortium.agreement.resources
    )


def serving(consortium: Consortium) -> Consortium:
    """The same parties; what they bring are models."""
    agreement = consortium.agreement
    resources = tuple(
        replace(each, part="model", rows=1, row_bytes=each.total_bytes)
        for each in agreement.resources
    )
    parties = tuple(
        replace(each, roles=("model_owner", "code_owner", "operator"))
        for each in agreement.parties
    )
    models = replace(
        agreement, about="serve", resources=resources, parties=parties,
        model_owner=None, output=None, travel=None, training=None,
    )  # fmt: skip
    return replace(consortium, agreement=models)


def sightings(agreement: Agreement) -> tuple[Sighting, ...]:
    owners = ("ada", "bern", "cleo")
    return tuple(Sighting(each, agreement.number, agreement.digest) for each in owners)


def make_case(kind: ReleaseKind) -> Case:
    plain = make_consortium()
    consortium = serving(plain) if kind is ReleaseKind.MODEL_KEY else plain
    resources = tuple(
        replace(each, rule=LEASED) for each in consortium.agreement.resources
    )
    board = Board(
        members=tuple(plain.identities), threshold=3, rollback=RollbackRule(2, 0)
    )
    agreement = replace(consortium.agreement, resources=resources, board=board)
    consortium = replace(consortium, agreement=agreement)
    verified = consortium.verified()
    peer = accelerator_peer(consortium, HpkePrivateKey.generate().public)
    assert peer.result is not None
    state = ReleaseState(
        owner=Owner("ada", consortium.identities["ada"].public_key),
        verified=verified,
        at_s=NOW_S,
        ended=None,
        revoked="",
        in_force=agreement.digest,
        sightings=sightings(agreement),
        host=peer.result.claims.attester,
        evidence_age_s=1.0,
        uses={"ada-train": 2, "ada-heldout": 2},
        held=frozenset({"ada-train", "ada-heldout"}),
        fresh=True,
        runs=frozenset({OTHER_RUN}),
        visits=2,
    )
    unnamed = (ReleaseKind.CHECKPOINT_SHARE, ReleaseKind.FED_DEVICE, ReleaseKind.PASSES)
    named = "" if kind in unnamed else "ada-train"
    purpose = PURPOSES.get(kind, "")
    ask = ReleaseQuestion(
        kind=kind, peer=peer, resource=named, purpose=purpose, run=RUN, visits=3
    )
    return Case(consortium, ask, state)


CASES = {kind: make_case(kind) for kind in ReleaseKind}


def unsigned(case: Case) -> str:
    verified = case.state.verified
    backing = replace(verified.backing, signers=frozenset({"bern", "cleo"}))
    return case.run(verified=replace(verified, backing=backing))


def left(case: Case) -> str:
    verified = case.state.verified
    backing = replace(verified.backing, left=frozenset({"ada"}))
    return case.run(verified=replace(verified, backing=backing))


def level(case: Case, rule: str) -> str:
    """Two levels in the agreement; the owner takes one, the evidence proves the other."""
    result = case.ask.peer.result
    assert result is not None
    proven = Level.TEE if rule == "agreement" else Level.ATTESTED_HOST
    claims = replace(result.claims, level=proven)
    proving = replace(case.ask.peer, result=replace(result, claims=claims))  # type: ignore[type-var]
    case = replace(case, ask=replace(case.ask, peer=proving))
    if rule == "agreement":
        return case.run()
    accept = (Level.TEE, Level.ATTESTED_HOST)
    strict = ruled(case.consortium, case.last_resource, {"accept": (Level.TEE,)})
    return case.agreed(accept=accept, resources=strict)


def of_another(case: Case) -> str:
    """Another owner's resource; where all of an owner are meant: an owner of none."""
    if case.ask.resource:
        return case.asking(resource="bern-train")
    resources = tuple(
        each for each in case.consortium.agreement.resources if each.owner != "ada"
    )
    parties = tuple(
        replace(each, roles=("code_owner",)) if each.name == "ada" else each
        for each in case.consortium.agreement.parties
    )
    output = replace(case.consortium.agreement.output, baseline_alone=False)
    return case.agreed(resources=resources, parties=parties, output=output)


def wrong_purpose(case: Case) -> str:
    """Held-out rows are named, or the owner's rule names another purpose alone."""
    if case.ask.kind is ReleaseKind.PASSES:
        return case.ruled(purposes=("prepare",))
    return case.asking(purpose="heldout")


def late(case: Case) -> str:
    return case.run(evidence_age_s=60.0)
