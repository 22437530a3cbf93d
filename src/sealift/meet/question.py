"""What a party of a meeting is asked before it signs.

The lines are computed from the agreement that follows from the terms
(``release.agreement.explain``). What others wrote stands in them in quotation marks, and
cannot draw on the screen.

Eight words to compare by telephone: whether all parties were shown the same terms.

88 bits of scrypt over the digest of the terms, in which all keys stand. A word stands for
eleven bits: one of 32 beginnings and one of 64 endings. A host that shows two parties two
worlds would have to find two terms with the same words, at 128 MiB and a third of a second
a try. Source: spec/meeting.md section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sealift.crypto.hash import stretch
from sealift.crypto.keys import Label
from sealift.data.schema.document import field_to_plain
from sealift.data.schema.schema import Schema
from sealift.errors import UsageError, quote_foreign
from sealift.ids import Digest
from sealift.meet.folder import DECLARED_SCHEMA
from sealift.meet.invitation import HOST
from sealift.meet.messages import MAX_PROPOSED
from sealift.meet.terms import Declaration, Terms, proposed_agreement
from sealift.release.agreement import Agreement, PrivacyBudget
from sealift.release.agreement.explain import SHOWN_NAMES, explain, explain_lines
from sealift.release.agreement.phrases import count
from sealift.release.agreement.resources import ReleaseRule

YES: Final = frozenset({"y", "yes"})
FEWEST_ROWS: Final = 10  # a text in fewer rows could identify a person


WORDS: Final = 8
LOG2_N: Final = 17
_BITS: Final = 11
BEGINNINGS: Final = (
    "apple", "bread", "brick", "candle", "clay", "cloud", "copper", "dust",
    "ember", "field", "frost", "garden", "glass", "grain", "harbor", "honey",
    "island", "lamp", "maple", "meadow", "moon", "orange", "paper", "pebble",
    "river", "salt", "silver", "snow", "summer", "thunder", "velvet", "winter",
)  # fmt: skip
ENDINGS: Final = (
    "arrow", "basket", "bear", "bell", "bird", "boat", "bottle", "bowl",
    "bridge", "broom", "camel", "cap", "castle", "chair", "clock", "coat",
    "crab", "cup", "door", "dragon", "drum", "duck", "feather", "fence",
    "finger", "fish", "flag", "flute", "fox", "gate", "glove", "goat",
    "hammer", "hat", "horse", "house", "jacket", "key", "kite", "ladder",
    "lion", "mirror", "mouse", "needle", "owl", "pencil", "pillow", "pocket",
    "rabbit", "ring", "road", "rope", "saddle", "shoe", "spoon", "stairs",
    "table", "tiger", "tower", "train", "tree", "wagon", "wheel", "window",
)  # fmt: skip


class DepartureLines:
    """Says of each party that left, once until it is back, what the reader can do.

    Args:
        reader: The party whose screen it is.
        say: Prints a line.
    """

    def __init__(self, reader: str, say: Callable[[str], None]) -> None:
        self._reader, self._say = reader, say
        self._gone: Collection[str] = ()

    def tell(self, gone: Collection[str]) -> None:
        """These parties are away now."""
        for each in gone:
            if each not in self._gone:
                self._say(say_gone(each, self._reader))
        self._gone = gone


def say_gone(party: str, reader: str) -> str:
    """A line about a party that left before all have signed, and what the reader can do."""
    if party == HOST:
        return (
            f"{HOST} is not connected any more, and not all have signed; nothing is lost. You can wait: "
            "this command continues when the host runs its command again. Or stop it, and type it again later"
        )
    gone = f"{party} is not connected any more, and has not signed"
    if reader == HOST:
        return (
            f"{gone}. To continue, its owner types its command again in the same folder. To meet "
            f"without {party}, stop this command and invite the others in an empty folder"
        )
    return (
        f"{gone}. You can wait: its owner can type its command again. Or stop this command, and "
        f"type it again later: nothing is lost. Only the host can continue without {party}, in another meeting"
    )


def words_of(terms: Digest) -> tuple[str, ...]:
    """The words of these terms; everybody who was shown the same has the same."""
    bits = WORDS * _BITS
    salt = Label.MEETING_WORDS.encode()
    raw = stretch(terms.raw, salt, log2_n=LOG2_N, length=bits // 8)
    number = int.from_bytes(raw, "big")
    places = (number >> shift for shift in range(bits - _BITS, -1, -_BITS))
    words = (divmod(place & (1 << _BITS) - 1, len(ENDINGS)) for place in places)
    return tuple(BEGINNINGS[first] + ENDINGS[second] for first, second in words)


def tell_terms(
    terms: Terms, name: str, *, operations: int = 0, colour: bool
) -> Iterator[str]:
    """Lines that say what signing means for one party of a meeting.

    Args:
        terms: As they were checked.
        name: The party that is asked.
        operations: Of the recipe, if it is a graph; else 0.
        colour: Whether the screen shows colours.

    Raises:
        MalformedError: no agreement can follow from them.
    """
    cards = [each.body for each in terms.cards]
    agreement = proposed_agreement(terms.declaration, cards)
    yield from _tell(agreement, name, operations, colour)
    yield from _tell_assets(terms.declaration)
    yield (
        "This program cannot check whether the host invented parties, or shows other terms to "
        "other parties. Compare the words below with another party, by telephone."
    )


def tell_declared(
    declared: Declaration, name: str, *, operations: int = 0, colour: bool
) -> Iterator[str]:
    """The same of a declaration, before anybody brought a card."""
    yield from _tell(proposed_agreement(declared, ()), name, operations, colour)


def _tell(
    agreement: Agreement, name: str, operations: int, colour: bool
) -> Iterator[str]:
    yield "host asks you to take part in training a model. Signing means:"
    sentences = explain(agreement, name, sealed=False, operations=operations)
    yield from explain_lines(sentences, colour=colour)


def tell_comparison(
    declared: Declaration,
    schema: Schema,
    fewest: Mapping[str, int],
    number: int,
    *,
    numbers: Iterable[str],
) -> Iterator[str]:
    """Lines that say what a party's tables are to be compared with, and who hears the result.

    Args:
        declared: By the host.
        schema: Its own, with every rule that a cell must fit.
        fewest: Rows that each of the party's files must have, by the file's name.
        number: How many different declarations the host has shown by now.
        numbers: Lines of columns whose numbers only the schema's categories explain.
    """
    names = " and ".join(map(quote_foreign, fewest))
    model = quote_foreign(declared.name)
    yield f"host asks you to compare {names}, on this machine, with what {model} needs:"
    for each in schema.fields:
        yield from _tell_field(field_to_plain(each))
    for name, rows in fewest.items():
        yield f"  {quote_foreign(name)}: at least {count(rows, 'row')}"
    yield from (f"  {line}" for line in numbers)
    yield (
        "  If you say yes, a few seconds later the host learns your name, your keys, and whether "
        "all of this fits, and so whether your table has values outside of these limits."
    )
    yield from _tell_assets(declared)
    if number > 1:
        yield f"  The host changed its declaration: this is number {number} of at most 3."


def _tell_assets(declared: Declaration) -> Iterator[str]:
    """What a yes to the comparison puts on the owner's disk."""
    if sizes := declared.assets:
        total = f"{sum(sizes.values()):,} bytes in all"
        yield f"  The recipe brings {count(len(sizes), 'file')}, {total}, which this machine fetches:"
    for name, size in sizes.items():
        yield f"    {quote_foreign(name)}: {size:,} bytes"


