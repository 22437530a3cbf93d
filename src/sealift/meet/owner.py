"""An owner's way through a meeting: its table is compared, its terms are signed, all of it is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sealift.codec import decode, encode, parse_toml
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.data.ownersvault import OwnersVault
from sealift.data.schema.card import CARD_SUFFIX, read_card
from sealift.data.schema.document import (
    schema_from_plain,
    schema_to_plain,
    schema_to_toml,
)
from sealift.data.schema.schema import Schema
from sealift.data.sealing import DEFAULT_CELL_ROWS, seal_table
from sealift.data.sources.csvfiles.reader import unlisted_texts
from sealift.data.sources.table import is_text
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
    UnavailableError,
    UsageError,
    quote_foreign,
)
from sealift.graph.document import read_graph
from sealift.ids import Digest
from sealift.meet.connection import AWAY_S, Conversation
from sealift.meet.fetching import AssetFetcher
from sealift.meet.folder import DECLARED_SCHEMA, PartyFolder, file_exists
from sealift.meet.guest import Guest
from sealift.meet.invitation import HOST, Invitation
from sealift.meet.messages import (
    REASONS,
    Agree,
    Ask,
    AskAsset,
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
    Sign,
    Signed,
    Wait,
)
from sealift.meet.packages import require_packages, require_versions
from sealift.meet.question import (
    YES,
    DepartureLines,
    OwnerAnswers,
    ask_categories,
    say_gone,
    tell_comparison,
    tell_declared,
    tell_terms,
    words_of,
)
from sealift.meet.table import BroughtTable
from sealift.meet.terms import (
    Consent,
    Declaration,
    SignedCard,
    SignedConsent,
    TableCard,
    Terms,
    proposed_agreement,
    sign_card,
    sign_consent,
)
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import Asset, load_bundle
from sealift.release.agreement.holes import require_allowed
from sealift.release.agreement.resources import ROWS_LEASE, ReleaseRule, Resource
from sealift.release.agreement.signed import save_signed
from sealift.release.agreement.starter import MAX_USES
from sealift.release.agreement.terms import GRAPH_ENTRY, code_refused
from sealift.release.files import make_folder, read_whole, write_whole
from sealift.train.job.caller import Caller
from sealift.train.job.settings import JobTable, parse_job
from sealift.train.job.talk import Talk
from sealift.train.plans import PLANS, PlannedWork, require_measured_by_all

PAUSE_S: Final = 0.5
DIAL_S: Final = 5.0
FAREWELLS: Final = 4  # times that a host that is away is dialled to be told the end
MAX_KEPT_BYTES: Final = 8 << 20
MAX_DECLARATIONS: Final = 3  # that an owner's table is compared with in one meeting
ANSWER_S: Final = 4.0  # from the yes to the answer: 4 s, or 8, 16, 32 ...
# What the host shows is refused: it, and through it the others, hear so.
_REFUSED: Final = (AuthenticationError, IntegrityError, MalformedError, PolicyError)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingProgress:
    """What this party said and wrote, so that it says the same after a restart.

    Attributes:
        invitation: As it was mailed.
        declarations: How many different ones the host has shown in turn.
        declaration: The last of them; its card is about it.
        terms: What it said yes to.
        agreement: What it signed; from then on nothing here changes.
        written: Digests of what this command wrote to the recipe's folder and job.toml, by path.
        fetched: Digests of the recipe's weights and texts that it fetched, by path.
        sealed: Size and time of the file that a sealed table was made of, by its name.
    """

    invitation: str
    declarations: int = 0
    declaration: Declaration | None = None
    card: SignedCard | None = None
    terms: Terms | None = None
    consent: SignedConsent | None = None
    agreement: Agreement | None = None
    written: dict[str, tuple[Digest, ...]] = field(default_factory=dict)
    fetched: dict[str, Digest] = field(default_factory=dict)
    sealed: dict[str, str] = field(default_factory=dict)


def read_kept(place: PartyFolder, invitation: Invitation) -> MeetingProgress:
    """What was said here before. A folder is of one meeting, also once its agreement is there.

    Raises:
        PolicyError: ``other-meeting``.
        UsageError: ``file-in-the-way``: a file lies here that this command would write.
        MalformedError: ``state-version``: of this meeting, by an older or newer version.
    """
    path = place["meeting.json"]
    if not path.exists():
        place.require_free()
        return MeetingProgress(invitation=invitation.to_text())
    raw = b""
    try:
        raw = read_whole(path, MAX_KEPT_BYTES)
        kept = decode(MeetingProgress, raw)
    except MalformedError:
        if invitation.to_text().encode() in raw:
            raise MalformedError(
                "meeting.json was written by another version of sealift",
                code="state-version",
            ) from None
        raise file_exists("meeting.json") from None
    if kept.invitation != invitation.to_text():
        raise PolicyError(
            "this folder belongs to another meeting",
            fix="Use a folder that has nothing but your table in it",
            code="other-meeting",
        )
    return kept


def answer_delay_s(spent_s: float) -> float:
    """How long an answer about a table still waits, so that its time says little of the table.

    All answers within 4 s leave at 4 s, all others at 8, 16, 32 s and so on.
    """
    until_s = ANSWER_S
    while until_s < spent_s:
        until_s *= 2
    return until_s - spent_s


@dataclass
class OwnerMeeting:
    """One owner's way through a meeting.

    Attributes:
        invitation: Its own.
        place: Its folder.
        identity: Its own.
        tables: What it brings: rows to train on, and those that are held out.
        kept: What it said before.
        answers: What it has decided before it is asked.
        ask: Asks a person a question with a default; None where nobody can answer.
        clock: Monotonic seconds.
        sleep: Waits for so many seconds.
    """

    invitation: Invitation
    place: PartyFolder
    identity: Identity
    tables: Sequence[BroughtTable]
    kept: MeetingProgress
    answers: OwnerAnswers = field(default_factory=OwnerAnswers)
    ask: Callable[[str, str], str] | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._guest = Guest(self.invitation, self.identity)
        self._talk = Talk(sys.stderr)
        self._warned = False
        self._departures = DepartureLines(self.place.name, self._talk.say)
        self._met = False  # the host, until its absence is said
        self._lost_s = 0.0  # since when it does not answer; 0 while it does
        self._last: FromGuest | None = None  # before this party leaves
        self._fetcher: AssetFetcher | None = None  # of the last declaration
        self._asked: AskAsset | None = None
        if self.kept.declaration is not None:
            self.place.kind = self.kept.declaration.code.kind

    def attend(self) -> MeetingProgress:
        """Talk with the host until the signed agreement lies in the folder.

        Raises:
            UsageError: ``heldout-differs``, or ``not-confirmed``.
            SealiftError: why this party leaves; the host hears its name, and nothing of a table.
        """
        self._require_same_tables()
        self._talk.wait_for("the host")
        try:
            while away := self._converse():
                self._talk.wait_for(away)
                self.sleep(PAUSE_S)
        except SealiftError as error:
            if isinstance(error, _REFUSED) and self._last is None:
                known = error.code in REASONS
                self._last = Decline(error.code if known else "meeting-terms")
            known = isinstance(error, UnavailableError) and error.code in REASONS
            if known and (self._last is None or error.code == "no-memory"):
                self._last = Decline(error.code)
            if self._last is not None:
                self._say_last(self._last)
            raise
        except MemoryError:
            self._say_last(Decline("no-memory"))
            raise
        return self.kept

    @property
    def _has_heldout(self) -> bool:
        return any(each.part == "heldout" for each in self.tables)

    def _require_same_tables(self) -> None:
        """The card that was made says whether there are held-out rows.

        Raises:
            UsageError: ``heldout-differs``, ``rule-differs``.
        """
        if self.kept.card is not None:
            self.answers.require_in(self.kept.card.body.rule)
        card, heldout = self.kept.card, self._has_heldout
        if self.answers.decline or card is None or card.body.heldout is heldout:
            return
        raise UsageError(
            f"--heldout is {'new' if heldout else 'missing'}",
            why=f"{self.place.name} announced {'no ' if heldout else ''}held-out rows "
            "to this meeting",
            code="heldout-differs",
        )

    def _converse(self) -> str:
        """What to wait for before the next try; nothing once all is said."""
        try:
            with self._dial() as host:
                self._warn(host.contested)
                answer: FromGuest | None = Ask()
                while answer is not None:
                    told = host.say(answer)
                    self._met = True
                    self._lost_s = 0.0
                    answer = self._answer(told)
                return ""
        except PeerError as error:
            if error.code == "peer-refused":
                raise
            full = error.code == "relay-full"
            self._say_host_gone()
            return "a free connection at the host [relay-full]" if full else "the host"

    def _dial(self) -> Conversation:
        return Conversation(self.invitation, self.identity, dial_s=DIAL_S)

    def _say_last(self, message: FromGuest) -> None:
        """Tell the host, and through it the others, why this party leaves."""
        for _ in range(FAREWELLS):
            try:
                with self._dial() as host:
                    host.say(message)
                    return
            except PeerError:
                self.sleep(PAUSE_S)
            except SealiftError:  # the host listens to nobody
                return

    def _answer(self, told: FromHost) -> FromGuest | None:
        """What to say to the host's last word; None once nothing is left to be said."""
        match told:
            case Wait(parties, contested, away):
                self._warn(contested)
                self._departures.tell(away)
                self._talk.wait_for(", ".join(parties))
                self.sleep(PAUSE_S)
            case BringCard(declaration, files):
                return self._bring(declaration, files)
            case Read(terms):
                return self._read(terms)
            case Check():
                return self._sign(told)
            case AssetPiece():
                return self._take_piece(told)
            case Signed():
                self._keep_signed(told)
                return None
            case Over(code, party, why):
                self._end(code, party, why)
        return Ask()

    def _end(self, code: str, party: str, why: str) -> None:
        """It comes to nothing.

        Raises:
            RefusedError: always.
        """
        who = f"{party}: " if party else ""  # a checked name
        if code != "meeting-declined" and self.kept.agreement is None:
            self._keep(terms=None, consent=None)  # what was brought makes nothing
        said = why if why in REASONS.values() else quote_foreign(why)
        raise RefusedError(f"{who}{said}", code=code)

    def _warn(self, contested: bool) -> None:
        if contested and not self._warned:
            self._talk.say(
                "somebody else used your invitation, from another folder or machine, and was "
                "refused; if that was not you, compare the words by telephone"
            )
        self._warned |= contested

    def _say_host_gone(self) -> None:
        """Say that the host is gone, if it was there and has not answered for some seconds."""
        now_s = self.clock()
        self._lost_s = self._lost_s or now_s
        if self._met and now_s - self._lost_s >= AWAY_S:
            self._met = False
            self._talk.say(say_gone(HOST, self.place.name))

    def _keep(self, **changes: Any) -> None:
        self.kept = replace(self.kept, **changes)
        write_whole(self.place["meeting.json"], encode(self.kept))

    def _bring(self, declared: Declaration, files: dict[str, bytes]) -> FromGuest:
        """The card, once the owner allowed the comparison that it tells the result of."""
        self._guest.require_ours(declared, files)
        if self.answers.only_graph and declared.code.kind == "code":
            raise code_refused(self.place.name)
        proposed = proposed_agreement(declared, ())
        if budget := self.answers.privacy:
            proposed.require_counted(self.tables[0].name)
            rules = [replace(e.rule, privacy=budget) for e in proposed.resources]
            tables = zip(proposed.resources, rules, strict=True)
            given = tuple(replace(each, rule=rule) for each, rule in tables)
            proposed = replace(proposed, resources=given)  # judged for this owner alone
        schema = schema_from_plain(declared.schema, source="the host's schema")
        fewest = fewest_rows(declared)
        if declared != self.kept.declaration:
            self._take_declaration(declared)
        if self.kept.card is not None:  # it was asked, before a restart, or a fetch
            return self._fetch(declared) or Bring(self.kept.card)
        self._write_recipe(declared, schema, files)
        if declared.code.kind == "code":
            require_packages(files, declared.code.entry)
            require_versions(files)
        try:
            self._require_allowed(proposed)
        except PolicyError:  # its owner reads what it refuses, and no table is touched
            counts = self._operations(declared)
            how: dict[str, Any] = {"operations": counts, "colour": _is_coloured()}
            for line in tell_declared(declared, self.place.name, **how):
                self.place.say(line)
            raise
        if not self._ask_to_compare(declared, schema, fewest):
            raise self._said_no()
        self._compare(schema, fewest)
        rule = ReleaseRule(
            max_uses=MAX_USES,
            not_after=declared.not_after,
            lease_s=ROWS_LEASE.lease_s,
            heartbeat_s=ROWS_LEASE.heartbeat_s,
            recipe="graph" if self.answers.only_graph else "any",
            privacy=self.answers.privacy,
        )
        body = TableCard(
            declaration=declared.digest,
            party=self.identity.card,
            columns={each.name: "fits" for each in schema.fields},
            heldout=self._has_heldout,
            rule=rule,
        )
        self._keep(card=sign_card(body, self.identity), terms=None, consent=None)
        if asked := self._fetch(declared):
            return asked
        self._talk.say("telling the host your name, your keys and that your table fits")
        return Bring(self._brought)

    def _fetch(self, declared: Declaration) -> AskAsset | None:
        """What to ask for of the recipe's weights and texts; None once they are there."""
        if self._fetcher is None:
            self._fetcher = AssetFetcher(
                self.place,
                [
                    Asset(n, self.place.recipe / n, size, declared.code.files[n])
                    for n, size in declared.assets.items()
                ],
                self.kept.fetched,
                self._keep_fetched,
                self._talk.say,
            )
        self._asked = self._fetcher.next()
        return self._asked

    def _keep_fetched(self, name: str, digest: Digest) -> None:
        self._keep(fetched={**self.kept.fetched, name: digest})

    def _take_piece(self, told: AssetPiece) -> FromGuest:
        if self._fetcher is None or self._asked is None:
            raise MalformedError(
                "the host sent a file that this party did not ask for",
                code="bad-message",
            )
        self._fetcher.take(self._asked, told)
        self._asked = self._fetcher.next()
        return self._asked or Ask()

    @property
    def _brought(self) -> SignedCard:
        """The card that was made.

        Raises:
            MalformedError: ``bad-message``.
        """
        if self.kept.card is None:
            raise MalformedError(
                "the host sent terms before it had a card", code="bad-message"
            )
        return self.kept.card

    def _take_declaration(self, declared: Declaration) -> None:
        """Count what the host declares.

        Raises:
            PolicyError: ``meeting-terms``: another one after this party signed;
                ``declared-too-often``.
        """
        if self.kept.agreement is not None:
            raise _replaced("sent another declaration")
        if self.kept.declarations >= MAX_DECLARATIONS:
            raise PolicyError(
                f"the host sent more than {MAX_DECLARATIONS} different declarations",
                why="each comparison tells it something about your table",
                code="declared-too-often",
            )
        self._fetcher = None
        self.place.kind = declared.code.kind
        self._keep(
            declaration=declared,
            declarations=self.kept.declarations + 1,
            card=None,
            terms=None,
            consent=None,
        )

    def _write_recipe(
        self, declared: Declaration, schema: Schema, files: dict[str, bytes]
    ) -> None:
        """Recipe, job and schema, to be read; what this command did not write is not replaced."""
        beside = {
            "job.toml": declared.job.encode(),
            DECLARED_SCHEMA: schema_to_toml(schema).encode(),
        }
        before = self.kept.written
        self._keep(written=self.place.require_own(beside, files, before))
        self.place.write_recipe(files, before)
        for name, content in beside.items():
            write_whole(self.place[name], content)
        self._talk.say(
            f"the host's recipe is now in {self.place.recipe.name}/, its job in job.toml, and "
            f"all columns that it asks for in {DECLARED_SCHEMA}"
        )

    def _ask_to_compare(
        self, declared: Declaration, schema: Schema, fewest: tuple[int, int]
    ) -> bool:
        """Whether the owner lets its table be compared with this declaration.

        Raises:
            UsageError: nobody can answer, or ``--compare-if`` names another one.
        """
        self._talk.wait_for("")
        names = [each.name for each in self.tables]
        rows = dict(zip(names, fewest, strict=False))
        said = dict.fromkeys(x for t in self.tables for x in t.tell_numbers(schema))
        times = self.kept.declarations
        lines = [*tell_comparison(declared, schema, rows, times, numbers=said)]
        for line in lines:
            self.place.say(line)
        if self.answers.decline:
            return False
        digest = declared.digest
        self.place.say(f"digest    {digest.to_text()}")
        Caller.tell("question", about="compare", digest=digest.to_text(), lines=lines)
        return self._is_confirmed("compare", digest, "Compare? (y/N)")

    def _is_confirmed(self, verb: str, digest: Digest, question: str) -> bool:
        """The owner's yes: the digest that was given for it, or a person's answer.

        Raises:
            UsageError: ``not-confirmed``.
        """
        file = self.answers.file
        option = f"{verb} in {file}" if file else f"--{verb}-if"
        if given := getattr(self.answers, f"{verb}_if"):
            if Digest.from_text(given) != digest:
                raise UsageError(
                    f"what the host sent does not have the digest given with {option}",
                    code="not-confirmed",
                )
            return True
        if file:
            raise unanswered(file, f'{verb} = "{digest.to_text()}"')
        if self.ask is None:
            raise UsageError(
                "nobody answered the question",
                why="there is no terminal",
                fix=f"Run the command at a terminal, or give {option} DIGEST",
                code="not-confirmed",
            )
        return self.ask(question, "n").lower() in YES

    def _compare(self, schema: Schema, fewest: tuple[int, int]) -> None:
        """Every cell, at home, and the number of rows; raises what does not fit, here alone."""
        began_s = self.clock()
        counted: list[int] = []
        error = self._misfit(schema, fewest, counted)
        self.sleep(answer_delay_s(self.clock() - began_s))
        if error is None:
            for each, rows in zip(self.tables, counted, strict=True):
                self._talk.say(f"{each.name}: {rows:,} rows fit")
            return
        proposed: dict[str, tuple[str, ...]] = {}
        files = {each.source: each for each in self.tables}  # two sides of one: once
        for each in files.values():
            if (self.ask is None and not self.answers.file) or proposed:
                break  # nobody can answer, or somebody has
            if is_text(str(each.source)):
                with suppress(MalformedError):  # it is no table at all
                    own = each.options.own
                    texts = unlisted_texts(each.source, schema, own)
                    if (decided := self.answers.send_texts) is not None:
                        texts = {c: texts[c] for c in texts if c in decided}
                    ask = self.ask or self._answer_texts
                    proposed = ask_categories(texts, ask, self.place.say)
        self._last = Propose(proposed) if proposed else Decline("columns-differ")
        raise error

    def _answer_texts(self, question: str, default: str) -> str:
        """A file's answer about texts of the columns that it names, or ``unanswered``."""
        if self.answers.send_texts is None:
            raise unanswered(self.answers.file, 'send_texts = ["COLUMN"], or []')
        return min(YES)

    def _misfit(
        self, schema: Schema, fewest: tuple[int, int], counted: list[int]
    ) -> SealiftError | None:
        """The first thing for which a table cannot be used; ``counted`` gets rows."""
        try:
            for each, rows in zip(self.tables, fewest, strict=False):
                counted.append(each.count_rows(schema, rows))
                if self.answers.privacy is not None:
                    self.answers.privacy.require_rows(counted[-1])
        except SealiftError as error:
            return error
        except MemoryError as error:  # it waits as long as any other answer
            what = "there is not enough memory to compare the table"
            return UnavailableError(what, why=error, code="no-memory")
        return None

    def _read(self, terms: Terms) -> FromGuest:
        kept, card = self.kept, self._brought
        if kept.declaration is None:
            raise MalformedError(
                "the host sent terms before its declaration", code="bad-message"
            )
        self._guest.read(terms, kept.declaration, card)
        if kept.terms == terms and kept.consent is not None:
            return Agree(kept.consent)  # it was asked, before a restart
        if kept.agreement is not None:
            raise _replaced("sent other terms")
        self._talk.wait_for("")
        compared = self._ask(terms)
        if compared is None:
            raise self._said_no()
        try:
            sealed = self._seal(kept.declaration, card.body.rule)
        except MalformedError:  # the table was changed since it was compared
            self._last = Decline("columns-differ")
            raise
        consent = Consent(terms.digest, self.place.name, sealed, compared)
        signed = sign_consent(consent, self.identity)
        self._keep(terms=terms, consent=signed)
        return Agree(signed)

    def _said_no(self) -> RefusedError:
        """Leave by the owner's no, whatever the host says to it."""
        self._talk.say("nothing was signed; the other parties learn that you said no")
        self._last = Decline("meeting-declined")
        return RefusedError(f"{self.place.name} said no", code="meeting-declined")

    def _ask(self, terms: Terms) -> bool | None:
        """Whether words were compared; None for no.

        Raises:
            UsageError: nobody can answer, or ``--sign-if`` names other terms.
        """
        words, digest = " ".join(words_of(terms.digest)), terms.digest.to_text()
        told = tell_terms(
            terms,
            self.place.name,
            operations=self._operations(terms.declaration),
            colour=_is_coloured(),
        )
        lines = [*told]
        for line in (*lines, f"words     {words}", f"digest    {digest}"):
            self.place.say(line)
        Caller.tell("question", about="sign", digest=digest, lines=lines, words=words)
        cards = [each.body for each in terms.cards]
        agreement = proposed_agreement(terms.declaration, cards)
        job = _require_allowed_job(terms.declaration)
        require_measured_by_all(job.settings, agreement)  # the cards say who holds out
        self._require_allowed(agreement)
        if self.answers.decline or not self._is_confirmed(
            "sign", terms.digest, "Sign? (y/N)"
        ):
            return None
        if self.answers.sign_if or self.ask is None:
            return True
        question = "Did you compare the words with another party? (y/N)"
        return self.ask(question, "n").lower() in YES

    def _operations(self, declared: Declaration) -> int:
        """Of the graph that lies here, which is the declared one; 0 of a program.

        Raises:
            IntegrityError: ``code-bundle-differs``: it was changed since it was written.
            UnavailableError: it is not there any more.
        """
        if declared.code.kind == "code":
            return 0
        files = load_bundle(self.place.recipe, declared.code)
        return sum(read_graph(files[GRAPH_ENTRY]).counts().values())

    def _require_allowed(self, agreement: Agreement) -> None:
        """Demand a name on the command line for what is below this program's floor.

        Raises:
            PolicyError: ``below-floor``; who declines is not asked for names.
        """
        if not self.answers.decline:
            allowed = self.answers.allow
            require_allowed(agreement, self.place.name, allowed, sealed=False)

    def _seal(self, declared: Declaration, rule: ReleaseRule) -> tuple[Resource, ...]:
        """The tables, sealed in this folder; a table that is sealed already is not sealed again."""
        schema = schema_from_plain(declared.schema, source="the host's schema")
        make_folder(self.place["sealed"])
        vault = OwnersVault(self.place["vault.db"], self.identity)
        found = []
        cell_rows = max(DEFAULT_CELL_ROWS, declared.output.metric_rows)
        for each, fewest in zip(self.tables, fewest_rows(declared), strict=False):
            name = self._name_of(each, schema, cell_rows)
            card = self.place["sealed"] / f"{name}{CARD_SUFFIX}"
            if not card.exists():
                key = SecretKey.generate()
                self._talk.say(f"sealing {each.name}")
                seal_table(
                    each.source,
                    schema,
                    options=each.options,
                    name=name,
                    part=each.part,
                    owner=self.place.name,
                    key=key,
                    out_dir=self.place["sealed"],
                    cell_rows=cell_rows,
                    keep=lambda cards, kept={name: key}: vault.keep(kept),  # type: ignore[misc]
                    kept=vault.kept,
                )
            resource = read_card(card).resource
            each.require_rows(resource.rows, fewest)
            found.append(replace(resource, rule=rule))
        work = PlannedWork.of(_require_allowed_job(declared).settings, found)
        work.require_visits(declared.output)
        return tuple(found)

    def _name_of(self, table: BroughtTable, schema: Schema, cell_rows: int) -> str:
        """The name of this table as it is now: another one for each that was sealed before."""
        stamp, agreed = table.stamp, schema_to_plain(schema.agreed)
        name, number = f"{self.place.name}-{table.part}", 1
        while (path := self.place["sealed"] / f"{name}{CARD_SUFFIX}").exists():
            there, made_of = read_card(path).resource, self.kept.sealed.get(name)
            if (made_of, there.schema, there.cell_rows) == (stamp, agreed, cell_rows):
                return name
            number += 1
            name = f"{self.place.name}-{table.part}-{number}"
        self._keep(sealed={**self.kept.sealed, name: stamp})
        return name

    def _sign(self, told: Check) -> Sign:
        kept = self.kept
        if kept.terms is None or kept.consent is None:
            raise MalformedError(
                "the host asked for a signature before this party agreed",
                code="bad-message",
            )
        agreement = self._guest.check(told, kept.terms, kept.consent)
        if kept.agreement is not None and kept.agreement != agreement:
            raise _replaced("changed the tables of other parties")
        self._keep(agreement=agreement)
        return Sign(self._guest.sign(agreement))

    def _keep_signed(self, told: Signed) -> None:
        if self.kept.agreement is None:
            raise MalformedError(
                "the host sent signatures before this party signed",
                code="bad-message",
            )
        self._guest.keep(told, self.kept.agreement)
        save_signed(told.agreement, self.place["agreement.json"])
        self._talk.wait_for("")
        self._talk.say("all parties have signed (agreement.json); the job begins")


