"""The host's side of a meeting: what a guest may say, and what comes next for it.

One `Reception` per session. It begins with the proof that the guest was invited; whatever
fails there has one answer. Everything else is read from the book, each time: a card or a
yes that is about other words than now counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sealift.codec import encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import Label
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    SealiftError,
    require_value,
    unreadable,
)
from sealift.meet.invitation import Prover, prove_invited, verify_invited
from sealift.meet.messages import (
    ASSET_PIECE_BYTES,
    MAX_WHY,
    REASONS,
    Agree,
    Arrive,
    AskAsset,
    AskRun,
    AssetPiece,
    Bring,
    BringCard,
    Check,
    Decline,
    FromGuest,
    FromHost,
    Over,
    Propose,
    Read,
    Run,
    Sign,
    Signed,
    Wait,
    Welcome,
)
from sealift.meet.state import InvitedParty, MeetingState
from sealift.meet.terms import (
    Declaration,
    SignedCard,
    SignedConsent,
    Terms,
    agreement_of,
)
from sealift.release.agreement.signed import SignedAgreement, add_signature
from sealift.session.endpoint import VerifiedPeer

NOT_INVITED: Final = Over(
    "not-invited", "", "the invitation is not valid at this host, or it has expired"
)


@dataclass(frozen=True)
class Host:
    """What the host of a meeting has.

    Attributes:
        book: Of the meeting; it was told this declaration.
        declaration: What is declared.
        files: The recipe's.
        identity: The host's.
        clock: Seconds since 1970.
        run: That was begun, once all have signed.
        assets: Where the recipe's weights and texts lie, by their path in it.
        away: Which parties were connected, and are not any more.
    """

    book: MeetingState
    declaration: Declaration
    files: Mapping[str, bytes]
    identity: Identity
    clock: Callable[[], float]
    run: Run | None = field(default=None, kw_only=True)
    assets: Mapping[str, Path] = field(default_factory=dict, kw_only=True)
    away: Callable[[], Collection[str]] = field(default=tuple, kw_only=True)

    def terms(self) -> Terms | None:
        """Once every party has brought a card about this declaration that fits."""
        cards = [each.brought for each in self.book.seats()]
        digest = self.declaration.digest
        found = tuple(
            card
            for card in cards
            if card is not None
            and card.body.declaration == digest
            and all(fit == "fits" for fit in card.body.columns.values())
        )
        if len(found) < len(cards):
            return None
        return Terms(declaration=self.declaration, cards=found)

    def consents(self, terms: Terms) -> dict[str, SignedConsent]:
        """Of those who said yes to these terms."""
        found = ((each.name, each.consent) for each in self.book.seats())
        return {
            name: consent
            for name, consent in found
            if consent is not None and consent.body.terms == terms.digest
        }

    def agreement(self) -> SignedAgreement | None:
        """The agreement, with the signatures that are there; None before all said yes.

        Raises:
            SealiftError: what was brought makes no agreement.
        """
        terms = self.terms()
        consents = self.consents(terms) if terms else {}
        if terms is None or len(consents) < len(terms.cards):
            return None
        signed = add_signature(
            SignedAgreement(agreement_of(terms, consents)), self.identity
        )
        seats = self.book.seats()
        found = {each.name: each.signature for each in seats if each.signature}
        return SignedAgreement(signed.agreement, {**signed.signatures, **found})

    def void_failed(self) -> None:
        """Let parties say yes anew, with other tables, where these make no agreement."""
        try:
            self.agreement()
        except SealiftError:
            self.book.void()

    def next_for(self, name: str) -> FromHost:
        """What a party has to do now, by the book alone."""
        seats = self.book.seats()
        seat = next(each for each in seats if each.name == name)
        for each in seats:
            if each.declined is not None:
                return Over("meeting-declined", each.name, each.declined)
        digest = self.declaration.digest
        if seat.brought is None or seat.brought.body.declaration != digest:
            return BringCard(self.declaration, dict(self.files))
        terms = self.terms()
        if terms is None:
            return self._before_terms(seats, seat)
        consents = self.consents(terms)
        if name not in consents:
            return Read(terms)
        if len(consents) < len(seats):
            return self._wait(seat, [s.name for s in seats if s.name not in consents])
        try:
            signed = self.agreement()
        except SealiftError as error:
            return Over(error.code, self._too_small(consents), str(error)[:MAX_WHY])
        if signed is None:  # another party's session has just voided all consents
            return Read(terms)
        if name not in signed.signatures:
            return Check(terms, consents)
        return self._wait(seat, signed.missing) if signed.missing else Signed(signed)

    def beside(self, name: str, message: AskRun | AskAsset) -> FromHost:
        """What a party asks for that changes nothing in the book."""
        if isinstance(message, AskRun):
            return self.next_run(name, message.after)
        return self.piece_of(message)

    def next_run(self, name: str, after: int) -> FromHost:
        """The run that was begun after another one, for a party that has signed."""
        told = self.next_for(name)
        if not isinstance(told, Signed):
            return told
        if self.run is not None and self.run.number > after:
            return self.run
        return Wait((), contested=False)

    def piece_of(self, asked: AskAsset) -> AssetPiece:
        """Bytes of a declared asset; which they are is compared by who gets them.

        Raises:
            MalformedError: ``bad-message``: there is no such asset, or no such place in it.
            UnavailableError: it cannot be read.
        """
        path = self.assets.get(asked.name)
        if path is None:
            raise _out_of_place("the guest asked for an asset that is not declared")
        try:
            with path.open("rb") as file:
                total = path.stat().st_size
                file.seek(asked.start)
                content = file.read(ASSET_PIECE_BYTES)
        except OSError as error:
            raise unreadable(path, error) from None
        return AssetPiece(asked.name, asked.start, total, content)

    def _too_small(self, consents: Mapping[str, SignedConsent]) -> str:
        """The first party with too few rows for an agreement, if that is why there is none."""
        fewest = self.declaration.output.min_owner_rows
        for name, consent in consents.items():
            tables = consent.body.resources
            if sum(each.rows for each in tables if each.part == "train") < fewest:
                return name
        return ""

    def _before_terms(
        self, seats: tuple[InvitedParty, ...], seat: InvitedParty
    ) -> FromHost:
        digest, missing = self.declaration.digest, []
        for each in seats:
            if each.brought is None or each.brought.body.declaration != digest:
                missing.append(each.name)
                continue
            columns = each.brought.body.columns.items()
            if other := [name for name, fit in columns if fit != "fits"]:
                return Over("columns-differ", each.name, ", ".join(other)[:MAX_WHY])
        return self._wait(seat, missing)

    def _wait(self, seat: InvitedParty, parties: Sequence[str]) -> Wait:
        away = tuple(each for each in self.gone() if each != seat.name)
        return Wait(tuple(parties), seat.contested, away)

    def gone(self) -> tuple[str, ...]:
        """Parties that have left, and have not signed."""
        away, seats = self.away(), self.book.seats()
        return tuple(s.name for s in seats if s.name in away and s.signature is None)


class Reception:
    """One session with somebody who may be a guest.

    Args:
        host: What the host has.
        peer: Whoever it is; it proved its identity key.
        th2: Of the session.
    """

    def __init__(self, host: Host, peer: VerifiedPeer, th2: bytes) -> None:
        self._host = host
        self._peer = peer
        self._th2 = th2
        self._name = ""
        self._proposed = False

    def take(self, message: FromGuest) -> FromHost:
        """The answer to a message.

        Raises:
            MalformedError: if it is out of place.
            RefusedError: if what it brings is not signed by the party, or is another's.
        """
        if isinstance(message, Arrive):
            return self._arrive(message)
        if not self._name:
            raise _out_of_place("the guest has not proved its invitation")
        book, name = self._host.book, self._name
        if isinstance(message, AskRun | AskAsset):
            return self._host.beside(name, message)
        match message:
            case Propose():  # what is proposed is the host's own to declare
                if self._proposed:
                    raise _out_of_place("the guest proposed texts twice")
                self._proposed = True
            case Bring():
                self._take_card(message.card)
            case Agree():
                self._take_consent(message.consent)
            case Decline():
                book.decline(name, REASONS[message.code])
            case Sign():
                self._sign(message.signature)
        return self._host.next_for(name)

    def _arrive(self, message: Arrive) -> FromHost:
        book, card = self._host.book, message.card
        seat = book.seat(card.name)
        try:
            self._require_invited(message, seat)
        except AuthenticationError:
            return NOT_INVITED
        seat = require_value(seat, "it was invited")
        if not book.bind(card.name, card):
            book.contest(card.name)
            why = "another key has used this invitation before"
            return Over("invitation-used-twice", card.name, why)
        book.decline(card.name, None)
        self._host.void_failed()
        self._name, self._card = card.name, card
        host = self._host.declaration.host
        proof = prove_invited(seat.invitation.secret, Prover.HOST, self._th2, host)
        return Welcome(proof, host, seat.contested)

    def _require_invited(self, message: Arrive, seat: InvitedParty | None) -> None:
        """One refusal for all: nobody learns which names or which times there are."""
        card, peer = message.card, self._peer
        if seat is None or self._host.clock() >= seat.invitation.expires_s:
            raise AuthenticationError
        if (peer.name, peer.identity) != (card.name, card.sign):
            raise AuthenticationError
        secret = seat.invitation.secret
        verify_invited(message.proof, secret, Prover.GUEST, self._th2, card)

    def _take_card(self, signed: SignedCard) -> None:
        """A card; one that others could not be sent is a no, of which they hear."""
        card, book = signed.verify(), self._host.book
        _require_own(card.party == self._card)
        if set(card.columns) != self._host.declaration.columns:
            book.decline(self._name, "its card does not list the declared columns")
            return
        book.bring(self._name, signed)

    def _take_consent(self, signed: SignedConsent) -> None:
        """A yes; one that others could not be sent is a no, of which they hear."""
        consent, book = signed.verify(self._card.sign), self._host.book
        _require_own(consent.party == self._name)
        if len(encode(consent)) > self._host.declaration.consent_bytes:
            book.decline(self._name, "its description of its tables is too long")
            return
        book.agree(self._name, signed)

    def _sign(self, signature: bytes) -> None:
        signed = self._host.agreement()
        if signed is None:
            raise _out_of_place("the guest signed before there was an agreement")
        party = signed.agreement.party(self._name)
        party.sign.verify(Label.AGREEMENT, encode(signed.agreement), signature)
        self._host.book.sign(self._name, signature)


def _require_own(own: bool) -> None:
    if not own:
        raise AuthenticationError


def _out_of_place(what: str) -> MalformedError:
    return MalformedError(what, code="bad-message")
