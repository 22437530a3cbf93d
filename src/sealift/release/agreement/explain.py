"""What an agreement means for each party, in plain words, the bad news included.

Pure: lines of text out of an agreement. Says what is given, what is received, and what
nobody is protected from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sealift.attest.level import Level
from sealift.release.agreement import (
    About,
    Agreement,
    Audience,
    OutputRule,
    Party,
    Resource,
)
from sealift.release.agreement.holes import Hole, find_holes

KEPT_OUT: Final = {
    Level.TEE: "keeps out the operator, the hypervisor and the other parties",
    Level.GPU_TEE: "keeps out the operator, the hypervisor and the other parties",
    Level.ATTESTED_HOST: "keeps out other parties and remote attackers, "
    "not somebody with physical access to the memory",
    Level.UNTRUSTED_GPU: "keeps out the compute servers unless two of them collude",
    Level.DEVELOPMENT: "keeps NOBODY out: software keys stand in for hardware, and "
    "whoever runs the machine can read keys and rows",
}
SEEN_BY: Final[dict[Audience, str]] = {
    "everyone": "every party, the operator included",
    "owner": "only the owner of the rows they were measured on",
}


@dataclass(frozen=True, slots=True)
class PartyTerms:
    """What one party gives and receives.

    Attributes:
        departure_s: Seconds after which its departure has taken effect at the latest;
            None where it brings nothing, or a key of it goes out without a lease.
    """

    name: str
    roles: tuple[str, ...]
    gives: tuple[str, ...]
    receives: tuple[str, ...]
    departure_s: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """An agreement in plain words."""

    everybody: tuple[str, ...]
    sight: tuple[str, ...]
    parties: tuple[PartyTerms, ...]
    holes: tuple[Hole, ...]

    def lines(self) -> Iterator[str]:
        """As text."""
        yield "for everybody:"
        yield from (f"  - {line}" for line in self.everybody)
        yield ""
        yield "who can see what:"
        yield from (f"  - {line}" for line in self.sight)
        for party in self.parties:
            yield ""
            yield f"{party.name} ({', '.join(party.roles) or 'no role'}):"
            yield from (f"  gives     {line}" for line in party.gives)
            yield from (f"  receives  {line}" for line in party.receives)
        yield ""
        yield f"{count(len(self.holes), 'hole')} known:"
        yield from (f"  ! {hole.line} [{hole.name}]" for hole in self.holes)


def explain(agreement: Agreement) -> Explanation:
    """Say what an agreement means."""
    parties = (
        PartyTerms(
            party.name,
            party.roles,
            tuple(_gives(agreement, party)),
            tuple(_receives(agreement, party)),
            _departure_s(agreement.resources_of(party.name)),
        )
        for party in agreement.parties
    )
    return Explanation(
        everybody=tuple(_for_everybody(agreement)),
        sight=tuple(_TELL[agreement.about][1](agreement)),
        parties=tuple(parties),
        holes=find_holes(agreement),
    )


def _for_everybody(agreement: Agreement) -> Iterator[str]:
    for level in agreement.accept:
        yield f"level {level} {KEPT_OUT[level]}"
    code = agreement.code
    yield f"code: {count(len(code.files), 'file')}, entry {code.entry}, bundle {code.digest}"
    if agreement.about != "group":
        yield (
            "the recipe runs in a sandbox, without network, files and other processes, but "
            "it decides what the model keeps of the rows: read it (sealift agreement show "
            "--code); receipts name the sandbox"
        )
        if Level.DEVELOPMENT in agreement.accept:
            yield "development may run it without a sandbox, where a machine gives none"
    yield from _TELL[agreement.about][0](agreement)
    rules = (agreement.group, agreement.servers)
    yield from (rule.promise for rule in rules if rule is not None)
    yield (
        "a key that was released cannot be called back; leaving ends what "
        "comes after, not what was learned before"
    )


def _trained(agreement: Agreement) -> Iterator[str]:
    travel, output = agreement.travel_rule, agreement.output_rule
    yield f"buffers = {travel.buffers}: {cargo_promise(travel.buffers, travel.mixed)}"
    yield "the scrub after a visit is reported by the accelerator, not proven"
    yield f"a lease lasts at most {travel.lease_s:g} seconds"
    yield from _validity(agreement)
    yield from _outputs(agreement)
    if output.approved_by:
        names = " and ".join(output.approved_by)
        yield (
            f"the model leaves only after {names} approved of it: sealed before that, "
            "with a share of its key at each; numbers do not wait"
        )
    if output.recipe_text:
        yield "prints and exception text of the recipe leave the accelerator"


def _served(agreement: Agreement) -> Iterator[str]:
    """What whoever asks a model gets, and what the server's operator sees of it."""
    yield from _validity(agreement)
    for resource in agreement.resources:
        asks = resource.schema.get("clients")
        who = f"only {', '.join(sorted(asks))}" if asks else "anybody who can reach it"
        yield f"{resource.name} answers {who}, with {_answers(resource)}"
        if resource.schema.get("mixed"):
            yield (
                f"rows of several clients share a batch of {resource.name}: the recipe "
                "has them before it at one time"
            )
    yield "the operator of a server sees who asks when, and how much: sizes and times"


