"""``sealift join INVITATION DATA``: meet, read, sign, and then take part in the job."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sealift.cli.console import YES, ask_line, has_terminal, say, show
from sealift.cli.judging import wall_clock
from sealift.cli.meeting.place import Place, add_ask_argument, read_invitation
from sealift.cli.meeting.question import ask_categories, tell_declared, tell_terms
from sealift.cli.vault import OwnersVault
from sealift.cli.view import add_view_argument
from sealift.codec import decode, encode
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import CARD_SUFFIX, read_card
from sealift.data.schema.document import schema_from_plain
from sealift.data.sealing import seal_table
from sealift.data.sources.csvfiles.unlisted import unlisted_texts
from sealift.data.sources.table import open_table
from sealift.errors import (
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    UsageError,
    require_value,
)
from sealift.ids import Digest
from sealift.meet.door import Conversation
from sealift.meet.guest import Guest
from sealift.meet.invitation import Invitation
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
    Propose,
    Read,
    Sign,
    Signed,
    Wait,
)
from sealift.meet.terms import (
    Consent,
    Declaration,
    Fit,
    SignedCard,
    SignedConsent,
    TableCard,
    Terms,
    proposed_agreement,
    sign_card,
    sign_consent,
)
from sealift.meet.words import words_of
from sealift.release.agreement import Agreement
from sealift.release.agreement.floor import require_allowed
from sealift.release.agreement.resources import ROWS_LEASE, ReleaseRule, Resource
from sealift.release.agreement.signed import load_verified, save_signed
from sealift.release.agreement.starter import MAX_USES
from sealift.release.files import make_folder, read_whole, write_whole
from sealift.train.job.talk import Talk
from sealift.travel.visit.messages import RUN_RECEIPT_NAME

PAUSE_S: Final = 0.5
DIAL_S: Final = 5.0
MAX_KEPT_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What this party said, so that it says the same after a restart.

    Attributes:
        invitation: As it was mailed.
        declaration: What its card is about.
        terms: What it said yes to.
        agreement: What it signed.
    """

    invitation: str
    declaration: Declaration | None = None
    card: SignedCard | None = None
    terms: Terms | None = None
    consent: SignedConsent | None = None
    agreement: Agreement | None = None


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "join INVITATION",
        run=run,
        help="take part in a meeting with this owner's table, then in its job",
        description="Makes an identity, compares the table at home with what the host "
        "declares, says what signing means, asks, and takes part. All of it lies in the "
        "folder in which this is typed; typed again there, it goes on.",
    )
    parser.add_argument(
        "invitation",
        metavar="INVITATION",
        help="a file with the line; - reads it from standard input",
    )
    parser.add_path("data", metavar="DATA", help="this owner's rows, a .csv file")
    parser.add_path("--heldout", metavar="FILE", help="rows that are measured on only")
    add_view_argument(parser)
    add_ask_argument(parser)
    parser.add_argument(
        "--sign-if",
        metavar="DIGEST",
        default="",
        help="sign these terms and no others, without a question",
    )
    parser.add_flag("--decline", "say no, without a question; the others are told")
    parser.add_allow()


def run(args: argparse.Namespace) -> int:
    """Meet, and go on as the long command."""
    invitation = read_invitation(args.invitation)
    place = Place(Path.cwd(), invitation.name, args.passphrase)
    _demand_this_meeting(place, invitation)
    if not place["agreement.json"].exists():
        invitation.require_in_time(wall_clock())
        if not args.decline and find_spec("torch") is None:
            raise ModuleNotFoundError(name="torch")  # rows will train here, at home
        for each in filter(None, (args.data, args.heldout)):
            if not each.is_file():
                raise UsageError(f"there is no {each}", code="cannot-read")
        _Meeting(args, invitation, place).attend()
    _take_part(place, view=args.view)
    return 0


def _demand_this_meeting(place: Place, invitation: Invitation) -> None:
    """A folder is of one meeting, also once its agreement lies there.

    Raises:
        PolicyError: ``other-meeting``.
    """
    path = place["meeting.json"]
    if path.exists():
        kept = decode(Kept, read_whole(path, MAX_KEPT_BYTES))
        if kept.invitation != invitation.to_text():
            raise PolicyError(
                "this folder is of another meeting",
                fix="Use a folder with nothing in it but the table",
                code="other-meeting",
            )


