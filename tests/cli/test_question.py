"""What a party is asked: computed from what would be signed, and nothing of others draws."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.level import Level
from sealift.cli.console import say
from sealift.data.schema.document import (
    parse_schema,
    schema_from_plain,
    schema_to_plain,
    schema_to_toml,
)
from sealift.errors import MalformedError, fold, quote_foreign
from sealift.ids import Digest
from sealift.meet.folder import DECLARED_SCHEMA
from sealift.meet.messages import Check
from sealift.meet.question import (
    ask_categories,
    tell_comparison,
    tell_declared,
    tell_terms,
)
from sealift.meet.terms import Terms, agreement_of, proposed_agreement
from sealift.release.agreement.explain import RED, explain
from sealift.release.agreement.terms import (
    GRAPH_ENTRY,
    GRAPH_FILES,
    GRAPH_WEIGHTS,
    CodeBundle,
    bundle_digest,
)
from tests.sim.invited import MetGuest, MetHost, walk

HOSTILE = "x\x1b[2J\x1b[31mSign? y\r\n\u202eedisrever\u0007"
GRAPH_WORDING = """\
  - No program of host runs on your machine: the recipe is a graph, a
    list of 214 tensor operations, and Sealift computes them (`sealift
    recipe show` prints them). They decide what the model stores of
    rows. They are computed in a sandbox, without network, files and
    other processes; a machine without a sandbox computes them
    unconfined.
  - The graph has 2 files and the digest
    sha256:...;
    it starts in graph.json.
"""
WORDING = Path(__file__).parent / "wording" / "join.txt"


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are shown as they are here."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def host(tmp_path: Path) -> MetHost:
    return MetHost(tmp_path)


@pytest.fixture
def guests(host: MetHost) -> list[MetGuest]:
    guests = [MetGuest(host, name) for name in host.names]
    walk(*guests)
    return guests


@pytest.fixture
def terms(guests: list[MetGuest]) -> Terms:
    return guests[0].asked[0]


def screen(terms: Terms, *, colour: bool = False) -> str:
    return "\n".join(tell_terms(terms, "north", colour=colour))


def test_the_wording_as_it_is_reviewed(terms: Terms) -> None:
    """One file holds it, so that a change of words is seen as such."""
    shown = re.sub(r"sha256:[0-9a-f]{64}", "sha256:...", screen(terms))
    assert shown == WORDING.read_text("utf-8").rstrip("\n")


def test_the_wording_of_a_graph(terms: Terms) -> None:
    """What runs on the owner's machine is the first thing that is said of what is computed."""
    files = dict.fromkeys(GRAPH_FILES, Digest.of(b""))
    code = CodeBundle(bundle_digest(files), GRAPH_ENTRY, files)
    declared = replace(
        terms.declaration,
        code=code,
        assets={GRAPH_WEIGHTS: 3},
        job='recipe = "graph"\n',
    )
    shown = "\n".join(
        tell_declared(declared, "north", operations=214, colour=False)
    ).split("what is computed:\n")[1]
    assert re.sub(r"sha256:[0-9a-f]{64}", "sha256:...", shown).startswith(GRAPH_WORDING)


def test_a_line_is_wrapped_once(terms: Terms) -> None:
    """Beside the command's name none is too long for 80 columns: no word stands alone."""
    for line in screen(terms).splitlines()[:-1]:  # the last is a sentence as it is
        assert len(fold(f"sealift: {line}")) == 1 or "sha256:" in line