def _tell_field(rules: dict[str, Any]) -> Iterator[str]:
    """Every rule of a field: numbers on one line, the host's texts on lines of their own."""
    name, dtype = quote_foreign(rules.pop("name")), rules.pop("dtype")
    numbers, texts = [f"dtype {dtype}"], []
    for key, rule in rules.items():
        each = rule if isinstance(rule, list) else [rule]
        if key == "columns":
            texts.append(_tell_columns(rule))
        elif all(isinstance(item, str) for item in each):
            texts += [f"{key}: {quote_foreign(item)}" for item in each]
        else:
            numbers.append(f"{key} {rule}")
    yield f"  {name}: {', '.join(numbers)}"
    yield from (f"      {text}" for text in texts)


def _tell_columns(names: Sequence[str]) -> str:
    """Which columns of an owner's file a field is made of: no name may hide among others."""
    if len(names) <= SHOWN_NAMES:
        return f"columns: {', '.join(map(quote_foreign, names))}"
    first, last = quote_foreign(names[0]), quote_foreign(names[-1])
    every = f"all of them are in {DECLARED_SCHEMA}"
    return f"columns: {count(len(names), 'name')}, {first} to {last}; {every}"


def ask_categories(
    found: Mapping[str, Mapping[str, int]],
    ask: Callable[[str, str], str],
    say: Callable[[str], None],
) -> dict[str, tuple[str, ...]]:
    """Which texts the host may hear of, column by column; of rare ones it never does.

    Args:
        found: Texts that the host's schema does not list, and in how many rows.
        ask: Asks a person a question with a default.
        say: Shows that person a line.
    """
    told: dict[str, tuple[str, ...]] = {}
    for column, counts in found.items():
        texts = sorted(text for text, rows in counts.items() if rows >= FEWEST_ROWS)
        if rare := len(counts) - len(texts):
            say(
                f"{quote_foreign(column)}: {count(rare, 'text')} that the host's schema does not list, each "
                f"in fewer than {FEWEST_ROWS} rows; the host is not told {'it' if rare == 1 else 'them'}, "
                "because so rare a text could identify a person"
            )
        left = MAX_PROPOSED - sum(map(len, told.values()))
        if not texts or len(texts) > left:
            continue
        say(f"{quote_foreign(column)} has texts that the host's schema does not list:")
        for text in texts:
            say(f"  {quote_foreign(text)} ({counts[text]} rows)")
        question = "Send these texts, without numbers, to the host? (y/N)"
        if ask(question, "n") in YES:
            told[column] = tuple(texts)
    return told


