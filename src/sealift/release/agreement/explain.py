"""What an agreement says, in sentences that are computed from all of its fields.

Every screen that informs a person before a signature uses ``explain``: the question of a
meeting, ``sealift agreement show``, ``check`` and ``sign``, and ``--dry-run``. ``TABLE``
names every field of the document, with the function that puts it into a sentence, or with
the reason why it cannot matter to an owner; a test fails for a field that is missing
there. What can be shared, and with whom, comes first. Source: rule O2.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Literal

from sealift.attest.level import Level
from sealift.attest.reference import (
    ImaReferences,
    NvidiaReferences,
    SetName,
    SnpReferences,
    TdxReferences,
    TpmReferences,
    TpmRoot,
)
from sealift.errors import quote_foreign
from sealift.events import say_local_time
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    Audience,
    Board,
    CodeBundle,
    GroupRule,
    OutputRule,
    Party,
    PrivacyBudget,
    References,
    ReleaseRule,
    Resource,
    ServersRule,
    TravelRule,
)
from sealift.release.agreement.phrases import (
    FLOOR_ROWS,
    cargo_promise,
    count,
    say_budget,
    say_code,
    say_every,
    say_list,
    say_parameter,
    say_privacy,
    say_range,
    say_updates,
)
from sealift.release.agreement.tallies import say_numbers
from sealift.release.agreement.terms import RollbackRule
from sealift.release.agreement.training import (
    Between,
    ParameterRule,
    PrivateSteps,
    TrainingRule,
)

ExceptionName = Literal[
    "recipe-text", "statistics", "metric-rows", "model-to",
    "round-updates", "step-updates", "rows-away", "shared-noise",
]  # fmt: skip
_LEAVES: Final = "what is shared, and who gets it"
_READS: Final = "who can read what while it is used"
_COMPUTES: Final = "what is computed"
_BRINGS: Final = "what each party brings, and when its keys may be used"
_SIGNED: Final = "what is signed, and who may change it"
TOPICS: Final = (_LEAVES, _READS, _COMPUTES, _BRINGS, _SIGNED)
RED: Final = "\x1b[1;31m"
PLAIN: Final = "\x1b[0m"
COLUMNS: Final = 67  # beside the name of the command and a mark: 80 in all
SHOWN_NAMES: Final = 24

KEPT_OUT: Final = {
    Level.TEE: "keeps out the operator, the hypervisor and the other parties",
    Level.GPU_TEE: "keeps out the operator, the hypervisor and the other parties",
    Level.ATTESTED_HOST: "keeps out other parties and remote attackers, "
    "not somebody with physical access to the memory",
    Level.UNTRUSTED_GPU: "keeps out the compute servers unless two of them collude",
    Level.DEVELOPMENT: "keeps NOBODY out: software keys replace hardware, and "
    "whoever runs the machine can read keys and rows",
}
SEEN_BY: Final[dict[Audience, str]] = {
    "everyone": "every party, the operator included",
    "owner": "only the owner of the rows they were measured on",
}
_PLANS: Final = {
    "local": "in one process that has everybody's rows",
    "travel": "on one accelerator, which loads the owners' rows in turn",
    "ddp": "on several accelerators, which combine their updates",
    "outsource": "on one accelerator, whose products three servers compute from shares",
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One thing that the document says.

    Attributes:
        topic: The heading that it stands under.
        text: Whole sentences; text of other parties in it is quoted.
        exception: Where it is below the floor of an owner's own program: the name with
            which the owner allows it all the same.
        alarm: Whether it is shown in red.
    """

    topic: str
    text: str
    exception: ExceptionName | None = None
    alarm: bool = False

    @property
    def is_loud(self) -> bool:
        """Whether it is shown in red and with a mark."""
        return self.alarm or self.exception is not None


