"""What a meeting agrees on: what the host declares, what each party brings, and the result.

Three documents, each signed before the next one is made. The host *declares* everything but
the tables. Each party's *card* says which columns of its own table fit, and its own rule;
nothing of its rows, not even their number. Declaration and cards are the *terms*: what a
party reads, compares by eight words, and signs. Only then it *brings* its tables'
commitments, and the agreement follows from terms and tables by one function, which every
party computes itself. Source: spec/meeting.md sections 5, 6 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from sealift.attest.level import Level
from sealift.codec import MAX_INTEGER, encode
from sealift.crypto.hash import labelled
from sealift.crypto.identity import Card, Identity, create_identity
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey
from sealift.data.schema.alike import demand_alike
from sealift.data.schema.document import schema_from_plain, schema_to_plain
from sealift.errors import MalformedError, PolicyError
from sealift.ids import DIGEST_BYTES, MAX_RANKS, Digest
from sealift.meet.invitation import HOST, MEETING_BYTES
from sealift.release.agreement import Agreement, TrainingRule
from sealift.release.agreement.code import ASSETS
from sealift.release.agreement.resources import (
    GroupRule,
    OutputRule,
    Part,
    ReleaseRule,
    Resource,
    TravelRule,
)
from sealift.release.agreement.terms import CodeBundle, Party, References

MAX_COLUMNS: Final = 4096
MAX_TERMS_BYTES: Final = 1_000_000  # with everybody's yes they are one message
_PARTY_BYTES: Final = 4096  # of a card without columns, of a yes without schemas
MAX_JOB_BYTES: Final = 1 << 16
MAX_RESOURCES: Final = 8  # of one party
Fit = Literal["fits", "does not fit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What the host says before it knows anything of anybody's table.

    Attributes:
        meeting: Of the invitations.
        name: Of the line of agreements.
        host: The host's card: model owner, code owner and operator.
        guests: Invited parties, each a data owner, in the order of their ranks.
        code: The recipe's files by their digests.
        assets: Bytes of each of those that lie below ``assets/``, by its path.
        job: The job file, as all parties will have it.
        schema: What every table must fit, in its plain form (spec/table.md).
        accept: Accepted levels.
        attesters: Keys whose development evidence counts, beside the guests' own.
        output: What leaves the accelerators.
        travel: How accelerators may visit.
        training: What the job sets; it follows from the job file.
        rows_at_home: Whether each guest's own machine trains on its rows.
        not_after: Seconds since 1970 until which keys are released.
    """

    format: Literal["sealift-meeting"] = "sealift-meeting"
    version: Literal[1] = 1
    meeting: bytes
    name: str
    host: Card
    guests: tuple[str, ...]
    code: CodeBundle
    assets: dict[str, int] = field(default_factory=dict)
    job: str
    schema: dict[str, Any]
    accept: tuple[Level, ...]
    attesters: tuple[PublicKey, ...] = ()
    output: OutputRule
    travel: TravelRule
    training: TrainingRule
    rows_at_home: bool
    not_after: int

    def __post_init__(self) -> None:
        if len(self.meeting) != MEETING_BYTES or self.host.name != HOST:
            raise _other("meeting")
        if not 0 < len(self.guests) <= MAX_RANKS or len(set(self.guests)) < len(
            self.guests
        ):
            raise _other("guests")
        if HOST in self.guests or len(self.job.encode()) > MAX_JOB_BYTES:
            raise _other("job")
        sizes, below = self.assets, {n for n in self.code.files if n.startswith(ASSETS)}
        if sizes.keys() != below or not all(
            0 <= n <= MAX_INTEGER for n in sizes.values()
        ):
            raise _other("assets")
        guests, columns = len(self.guests), len(encode(sorted(self.columns)))
        each = self.consent_bytes + _PARTY_BYTES + 2 * columns
        if len(encode(self)) + guests * each > MAX_TERMS_BYTES:
            raise MalformedError(
                f"the schema is too long for a meeting of {guests} parties",
                why=f"the terms that they sign may have at most {MAX_TERMS_BYTES:,} bytes",
                code="bad-meeting",
            )

    @property
    def columns(self) -> frozenset[str]:
        """Names of the fields of every table.

        Raises:
            MalformedError: the schema is none.
        """
        return frozenset(each.name for each in schema_from_plain(self.schema).fields)

    @property
    def consent_bytes(self) -> int:
        """The most bytes of a party's yes: the schema stands in it for each table."""
        agreed = schema_to_plain(schema_from_plain(self.schema).agreed)
        return 2 * len(encode(agreed)) + _PARTY_BYTES

    @property
    def digest(self) -> Digest:
        """Names it in every card."""
        return Digest(labelled(Label.MEETING, encode(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCard:
    """What leaves a party's machine before it has signed anything.

    Attributes:
        declaration: What its table was compared with.
        party: The identity that it signs with.
        columns: By each declared column, whether the party's own one fits.
        heldout: Whether it brings rows that are measured on, beside those trained on.
        rule: When it lets its keys go; its own alone.
    """

    declaration: Digest
    party: Card
    columns: dict[str, Fit]
    heldout: bool
    rule: ReleaseRule

    def __post_init__(self) -> None:
        if len(self.columns) > MAX_COLUMNS:
            raise _other("columns")


@dataclass(frozen=True, slots=True)
class SignedCard:
    """A card and its party's signature."""

    body: TableCard
    signature: bytes = field(repr=False)

    def verify(self) -> TableCard:
        """The card.

        Raises:
            AuthenticationError: if another key signed it, or other words.
        """
        body = self.body
        body.party.sign.verify(Label.MEETING_CARD, encode(body), self.signature)
        return body


def sign_card(card: TableCard, identity: Identity) -> SignedCard:
    """Sign it as its party."""
    return SignedCard(card, identity.sign(Label.MEETING_CARD, encode(card)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What everybody reads and signs.

    Attributes:
        declaration: The host's.
        cards: Of all guests, in their order.
    """

    declaration: Declaration
    cards: tuple[SignedCard, ...]

    @property
    def digest(self) -> Digest:
        """What is signed and compared; all keys stand in it."""
        return Digest(labelled(Label.MEETING_TERMS, encode(self)))

    def verify(self) -> None:
        """Demand that each guest has one card, about this declaration, that fits.

        Raises:
            AuthenticationError: a signature does not verify.
            PolicyError: code ``meeting-terms``.
        """
        declared = self.declaration
        if tuple(each.body.party.name for each in self.cards) != declared.guests:
            raise unfit_terms(
                "the cards are not those of the parties that were invited"
            )
        keys = {declared.host.sign}
        for card in map(SignedCard.verify, self.cards):
            if card.declaration != declared.digest:
                raise unfit_terms(
                    f"{card.party.name}'s card answers another declaration"
                )
            keys.add(card.party.sign)
            if set(card.columns) != declared.columns:
                raise unfit_terms(f"{card.party.name}'s card lists other columns")
            for column, fit in card.columns.items():
                if fit != "fits":
                    raise unfit_terms(
                        f"{card.party.name}'s column {column} does not fit"
                    )
        if len(keys) <= len(self.cards):
            raise unfit_terms("two parties have the same key")


@dataclass(frozen=True, slots=True)
class Consent:
    """A party's yes, and with it what the agreement has to say of its tables.

    Attributes:
        terms: What it says yes to.
        party: Who.
        resources: Its sealed tables: commitments, and from now on numbers of rows.
        compared: Whether it compared the words with another party.
    """

    terms: Digest
    party: str
    resources: tuple[Resource, ...]
    compared: bool

    def __post_init__(self) -> None:
        if not 0 < len(self.resources) <= MAX_RESOURCES:
            raise _other("resources")


@dataclass(frozen=True, slots=True)
class SignedConsent:
    """A yes and its party's signature."""

    body: Consent
    signature: bytes = field(repr=False)

    def verify(self, key: PublicKey) -> Consent:
        """The yes of whoever has this key.

        Raises:
            AuthenticationError: if another key signed it, or other words.
        """
        key.verify(Label.MEETING_TERMS, encode(self.body), self.signature)
        return self.body


def sign_consent(consent: Consent, identity: Identity) -> SignedConsent:
    """Sign it as its party."""
    return SignedConsent(consent, identity.sign(Label.MEETING_TERMS, encode(consent)))


def agreement_of(terms: Terms, consents: Mapping[str, SignedConsent]) -> Agreement:
    """The agreement that follows from what everybody signed; there is no choice in it.

    Args:
        terms: What was read.
        consents: Of all guests, by name.

    Raises:
        AuthenticationError: a signature does not verify.
        PolicyError: code ``meeting-terms``: somebody brings what its card did not say.
        MalformedError: code ``mixed-schemas``, or ``bad-agreement`` where the parts do not
            stand together.
    """
    terms.verify()
    declared, cards = terms.declaration, [each.body for each in terms.cards]
    resources = tuple(
        each
        for card in cards
        for each in _brought(terms, card, consents[card.party.name])
    )
    asked = replace(resources[0], name="declared", schema=declared.schema)
    demand_alike((asked, *resources))
    guests = [card.party for card in cards]
    compared = [each.name for each in guests if consents[each.name].body.compared]
    return replace(_compose(declared, guests, resources), compared=tuple(compared))


def proposed_agreement(declared: Declaration, cards: Sequence[TableCard]) -> Agreement:
    """The agreement that would follow from a declaration, for a person to read.

    Tables stand in it whose rows and commitments nobody knows yet, so it is never signed.
    All else is what ``agreement_of`` will make.

    Args:
        declared: The host's.
        cards: Those that are known; a party without one has a key that nobody has.

    Raises:
        MalformedError: ``bad-agreement`` and others, where the parts do not stand together.
    """
    known = {card.party.name: card for card in cards}
    guests = [
        known[name].party if name in known else create_identity(name).card
        for name in declared.guests
    ]
    resources = [
        _unsealed(declared, name, part, known[name].rule if name in known else None)
        for name in declared.guests
        for part in _parts(known.get(name))
    ]
    return _compose(declared, guests, tuple(resources))


def _unsealed(
    declared: Declaration, name: str, part: Part, rule: ReleaseRule | None
) -> Resource:
    """A table of as few rows as the output rule takes, with commitments to nothing."""
    output, nothing = declared.output, Digest(bytes(DIGEST_BYTES))
    share = -(-output.min_rows // len(declared.guests))
    shown = declared.training.fewest_table_rows(output.metric_rows)
    rows = max(output.min_owner_rows, shown, share)
    return Resource(
        name=f"{name}-{part}",
        owner=name,
        part=part,
        rows=rows,
        row_bytes=1,
        cell_rows=output.metric_rows,
        total_bytes=rows,
        record_bytes=1,
        schema=declared.schema,
        content=nothing,
        key=nothing,
        rule=rule or ReleaseRule(not_after=declared.not_after),
    )


def _compose(
    declared: Declaration, guests: Sequence[Card], resources: tuple[Resource, ...]
) -> Agreement:
    """Of a declaration, its guests in order, and their tables; there is no choice in it."""
    at_home = tuple(guest.sign for guest in guests) if declared.rows_at_home else ()
    return Agreement(
        about="train",
        name=declared.name,
        number=1,
        predecessor=None,
        parties=(
            _party(declared.host, "model_owner", "code_owner", "operator"),
            *(_party(guest, "data_owner") for guest in guests),
        ),
        code=declared.code,
        accept=declared.accept,
        references=References(development_attesters=(*declared.attesters, *at_home)),
        operator=HOST,
        resources=resources,
        model_owner=HOST,
        output=declared.output,
        travel=declared.travel,
        training=declared.training,
        group=GroupRule(len(guests), "owner") if declared.rows_at_home else None,
        not_after=declared.not_after,
    )


def _parts(card: TableCard | None) -> tuple[Part, ...]:
    return ("train", "heldout") if card is not None and card.heldout else ("train",)


def _party(card: Card, *roles: Any) -> Party:
    return Party(card.name, roles, card.sign, card.hpke)


def _brought(
    terms: Terms, card: TableCard, signed: SignedConsent
) -> tuple[Resource, ...]:
    consent, name = signed.verify(card.party.sign), card.party.name
    if (consent.terms, consent.party) != (terms.digest, name):
        raise unfit_terms(f"{name} agreed to other terms")
    if tuple(each.part for each in consent.resources) != _parts(card):
        raise unfit_terms(f"{name} brings other tables than its card says")
    for each in consent.resources:
        if (each.owner, each.rule) != (name, card.rule):
            raise unfit_terms(f"{name} brings another owner's table, or another rule")
    return consent.resources


def unfit_terms(why: str) -> PolicyError:
    """The error of terms that this party does not take."""
    return PolicyError("the meeting's terms are refused", why=why, code="meeting-terms")


def _other(what: str) -> MalformedError:
    return MalformedError("the document is not valid", field=what, code="bad-meeting")