def _grouped(agreement: Agreement) -> Iterator[str]:
    """No resource and no output is named: so much is left to the code."""
    yield "it names no rows and no model: what the code reads is its own processes' affair"
    yield "nothing bounds what the code lets out: read it (sealift agreement show --code)"
    yield from _validity(agreement)


def cargo_promise(buffers: int, mixed: bool) -> str:
    """What keeps one owner's rows from the next, in words (rule H2)."""
    if buffers == 1 and not mixed:
        return (
            "one owner's rows are scrubbed, and read back as zeros, before the next "
            "owner is met"
        )
    together = (
        "several owners' rows lie in the accelerator at one time, batches are drawn "
        "across them,"
        if mixed
        else "the next owner's rows load while one owner's are trained on,"
    )
    return (
        f"{together} and no message reads memory: there is no read path; each visit's "
        "memory is scrubbed, and read back as zeros, when it ends"
    )


def _sight_of_trained(agreement: Agreement) -> Iterator[str]:
    owners = ", ".join(agreement.holders)
    for level in agreement.accept:
        yield f"rows of {owners} at {level}: {_seen_at(level, agreement.operator)}"
    output = agreement.output_rule
    names = " and ".join(output.approved_by)
    approved = f", once {names} approved" if names else ""
    yield (
        f"the model: {', '.join(agreement.model_to)}, and what it memorised of rows"
        f"{approved}"
    )
    if output.metrics:
        yield f"numbers: {SEEN_BY[output.audience]}"
    yield (
        "names, schemas, numbers of rows and this document: every party; who asked for "
        "which key: every party"
    )


def _sight_of_served(agreement: Agreement) -> Iterator[str]:
    for level in agreement.accept:
        seen = _seen_at(level, agreement.operator)
        yield f"models, questions and answers at {level}: {seen}"
    yield "names, forms of models and this document: every party and every client"


def _sight_of_grouped(agreement: Agreement) -> Iterator[str]:
    yield "what its processes hold: whoever the level does not keep out, or the code tells"
    yield "names and this document: every party"


_Tell = Callable[[Agreement], Iterator[str]]
# What it means for everybody, and who can see what.
_TELL: Final[dict[About, tuple[_Tell, _Tell]]] = {
    "train": (_trained, _sight_of_trained),
    "serve": (_served, _sight_of_served),
    "group": (_grouped, _sight_of_grouped),
}


def _seen_at(level: Level, operator: str) -> str:
    if level is Level.DEVELOPMENT:
        return f"their owner, and {operator} or whoever else can enter its machine"
    alone = "their owner, and inside the recipe alone"
    if level is Level.ATTESTED_HOST:
        reads = f"whoever can open the machine of {operator} and read its memory"
        return f"{alone}; {reads} as well"
    return f"{alone}; who runs the machine cannot"


def _validity(agreement: Agreement) -> Iterator[str]:
    if agreement.not_before is not None:
        yield f"it holds from {say_time(agreement.not_before)} on"
    if agreement.not_after is not None:
        yield f"no key is released after {say_time(agreement.not_after)}"
    board = agreement.board
    if board is None:
        yield "a successor needs the signature of every party"
        return
    veto = f", {', '.join(board.veto)} among them" if board.veto else ""
    yield (
        f"a successor needs {count(board.threshold, 'signature')} of "
        f"{', '.join(board.members)}{veto}"
    )
    yield (
        "what names a party (its keys, its resources and their rules, its share in "
        "outputs) changes only with that party's signature, whoever else signs"
    )