@dataclass(frozen=True, slots=True)
class _Subject:
    """The document and who is asked about it.

    Attributes:
        asked: The party, which is called "you"; empty for everybody.
        sealed: Whether the tables are sealed, so that their rows are counted.
        operations: Of the recipe, if it is a graph that was read; else 0.
    """

    agreement: Agreement
    asked: str
    sealed: bool
    operations: int

    def names(self, parties: Iterable[str]) -> str:
        """``you, bern and cleo``; the party that is asked first."""
        ordered = sorted(parties, key=lambda name: name != self.asked)
        return say_list(["you" if each == self.asked else each for each in ordered])

    def does(self, party: str, verb: str) -> str:
        """``you run``, ``bern runs``."""
        return f"you {verb}" if party == self.asked else f"{party} {verb}s"

    @property
    def asks_owner(self) -> bool:
        """Whether who is asked brings rows."""
        brought = self.agreement.resources_of(self.asked)
        return any(each.part != "model" for each in brought)

    @property
    def rows(self) -> str:
        """Whose rows the sentences are about."""
        owners = self.agreement.data_owners
        return "your rows" if self.asks_owner else f"the rows of {say_list(owners)}"

    @property
    def readers(self) -> str:
        """Whose machines get what one accelerator of a group sends."""
        if not self.agreement.rows_at_home:
            return "the other accelerators"
        others = [each for each in self.agreement.data_owners if each != self.asked]
        known = self.asks_owner and others
        return f"the machines of {say_list(others) if known else 'the other owners'}"

    @property
    def only_sums(self) -> bool:
        """Whether machines of a group learn the sum of what all send, and no part of it."""
        rule = self.agreement.training
        return rule is not None and rule.sums == ("only",)

    @property
    def fewest_rows(self) -> int:
        """Rows that an owner's own sum is made of, at least; before it is sealed, by the rule."""
        if not self.sealed and (rule := self.agreement.output) is not None:
            return max(rule.min_owner_rows, rule.metric_rows)
        rows = Counter[str]()
        for each in self.agreement.resources:
            if each.part == "train":
                rows[each.owner] += each.rows
        return rows.get(self.asked, min(rows.values(), default=0))


def explain(
    agreement: Agreement, asked: str = "", *, sealed: bool = True, operations: int = 0
) -> tuple[Sentence, ...]:
    """Every sentence of a document, the most important ones first.

    Args:
        agreement: As it is signed, or as it would be.
        asked: The party that is asked to sign it, which is called "you"; empty for all.
        sealed: False where tables are not sealed yet, so that nobody knows their rows.
        operations: Of the graph whose digest the document has, where it was read.
    """
    subject = _Subject(agreement, asked, sealed, operations)
    tellers = dict.fromkeys(
        tell for fields in TABLE.values() for tell in fields.values() if callable(tell)
    )
    sentences = [sentence for tell in tellers for sentence in tell(subject)]
    return tuple(sorted(sentences, key=lambda each: TOPICS.index(each.topic)))


