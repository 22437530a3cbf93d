"""Sentences for the events of a job that people read.

Events in ``QUIET`` are for programs alone (``--events``). An event without a sentence here
is shown with its name and fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from sealift.data.schedule.visits import say_bytes
from sealift.events import metrics_of
from sealift.train.loop.measures import ACCURACY, ERROR, MAJORITY, shown_numbers
from sealift.travel.peers import say_role

Fields = Mapping[str, Any]

QUIET: Final = frozenset(
    {
        "holder.frame",
        "holder.phase",
        "lease.heard",
        "relay.gone",
        "relay.registered",
        "visit.offered",
        "visit.path",
        "visit.phase",
    }
)
_SAID: Final = {
    "baseline.lost": "no model of your rows alone is trained any more: the job continues from a checkpoint, which has none",
    "broker.failed": "{peer} got no answer from its broker: {rule}",
    "broker.ready": "{broker} is waiting for accelerators to attest themselves",
    "checkpoint.committed": "checkpoint {number} of {job} was written to the log",
    "checkpoint.kept": "an old checkpoint was not deleted: {line}",
    "checkpoint.missed": "no checkpoint was made: {line}",
    "checkpoint.stays": "checkpoint {number} stays sealed for a run with more epochs (keep_state); if none is to come, delete its folder",
    "checkpoint.restored": "the job continues from checkpoint {number}, at visit batch {position}",
    "checkpoint.sealed": "checkpoint {number} was sealed",
    "client.refused": "a client was refused: {rule}",
    "gradients.summed": "gradients are sealed and summed {where}",
    "group.met": "all {ranks} ranks are connected",
    "holder.ready": "{holder} is ready to send its rows",
    "holder.receipt": "the visit's receipt was saved: {name}",
    "privacy.spent": "privacy budget of {resource}: epsilon {epsilon} is spent, {left} is left of {budget}",
    "receipt.kept": "the receipt of the run was verified and saved: {name}",
    "job.complete": "the job is complete; its results are in {run}",
    "lease.revoked": "the lease of {peer} was revoked: {rule}",
    "lease.silent": "the orchestrator's lease is not renewed by any broker",
    "meeting.attended": "{name} takes part in the meeting",
    "meeting.listening": "parties can join at {address}",
    "meeting.signed": "all parties have signed; the job begins",
    "orchestrator.listening": "waiting at {host}:{port} for {awaits}",
    "relay.awaited": "the {role} does not answer yet: {why}",
    "release.collected": "the key of {resource} was received",
    "release.granted": "the key of {resource} was released to {peer}",
    "release.refused": "{peer} was refused a key: {rule}",
    "role.refused": "{name} was refused: {line}",
    "serve.listening": "the server listens at {address}",
    "serve.ready": "the model {model} is loaded and answers requests",
    "serve.restarted": "the model's process ended and was started again",
    "serve.unscrubbed": "the model's process ended: {line}",
    "shares.listening": "the server of share {share} listens at {address}",
    "statement.told": "{who}: {line}",
    "watch.mended": "{watch} is renewed again",
}


def sentence(kind: str, fields: Fields) -> str:
    """Return the sentence for an event; empty if people need not read of it."""
    if kind in QUIET:
        return ""
    with suppress(KeyError):  # another event of that name may lack a field
        if kind in _SAID:
            return _SAID[kind].format_map(fields)
        if kind in _MADE:
            return _MADE[kind](fields)
    if "line" in fields:  # the event has a sentence of its own
        return str(fields["line"])
    shown = (f"{n}={_short(value)}" for n, value in fields.items() if value != "")
    return " ".join((kind, *shown))


def say_numbers(metrics: Mapping[str, float]) -> str:
    """Format metrics, such as ``, accuracy 0.9 (most frequent class 0.6), loss 0.31``.

    Measures stand for what is counted.
    """
    shown = shown_numbers(metrics)
    return "".join(f", {_say_number(name, shown)}" for name in _named_once(shown))


def _named_once(metrics: Mapping[str, float]) -> list[str]:
    """In order; what is said beside another number is left out."""
    beside = {name.removesuffix(ACCURACY) + MAJORITY for name in metrics}
    beside |= {name + ERROR for name in metrics}
    return [name for name in sorted(metrics) if name not in beside]


def _say_number(name: str, metrics: Mapping[str, float], *others: str) -> str:
    """A number, and beside an accuracy how right the most frequent class is always."""
    beside = [*others]
    majority = metrics.get(name.removesuffix(ACCURACY) + MAJORITY)
    if majority is not None:
        beside.append(f"most frequent class {majority:.4g}")
    error = metrics.get(name + ERROR)
    said = f"{name} {metrics[name]:.4g}" + (f" ±{error:.2g}" if error else "")
    return f"{said} ({', '.join(beside)})" if beside else said


def say_round(fields: Fields, of: str = "") -> str:
    """Return the sentence for a round of all ranks; ``of`` is the number of epochs in words.

    Models of one owner's rows alone stand in the report.
    """
    numbers = {n: v for n, v in metrics_of(fields).items() if "." not in n}
    return (
        f"{fields['purpose']} epoch {int(fields['epoch']) + 1}{of}: {int(fields['rows']):,} rows "
        f"in {float(fields['seconds']):.2f} s{say_numbers(numbers)}"
    )


def say_visit(fields: Fields) -> str:
    """Return the sentence for a visit that was verified or failed."""
    if fields["outcome"] != "verified":
        why = f"{fields['line']} [{fields['reason']}]"
        return f"a visit to {fields['holder']} failed: {why}"
    seconds = sum(float(each) for name, each in fields.items() if name.endswith("_s"))
    return (
        f"visit {fields['number']} {fields['holder']} {fields['purpose']}: "
        f"{int(fields['rows']):,} rows in {seconds:.2f} s{say_numbers(metrics_of(fields))}"
    )


def say_slice(fields: Fields) -> str:
    """Return the sentence for a slice of the plan ``local``."""
    return (
        f"{fields['holder']} {fields['purpose']}: {fields['rows']} rows of "
        f"{fields['resource']}{say_numbers(metrics_of(fields))}"
    )


def _say_ready(fields: Fields) -> str:
    size = say_bytes(int(fields["buffer_bytes"]))
    return (
        f"the job starts at level {fields['level']} with {fields['keys']} released "
        f"keys; each visit has a buffer of {size} ({fields['why']})"
    )


def _say_measured(fields: Fields) -> str:
    numbers = say_numbers(metrics_of(fields))
    return (
        f"a visit was completed: {fields['rows']} rows of {fields['resource']}{numbers}"
    )


def _say_gathered(fields: Fields) -> str:
    return (
        f"{fields['ranks']} ranks are connected"
        if "ranks" in fields
        else "all parties are connected"
    )


def _say_enrolled(fields: Fields) -> str:
    who = fields.get("peer")
    return (
        f"{who}'s host was enrolled"
        if who
        else f"this host was enrolled by {fields['owner']}"
    )


def _say_wait(seconds: float) -> str:
    """A time for people, in whole minutes where it is some."""
    return f"{seconds / 60:.0f} min" if seconds >= 180 else f"{seconds:g} s"


def _say_lost(fields: Fields) -> str:
    wait = _say_wait(float(fields["wait_s"]))
    return f"{fields['line']}; the job waits up to {wait} for it to come back"


def _say_cut(fields: Fields) -> str:
    wait = _say_wait(float(fields["rejoin_s"]))
    if fields["reason"] == "rank-lost":
        return f"{fields['line']}; waiting up to {wait} for all parties to come back"
    return (
        f"the connection to the host was lost: {fields['line']}; trying to reconnect for "
        f"up to {wait}"
    )


def _say_arrived(fields: Fields) -> str:
    return f"{say_role(str(fields['role']), str(fields['name']))} connected"


def _say_again(fields: Fields) -> str:
    return (
        f"the visit to {fields['holder']} is tried again in "
        f"{float(fields['pause_s']):.1f} s"
    )


def _say_skipped(fields: Fields) -> str:
    return (
        f"the visit to {fields['holder']} was skipped: {fields['line']} "
        f"[{fields['reason']}]"
    )


def _say_worked(fields: Fields) -> str:
    numbers = say_numbers(metrics_of(fields) or _plain_numbers(fields))
    return f"{fields['purpose']}, epoch {int(fields['epoch']) + 1}{numbers}"


def _say_compared(fields: Fields) -> str:
    """An owner's own numbers, beside everybody's and those of a model of its rows alone."""
    numbers = metrics_of(fields)
    whose = {
        each: {
            name.partition(".")[2]: value
            for name, value in numbers.items()
            if name.partition(".")[0] == each
        }
        for each in ("own", "joint", "alone")
    }
    said = []
    for name in _named_once(whose["own"]):
        others = [
            f"{words} {whose[each][name]:.4g}"
            for each, words in (("joint", "all owners"), ("alone", "your rows alone"))
            if name in whose[each]
        ]
        said.append(_say_number(name, whose["own"], *others))
    return (
        f"your {int(fields['rows']):,} held-out rows, after epoch {int(fields['epoch']) + 1}: "
        f"{', '.join(said) or 'no number of them may be shared'}"
        f"{say_withheld(str(fields.get('withheld', '')), 'you hold')}"
    )


def say_withheld(numbers: str, who: str) -> str:
    """Why numbers of held-out rows are not shown; empty if none are missing.

    Args:
        numbers: Their names, as one text.
        who: Who holds rows out, with the verb.
    """
    if not numbers:
        return ""
    return (
        f"; not shared: {numbers}, because {who} out fewer rows, in all or of a class, than "
        "the agreement requires, or the recipe measured nothing"
    )


def _plain_numbers(fields: Fields) -> dict[str, float]:
    return {name: each for name, each in fields.items() if isinstance(each, float)}


def _say_limited(fields: Fields) -> str:
    follows = "this pass measures nothing"
    if fields["purpose"] == "train":
        follows = "training ends, and the model is made of what was trained before"
    return f"a limit of the agreement was reached: {fields['line']}; {follows}"


def _say_bounded(fields: Fields) -> str:
    number = int(fields["numbers"])
    what = "1 number was" if number == 1 else f"{number:,} numbers were"
    return (
        f"{what} larger than the agreed bound of {fields['bound']:g}, of all ranks "
        "together, and cut to it before they were added: the model is not quite what the recipe "
        "computes. Scale large targets and columns, or let the job have a larger sum_bound in [slices]"
    )


def _say_stopped(fields: Fields) -> str:
    return f"training ends after epoch {int(fields['epoch']) + 1}: {fields['line']}"


def _say_turned_away(fields: Fields) -> str:
    number = int(fields.get("connections", 1))
    who = "a connection was" if number == 1 else f"{number:,} connections were"
    return f"{who} refused: {fields['reason']}"


_MADE: Final = {
    "accelerator.lost": _say_lost,
    "holder.measured": _say_measured,
    "host.enrolled": _say_enrolled,
    "job.gathered": _say_gathered,
    "job.limited": _say_limited,
    "job.stopped": _say_stopped,
    "rank.measured": _say_compared,
    "relay.lost": _say_cut,
    "relay.refused": _say_turned_away,
    "job.ready": _say_ready,
    "role.arrived": _say_arrived,
    "round.ended": say_round,
    "slice.worked": _say_worked,
    "sums.cut": _say_bounded,
    "visit.again": _say_again,
    "visit.ended": say_visit,
    "visit.skipped": _say_skipped,
}


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