def unanswered(file: str, key: str) -> UsageError:
    """A question that nobody can answer at a terminal, and no key of the file does."""
    return UsageError(
        f"{file} does not answer the question above",
        fix=f"Read it, add the line {key} to {file} if that is your answer, and start again",
        code="unanswered",
    )


def _is_coloured() -> bool:
    return sys.stderr.isatty()


def fewest_rows(declared: Declaration) -> tuple[int, int]:
    """Rows that a table for training, and one to measure on, must have to be of use.

    Raises:
        MalformedError: the declared job is none.
        SealiftError: it is not what the declared terms allow.
    """
    job = _require_allowed_job(declared)
    training, output = job.training, declared.output
    batch = training.batch_rows if training.drop_last else 1
    shown = declared.training.fewest_table_rows(output.metric_rows)
    return max(output.min_owner_rows, shown, batch), output.metric_rows


def _require_allowed_job(declared: Declaration) -> JobTable:
    """Refuse a job that the agreement which would follow does not allow; the job.

    Raises:
        MalformedError: the declared job is none.
        SealiftError: as every role of the job would refuse it after the signatures.
    """
    job = parse_job(parse_toml(declared.job.encode(), source="the host's job.toml"))
    job.require_recipe(declared.code)
    PLANS[job.plan].check_terms(job.settings, proposed_agreement(declared, ()))
    return job


def _replaced(what: str) -> PolicyError:
    return PolicyError(
        f"the host {what} after this party signed",
        why="signed documents are not replaced",
        code="meeting-terms",
    )