def say_time(at_s: int) -> str:
    """Seconds since 1970 as RFC 3339 text."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _outputs(agreement: Agreement) -> Iterator[str]:
    rule = agreement.output_rule
    if rule.metrics:
        seen_by = SEEN_BY[rule.audience]
        yield (
            f"numbers that leave: {', '.join(rule.metrics)}, {rule.digits} decimal "
            f"places, at most {count(rule.values_per_visit, 'value')} each per visit, "
            f"each measured on at least {count(rule.metric_rows, 'row')}; "
            f"seen by {seen_by}"
        )
    else:
        yield "no numbers leave"
    yield (
        f"the model leaves after at least {count(rule.min_visits, 'visit')} to each of at "
        f"least {rule.min_holders} of {count(len(agreement.data_owners), 'owner')} and "
        f"{count(rule.min_rows, 'distinct row')}, {rule.min_owner_rows} of each owner; "
        f"nobody gets more than {count(rule.max_visits, 'visit')}"
    )
    if rule.statistics:
        yield (
            f"totals over all owners' rows that leave: {', '.join(rule.statistics)}, "
            f"each made of at least {count(rule.statistics_rows, 'row')}"
        )
        if len(agreement.data_owners) == 2:
            yield "of two owners, each can subtract its own part from such a total"
    if rule.baseline_alone:
        yield (
            "a model of each owner's rows alone is trained to compare; its numbers "
            "leave by the same rule, the model does not"
        )


def _gives(agreement: Agreement, party: Party) -> Iterator[str]:
    for resource in agreement.resources_of(party.name):
        yield _resource(resource)
        yield f"{resource.name}: {_rule(resource, agreement)}"
    if "code_owner" in party.roles:
        yield "the code, which every party can read and approves by its signature"
    if party.name == agreement.operator:
        yield (
            "machines, and the key that signs leases; it is trusted for progress only: "
            "it can delay or stop a run, not widen what this agreement allows"
        )
    if "share_server" in party.roles:
        yield "a server that computes with shares"
    if not party.roles:
        yield "nothing but its signature"


def _departure_s(resources: Sequence[Resource]) -> float | None:
    leases = [resource.lease for resource in resources]
    known = [lease.lease_s for lease in leases if lease is not None]
    return max(known) if known and len(known) == len(leases) else None


def _departure(resources: Sequence[Resource]) -> Iterator[str]:
    """How soon it takes effect if this party leaves, told to its own side alone."""
    latest_s = _departure_s(resources)
    if latest_s is not None:
        beats = (each.lease.heartbeat_s for each in resources if each.lease)
        yield (
            "the right to leave: no frame more from then on, its keys and rows dropped "
            f"within {max(beats):g} seconds where its broker is heard, after "
            f"{latest_s:g} at the latest"
        )
    elif resources:
        yield "no lease: its keys stay good after it leaves, until the job ends"


def _resource(resource: Resource) -> str:
    if resource.part == "model":
        return (
            f"{resource.name}: a sealed model of {resource.total_bytes} bytes, to be "
            "served; its key goes to an accelerator of an accepted level with this "
            "code, and to nobody else"
        )
    use = (
        "to train on" if resource.part == "train" else "to evaluate on, not to train on"
    )
    return (
        f"{resource.name}: {count(resource.rows, 'row')} of {resource.row_bytes} bytes "
        f"({_names(resource.schema) or 'no fields named'}), {use}; a visit covers whole "
        f"cells of {count(resource.cell_rows, 'row')}; its key goes to an accelerator of "
        "an accepted level with this code, and to nobody else"
    )


def _answers(resource: Resource) -> str:
    """All that leaves: of whole answers, and of each step of a generation."""
    tables = (resource.schema.get(name) for name in ("outputs", "tokens"))
    found = (_names(each) for each in tables if isinstance(each, dict))
    return "; step by step with ".join(found) or "nothing"


def _names(table: Mapping[str, Any]) -> str:
    fields = table.get("fields", ())
    return ", ".join(str(e.get("name", "?")) for e in fields if isinstance(e, dict))


def _rule(resource: Resource, agreement: Agreement) -> str:
    """The owner's own rule; nobody else can change it."""
    rule = resource.rule
    parts = [f"key at {' or '.join(resource.accepted(agreement.accept))}"]
    parts += [f"for {' and '.join(resource.purposes) or 'serving'}"]
    uses = f"at most {count(rule.max_uses, 'time')}"
    parts += [uses if rule.max_uses else "any number of times"]
    if rule.not_before is not None:
        parts += [f"from {say_time(rule.not_before)}"]
    if rule.not_after is not None:
        parts += [f"until {say_time(rule.not_after)}"]
    if resource.lease is not None:
        parts += [
            f"for {resource.lease.lease_s:g} seconds at a time, with fresh evidence "
            f"every {resource.lease.heartbeat_s:g}"
        ]
    return ", ".join(parts)


def _receives(agreement: Agreement, party: Party) -> Iterator[str]:
    yield from _departure(agreement.resources_of(party.name))
    if agreement.output is not None:
        yield from _learns(agreement, agreement.output, party)
    if agreement.about == "group":
        yield "what the code gives it"
    else:
        yield "heads of every owner's log of releases and refusals"


def _learns(agreement: Agreement, output: OutputRule, party: Party) -> Iterator[str]:
    if party.name in agreement.model_to:
        yield "the model, with whatever it memorised of the rows"
    if party.name in output.approved_by:
        yield "a share of the model's key: without its approval nobody opens the model"
    if agreement.resources_of(party.name):
        yield "a signed receipt and scrub report for every visit to it"
        if output.metrics:
            yield f"its own numbers: {', '.join(output.metrics)}"
    if output.metrics and output.audience == "everyone":
        yield "the numbers of all owners"


def count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
