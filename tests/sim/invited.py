"""A meeting in one process: real keys, handshakes, signatures and the book on the disk."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sealift.attest.level import Level
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import SecretKey
from sealift.ids import Role
from sealift.meet.guest import Guest, expect_host, guest_endpoint
from sealift.meet.host import Host, Reception
from sealift.meet.invitation import (
    HOST,
    Invitation,
    meeting_digest,
    parse_invitation,
)
from sealift.meet.messages import (
    Agree,
    Ask,
    Bring,
    BringCard,
    Check,
    Decline,
    FromGuest,
    FromHost,
    Over,
    Read,
    Sign,
    Signed,
    Welcome,
)
from sealift.meet.state import MeetingState
from sealift.meet.terms import (
    Consent,
    Declaration,
    Fit,
    SignedCard,
    SignedConsent,
    TableCard,
    Terms,
    sign_card,
    sign_consent,
)
from sealift.release.agreement import Agreement
from sealift.release.agreement.resources import ReleaseRule, TravelRule
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.endpoint import Endpoint, Established, PeerPolicy
from sealift.session.handshake import Initiator, Responder
from tests.worlds.consortium import (
    CODE,
    OUTPUT,
    TRAINING,
    code_bundle,
    make_resource,
)

NAMES = ("north", "east", "south")
NOW_S = 1_800_000_000
UNTIL_S = NOW_S + 3600
RULE = ReleaseRule(max_uses=40)
# What an owner's own program lets a plain yes sign.
ABOVE_FLOOR = replace(
    OUTPUT,
    metrics=(*OUTPUT.metrics, "classes_2", "scores_64", "age_regression"),
    metric_rows=16,
    statistics_rows=16,
    min_owner_rows=16,
)


def declare(host: Identity, meeting: bytes, **changes: Any) -> Declaration:
    """What the host says."""
    fields: dict[str, Any] = {
        "meeting": meeting,
        "name": "joint-digits",
        "host": host.card,
        "guests": NAMES,
        "code": code_bundle(),
        "job": 'plan = "ddp"\n',
        "schema": make_resource("any").schema,
        "accept": (Level.DEVELOPMENT,),
        "output": ABOVE_FLOOR,
        "travel": TravelRule(1, 60.0),
        "training": replace(TRAINING, plans=("ddp",)),
        "rows_at_home": True,
        "not_after": NOW_S + 86_400,
    }
    return Declaration(**(fields | changes))


@dataclass
class MetHost:
    """The host's process: all of it comes from folder and identity."""

    folder: Path
    identity: Identity = field(default_factory=lambda: create_identity(HOST))
    names: tuple[str, ...] = NAMES
    now_s: float = NOW_S
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.meeting = secrets.token_bytes(16)
        self.invitations = {name: self._invitation(name) for name in self.names}
        path = self.folder / "meeting.db"
        MeetingState.create(path, tuple(self.invitations.values())).close()
        self.restart()

    def restart(self) -> None:
        """As after a kill: nothing is remembered but what lies on the disk."""
        if hasattr(self, "host"):
            self.host.book.close()
        book = MeetingState.open(self.folder / "meeting.db")
        changes = {"guests": self.names, **self.changes}
        declared = declare(self.identity, self.meeting, **changes)
        book.declare(declared.digest)
        self.host = Host(book, declared, CODE, self.identity, lambda: self.now_s)

    def redeclare(self, **changes: Any) -> None:
        """The host starts again with another recipe."""
        self.changes |= changes
        self.restart()

    def invite(self, name: str) -> Invitation:
        """The line that was mailed."""
        return parse_invitation(self.invitations[name].to_text())

    def _invitation(self, name: str) -> Invitation:
        return Invitation(
            meeting=self.meeting,
            name=name,
            host=self.identity.public_key,
            secret=SecretKey.generate(),
            expires_s=UNTIL_S,
            addresses=("host.example:7420",),
        )

    def meet(
        self, endpoint: Endpoint, policy: PeerPolicy
    ) -> tuple[Established, Reception]:
        """A handshake; what the guest's end has, and the host's side of the session."""
        own = Endpoint(
            role=Role.MEETING,
            name=HOST,
            agreement=meeting_digest(self.meeting),
            identity=self.identity,
        )
        anybody = PeerPolicy(roles=frozenset({Role.MEETING}), anonymous=True)
        guest, host = Initiator(endpoint, policy), Responder(own, anybody)
        answer = guest.answer(host.reply(guest.hello()))
        done, theirs = host.finish(answer)
        return guest.finish(done), Reception(self.host, theirs.peer, theirs.th2)


