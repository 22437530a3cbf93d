"""What a party is asked before it signs: in plain words, from the terms alone.

What others wrote (names, columns, descriptions) is escaped, so that it cannot draw on the
screen; what is said here is said by this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sealift.attest.level import Level
from sealift.cli.console import YES, ask_line, say
from sealift.errors import visible
from sealift.meet.messages import MAX_PROPOSED
from sealift.meet.terms import Declaration, TableCard, Terms
from sealift.release.agreement.explain import KEPT_OUT, SEEN_BY, say_time
from sealift.view.words import say_list

FEWEST_ROWS: Final = 10  # of a text that another party may hear of
RED: Final = "\x1b[1;31m"
PLAIN: Final = "\x1b[0m"


def tell_terms(terms: Terms, name: str, *, colour: bool) -> Iterator[str]:
    """Lines that say what signing means for one party.

    Args:
        terms: As they were checked.
        name: The party that is asked.
        colour: Whether the screen shows colours.
    """
    cards = {each.body.party.name: each.body for each in terms.cards}
    yield from tell_declared(terms.declaration, name, colour=colour)
    yield from _own(cards[name])
    yield "  not known   whether host invented parties, or shows others something else:"
    yield "              compare the words below with another party, by telephone"


def tell_declared(declared: Declaration, name: str, *, colour: bool) -> Iterator[str]:
    """Of these, the lines that the declaration gives."""
    others = [each for each in declared.guests if each != name]
    files = declared.code.files
    yield f"host asks you to train the model {visible(declared.name)} together"
    yield f"  with        {say_list(others) or 'nobody else'}"
    yield f"  the code    {len(files)} files in recipe/, {declared.code.digest.to_text()}"
    yield f"  until       {say_time(declared.not_after)}: no key is released later"
    yield from _where(declared, colour=colour)
    yield from _what_leaves(declared)


def ask_categories(
    found: Mapping[str, Mapping[str, int]],
) -> dict[str, tuple[str, ...]]:
    """Which texts the host may hear of, column by column; of rare ones it never does.

    Args:
        found: Texts that the host's schema does not list, and in how many rows.
    """
    told: dict[str, tuple[str, ...]] = {}
    for column, counts in found.items():
        texts = sorted(text for text, rows in counts.items() if rows >= FEWEST_ROWS)
        if rare := len(counts) - len(texts):
            say(
                f"{visible(column)}: {rare} texts in fewer than {FEWEST_ROWS} rows stay here"
            )
        left = MAX_PROPOSED - sum(map(len, told.values()))
        if not texts or len(texts) > left:
            continue
        say(f"{visible(column)} has texts that the host does not list:")
        for text in texts:
            say(f"  {visible(text)} ({counts[text]} rows)")
        if ask_line("Tell the host these texts, without numbers? (y/N)", "n") in YES:
            told[column] = tuple(texts)
    return told


def _where(declared: Declaration, *, colour: bool) -> Iterator[str]:
    if declared.rows_at_home:
        yield "  your rows   stay on this machine: the code runs here, in a sandbox, and what"
        yield "              it learns goes, sealed, to the other parties' machines"
        return
    level = declared.accept[0]
    line = (
        "  your rows   go, sealed, to the machine that host runs, and are opened there"
    )
    bare = f"              level {level}: it {KEPT_OUT[level]}"
    if level is not Level.DEVELOPMENT:
        yield line
        yield bare
        return
    red, plain = (RED, PLAIN) if colour else ("", "")
    yield f"{red}  YOUR ROWS   CAN BE READ BY WHOEVER RUNS HOST'S MACHINE:{plain}"
    yield f"{red}{bare}{plain}"


def _what_leaves(declared: Declaration) -> Iterator[str]:
    rule = declared.output
    yield "  the model   goes to host, with what it memorised of rows"
    if rule.metrics:
        yield (
            f"  numbers     {say_list(rule.metrics)}, each over {rule.metric_rows} rows or "
            f"more, go to {SEEN_BY[rule.audience]}"
        )


def _own(card: TableCard) -> Iterator[str]:
    columns = [visible(each) for each in card.columns]
    yield f"  your table  {len(columns)} columns fit: {', '.join(columns)[:300]}"
    yield (
        f"  your rule   the key goes out {card.rule.max_uses or 'any number of'} times at "
        "most; `sealift agreement leave` ends it"
    )