@dataclass(frozen=True, slots=True)
class OwnerAnswers:
    """What an owner has decided before it is asked.

    Attributes:
        compare_if: Digest of the declaration that its table may be compared with; or empty.
        sign_if: Digest of the terms that it signs; or empty.
        decline: Whether it says no.
        allow: Names of what it signs although that is below this program's floor.
        file: Name of the file that answers; empty where a person or options do.
        send_texts: Columns whose unlisted texts the host may hear of; None if nothing was
            decided.
        only_graph: Whether its rule refuses a recipe that is a program.
        privacy: The budget that its rule sets for its table; None for none.
    """

    compare_if: str = ""
    sign_if: str = ""
    decline: bool = False
    allow: Sequence[str] = ()
    file: str = field(default="", kw_only=True)
    send_texts: Sequence[str] | None = field(default=None, kw_only=True)
    only_graph: bool = field(default=False, kw_only=True)
    privacy: PrivacyBudget | None = field(default=None, kw_only=True)

    def require_in(self, rule: ReleaseRule) -> None:
        """Refuse options that the rule which was announced to the meeting does not have.

        Raises:
            UsageError: ``rule-differs``.
        """
        wanted = {
            "--only-graph": self.only_graph,
            "--privacy": self.privacy is not None,
        }
        kept = {
            "--only-graph": rule.recipe == "graph",
            "--privacy": rule.privacy == self.privacy,
        }
        for option in (name for name in wanted if wanted[name] and not kept[name]):
            raise UsageError(
                f"{option} came too late for this meeting",
                why="the rule of your table was announced to it without that",
                code="rule-differs",
            )