@dataclass
class MetGuest:
    """One party; what it must not forget lies in its fields that begin with ``kept``."""

    host: MetHost
    name: str
    answer: bool = True
    columns: Mapping[str, Fit] = field(default_factory=lambda: {"x": "fits"})
    identity: Identity | None = None
    resource: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.identity = self.identity or create_identity(self.name)
        self.invitation = self.host.invite(self.name)
        self.kept_card: SignedCard | None = None
        self.kept_declared: Declaration | None = None
        self.kept_terms: Terms | None = None
        self.kept_consent: SignedConsent | None = None
        self.kept_agreement: Agreement | None = None
        self.verified: VerifiedAgreement | None = None
        self.asked: list[Terms] = []
        self.told: list[FromHost] = []
        self.session: Reception | None = None

    @property
    def guest(self) -> Guest:
        """Its checks."""
        assert self.identity is not None
        return Guest(self.invitation, self.identity)

    def arrive(self) -> FromHost:
        """Dial, and prove that it was invited."""
        assert self.identity is not None
        endpoint = guest_endpoint(self.invitation, self.identity)
        ours, self.session = self.host.meet(endpoint, expect_host(self.invitation))
        told = self.session.take(self.guest.arrive(ours.th2))
        if isinstance(told, Welcome):
            self.guest.welcome(told, ours.th2)
        else:
            self.session = None
        self.told.append(told)
        return told

    def step(self) -> FromHost:
        """Do what comes next: one message and its answer."""
        if self.session is None:
            return self.arrive()
        told = self.session.take(self._say())
        self.told.append(told)
        return told

    def restart(self) -> None:
        """As after a kill."""
        self.session = None
        self.told = []

    def _say(self) -> FromGuest:
        """What answers the host's last word."""
        assert self.identity is not None
        match self.told[-1]:
            case BringCard(declaration, files):
                self.guest.require_ours(declaration, files)
                card = TableCard(
                    declaration=declaration.digest,
                    party=self.identity.card,
                    columns=dict(self.columns),
                    heldout=False,
                    rule=RULE,
                )
                self.kept_declared = declaration
                self.kept_card = sign_card(card, self.identity)
                return Bring(self.kept_card)
            case Read(terms):
                assert self.kept_declared
                assert self.kept_card
                self.guest.read(terms, self.kept_declared, self.kept_card)
                self.asked.append(terms)
                if not self.answer:
                    return Decline("below-floor")
                return Agree(self._consent(terms))
            case Check() as check:
                assert self.kept_terms
                assert self.kept_consent
                self.kept_agreement = self.guest.check(
                    check, self.kept_terms, self.kept_consent
                )
                return Sign(self.guest.sign(self.kept_agreement))
            case Signed() as signed:
                assert self.kept_agreement is not None
                self.verified = self.guest.keep(signed, self.kept_agreement)
        return Ask()

    def _consent(self, terms: Terms) -> SignedConsent:
        assert self.identity is not None
        if self.kept_terms != terms:
            own = {"cell_rows": 16, **self.resource}
            resource = make_resource(self.name, rule=RULE, **own)
            consent = Consent(terms.digest, self.name, (resource,), compared=False)
            self.kept_terms = terms
            self.kept_consent = sign_consent(consent, self.identity)
        assert self.kept_consent is not None
        return self.kept_consent


def walk(*guests: MetGuest, rounds: int = 40) -> None:
    """Everybody in turn, until all have the agreement or it is over."""
    for _ in range(rounds):
        for each in guests:
            each.step()
        if all(each.verified or isinstance(each.told[-1], Over) for each in guests):
            return
    raise AssertionError([each.told[-1] for each in guests])
