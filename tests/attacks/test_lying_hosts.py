"""What a host gets that lies to the real `sealift join` of an owner, over a real relay."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sealift.meet.connection as door
from sealift.cli.meeting.host import _line
from sealift.cli.meeting.place import open_folder
from sealift.crypto.identity import create_identity, load_identity
from sealift.data.schema.document import schema_from_plain, schema_to_plain
from sealift.errors import (
    MalformedError,
    PolicyError,
    SealiftError,
    UnavailableError,
    UsageError,
)
from sealift.meet import owner as owner_side
from sealift.meet import table
from sealift.meet.messages import (
    REASONS,
    BringCard,
    Check,
    FromHost,
    Over,
    Propose,
    Read,
    Signed,
    Wait,
)
from sealift.meet.owner import MAX_DECLARATIONS, answer_delay_s
from sealift.meet.runs import require_signed
from sealift.meet.terms import Declaration, sign_card, sign_consent
from sealift.release.agreement.code import measure_bundle
from tests.sim.lyinghost import LyingHost, Owner, lying_host

OWN = ("north", "east")


@pytest.fixture(autouse=True)
def quick_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost a third of a second, and are compared by people."""
    monkeypatch.setattr(owner_side, "words_of", lambda terms: ("words",) * 8)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LyingHost]:
    with lying_host(tmp_path) as meeting:
        yield meeting


def both(host: LyingHost, **north: Any) -> tuple[Owner, Owner]:
    """Both owners' commands, typed."""
    owners = (host.owner("north", **north), host.owner("east"))
    for each in owners:
        each.begin()
    return owners


def both_again(host: LyingHost) -> tuple[Owner, Owner]:
    """Both typed again: first north, whose no stands until it is back."""
    north = host.owner("north").begin()
    while host.book.seat("north").declined is not None:  # type: ignore[union-attr]
        assert not north.wait(0.02), north.outcome
    return north, host.owner("east").begin()