def test_the_end_is_said_in_local_time(
    terms: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XST-5:30")
    time.tzset()
    assert "No key is released after 2027-01-16 13:30:00 XST." in screen(terms)


def test_what_is_shown_is_said_of_what_is_signed(
    guests: list[MetGuest], terms: Terms
) -> None:
    """All but the tables' sizes, which nobody knows before, are the same sentences."""
    check = next(each for each in guests[0].told if isinstance(each, Check))
    signed = agreement_of(check.terms, check.consents)
    cards = [each.body for each in terms.cards]
    proposed = proposed_agreement(terms.declaration, cards)
    said = [explain(each, "north", sealed=False) for each in (proposed, signed)]
    assert signed.compared == ()
    last = {each.text for each in said[1]} - {each.text for each in said[0]}
    assert last == {"Nobody compared the words with another party."}
    assert {each.text for each in said[0]} <= {each.text for each in said[1]}


def test_the_declaration_alone_says_the_same(terms: Terms) -> None:
    """Before a card: so an owner reads it before its table is compared."""
    shown = list(tell_declared(terms.declaration, "north", colour=False))
    assert "- The trained model goes to host" in "\n".join(shown)
    assert shown[0] == screen(terms).splitlines()[0]


def test_rows_at_home_are_said_so_and_development_is_red(terms: Terms) -> None:
    text = screen(terms, colour=True)
    assert "your rows stay on this machine" in text
    assert f"{RED}  ! At level development" in text
    assert "whether the host invented parties" in text


def test_rows_elsewhere_say_whose_machine(terms: Terms) -> None:
    declared = terms.declaration
    training = replace(declared.training, plans=("travel",))
    elsewhere = replace(declared, rows_at_home=False, training=training)
    sealed = replace(elsewhere, accept=(Level.TEE, Level.ATTESTED_HOST))
    text = " ".join(screen(replace(terms, declaration=sealed), colour=True).split())
    assert "your rows are opened on the machine that host runs" in text
    assert "At level tee" in text
    assert "At level attested-host" in text


def test_what_makes_no_agreement_is_not_asked(terms: Terms) -> None:
    """A host's name that would draw lines, no level at all, sums that can never leave."""
    declared = terms.declaration
    for changes in (
        {
            "name": "digits together"
            + " " * 40
            + "sealift: the model is given to nobody"
        },
        {"accept": (), "rows_at_home": False},
        {"output": replace(declared.output, min_holders=9)},
    ):
        with pytest.raises(MalformedError):
            screen(replace(terms, declaration=replace(declared, **changes)))


def test_what_others_wrote_cannot_draw_on_the_screen(terms: Terms) -> None:
    """Names are checked names; what a field is about, and is called, is anybody's text."""
    texts = {"description": HOSTILE, "column": HOSTILE, "categories": ["a", "b"]}
    fields = [{"name": "age", "dtype": "int64", **texts}]
    schema = schema_from_plain({"fields": fields})
    declared = replace(terms.declaration, schema=schema_to_plain(schema))
    asked = tell_comparison(
        declared, schema, {HOSTILE: 3}, number=2, numbers=["age: 0 = a"]
    )
    shown = "\n".join((screen(replace(terms, declaration=declared)), *asked))
    assert not [c for c in shown if ord(c) < 32 and c != "\n"]
    assert "\u202e" not in shown
    assert "\n  age: 0 = a\n" in shown
    assert "sealift: " not in shown
    folded = [each for line in shown.splitlines() for each in fold(f"sealift: {line}")]
    assert max(map(len, folded)) <= 80


def test_no_column_hides_among_others(terms: Terms) -> None:
    """Rule O2: what a field takes of the owner's file is on the screen, or in a file it names."""
    few = [f"gene {at}" for at in range(23)]
    few[11:11] = ["date of birth"]
    for columns in (few, [*few, *few[:11], "income", *few[12:]]):
        names = [f"{at} {name}" for at, name in enumerate(columns)]
        field = {
            "name": "genes",
            "dtype": "float32",
            "shape": [len(names)],
            "columns": names,
        }
        label = {"name": "y", "dtype": "int64", "classes": 2}
        schema = schema_from_plain({"fields": [field, label]})
        declared = replace(terms.declaration, schema=schema_to_plain(schema))
        shown = "\n".join(
            tell_comparison(declared, schema, {"a.csv": 3}, 1, numbers=[])
        )
        unseen = [name for name in names if quote_foreign(name) not in shown]
        assert bool(unseen) == (DECLARED_SCHEMA in shown) == (len(names) > 24)
        assert f"{quote_foreign(names[-1])}" in shown


def test_nothing_hides_a_column_in_the_file_that_has_all() -> None:
    names = ["age", "x\u202e\u009b\x7f\U000e0001y"]
    field = {"name": "x", "dtype": "float32", "shape": [2], "columns": names}
    schema = schema_from_plain({"fields": [field]})
    text = schema_to_toml(schema)
    assert all(each.isprintable() or each == "\n" for each in text)
    assert parse_schema(text.encode(), source="a file") == schema


def test_categories_leave_by_a_yes_for_each_column_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = iter(["y", "n"])
    found = {
        "ward": {"c": 10, "d": 9, "e": 200},
        "site": {HOSTILE: 50},
        "rare": {"only": 1},
    }
    assert ask_categories(found, lambda *how: next(answers), say) == {
        "ward": ("c", "e")
    }
    shown = capsys.readouterr().err
    assert "ward: 1 text that" in shown
    assert "  e (200 rows)" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "rare has texts" not in shown