@dataclass
class _Meeting:
    """One party's way through it."""

    args: argparse.Namespace
    invitation: Invitation
    place: Place

    def __post_init__(self) -> None:
        self._identity = self.place.identity()
        self._guest = Guest(self.invitation, self._identity)
        self._talk = Talk(sys.stderr)
        self._warned = False
        self._proposed: dict[str, tuple[str, ...]] = {}
        self._unfit: MalformedError | None = None
        path = self.place["meeting.json"]
        self._kept = Kept(invitation=self.invitation.to_text())
        if path.exists():
            self._kept = decode(Kept, read_whole(path, MAX_KEPT_BYTES))

    def attend(self) -> None:
        """Until the signed agreement lies in the folder."""
        self._talk.wait_for("the host")
        while True:
            try:
                with Conversation(
                    self.invitation, self._identity, dial_s=DIAL_S
                ) as host:
                    self._warn(host.contested)
                    if self._unfit is not None:  # the question may have taken long
                        host.say(Propose(self._proposed))
                        raise self._unfit
                    told = host.say(Ask())
                    while (answer := self._answer(told)) is not None:
                        told = host.say(answer)
                    if self._unfit is None:
                        return
            except PeerError as error:
                if error.code == "peer-refused":
                    raise
                self._talk.wait_for("the host")
                time.sleep(PAUSE_S)

    def _answer(self, told: FromHost) -> FromGuest | None:
        """What to say to the host's last word; None once all is signed and kept."""
        match told:
            case Wait(parties, contested):
                self._warn(contested)
                self._talk.wait_for(", ".join(parties))
                time.sleep(PAUSE_S)
            case BringCard(declaration, files):
                return self._bring(declaration, files)
            case Read(terms):
                return self._read(terms)
            case Check():
                return self._sign(told)
            case Signed():
                self._keep_signed(told)
                return None
            case Over(code, party, why):
                who = f"{party}: " if party else ""
                ours = (code, party) == ("meeting-declined", self.place.name)
                fix = "Type the same command again to be asked again" if ours else ""
                raise RefusedError(f"{who}{why}", fix=fix, code=code)
        return Ask()

    def _warn(self, contested: bool) -> None:
        if contested and not self._warned:
            self._talk.say(
                "somebody came with your invitation, from another folder or machine, and "
                "was refused; if that was not you, compare the words by telephone"
            )
        self._warned |= contested

    def _keep(self, **changes: Any) -> None:
        self._kept = replace(self._kept, **changes)
        write_whole(self.place["meeting.json"], encode(self._kept))

    def _bring(self, declared: Declaration, files: dict[str, bytes]) -> Bring | None:
        self._guest.require_ours(declared, files)
        self.place.write_recipe(files)
        write_whole(self.place["job.toml"], declared.job.encode())
        self._talk.say(
            "the host's recipe lies in recipe/; comparing your table at home"
        )
        try:
            self._require_allowed(proposed_agreement(declared, ()))
        except (
            PolicyError
        ):  # its owner reads what it refuses, and the table is not touched
            for line in tell_declared(declared, self.place.name, colour=_is_coloured()):
                say(line)
            raise
        columns = self._compare(declared)
        if self._unfit is not None:
            return None
        rule = ReleaseRule(
            max_uses=MAX_USES,
            not_after=declared.not_after,
            lease_s=ROWS_LEASE.lease_s,
            heartbeat_s=ROWS_LEASE.heartbeat_s,
        )
        card = TableCard(
            declaration=declared.digest,
            party=self._identity.card,
            columns=columns,
            heldout=self.args.heldout is not None,
            rule=rule,
        )
        signed = sign_card(card, self._identity)
        self._keep(declaration=declared, card=signed, terms=None, consent=None)
        self._talk.say(
            "the host is told your name, your keys and that these columns fit: "
            + ", ".join(columns)
        )
        return Bring(signed)

    def _compare(self, declared: Declaration) -> dict[str, Fit]:
        """Every cell, at home; what does not fit is told here alone.

        Raises:
            MalformedError: with all that does not fit.
        """
        schema = schema_from_plain(declared.schema, source="the host's schema")
        for each in self._tables():
            try:
                open_table(each, schema)
            except MalformedError as error:
                if each.suffix == ".csv" and has_terminal():
                    self._proposed = ask_categories(unlisted_texts(each, schema))
                if not self._proposed:
                    raise
                self._unfit = error
                return {}
        return {each.name: "fits" for each in schema.fields}

    def _tables(self) -> Iterable[Path]:
        return filter(None, (self.args.data, self.args.heldout))

    def _read(self, terms: Terms) -> FromGuest:
        kept = self._kept
        if kept.declaration is None or kept.card is None:
            raise MalformedError("no card was brought", code="bad-message")
        self._guest.read(terms, kept.declaration, kept.card)
        if kept.terms == terms and kept.consent is not None:
            return Agree(kept.consent)  # it was asked, before a restart
        self._talk.wait_for("")
        compared = self._ask(terms)
        if compared is None:
            return self._decline()
        consent = Consent(terms.digest, self.place.name, self._sealed(), compared)
        signed = sign_consent(consent, self._identity)
        self._keep(terms=terms, consent=signed)
        return Agree(signed)

    def _decline(self) -> Decline:
        self._talk.say("nothing was signed; the others are told that you said no")
        return Decline("said no")

    def _ask(self, terms: Terms) -> bool | None:
        """Whether words were compared; None for no.

        Raises:
            UsageError: nobody can answer, or ``--sign-if`` names other terms.
        """
        for line in tell_terms(terms, self.place.name, colour=_is_coloured()):
            say(line)
        say(f"words     {' '.join(words_of(terms.digest))}")
        say(f"digest    {terms.digest.to_text()}")
        cards = [each.body for each in terms.cards]
        self._require_allowed(proposed_agreement(terms.declaration, cards))
        if self.args.sign_if:
            if Digest.from_text(self.args.sign_if) != terms.digest:
                raise UsageError(
                    "these are other terms than --sign-if names", code="not-confirmed"
                )
            return True
        if self.args.decline:
            return None
        if not has_terminal():
            raise UsageError(
                "nobody said yes",
                why="there is no terminal to ask",
                fix="Type it at a terminal, or give --sign-if DIGEST",
                code="not-confirmed",
            )
        if ask_line("Sign? (y/N)", "n").lower() not in YES:
            return None
        words = "Did you compare the words with another party? (y/N)"
        return ask_line(words, "n").lower() in YES

    def _require_allowed(self, agreement: Agreement) -> None:
        """Demand a name on the command line for what is below this program's floor.

        Raises:
            PolicyError: ``below-floor``; who declines is not asked for names.
        """
        if not self.args.decline:
            allowed = self.args.allow
            require_allowed(agreement, self.place.name, allowed, sealed=False)

    def _sealed(self) -> tuple[Resource, ...]:
        """The tables, sealed in this folder; once."""
        declared = require_value(self._kept.declaration, "the card is about it")
        schema = schema_from_plain(declared.schema, source="the host's schema")
        make_folder(self.place["sealed"])
        vault = OwnersVault(self.place["vault.db"], self._identity)
        rule = require_value(self._kept.card, "it was brought").body.rule
        found = []
        for part, source in (("train", self.args.data), ("heldout", self.args.heldout)):
            if source is None:
                continue
            name = f"{self.place.name}-{part}"
            card = self.place["sealed"] / f"{name}{CARD_SUFFIX}"
            if not card.exists():
                key = SecretKey.generate()
                self._talk.say(f"sealing {source.name}")
                seal_table(
                    source,
                    schema,
                    name=name,
                    part=part,  # type: ignore[arg-type]
                    owner=self.place.name,
                    key=key,
                    out_dir=self.place["sealed"],
                    keep=lambda cards, kept={name: key}: vault.keep(kept),  # type: ignore[misc]
                    kept=vault.kept,
                )
            found.append(replace(read_card(card).resource, rule=rule))
        return tuple(found)

    def _sign(self, told: Check) -> Sign:
        kept = self._kept
        if kept.terms is None or kept.consent is None:
            raise MalformedError("nothing was said yes to", code="bad-message")
        agreement = self._guest.check(told, kept.terms, kept.consent)
        self._keep(agreement=agreement)
        return Sign(self._guest.sign(agreement))

    def _keep_signed(self, told: Signed) -> None:
        if self._kept.agreement is None:
            raise MalformedError("nothing was signed", code="bad-message")
        self._guest.keep(told, self._kept.agreement)
        save_signed(told.agreement, self.place["agreement.json"])
        self._talk.wait_for("")
        self._talk.say("all have signed: agreement.json. The job begins")


def _is_coloured() -> bool:
    return sys.stderr.isatty()


def _take_part(place: Place, *, view: bool) -> None:
    """Become the long command, which anybody may type again."""
    load_verified(place["agreement.json"])
    if place[RUN_RECEIPT_NAME].exists():
        say("the job has ended: `sealift receipt verify` says what the receipt proves")
        show({"receipt": RUN_RECEIPT_NAME}, as_json=not sys.stdout.isatty(), width=9)
        return
    place.identity()  # asks, where no file has the passphrase
    words = ["join", "job.toml", "--key", place.key.name]
    words += ["--passphrase-file", place.passphrase]
    words += ["--vault", "vault.db", "--log", "audit.db", "--heads", "heads.json"]
    words += ["--sealed", "sealed", "--receipts", "receipts", "--state", "state"]
    words += ["--view"] if view else []
    os.execv(sys.executable, [sys.executable, "-P", "-m", "sealift", *words])  # noqa: S606 - ourselves