def hears_of_north(east: Owner, code: str) -> None:
    """The other owner hears who leaves, and one of few sentences."""
    told = east.refused()
    assert told.code == "meeting-declined"
    assert f"north: {REASONS[code]}" in str(told)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError("no room", code="disk-full"), "disk-full"),
        (UnavailableError("no memory", code="no-memory"), "no-memory"),
        (MemoryError(), "no-memory"),
    ],
)
def test_the_others_hear_of_a_machine_that_cannot_go_on(
    host: LyingHost, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    seal = owner_side.seal_table

    def fail(*args: Any, **options: Any) -> Any:
        if options["owner"] == "north":
            raise error
        return seal(*args, **options)

    monkeypatch.setattr(owner_side, "seal_table", fail)
    north, east = both(host)
    assert north.end() is error
    hears_of_north(east, code)


def identity_of(host: LyingHost, name: str) -> Any:
    """A party that helps the host."""
    folder = host.folder / name
    passphrase = (folder / f"{name}.pass").read_text().strip()
    return load_identity(folder / f"{name}.key", passphrase)


def to_north(change: Callable[[FromHost], FromHost]) -> Callable[..., FromHost]:
    """A lie to north alone; east hears what the book says."""
    return lambda name, told: change(told) if name == "north" else told


def once(host: LyingHost, declared: Declaration, files: Any = None) -> Any:
    """Another declaration for north, until it has answered: then the meeting is over."""

    def lie(name: str, told: FromHost) -> FromHost:
        brought = host.book.seat("north").brought  # type: ignore[union-attr]
        if isinstance(told, Wait | Read) or brought is not None:
            return Over("left", "east", "left")
        return BringCard(declared, dict(host.host.files if files is None else files))

    return lie


def bounded(host: LyingHost, **bounds: float) -> dict[str, Any]:
    """The declared schema with other bounds of age."""
    plain = json.loads(json.dumps(host.host.declaration.schema))
    plain["fields"][0].update(bounds)
    return schema_to_plain(schema_from_plain(plain))


def test_without_a_lie_all_sign_and_are_asked_three_times(host: LyingHost) -> None:
    owners = both(host)
    kept = [each.end() for each in owners]
    agreements = {each.agreement.name for each in kept}  # type: ignore[union-attr]
    assert agreements == {"wards"}
    assert [len(each.questions) for each in owners] == [3, 3]
    for each in owners:
        place = open_folder(each.folder, each.invitation.name)
        require_signed(place, each.kept.terms, each.kept.agreement)
        assert (each.folder / "job.toml").read_text() == host.host.declaration.job


def test_nothing_is_compared_before_a_yes(
    host: LyingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Path] = []
    real = table.open_table

    def open_table(source: Path, *how: Any) -> Any:
        compared.append(source)
        return real(source, *how)

    monkeypatch.setattr(table, "open_table", open_table)
    host.lie = once(host, host.host.declaration)
    north = host.owner("north", answers=("n",)).begin()
    assert north.refused().code == "meeting-declined"
    silent = host.owner("north", answers=None).begin()
    error = silent.refused()
    assert (type(error), error.code) == (UsageError, "not-confirmed")
    other = {"compare_if": f"sha256:{'0' * 64}"}
    assert host.owner("north", options=other).begin().refused().code == "not-confirmed"
    signing = {"sign_if": host.host.declaration.digest.to_text()}
    named = host.owner("north", answers=None, options=signing).begin()
    assert named.refused().code == "not-confirmed"
    assert compared == []
    assert host.book.seat("north").brought is None  # type: ignore[union-attr]
    digest = {"compare_if": host.host.declaration.digest.to_text()}
    yes = host.owner("north", answers=None, options=digest).begin()
    assert yes.refused().code == "left"
    assert compared != []
    assert host.book.seat("north").brought is not None  # type: ignore[union-attr]


def test_a_table_answers_three_declarations_each_by_a_yes(host: LyingHost) -> None:
    """Also over restarts of `join`; the fourth ends it, of which the others hear."""
    declared = [host.declare(schema=bounded(host, max=200 + n)) for n in range(9)]
    shown = 0

    def ask_again(told: FromHost) -> FromHost:
        nonlocal shown
        seat = host.book.seat("north")
        assert seat is not None
        if isinstance(told, Over):
            return told
        if seat.brought is not None and shown < len(declared):
            fits = seat.brought.body.declaration == declared[shown].digest
            shown += fits
        if shown == len(declared):
            return Over("left", "east", "left")
        return BringCard(declared[shown], dict(host.host.files))

    host.lie = to_north(ask_again)
    first = host.owner("north", answers=("y", "y", "n")).begin()
    assert first.refused().code == "meeting-declined"
    assert first.questions == ["Compare? (y/N)"] * 3
    assert first.kept.declarations == MAX_DECLARATIONS
    assert shown == 2
    again = host.owner("north", answers=("y",) * 9).begin()
    error = again.refused()
    assert (type(error), error.code) == (PolicyError, "declared-too-often")
    assert again.questions == ["Compare? (y/N)"]  # about the third
    assert shown == 3
    declined = host.book.seat("north").declined  # type: ignore[union-attr]
    assert declined == REASONS["declared-too-often"]
    once_more = host.owner("north", answers=("y",) * 9).begin()
    assert once_more.refused().code == "declared-too-often"
    assert once_more.questions == []


def test_an_answer_leaves_after_a_fixed_time(host: LyingHost) -> None:
    assert [answer_delay_s(spent) for spent in (0.0, 1.0, 4.0)] == [4.0, 3.0, 0.0]
    assert [answer_delay_s(spent) for spent in (4.5, 9.0, 31.0)] == [3.5, 7.0, 1.0]
    host.lie = once(host, host.host.declaration)
    north = host.owner("north", answers=("y", "n"))
    times = iter((100.0, 103.0))
    north.clock = lambda: next(times)
    assert north.begin().refused().code == "left"
    assert 1.0 in north.slept


def test_a_table_too_large_for_the_memory_is_answered_as_late(
    host: LyingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_table(source: Path, *how: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(table, "open_table", open_table)
    host.lie = once(host, host.host.declaration)
    north = host.owner("north", answers=("y", "n"))
    times = iter((100.0, 103.0))
    north.clock = lambda: next(times)
    assert north.begin().refused().code == "no-memory"
    assert 1.0 in north.slept
    assert host.book.seat("north").declined == REASONS["no-memory"]  # type: ignore[union-attr]


def test_the_time_of_a_table_that_does_not_fit_says_as_little(host: LyingHost) -> None:
    host.lie = once(host, host.host.declaration)
    north = host.owner("north", answers=("y",))
    times = iter((100.0, 103.0))
    north.clock = lambda: next(times)
    north.write_rows(40, oldest=121)
    assert isinstance(north.begin().refused(), MalformedError)
    assert 1.0 in north.slept


@pytest.mark.parametrize("rows", [3, 15])
def test_a_small_table_is_told_to_its_owner_before_anybody_signs(
    host: LyingHost, rows: int
) -> None:
    """The others hear who cannot take part; with another table its owner comes back."""
    north, east = both(host, rows=rows)
    error = north.refused()
    assert (type(error), error.code) == (MalformedError, "too-few-rows")
    assert "train.csv" in str(error)
    assert f"{rows} rows" in str(error)
    assert "16" in str(error)
    told = east.refused()
    assert told.code == "meeting-declined"
    assert "north" in str(told)
    assert str(rows) not in str(told)
    assert not (north.folder / "sealed").exists()
    north.write_rows(40)
    again = both_again(host)
    assert all(each.end() == each.kept for each in again)


def test_a_job_that_the_declared_rule_would_stop_is_refused_before_any_question(
    host: LyingHost,
) -> None:
    """Two rounds where one is allowed: its owner would sign for a run without a model."""
    output = replace(host.host.declaration.output, max_visits=1)
    host.lie = once(host, host.declare(output=output))
    north = host.owner("north").begin()
    assert north.refused().code == "too-many-visits"
    assert not north.questions


def test_a_table_that_shrinks_after_its_card_is_noticed_when_it_is_sealed(
    host: LyingHost,
) -> None:
    north = host.owner("north")

    def shrink(told: FromHost) -> FromHost:
        if isinstance(told, Read):
            north.write_rows(5)
        return told

    host.lie = to_north(shrink)
    east = host.owner("east").begin()
    assert north.begin().refused().code == "too-few-rows"
    assert "north" in str(east.refused())
    host.lie = to_north(lambda told: told)
    north.write_rows(50)
    again = both_again(host)
    for each in again:
        kept = each.end()
        assert kept == each.kept, kept
        rows = [each.rows for each in kept.agreement.resources]  # type: ignore[union-attr]
        assert sorted(rows) == [40, 50]


def _swap(host: LyingHost, told: FromHost) -> FromHost:
    job = host.host.declaration.job.replace('"127.0.0.1:', '"127.0.0.9:')
    return BringCard(host.declare(job=job), dict(host.host.files))


def _other_terms(host: LyingHost, told: FromHost) -> FromHost:
    """East's card anew, with its help."""
    terms = host.host.terms()
    assert terms is not None
    north, east = terms.cards
    rule = replace(east.body.rule, max_uses=3)
    changed = sign_card(replace(east.body, rule=rule), identity_of(host, "east"))
    return Read(replace(terms, cards=(north, changed)))


def _other_tables(host: LyingHost, told: FromHost) -> FromHost:
    """East's table anew, with its help."""
    terms = host.host.terms()
    assert terms is not None
    consents = host.host.consents(terms)
    body = consents["east"].body
    rows = replace(body.resources[0], rows=41, total_bytes=41 * 16)
    changed = sign_consent(replace(body, resources=(rows,)), identity_of(host, "east"))
    return Check(terms, {**consents, "east": changed})


@pytest.mark.parametrize("lie", [_swap, _other_terms, _other_tables])
def test_after_a_signature_nothing_is_replaced(
    host: LyingHost, lie: Callable[[LyingHost, FromHost], FromHost]
) -> None:
    def swap(told: FromHost) -> FromHost:
        signed = host.book.seat("north").signature  # type: ignore[union-attr]
        return told if signed is None else lie(host, told)

    host.lie = to_north(swap)
    north, east = both(host)
    error = north.refused()
    assert isinstance(error, PolicyError), error
    assert error.code == "meeting-terms"
    assert "host" in str(error)
    assert not (north.folder / "agreement.json").exists()
    job = (north.folder / "job.toml").read_text()
    assert job == host.host.declaration.job
    kept = north.kept
    assert kept.agreement is not None
    assert kept.terms is not None
    assert kept.terms.declaration == host.host.declaration
    host.lie = to_north(lambda told: told)  # the host that stops lying is heard again
    honest = host.owner("north", answers=()).begin()
    assert honest.end() == kept
    east.end()


def test_the_job_that_begins_is_the_signed_one(host: LyingHost) -> None:
    owners = both(host)
    for each in owners:
        each.end()
    north = owners[0]
    place, job = open_folder(north.folder, "north"), north.folder / "job.toml"
    signed = job.read_text()
    job.write_text(signed.replace("epochs = 2", "epochs = 3"))
    with pytest.raises(PolicyError) as caught:
        require_signed(place, north.kept.terms, north.kept.agreement)
    assert caught.value.code == "job-differs"
    job.unlink()
    require_signed(place, north.kept.terms, north.kept.agreement)
    assert job.read_text() == signed
    other = replace(
        north.kept, agreement=replace(north.kept.agreement, number=1, name="x")
    )  # type: ignore[type-var]
    with pytest.raises(PolicyError) as caught:
        require_signed(place, other.terms, other.agreement)
    assert caught.value.code == "other-meeting"


def test_who_refuses_by_its_floor_is_named_to_the_others(host: LyingHost) -> None:
    output = replace(host.host.declaration.output, model_to=("host", "east"))
    host.lie = once(host, host.declare(output=output))
    north = host.owner("north").begin()
    assert north.refused().code == "below-floor"
    assert north.questions == []
    host.lie = to_north(lambda told: told)
    hears_of_north(host.owner("east").begin(), "below-floor")


@pytest.mark.parametrize("brings", [True, False])
def test_held_out_rows_are_those_that_the_card_names(
    host: LyingHost, brings: bool
) -> None:
    """Another --heldout is refused at home, and nobody is asked, or told."""
    host.lie = once(host, host.host.declaration)
    options = [{"heldout": host.folder / "north" / "train.csv"}, {}]
    first, then = options if brings else options[::-1]
    assert host.owner("north", options=first).begin().refused().code == "left"
    said = len(host.said)
    again = host.owner("north", options=then).begin()
    error = again.refused()
    assert (type(error), error.code) == (UsageError, "heldout-differs")
    assert again.questions == []
    assert len(host.said) == said
    assert host.owner("north", options=first).begin().refused().code == "left"


def _softer_rule(told: Read) -> Read:
    """The owner's own rule, softened: signed by nobody."""
    north, east = told.terms.cards
    rule = replace(north.body.rule, max_uses=0)
    card = replace(north, body=replace(north.body, rule=rule))
    return Read(replace(told.terms, cards=(card, east)))


def _invented_key(told: Read) -> Read:
    """Another key in the place of this party."""
    north, east = told.terms.cards
    invented = create_identity("north")
    card = sign_card(replace(north.body, party=invented.card), invented)
    return Read(replace(told.terms, cards=(card, east)))


def _other_job(told: Read) -> Read:
    """Another job than the one that was shown when the card was made."""
    declared = replace(told.terms.declaration, job="epochs = 3\n")
    cards = [
        replace(card, body=replace(card.body, declaration=declared.digest))
        for card in told.terms.cards
    ]
    return Read(replace(told.terms, declaration=declared, cards=tuple(cards)))


def _without_one(told: Read) -> Read:
    return Read(replace(told.terms, cards=told.terms.cards[:1]))


def _swapped_cards(told: Read) -> Read:
    return Read(replace(told.terms, cards=told.terms.cards[::-1]))


@pytest.mark.parametrize(
    "change", [_softer_rule, _invented_key, _other_job, _without_one, _swapped_cards]
)
def test_terms_that_were_changed_are_not_put_before_anybody(
    host: LyingHost, change: Callable[[Read], Read]
) -> None:
    host.lie = to_north(lambda told: change(told) if isinstance(told, Read) else told)
    north, east = both(host)
    assert north.refused().code in {"meeting-terms", "authentication"}
    assert north.questions == ["Compare? (y/N)"]
    assert north.kept.consent is None
    hears_of_north(east, "meeting-terms")
    host.lie = to_north(lambda told: told)
    for each in both_again(host):
        assert each.end() == each.kept


def _spliced(told: Check) -> Check:
    """A table that its owner did not sign."""
    signed = told.consents["east"]
    fewer = replace(signed.body.resources[0], rows=41, total_bytes=41 * 16)
    forged = replace(signed, body=replace(signed.body, resources=(fewer,)))
    return replace(told, consents={**told.consents, "east": forged})


def _not_everybody(told: Check) -> Check:
    return replace(told, consents={"north": told.consents["north"]})


def _without_mine(told: Check) -> Check:
    east = told.consents["east"]
    return replace(told, consents={"north": east, "east": east})


def _other_cards(told: Check) -> Check:
    north, east = told.terms.cards
    return replace(told, terms=replace(told.terms, cards=(east, north)))


@pytest.mark.parametrize(
    "change", [_spliced, _not_everybody, _without_mine, _other_cards]
)
def test_an_agreement_of_other_parts_is_not_signed(
    host: LyingHost, change: Callable[[Check], Check]
) -> None:
    host.lie = to_north(lambda told: change(told) if isinstance(told, Check) else told)
    north, east = both(host)
    assert north.refused().code in {"meeting-terms", "authentication"}
    assert north.kept.agreement is None
    assert host.book.seat("north").signature is None  # type: ignore[union-attr]
    hears_of_north(east, "meeting-terms")
    host.lie = to_north(lambda told: told)
    for each in both_again(host):
        assert each.end() == each.kept


def test_an_earlier_yes_of_its_own_does_not_stand_for_the_present_one(
    host: LyingHost,
) -> None:
    """Both are signed by north, for the same terms, about two tables of its owner."""
    earlier: list[Any] = []

    def lie(told: FromHost) -> FromHost:
        if not isinstance(told, Check):
            return told
        if not earlier:
            earlier.append(told.consents["north"])
            host.book.void()  # as where no agreement follows from what all said yes to
            return Over("bad-agreement", "", "no agreement follows")
        return replace(told, consents={**told.consents, "north": earlier[0]})

    host.lie = to_north(lie)
    north, east = both(host)
    assert north.refused().code == "bad-agreement"
    north.write_rows(60)
    again = host.owner("north").begin()
    assert again.refused().code == "meeting-terms"
    (before,) = earlier[0].body.resources
    (now,) = again.kept.consent.body.resources  # type: ignore[union-attr]
    assert (before.rows, now.rows) == (40, 60)
    assert again.kept.agreement is None
    assert host.book.seat("north").signature is None  # type: ignore[union-attr]
    east.refused()


def _later(told: Signed) -> Signed:
    later = replace(told.agreement.agreement, not_after=1_900_000_000)
    return Signed(replace(told.agreement, agreement=later))


def _one_missing(told: Signed) -> Signed:
    left = {k: v for k, v in told.agreement.signatures.items() if k != "east"}
    return Signed(replace(told.agreement, signatures=left))


@pytest.mark.parametrize("change", [_later, _one_missing])
def test_an_agreement_that_others_signed_otherwise_is_not_kept(
    host: LyingHost, change: Callable[[Signed], Signed]
) -> None:
    host.lie = to_north(lambda told: change(told) if isinstance(told, Signed) else told)
    north, east = both(host)
    assert isinstance(north.refused(), SealiftError)
    assert not (north.folder / "agreement.json").exists()
    host.lie = to_north(lambda told: told)
    honest = host.owner("north", answers=()).begin()
    assert honest.end() == honest.kept
    east.end()


@pytest.mark.parametrize(
    "path",
    [
        "../x.py", "/tmp/x.py", "net/../../x.py", "./x.py", "a//x.py", "a\\..\\x.py",
        "recipe.py/x.py", "n" * 300, "/".join(["d"] * 40),
    ],
)  # fmt: skip
def test_a_recipe_that_would_not_lie_in_its_folder_is_refused(
    host: LyingHost, path: str
) -> None:
    files = {"recipe.py": b"x = 1\n", path: b"evil\n"}
    declared = host.declare(code=measure_bundle(files, "recipe.py"))
    host.lie = once(host, declared, files)
    north = host.owner("north").begin()
    error = north.refused()
    assert (type(error), error.code) == (PolicyError, "meeting-terms")
    assert north.questions == []
    assert not (north.folder / "recipe").exists()


def test_what_a_recipe_imports_is_there_before_its_owner_is_asked(
    host: LyingHost,
) -> None:
    """Nobody hears of it: once it is installed the same command goes on."""
    text = b"import no_such_package.part\nfrom torch import nn\n"
    files = {"recipe.py": text}
    host.lie = once(host, host.declare(code=measure_bundle(files, "recipe.py")), files)
    error = host.owner("north").begin().refused()
    assert error.code == "recipe-imports"
    assert "no_such_package," not in str(error)
    assert "no_such_package" in str(error)
    assert all(each.declined is None for each in host.book.seats())


def test_other_files_than_declared_are_noticed(host: LyingHost) -> None:
    files = {**host.host.files, "recipe.py": b"import os\n"}
    host.lie = once(host, host.host.declaration, files)
    north = host.owner("north").begin()
    assert north.refused().code == "meeting-terms"
    assert north.questions == []


def test_a_job_that_sets_other_than_is_declared_is_refused(host: LyingHost) -> None:
    job = host.host.declaration.job.replace("epochs = 2", "epochs = 77777")
    declared = host.declare(job=job)
    host.lie = once(host, declared)
    north = host.owner("north").begin()
    error = north.refused()
    assert (type(error), error.code) == (PolicyError, "settings-differ")
    assert north.questions == []


@pytest.mark.parametrize(
    "name", ["job.toml", "recipe/notes.txt", "vault.db", "agreement.json", "sealed/x"]
)
def test_what_join_did_not_write_stays_as_it_is(host: LyingHost, name: str) -> None:
    north = host.owner("north")
    mine = north.folder / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    error = north.begin().refused()
    assert (type(error), error.code) == (UsageError, "file-in-the-way")
    assert name.partition("/")[0] in str(error)
    assert north.questions == []
    assert mine.read_text() == "mine"
    assert not (north.folder / "meeting.json").exists()


@pytest.mark.parametrize("name", ["recipe/mine.txt", "recipe/recipe.py", "job.toml"])
def test_nor_is_it_replaced_by_another_declaration(host: LyingHost, name: str) -> None:
    """A file that came to lie there, or was changed, after `join` had written it."""
    first = host.owner("north", answers=("n",)).begin()
    assert first.refused().code == "meeting-declined"
    mine = first.folder / name
    mine.write_text("mine")
    files = {"recipe.py": b"x = 2\n"}
    declared = host.declare(
        code=measure_bundle(files, "recipe.py"),
        job=f"{host.host.declaration.job}# another one\n",
    )
    host.lie = once(host, declared, files)
    error = host.owner("north").begin().refused()
    assert (type(error), error.code) == (UsageError, "file-in-the-way")
    assert name in str(error)
    assert mine.read_text() == "mine"
    mine.unlink()  # control: what it wrote itself goes, and comes anew
    declining = host.owner("north", answers=("n",)).begin()
    declining.refused()
    assert declining.questions == ["Compare? (y/N)"]
    left = {each.name for each in (first.folder / "recipe").iterdir()}
    assert left == {"recipe.py"}
    assert (first.folder / "recipe" / "recipe.py").read_bytes() == files["recipe.py"]


def test_a_file_with_the_very_bytes_of_the_hosts_is_its_owners(
    host: LyingHost,
) -> None:
    """It lies at another path, or lay there before `join` wrote any."""
    first = host.owner("north", answers=("n",)).begin()
    assert first.refused().code == "meeting-declined"
    recipe = first.folder / "recipe"
    mine = recipe / "mine.py"
    mine.write_bytes((recipe / "recipe.py").read_bytes())
    files = {"recipe.py": b"x = 2\n"}
    host.lie = once(host, host.declare(code=measure_bundle(files, "recipe.py")), files)
    error = host.owner("north").begin().refused()
    assert (error.code, mine.exists()) == ("file-in-the-way", True)
    recipe = first.folder / "apart" / "recipe"
    recipe.mkdir(parents=True)
    place = open_folder(recipe.parent, "north")
    (recipe / "recipe.py").write_bytes(b"x = 2\n")
    own = place.require_own({}, files, {})
    assert "recipe/recipe.py" not in own
    with pytest.raises(UsageError):
        place.write_recipe({"other.py": b""}, own)
    assert (recipe / "recipe.py").read_bytes() == b"x = 2\n"


def _doubled(raw: bytes) -> list[bytes]:
    return [raw, raw]


def _cut(raw: bytes) -> list[bytes]:
    return [raw[: len(raw) // 2]]


def _padded(raw: bytes) -> list[bytes]:
    return [raw + b" " * (1 << 19)]


def _nonsense(raw: bytes) -> list[bytes]:
    return [b'{"body":{},"type":"signed"}']


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (BringCard, _doubled), (BringCard, _padded), (Wait, _nonsense), (Read, _cut),
        (Check, _doubled), (Signed, _cut),
    ],
)  # fmt: skip
def test_a_spoilt_message_signs_nothing_and_an_honest_one_goes_on(
    host: LyingHost,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    spoil: Callable[[bytes], list[bytes]],
) -> None:
    """Repeated, cut, too long or made up, once, at each place of the protocol."""
    real, spoilt, lock = door.send_message, [], threading.Lock()

    class Spoiling:
        """A session that sends something else."""

        def __init__(self, session: Any) -> None:
            self._session = session

        def send(self, raw: bytes) -> None:
            for each in spoil(raw):
                self._session.send(each)

    def send(session: Any, message: object) -> None:
        with lock:
            first = isinstance(message, kind) and not spoilt
            if first:
                spoilt.append(session.peer.name)
        real(Spoiling(session) if first else session, message)

    monkeypatch.setattr(door, "send_message", send)
    run_to_the_end(host)
    assert len(spoilt) == 1
    assert all(has_agreement(host, each) for each in OWN)


def run_to_the_end(host: LyingHost) -> None:
    """Both owners' commands; one that ends with an error is typed again."""
    running = {name: host.owner(name).begin() for name in OWN}
    errors = 0
    while running:
        for name, owner in [*running.items()]:
            if not owner.wait(0.05):
                continue
            outcome = running.pop(name).end()
            if outcome != owner.kept:
                assert isinstance(outcome, SealiftError), outcome
                assert not has_agreement(host, name)
                errors += outcome.code != "meeting-declined"  # of the other's
                running[name] = host.owner(name).begin()
    assert errors <= 1


def has_agreement(host: LyingHost, name: str) -> bool:
    return (host.folder / name / "agreement.json").exists()


@pytest.mark.parametrize("kind", [Read, Check, Signed])
def test_a_message_out_of_turn_is_refused(host: LyingHost, kind: type) -> None:
    """What comes late in a meeting, said to an owner that was asked nothing yet."""
    seen: dict[type, FromHost] = {}

    def keep(name: str, told: FromHost) -> FromHost:
        seen.setdefault(type(told), told)
        return told

    host.lie = keep
    for each in both(host):
        each.end()
    assert set(seen) >= {Read, Check, Signed}
    fresh = host.folder / "fresh"
    fresh.mkdir()
    for path in ("north.key", "north.pass", "train.csv"):
        (fresh / path).write_bytes((host.folder / "north" / path).read_bytes())
    host.lie = to_north(lambda told: seen[kind])
    north = Owner(fresh, host.invitations["north"]).begin()
    error = north.refused()
    assert (type(error), error.code) == (MalformedError, "bad-message")
    assert north.questions == []


# Blanks that are no spaces, so that what follows stands where a line of a terminal begins.
FORGED = f"said no{chr(0x2800) * 60}sealift: all parties have signed"


def test_what_a_host_says_of_the_end_draws_no_line(host: LyingHost) -> None:
    host.lie = lambda name, told: Over("meeting-declined", "east", FORGED)
    error = host.owner("north").begin().refused()
    assert error.code == "meeting-declined"
    assert str(error).startswith('east: "said no')
    assert chr(0x2800) not in str(error)
    assert "all have signed" not in str(error)
    for words in ("verified] x", "x" * 64):
        with pytest.raises(MalformedError):
            Over(words, "east", "left")
        with pytest.raises(MalformedError):
            Over("meeting-declined", words, "left")


def test_what_a_guest_writes_draws_no_line_on_the_hosts_screen(host: LyingHost) -> None:
    invitation, identity = host.invitations["north"], create_identity("north")
    with door.Conversation(invitation, identity, dial_s=door.ANSWER_S) as north:
        north.say(Propose({FORGED: (FORGED, FORGED)}))
    shown = [line for line in map(_line, host.told) if "said no" in line]
    assert len(shown) == 1
    for line in shown:
        assert chr(0x2800) not in line
        assert "all have signed" not in line
