"""Ranges of an agreement as people read them, and what machines of a group see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from sealift.attest.level import Level
from sealift.codec import MAX_INTEGER
from sealift.errors import quote_foreign
from sealift.release.agreement import Agreement, Between, GroupRule, PrivacyBudget
from sealift.release.agreement.sums import FEWEST_RANKS
from sealift.release.agreement.training import ParameterRule, TrainingRule

BAR: Final = 20  # characters
FLOOR_ROWS: Final = 16  # of an owner's own program (``holes``)
Few = Literal["round-updates", "step-updates", "shared-noise"] | None


def say_code(
    agreement: Agreement, machine: str, whose: str, operations: int
) -> Iterator[str]:
    """What of the recipe's author runs on another party's machine, and where to read it.

    Args:
        agreement: With the code.
        machine: Where it runs, in words.
        whose: The recipe's author, in words.
        operations: Of a graph; 0 where nobody counted them.
    """
    code, bare = agreement.code, Level.DEVELOPMENT in agreement.accept
    listed = (
        f"{count(len(code.files), 'file')} and the digest {code.digest}; it starts in "
        f"{quote_foreign(code.entry)}"
    )
    read = "Read it (`sealift agreement show --code`; at a meeting, the folder recipe)"
    if agreement.about == "group":
        yield f"The code has {listed}. {read}."
    elif code.kind == "graph":
        yield (
            f"No program of {whose} runs on {machine}: the recipe is a graph, a list of "
            f"{f'{operations:,} ' if operations else ''}tensor operations, and Sealift computes them "
            "(`sealift recipe show` prints them). They decide what the model stores of rows. They are computed in "
            "a sandbox, without network, files and other processes"
            f"{'; a machine without a sandbox computes them unconfined' * bare}."
        )
        yield f"The graph has {listed}."
    else:
        yield (
            f"A program of {whose} runs on {machine}, in a sandbox, without network, files and other processes"
            f"{'; a machine without a sandbox runs it unconfined' * bare}. It decides what the model stores of rows."
        )
        yield f"The code has {listed}. {read}."


def say_range(allowed: Between, noun: str = "") -> str:
    """``8``, ``1 to 8``, or ``1 or more`` where a document sets no end; ``8 rows`` with a noun."""
    if noun:
        one = allowed.min == allowed.max == 1
        return f"{say_range(allowed)} {noun}" + ("" if one else "s")
    if allowed.max == MAX_INTEGER != allowed.min:
        return f"{allowed.min:,} or more"
    low, high = (
        f"{each:,g}" if isinstance(each, float) else f"{each:,}"
        for each in (allowed.min, allowed.max)
    )
    return low if low == high else f"{low} to {high}"


def say_every(allowed: Between, what: str) -> str:
    """``every round``, ``every 8 rounds``, ``never``, or either.

    Args:
        allowed: 0 is never.
        what: Many of it.
    """
    if allowed.max == MAX_INTEGER:
        return "as often as the run says"
    said = [] if allowed.min else ["never"]
    if allowed.max:
        often = Between(max(1, allowed.min), allowed.max)
        one = what.replace("s", "", 1)  # rounds, groups of visits
        said[:0] = [
            f"every {one}" if often.max == 1 else f"every {say_range(often)} {what}"
        ]
    return " or ".join(said)


def say_parameter(rule: ParameterRule) -> str:
    """``0.001 to 0.1``, with all digits, or ``adam or sgd``."""
    if rule.between is not None:
        return str(rule.between)
    return " or ".join(quote_foreign(str(each)) for each in rule.values)


def say_updates(
    training: TrainingRule, group: GroupRule, readers: str, rows: str, fewest_rows: int
) -> Iterator[tuple[str, Few]]:
    """What machines of a group read of each other's updates; and what an owner must allow.

    Args:
        training: Of the agreement.
        group: Of the agreement.
        readers: Whose machines they are, in words.
        rows: Whose rows, in words.
        fewest_rows: Behind an update of a round, at least.
    """
    if training.sums == ("only",):
        yield from _say_masked(training, group, rows)
        return
    noise = _say_noise(training)
    completely = (
        "There are two machines, so the other one has all of it by subtraction: the sum less its own part."
        if group.ranks < FEWEST_RANKS
        else "Each machine reads the part that it adds up, and small updates completely."
    )
    yield (
        f"{group.promise}. {readers[:1].upper()}{readers[1:]} can read the updates of {rows}. {completely} {noise} Sums of two steps, rounds or runs can differ by a few rows: "
        "whoever compares them learns what these few rows add.",
        None,
    )
    if "round" in training.sync:
        bound = training.max_norm
        yield (
            "After every round each machine sends what the round changed in the model (sync = round). This can "
            "show whether a certain row is among an owner's rows, and typical values; if a table has few rows, "
            "it can show the rows themselves. The norm of the change is "
            f"{f'at most {bound.max:g}' if bound.max else 'not bounded'}.",
            "round-updates" if fewest_rows < FLOOR_ROWS else None,
        )
    if "step" in training.sync:
        least = min(int(training.batch_rows.min), fewest_rows)
        yield (
            "In every step each machine sends the gradient over its own rows of the "
            f"step (sync = step), over as few as {least:,} row{'s' * (least != 1)}. Published "
            "methods reconstruct single rows from the gradient of a small batch.",
            "step-updates" if least < FLOOR_ROWS else None,
        )


def _say_noise(training: TrainingRule) -> str:
    if training.privacy is None:
        return "No noise is added."
    if honest := training.privacy.honest_ranks:
        return (
            f"It contains only that machine's part of the noise, 1/{honest} of its variance: "
            f"{training.privacy.noise / math.sqrt(honest):.2g} times the clip."
        )
    return "The updates already contain the noise."


def say_privacy(
    training: TrainingRule, rows: str, *, own: bool
) -> Iterator[tuple[str, Few, bool]]:
    """What private steps do, what of it must be allowed, and whether it is an alarm.

    Args:
        training: What is agreed.
        rows: Whose rows, in words.
        own: Whether the owner who reads it has a budget.
    """
    private = training.privacy
    if private is None:
        return
    yield (
        f"Steps are private: each one uses rows of an owner that are drawn by chance, {private.batch:,} on average. The gradient of "
        f"each row of {rows} is clipped to the norm {private.clip:g}, and noise of {private.noise:g} times this norm is added to their sum. "
        "No measure of rows is shared, because it would have no noise.",
        None,
        False,
    )
    if honest := private.honest_ranks:
        yield (
            "The noise is shared (honest_ranks): each machine adds a part of it, and the parts of "
            f"{honest} machines add up to all of it. A budget holds only as long as that many machines, among them that of the "
            "owner whose rows it protects, add their parts and keep them secret: nobody can check this.",
            "shared-noise" if own else None,
            True,
        )
    if training.plans == ("travel",):
        yield (
            "The accelerator that visits the owners draws the rows, clips, adds the noise and asks each owner's broker "
            "before it works on a visit's rows: a budget holds only as far as that machine is what it proves to be.",
            None,
            True,
        )
    if training.privacy_trusts_code:
        yield (
            "The recipe's code reads the rows and could let out more than these sums, without noise: a budget holds only "
            "as far as this code is trusted (privacy_trusts_code = true).",
            None,
            True,
        )


def say_budget(budget: PrivacyBudget, training: TrainingRule | None) -> str:
    """How large a budget is, what that means, who keeps to it, and who has to be honest."""
    shared = training is not None and training.honest_ranks
    honest = f" As long as {shared} machines are honest:" if shared else ""
    return (
        f"{budget}.{honest} {say_surest(budget.epsilon, budget.delta)} Its owner's broker counts each round or visit on its disk before "
        "it begins, over all jobs and later agreements, and refuses one that costs more than is left: training ends then."
    )


def say_surest(epsilon: float, delta: float) -> str:
    """What an epsilon of this size means, in one sentence, and as a picture."""
    surest = 1 / (1 + math.exp(-epsilon))
    before, after = BAR // 2, min(BAR - 1, round(BAR * surest))
    bars = " ".join(
        f"{name} [{'#' * full}{'.' * (BAR - full)}]"
        for name, full in (("before", before), ("after", after))
    )
    return (
        "Somebody who knows everything that leaves, in all jobs together, and was undecided (50 %) whether a certain "
        f"row is in the table, can become at most {100 * surest:.1f} % sure, except with a probability of {delta:g}. {bars}"
    )


def _say_masked(
    training: TrainingRule, group: GroupRule, rows: str
) -> Iterator[tuple[str, Few]]:
    """The same where they learn sums alone (``sums = "only"``)."""
    each = "step" if "step" in training.sync else "round"
    yield (
        f"{group.promise}. In every {each} they learn the sum of what all of them send, and nothing else of a "
        f"single one (sums = only): what is sent of {rows} is masked, and the masks cancel in the sum of all "
        f"{group.ranks}. If all machines but one work together, they learn what that one sent. "
        f"{_say_noise(training)} Sums of two steps, rounds or runs can differ by a few rows: whoever compares them learns what "
        "these few rows add.",
        None,
    )
    yield (
        "Not masked are names and shapes of the model and of the recipe's sums, how many steps were made, and which "
        "measures a machine has: a recipe that lets them depend on rows reveals something about these rows. The sum over "
        "all owners minus the sum over all but one is that owner's: runs with different sets of owners reveal it.",
        None,
    )
    if training.honest_ranks:
        yield (
            "Before it is added, each number of a clipped row is cut towards zero to a whole number of 1/16,777,216 of the "
            "clip, and the sum of rows and noise is written in 64 bits. Nothing beyond that is cut, and nothing is counted.",
            None,
        )
        return
    yield (
        f"Before it is added, each number is rounded to a multiple of 2^-{say_range(training.sum_places)} and written in "
        f"{say_range(training.sum_bits)} bits; one beyond {say_range(training.sum_bound)} is cut to it (sum_bound). How many were cut "
        "is shown, of all machines together.",
        None,
    )


def cargo_promise(buffers: int, mixed: bool) -> str:
    """What keeps one owner's rows from the next, in words (rule H2)."""
    if buffers == 1 and not mixed:
        return "one owner's rows are overwritten, and read back as zeros, before the next owner's rows are loaded"
    together = (
        "several owners' rows are in the accelerator at the same time, batches are drawn across them,"
        if mixed
        else "the next owner's rows load while one owner's are trained on,"
    )
    return (
        f"{together} and no message reads memory: there is no read path; each "
        "visit's memory is overwritten, and read back as zeros, when it ends"
    )


def say_list(words: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def say_time(at_s: int) -> str:
    """Seconds since 1970 as RFC 3339 text."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def count(number: int, noun: str) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
