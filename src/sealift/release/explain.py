"""What an agreement means for each party, in plain words, the bad news included.

Pure: lines of text out of an agreement. Says what is given, what is received, and what
nobody is protected from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sealift.attest.level import Level
from sealift.release.agreement import Agreement, Mode, Party, Resource
from sealift.release.receipt import cargo_promise

KEPT_OUT: Final = {
    Level.TEE: "keeps out the operator, the hypervisor and the other parties",
    Level.GPU_TEE: "keeps out the operator, the hypervisor and the other parties",
    Level.ATTESTED_HOST: "keeps out other parties and remote attackers, "
    "not somebody with physical access to the memory",
    Level.UNTRUSTED_GPU: "keeps out the compute servers unless two of them collude",
    Level.DEVELOPMENT: "keeps NOBODY out: software keys stand in for hardware, and "
    "whoever runs the machine can read keys and rows",
}
MODE_IN_WORDS: Final[dict[Mode, str]] = {
    "at-rest": "records cross as they were sealed at home",
    "visit": "holders may seal their rows again for a visit, so their processes open "
    "them at home",
    "ratchet": "WARNING: mode ratchet lets whoever once held a visit key open every "
    "later visit; it exists to show that weakness and protects nobody",
}


@dataclass(frozen=True, slots=True)
class PartyTerms:
    """What one party gives and receives."""

    name: str
    roles: tuple[str, ...]
    gives: tuple[str, ...]
    receives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An agreement in plain words."""

    everybody: tuple[str, ...]
    parties: tuple[PartyTerms, ...]

    def lines(self) -> Iterator[str]:
        """As text."""
        yield "for everybody:"
        yield from (f"  - {line}" for line in self.everybody)
        for party in self.parties:
            yield ""
            yield f"{party.name} ({', '.join(party.roles) or 'no role'}):"
            yield from (f"  gives     {line}" for line in party.gives)
            yield from (f"  receives  {line}" for line in party.receives)


def explain(agreement: Agreement) -> Explanation:
    """Say what an agreement means."""
    parties = (
        PartyTerms(
            party.name,
            party.roles,
            tuple(_gives(agreement, party)),
            tuple(_receives(agreement, party)),
        )
        for party in agreement.parties
    )
    return Explanation(tuple(_for_everybody(agreement)), tuple(parties))


def _for_everybody(agreement: Agreement) -> Iterator[str]:
    for level in agreement.accept:
        yield f"level {level} {KEPT_OUT[level]}"
    code, output = agreement.code, agreement.output
    yield f"code: {count(len(code.files), 'file')}, entry {code.entry}, bundle {code.digest}"
    yield (
        "the recipe runs in a sandbox, without network, files and other processes, but "
        "it decides what the model keeps of the rows: read it (sealift agreement show "
        "--code); receipts name the sandbox"
    )
    if Level.DEVELOPMENT in agreement.accept:
        yield "development may run it without a sandbox, where a machine gives none"
    travel = agreement.travel
    yield f"buffers = {travel.buffers}: {cargo_promise(travel.buffers, travel.mixed)}"
    yield "the scrub after a visit is reported by the accelerator, not proven"
    yield from (MODE_IN_WORDS[mode] for mode in travel.modes if mode != "at-rest")
    yield f"a lease lasts at most {agreement.travel.lease_s:g} seconds"
    yield from _outputs(agreement)
    if output.recipe_text:
        yield "prints and exception text of the recipe leave the accelerator"
    yield (
        "a key that was released cannot be called back; leaving binds the next "
        "agreement, not what was learned under this one"
    )


def _outputs(agreement: Agreement) -> Iterator[str]:
    rule = agreement.output
    if rule.metrics:
        seen_by = {"everyone": "every party, the operator included", "owner": "only the "
                   "owner of the rows they were measured on"}[rule.audience]  # fmt: skip
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
    if "code_owner" in party.roles:
        yield "the code, which every party can read and approves by its signature"
    if party.name == agreement.operator:
        yield (
            "machines, and the key that signs leases; it is trusted for progress only: "
            "it can delay or stop a run, not widen what this agreement allows"
        )
    if not party.roles:
        yield "nothing but its signature"


def _resource(resource: Resource) -> str:
    fields = resource.schema.get("fields", ())
    names = [str(entry.get("name", "?")) for entry in fields if isinstance(entry, dict)]
    use = (
        "to train on" if resource.part == "train" else "to evaluate on, not to train on"
    )
    return (
        f"{resource.name}: {count(resource.rows, 'row')} of {resource.row_bytes} bytes "
        f"({', '.join(names) or 'no fields named'}), {use}; its key goes to an "
        "accelerator of an accepted level with this code, and to nobody else"
    )


def _receives(agreement: Agreement, party: Party) -> Iterator[str]:
    if party.name == agreement.model_owner:
        yield "the model, with whatever it memorised of the rows"
    if agreement.resources_of(party.name):
        yield "a signed receipt and scrub report for every visit to it"
        if agreement.output.metrics:
            yield f"its own numbers: {', '.join(agreement.output.metrics)}"
    if agreement.output.metrics and agreement.output.audience == "everyone":
        yield "the numbers of all owners"
    yield "heads of every owner's log of releases and refusals"


def count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