def explain_lines(
    sentences: Sequence[Sentence], *, colour: bool = False
) -> Iterator[str]:
    """The sentences as lines for a terminal, under their headings."""
    topic = ""
    for each in sentences:
        if each.topic != topic:
            topic = each.topic
            yield f"{topic}:"
        red, plain = (RED, PLAIN) if each.is_loud and colour else ("", "")
        mark = "!" if each.is_loud else "-"
        below = f" [needs --allow {each.exception}]" if each.exception else ""
        lines = textwrap.wrap(
            f"{each.text}{below}",
            COLUMNS,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, line in enumerate(lines):
            yield f"{red}  {' ' if number else mark} {line}{plain}"


# --- what can leave ---------------------------------------------------------------------


def _tell_text(subject: _Subject) -> Iterator[Sentence]:
    agreement = subject.agreement
    if agreement.output is None:
        return
    if agreement.output.recipe_text:
        text = (
            "Everything that the recipe prints, and the full text of its errors, is shared unchecked: a recipe "
            "can print whole rows. The text goes to every party and to whoever runs an accelerator."
        )
        yield Sentence(_LEAVES, text, "recipe-text")
        return
    writers = [each.name for each in agreement.parties if "code_owner" in each.roles]
    text = (
        "What the recipe prints is not shared. If the recipe fails, every party gets the error's name, and "
        f"{subject.names(writers) or 'no party'} gets its file and line, encrypted."
    )
    yield Sentence(_LEAVES, text)


def _tell_sums(subject: _Subject) -> Iterator[Sentence]:
    agreement = subject.agreement
    rule, training = agreement.output, agreement.training
    if rule is None or training is None:
        return
    if True not in training.prepare:
        yield Sentence(
            _LEAVES, "No run may compute the recipe's sums of rows (`prepare`)."
        )
        return
    least = count(rule.statistics_rows, "row")
    if rule.statistics:
        few = min(rule.statistics_rows, subject.fewest_rows) < FLOOR_ROWS
        text = (
            f"Sums that the recipe's `prepare` computes over {subject.rows} are shared: "
            f"{_quote_names(rule.statistics)}. Each total is over at least {least} of all owners together, and "
            "goes to every party. The other owners can subtract their own parts. A recipe can define a sum that "
            "shows single rows, for example one count for each value: read the recipe."
        )
        yield Sentence(_LEAVES, text, "statistics" if few else None)
    text = (
        "Before training, the recipe may compute sums over all rows (`prepare`). These sums are part of the "
        "model, so whoever gets the model may be able to read them, also those that are not listed here. They "
        f"are over at least {least} in all and {rule.min_owner_rows:,} of each owner."
    )
    yield Sentence(_LEAVES, text)
    if agreement.group is not None:
        few = subject.fewest_rows < FLOOR_ROWS
        if subject.only_sums:
            text = "The other accelerators learn these sums over all owners' rows, and none of one owner's alone."
            return (yield Sentence(_LEAVES, text))
        text = (
            "Each accelerator sends the sums over its own rows to every other one, which adds them up: "
            f"{subject.readers} can read the sums of {subject.rows} alone."
        )
        yield Sentence(_LEAVES, text, "statistics" if few else None)


def _tell_numbers(subject: _Subject) -> Iterator[Sentence]:
    rule = subject.agreement.output
    if rule is None:
        return
    training = subject.agreement.training
    if not rule.metrics or (training is not None and training.privacy is not None):
        yield Sentence(_LEAVES, "No measured numbers are shared.")
        return
    few: ExceptionName | None = "metric-rows" if rule.metric_rows < FLOOR_ROWS else None
    least, most = count(rule.metric_rows, "row"), count(rule.values_per_visit, "value")
    seen_by = SEEN_BY[rule.audience]
    if subject.only_sums and rule.audience == "everyone":
        seen_by = "nobody but that owner: all parties get the result over all owners' rows together, where every owner has one"
    shown = say_numbers(
        rule.metrics, subject.rows,
        least=least, most=most, digits=rule.digits, seen_by=seen_by,
    )  # fmt: skip
    yield from (Sentence(_LEAVES, text, few) for text in shown)


def _tell_model(subject: _Subject) -> Iterator[Sentence]:
    agreement = subject.agreement
    rule, owner = agreement.output, agreement.model_owner
    if rule is None:
        return
    getters = agreement.model_to
    text = (
        f"The trained model goes to {subject.names(getters)}, with what it memorised "
        f"of {subject.rows}: single rows can sometimes be extracted from a model. Its file also says who trained it on "
        "how many rows, with which results, and the columns with their categories."
    )
    yield Sentence(_LEAVES, text)
    if others := [each for each in getters if each not in (owner, subject.asked)]:
        text = (
            f"The model goes to {say_list(others)}, and not to its owner {owner} alone."
        )
        yield Sentence(_LEAVES, text, "model-to")
    text = (
        f"The model is released after at least {count(rule.min_visits, 'visit')} to each of at least "
        f"{count(rule.min_holders, 'owner')}, once it was trained on at least {count(rule.min_rows, 'row')} in "
        f"all and {rule.min_owner_rows:,} of each owner. Each owner is visited at most "
        f"{count(rule.max_visits, 'time')} to train, and as often to measure."
    )
    yield Sentence(_LEAVES, text)
    if rule.approved_by:
        text = (
            f"Nobody can open the model before {subject.names(rule.approved_by)} approve it: each of them holds "
            "a share of its key. Numbers are shared without this approval. While a group trains the model, its machines hold it in memory."
        )
        yield Sentence(_LEAVES, text)
    if rule.baseline_alone:
        where = ", on its owner's machine," if agreement.rows_at_home else ""
        goes = "shared by the same rule; that model is not."
        if subject.only_sums:
            goes = "shown to that owner alone."
        text = (
            f"For comparison, a model is also trained{where} on each owner's rows "
            f"alone. Its numbers are {goes}"
        )
        yield Sentence(_LEAVES, text)


def _tell_updates(subject: _Subject) -> Iterator[Sentence]:
    training, group = subject.agreement.training, subject.agreement.group
    if group is None or training is None:
        return
    readers, rows, fewest = subject.readers, subject.rows, subject.fewest_rows
    for text, few in say_updates(training, group, readers, rows, fewest):
        yield Sentence(_LEAVES, text, few)


def _tell_privacy(subject: _Subject) -> Iterator[Sentence]:
    agreement, training = subject.agreement, subject.agreement.training
    if training is not None:
        own = bool(agreement.budgets_of(subject.asked))
        for text, few, alarm in say_privacy(training, subject.rows, own=own):
            yield Sentence(_LEAVES, text, few, alarm)
    alike: dict[str, list[str]] = {}
    for owner in sorted(agreement.data_owners, key=lambda each: each != subject.asked):
        for each, budget in agreement.budgets_of(owner):
            alike.setdefault(say_budget(budget, training), []).append(each.name)
    for text, tables in alike.items():
        yield Sentence(_LEAVES, f"The privacy budget of {say_list(tables)} is {text}")


def _tell_answers(subject: _Subject) -> Iterator[Sentence]:
    """What whoever asks a served model gets; what a group's code lets out."""
    agreement = subject.agreement
    if agreement.about == "group":
        text = (
            "The document names no rows and no output: nothing limits what the code "
            "reads or shares. Read the code (sealift agreement show --code)."
        )
        yield Sentence(_LEAVES, text, alarm=True)
    if agreement.about != "serve":
        return
    for each in agreement.resources:
        asks = each.schema.get("clients")
        who = _quote_names(sorted(asks)) if asks else "anybody who can reach it"
        yield Sentence(_LEAVES, f"{each.name} answers {who}, with {_answers(each)}.")
        if each.schema.get("mixed"):
            text = f"Rows of several clients of {each.name} can be in one batch: the recipe reads them together."
            yield Sentence(_LEAVES, text)
    text = "The operator of a server sees which client sends requests, when, and the sizes of requests and answers."
    yield Sentence(_LEAVES, text)


def _answers(resource: Resource) -> str:
    """All that leaves: of whole answers, and of each step of a generation."""
    tables = (resource.schema.get(name) for name in ("outputs", "tokens"))
    found = (_columns(each) for each in tables if isinstance(each, dict))
    return "; step by step with ".join(found) or "nothing"


# --- who can read what ------------------------------------------------------------------


def _tell_levels(subject: _Subject) -> Iterator[Sentence]:
    agreement = subject.agreement
    what = {
        "serve": "the models, requests and answers",
        "group": "what the processes hold",
    }
    place = f"are opened on the machine that {subject.does(agreement.operator, 'run')}"
    if agreement.rows_at_home:
        home = "this machine" if subject.asks_owner else "their owners' machines"
        place = f"stay on {home}"
    if len(agreement.accept) > 1:
        text = f"A machine must prove one of the levels {say_list(agreement.accept, 'or')}."
        yield Sentence(_READS, text)
    away = not (subject.sealed or agreement.rows_at_home)  # in a meeting rows stay
    for level in agreement.accept:
        text = f"At level {level}, {what.get(agreement.about, subject.rows)} {place}. The level {KEPT_OUT[level]}."
        bare = level is Level.DEVELOPMENT
        yield Sentence(_READS, text, "rows-away" if away and bare else None, alarm=bare)
    if Level.DEVELOPMENT in agreement.accept:
        yield from _tell_development(subject)
    if agreement.rehearse is not None:
        text = f"It only rehearses {agreement.rehearse}, without its protection."
        yield Sentence(_READS, text, alarm=True)


def _tell_development(subject: _Subject) -> Iterator[Sentence]:
    agreement = subject.agreement
    by_key = {party.sign: party.name for party in agreement.parties}
    keys = agreement.references.development_attesters
    whose = sorted({by_key.get(each, "no party of this document") for each in keys})
    text = (
        "Development means that software keys, not hardware, attest a machine: "
        f"keys of {subject.names(whose) or 'nobody yet'}. Whoever runs a "
        "machine can read what is on it, and change what it does."
    )
    yield Sentence(_READS, text, alarm=True)
    if agreement.rows_at_home:
        text = (
            f"Rows stay on their owner's machine, but {subject.readers} are unproven: they see updates, and "
            "nothing shows that they run the agreed code. A machine that does not run it can choose the weights "
            "from which the others continue, so that single rows become visible in their updates."
        )
        yield Sentence(_READS, text, alarm=True)


def _tell_servers(subject: _Subject) -> Iterator[Sentence]:
    if subject.agreement.servers is not None:
        yield Sentence(_READS, f"{_capital(subject.agreement.servers.promise)}.")


def _tell_travel(subject: _Subject) -> Iterator[Sentence]:
    rule = subject.agreement.travel
    training = subject.agreement.training
    if rule is not None and training is not None and {*training.plans} - {"ddp"}:
        text = (
            f"{_capital(cargo_promise(rule.buffers, rule.mixed))}. The accelerator itself reports this; it is "
            f"not a proof. An owner's program has at most {rule.lease_s:g} s to send its rows."
        )
        yield Sentence(_READS, text)


def _tell_references(subject: _Subject) -> Iterator[Sentence]:
    references = subject.agreement.references
    by_key = {party.sign: party.name for party in subject.agreement.parties}
    if subject.agreement.accept != (Level.DEVELOPMENT,) or subject.agreement.rehearse:
        text = (
            f"Vendors' certificates and revocation lists may be {references.collateral_max_age_s / 86_400:g} "
            f"days old. The lowest accepted verdict of a vendor is {references.lowest_tier}."
        )
        yield Sentence(_READS, text)
    if references.enrollers:
        who = [by_key.get(each, each.to_text()) for each in references.enrollers]
        text = f"{_begin(subject.names(who))} may confirm which machine has which TPM."
        yield Sentence(_READS, text)
    for each in references.sets:
        signer = by_key.get(each.signer, each.signer.to_text())
        text = (
            f"{_begin(subject.names([signer]))} may change, without a new agreement, what evidence must show, "
            f"through the signed list {each.name}, number {each.number} or later."
        )
        yield Sentence(_READS, text)
    for kind in ("tpm", "tdx", "snp", "nvidia"):
        values = getattr(references, kind)
        if values is not None:
            yield Sentence(_READS, f"Evidence of {kind} must show: {_values(values)}.")


def _values(value: Any) -> str:
    """A value that evidence must show: names as they are, measurements by their number."""
    if isinstance(value, Digest):
        return value.short
    if is_dataclass(value):
        said = ((e.name, _values(getattr(value, e.name))) for e in fields(value))
        return "; ".join(f"{name.replace('_', ' ')} {text}" for name, text in said)
    if isinstance(value, Mapping):
        return say_list(
            [f"{quote_foreign(k)} ({_values(v)})" for k, v in value.items()]
        )
    if not isinstance(value, tuple):
        return quote_foreign(str(value))
    if value and not all(isinstance(each, str | TpmRoot) for each in value):
        return count(len(value), "value")
    return say_list([*map(_values, value)]) or "none named"


# --- what is computed -------------------------------------------------------------------


def _tell_code(subject: _Subject) -> Iterator[Sentence]:
    agreement, machine = subject.agreement, "the machine that computes"
    if agreement.rows_at_home:
        machine = "your machine" if subject.asks_owner else "each owner's machine"
    writers = [each.name for each in agreement.parties if "code_owner" in each.roles]
    whose = subject.names(writers) or "another party"
    for text in say_code(agreement, machine, whose, subject.operations):
        yield Sentence(_COMPUTES, text)


def _tell_settings(subject: _Subject) -> Iterator[Sentence]:
    rule = subject.agreement.training
    if rule is None:
        return
    runs = "Any number of runs"
    if rule.runs:
        runs = f"At most {count(rule.runs, 'different run')}"
    last = "may be left out" if True in rule.drop_last else "are used"
    text = (
        f"The model is trained {say_list([_PLANS[each] for each in rule.plans], 'or')}. {runs} may be started; a "
        "run that is started again with the same name and settings is the same run, until its key releases or visits are used up. "
        f"A run has {say_range(rule.epochs, 'round')} over all training rows and {say_range(rule.batch_rows, 'row')} in a "
        f"step; shorter last steps {last}. Devices: {say_list(rule.device, 'or')}."
    )
    yield Sentence(_COMPUTES, text)
    text = "Which rows are in one step, are measured together, or are left out, changes in each round. A seed determines it"
    yield Sentence(_COMPUTES, f"{text}: {say_range(rule.seed)}.")
    if rule.parameters:
        ranges = sorted(rule.parameters.items())
        said = [f"{each} {say_parameter(may)}" for each, may in ranges]
        text = f"A run may set these parameters, whose use is in the recipe: {say_list(said)}."
        yield Sentence(_COMPUTES, text)
    missing = {"skip": "continues without it", "wait": "waits for it"}
    absent = f"the run {say_list([missing[each] for each in rule.on_missing], 'or')}"
    if subject.agreement.group is not None:  # nobody else has its rows
        absent = (
            "training waits for it, and stops if it does not come back in time; the job goes "
            "on when all have started their commands again"
        )
    text = (
        f"Held-out rows measure the model at the end, and before that {say_every(rule.evaluate_every, 'rounds')}. "
        f"Encrypted checkpoints are saved {say_every(rule.checkpoint_every, 'groups of visits')}. When an owner is "
        f"missing, {absent}."
    )
    yield Sentence(_COMPUTES, text)
    if rule.keep_state:
        first = subject.names(subject.agreement.data_owners[:1])
        who = first if rule.rows == ("owner",) else "all owners together"
        text = "After a run its last checkpoint may stay, encrypted, until a run with more rounds has continued from it."
        opens = f"Its file and key are then with {who}, who can open it also where the rule for the model's release is not met."
        yield Sentence(_COMPUTES, f"{text} {opens}")
    if rule.slices.max > 1 and subject.agreement.group is None:
        whose = {"owner": "one owner's", "share": "everybody's"}
        text = (
            f"{say_range(rule.slices)} parts are trained on side by side, each of "
            f"{say_list([whose[each] for each in rule.rows], 'or')} rows."
        )
        yield Sentence(_COMPUTES, text)


# --- what each party brings -------------------------------------------------------------


def _tell_tables(subject: _Subject) -> Iterator[Sentence]:
    agreement, asked = subject.agreement, subject.asked
    use = {"train": "to train on", "heldout": "to measure on, not to train on"}
    alike: dict[str, list[str]] = {}
    for each in sorted(agreement.resources, key=lambda each: each.owner != asked):
        rows = "rows, whose number all parties learn after its owner agrees to sign"
        if subject.sealed:
            cells = count(each.cell_rows, "row")
            rows = f"{count(each.rows, 'row')} of {each.row_bytes:,} bytes in cells of {cells}"
        what = f"a sealed model of {each.total_bytes:,} bytes, to be served"
        if each.part != "model":
            columns = _columns(each.schema) or "without names"
            what = f"{rows}, {use[each.part]}, with the columns {columns}"
        who = f"{subject.does(each.owner, 'bring')} {each.name}"
        alike.setdefault(f"{what}. {_say_rule(each, agreement)}", []).append(who)
    for what, bring in alike.items():
        yield Sentence(_BRINGS, f"{_begin(say_list(bring))}: {what}")
    if own := agreement.resources_of(asked):
        leases = [each.lease for each in own if each.lease]
        when = "when the run ends, because a key of yours has no lease"
        if len(leases) == len(own):
            when = (
                f"within {max(each.heartbeat_s for each in leases):g} s if your broker can be reached, and after "
                f"{max(each.lease_s for each in leases):g} s at the latest"
            )
        text = (
            f"`sealift agreement leave` ends the use of your keys {when}. It "
            "does not undo what was learnt before."
        )
        yield Sentence(_BRINGS, text)


def _say_rule(resource: Resource, agreement: Agreement) -> str:
    """The owner's own rule; nobody else can change it."""
    rule, lease = resource.rule, resource.lease
    uses = "any number of times"
    if rule.max_uses:
        uses = f"at most {count(rule.max_uses, 'time')}"
    start, end = rule.not_before, rule.not_after
    since = f" from {say_local_time(start)} on" if start is not None else ""
    until = f" until {say_local_time(end)}" if end is not None else ""
    graphs = ", and only if the recipe is a graph" * (rule.recipe == "graph")
    ends = "Without a lease it stays valid after its owner leaves, until the run ends."
    if lease:
        ends = (
            f"The machine must prove itself again every {lease.heartbeat_s:g} s; if it does not, the key stops "
            f"working after {lease.lease_s:g} s at the latest."
        )
    return (
        "Its key is released to a machine that proves level "
        f"{say_list(resource.accepted(agreement.accept), 'or')} with this code, "
        f"{uses}{since}{until}, for {say_list(resource.purposes) or 'serving'}{graphs}. {ends}"
    )


# --- what is signed ---------------------------------------------------------------------


def _tell_parties(subject: _Subject) -> Iterator[Sentence]:
    agreement = subject.agreement
    what = {
        "train": "train a model",
        "serve": "serve models",
        "group": "compute in a group",
    }
    roles = [
        f"{subject.names([each.name])} ({', '.join(each.roles).replace('_', ' ') or 'no role'})"
        for each in agreement.parties
    ]
    after = f", after {agreement.predecessor}" if agreement.predecessor else ""
    text = (
        f"This is agreement {agreement.name}, number {agreement.number}{after}, to {what[agreement.about]}. The "
        f"parties are {say_list(roles)}. {_begin(subject.does(agreement.operator, 'run'))} the job, and can delay "
        "or stop it, but cannot widen what is allowed here. Every party sees names, columns, numbers of "
        "rows and who asked for which key."
    )
    yield Sentence(_SIGNED, text)
    if agreement.compared is not None:
        text = f"{_begin(subject.names(agreement.compared)) or 'Nobody'} compared the words with another party."
        yield Sentence(_SIGNED, text)


def _tell_changes(subject: _Subject) -> Iterator[Sentence]:
    agreement, board = subject.agreement, subject.agreement.board
    since, until = agreement.not_before, agreement.not_after
    text = f"It is valid from {say_local_time(since)} on. " if since is not None else ""
    text += (
        f"No key is released after {say_local_time(until)}."
        if until is not None
        else "It never expires."
    )
    yield Sentence(_SIGNED, text)
    if board is None:
        text = "A new agreement in its place needs the signature of every party."
    else:
        veto = f", {subject.names(board.veto)} among them" if board.veto else ""
        asked = "No owner is asked which agreement is the latest."
        if last := board.rollback:
            asked = f"{count(last.quorum, 'owner')} ({last.faulty} may lie) are asked which agreement is the latest."
        text = (
            f"A new agreement in its place needs {count(board.threshold, 'signature')} "
            f"of {subject.names(board.members)}{veto}. A party's keys, its tables and "
            f"their rules change only with its own signature. {asked}"
        )
    yield Sentence(_SIGNED, text)


# --- the table --------------------------------------------------------------------------

_Tell = Callable[[_Subject], Iterator[Sentence]]


def _named(names: str, told: _Tell | str) -> dict[str, _Tell | str]:
    return dict.fromkeys(names.split(), told)


_REFERENCES = (
    TpmReferences, TpmRoot, ImaReferences, TdxReferences, SnpReferences, NvidiaReferences,
)  # fmt: skip
_PART = "a part of the document: its own fields stand in this table"
# By part and field: what puts it into a sentence, or why it cannot matter to an owner. Under
# one heading, sentences stand in this order.
TABLE: Final[dict[type[Any], dict[str, _Tell | str]]] = {
    OutputRule: {
        "recipe_text": _tell_text,
        **_named("statistics statistics_rows", _tell_sums),
        **_named("metrics digits values_per_visit metric_rows audience", _tell_numbers),
        **_named("model_to min_visits max_visits min_holders min_rows", _tell_model),
        **_named("min_owner_rows baseline_alone approved_by", _tell_model),
    },
    GroupRule: _named("ranks rows", _tell_updates),
    Agreement: {
        **_named("format version", "it has one value, which every reader demands"),
        "about": _tell_answers,
        **_named("accept rehearse operator", _tell_levels),
        "model_owner": _tell_model,
        **_named("name number predecessor compared", _tell_parties),
        **_named("not_before not_after", _tell_changes),
        **_named("output training group travel servers references", _PART),
        **_named("code parties resources board", _PART),
    },
    ServersRule: _named("P M Z", _tell_servers),
    TravelRule: _named("buffers mixed lease_s", _tell_travel),
    References: {
        "development_attesters": _tell_levels,
        **_named("enrollers collateral_max_age_s lowest_tier", _tell_references),
        **_named("sets tpm tdx snp nvidia", _PART),
    },
    SetName: _named("name signer number", _tell_references),
    **{  # which are told field by field, whatever their fields are
        kind: _named(" ".join(each.name for each in fields(kind)), _tell_references)
        for kind in _REFERENCES
    },
    CodeBundle: _named("digest entry files", _tell_code),
    TrainingRule: {
        "prepare": _tell_sums,
        **_named("sync max_norm", _tell_updates),
        **_named("sums sum_bound sum_places sum_bits", _tell_updates),
        **_named("plans runs epochs batch_rows drop_last device seed", _tell_settings),
        **_named(
            "evaluate_every checkpoint_every on_missing slices rows parameters keep_state",
            _tell_settings,
        ),
        "privacy": _PART,
        "privacy_trusts_code": _tell_privacy,
        "digest_every": "digests of the state are compared between accelerators, and shown to nobody else",
        "measure": "it is one of the numbers that the question names",
        "stop_after": "it ends training early, so that rows are used less",
        "keep": "either state was made in the rounds that are said",
        "clip_norm": "it makes a step smaller, which shows nobody more",
        "threads": "it changes the time of a sum and its last bits",
        "order": "each order visits all owners' rows",
        "buffer_bytes": "rows come in whole cells and numbers obey their rule at any size",
        "attempts": "a visit that failed let nothing out, and counts as a use of the key",
        "redo": "a repeated step has fresh masks, so that servers learn nothing from it",
    },
    PrivateSteps: _named("clip noise batch honest_ranks", _tell_privacy),
    Between: _named("min max", "each sentence about a range says both ends"),
    ParameterRule: _named("between values", _tell_settings),
    Resource: {
        **_named("name owner part rows row_bytes cell_rows schema", _tell_tables),
        "rule": _PART,
        "total_bytes": "it is rows times bytes of a row, which are said",
        "record_bytes": "it cuts a sealed file into records, which are all sealed",
        "content": "a commitment, which shows nothing of rows; every role compares it",
        "key": "a commitment, which shows nothing of the key; every role compares it",
    },
    ReleaseRule: {
        **_named("accept purposes max_uses not_before not_after", _tell_tables),
        **_named("lease_s heartbeat_s recipe", _tell_tables),
        "privacy": _PART,
    },
    PrivacyBudget: _named("epsilon delta unit", _tell_privacy),
    Party: {
        **_named("name roles", _tell_parties),
        "sign": "a public key: signatures show who has it, and a meeting's words cover it",
        "hpke": "a public key, from the same card as the key that signs",
    },
    Board: {**_named("members threshold veto", _tell_changes), "rollback": _PART},
    RollbackRule: _named("quorum faulty", _tell_changes),
}


def _quote_names(names: Iterable[str]) -> str:
    """Names that others wrote, the first ones of many."""
    quoted = [quote_foreign(each) for each in names]
    more = [f"{len(quoted) - SHOWN_NAMES} more"] if quoted[SHOWN_NAMES:] else []
    return say_list([*quoted[:SHOWN_NAMES], *more])


def _columns(table: Mapping[str, Any]) -> str:
    fields = table.get("fields", ())
    return _quote_names(str(e.get("name", "?")) for e in fields if isinstance(e, dict))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _begin(text: str) -> str:
    """The text as the beginning of a sentence; names stay as they are."""
    return _capital(text) if text.startswith("you ") or text == "you" else text
