"""A host that begins other runs than those that all parties signed, and owners who stay."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.cli.meeting import guest
from sealift.cli.meeting.guest import stay
from sealift.cli.meeting.place import open_folder
from sealift.errors import (
    MalformedError,
    PolicyError,
    SealiftError,
    UsageError,
    require_value,
)
from sealift.meet.declaration import job_text
from sealift.meet.folder import PartyFolder
from sealift.meet.messages import FromHost, Run
from sealift.meet.runs import MeetingRun, chosen_run, forget_states, read_run, take_run
from sealift.release.agreement.training import MAX_PARAMETERS
from tests.sim import lyinghost
from tests.sim.lyinghost import LyingHost, lying_host

JOB = """
[training]
epochs = {epochs}
batch_rows = 8

[parameters]
rate = {rate}

[agreed]
runs = 3
epochs = {{ max = 4 }}
parameters.rate = {{ min = 0.1, max = 1 }}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingHost]:
    """All have signed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lyinghost, "JOB", JOB.format(epochs=2, rate=0.5))
        with lying_host(tmp_path_factory.mktemp("meeting")) as made:
            for each in [made.owner(name).begin() for name in ("north", "east")]:
                each.end()
            yield made


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingHost]:
    """All have signed that runs may leave their state."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lyinghost, "JOB", kept_job(2))
        with lying_host(tmp_path_factory.mktemp("keeping")) as made:
            for each in [made.owner(name).begin() for name in ("north", "east")]:
                each.end()
            yield made


def kept_job(epochs: int, rate: float = 0.5) -> str:
    text = JOB.format(epochs=epochs, rate=rate)
    return text.replace("batch_rows = 8", "batch_rows = 8\nkeep_state = true")


@pytest.fixture
def north(host: LyingHost) -> Iterator[PartyFolder]:
    """An owner's folder, as it is when all have signed."""
    place = open_folder(host.folder / "north", "north")
    there = {each.name for each in place.folder.iterdir()}
    yield place
    for each in place.folder.iterdir():
        if each.name not in there:
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    object.__setattr__(host.host, "run", None)


def text_of(
    host: LyingHost, number: int = 2, epochs: int = 3, rate: float = 0.2
) -> str:
    recipe = host.recipe
    (recipe / "job.toml").write_text(JOB.format(epochs=epochs, rate=rate))
    address = host.host.declaration.job.split('orchestrator = "')[1].split('"')[0]
    return job_text(recipe, "wards", 2, address, number, kind="code")


def refused(call: Callable[[], object]) -> SealiftError:
    with pytest.raises((PolicyError, MalformedError)) as caught:
        call()
    return caught.value


def test_settings_within_the_ranges_are_taken(
    host: LyingHost, north: PartyFolder
) -> None:
    told = MeetingRun(2, text_of(host))
    assert take_run(north, told) == told
    assert north["job-2.toml"].read_text() == told.text
    assert take_run(north, told) == told  # after a restart


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("epochs = 3", "epochs = 5"), "settings-differ"),
        (("rate = 0.2", "rate = 0.05"), "settings-differ"),
        (("rate = 0.2", "rate = 0.2\nmore = 1"), "settings-differ"),
        (("batch_rows = 8", "batch_rows = 4"), "settings-differ"),
        (('plan = "ddp"', 'plan = "local"'), "settings-differ"),
        (("batch_rows = 8", "batch_rows = 8\nkeep_state = true"), "settings-differ"),
        (("batch_rows = 8", 'batch_rows = 8\ncontinues = "wards"'), "settings-differ"),
        (('name = "wards-2"', 'name = "wards"'), "run-differs"),
        (('output = "run-2"', 'output = "elsewhere"'), "run-differs"),
        (('orchestrator = "', 'orchestrator = "other.'), "run-differs"),
        (('bundle = "recipe"', 'bundle = "other"'), "run-differs"),
        (("[training]", "[training"), "bad-toml"),
        (("[training]", "[train]"), "unknown-field"),
    ],
)
def test_a_run_that_was_not_signed_is_refused(
    host: LyingHost, north: PartyFolder, change: tuple[str, str], code: str
) -> None:
    honest = text_of(host)
    assert change[0] in honest
    told = MeetingRun(2, honest.replace(*change, 1))
    assert refused(lambda: take_run(north, told)).code == code
    assert not north["job-2.toml"].exists()


def test_more_runs_than_were_signed_are_refused(
    host: LyingHost, north: PartyFolder
) -> None:
    told = MeetingRun(4, text_of(host, 4))
    assert refused(lambda: take_run(north, told)).code == "too-many-runs"


def test_a_run_has_one_job(host: LyingHost, north: PartyFolder) -> None:
    take_run(north, MeetingRun(2, text_of(host)))
    other = MeetingRun(2, text_of(host, epochs=4))
    assert refused(lambda: take_run(north, other)).code == "run-changed"


def test_who_stays_takes_the_next_run_and_ends_when_one_is_refused(
    host: LyingHost, north: PartyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed: list[str] = []
    codes = iter([0, 7, 5])

    def command(words: list[str]) -> int:
        typed.append(words[1])
        code = next(codes)
        if not code:
            north["receipt.json"].write_text("{}")
        return code

    monkeypatch.setattr(guest, "long_command", command)
    object.__setattr__(host.host, "run", Run(2, text_of(host)))
    invitation = host.invitations["north"]
    code = stay(north, invitation, north.identity(), (), sleep=lambda s: None)
    assert code == 5
    assert typed == [
        "job.toml",
        "job-2.toml",
        "job-2.toml",
    ]  # it failed, and came again


def test_a_run_that_fails_here_is_joined_again_ever_later_or_when_its_host_is_back(
    host: LyingHost, north: PartyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses between a failed try and the next; the host was away once, in the third."""
    slept, pauses = 0, list[int]()
    told: list[MeetingRun | None] = [MeetingRun(1, "")] * 100
    told[9] = None

    def command(words: list[str]) -> int:
        pauses.append(slept)
        return 7 if len(pauses) < 4 else 5

    def sleep(_: float) -> None:
        nonlocal slept
        slept += 1

    monkeypatch.setattr(guest, "long_command", command)
    monkeypatch.setattr(guest, "next_run", lambda *_: told.pop(0))
    invitation = host.invitations["north"]
    identity = north.identity()
    assert stay(north, invitation, identity, (), sleep=sleep) == 5
    first, second, third, fourth = pauses
    assert (second - first, third - second) == (1 + 2, 1 + 4)
    assert fourth - third < 1 + 8


def test_a_host_that_sends_an_earlier_run_is_refused(
    host: LyingHost, north: PartyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_run(north, MeetingRun(2, text_of(host)))
    (north.folder / "run-2").mkdir()
    (north.folder / "run-2" / "receipt.json").write_text("{}")

    def lie(name: str, told: FromHost) -> FromHost:
        return Run(1, host.host.declaration.job)

    monkeypatch.setattr(type(host.host), "next_run", lambda s, n, a: lie(n, Run(1, "")))
    invitation = host.invitations["north"]
    error = refused(
        lambda: stay(north, invitation, north.identity(), (), sleep=lambda s: None)
    )
    assert error.code == "bad-message"


def test_nobody_is_told_of_a_run_who_has_not_signed(host: LyingHost) -> None:
    asked = replace(host.host, run=Run(2, "x"), lie=lyinghost.honest)
    assert isinstance(asked.next_run("north", 1), Run)
    seats = host.book.seats()
    host.book.void()
    assert not isinstance(asked.next_run("north", 1), Run)
    for each in seats:
        host.book.agree(each.name, require_value(each.consent, "it said yes"))
        host.book.sign(each.name, require_value(each.signature, "it signed"))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("epochs = { min = 3, max = 4 }", "training.epochs = 2"),
        ("epoch = { max = 4 }", "agreed.epoch"),
        ('plans = ["local"]', "agreed.plans"),
        ("parameters.rate = { min = 0.6, max = 1 }", "parameters.rate"),
        ("parameters.other = { min = 0.6, max = 1 }", "has no other"),
        ("parameters.rate = { min = 1, max = 0 }", "agreed.parameters.rate"),
        ("runs = -1", "agreed.runs"),
        ("seed = [1, 2]", "seed"),
    ],
)
def test_ranges_that_do_not_hold_the_job_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, said: str
) -> None:
    head = JOB.format(epochs=2, rate=0.5).partition("[agreed]")[0]
    monkeypatch.setattr(lyinghost, "JOB", f"{head}[agreed]\n{written}\n")
    with pytest.raises(MalformedError) as caught:
        LyingHost(tmp_path)
    assert said in str(caught.value)


def test_too_many_parameters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join(f"p{number} = 1" for number in range(MAX_PARAMETERS + 1))
    monkeypatch.setattr(lyinghost, "JOB", f"[parameters]\n{lines}\n")
    with pytest.raises(MalformedError) as caught:
        LyingHost(tmp_path)
    assert caught.value.code == "bad-parameter"


def test_a_host_begins_no_run_that_it_may_not(
    host: LyingHost, north: PartyFolder
) -> None:
    """Its folder is like an owner's here; what it asks for is compared alike."""
    place = north
    recipe = host.recipe
    text_of(host, epochs=2, rate=0.5)
    assert chosen_run(recipe, place).number == 1
    text_of(host, epochs=4)
    assert chosen_run(recipe, place).number == 2
    assert chosen_run(recipe, place).number == 2
    text_of(host, epochs=5)
    error = refused(lambda: chosen_run(recipe, place))
    assert (error.code, "training.epochs = 5" in error.what) == (
        "settings-differ",
        True,
    )
    assert "0 to 4" in error.why
    text_of(host, epochs=2, rate=0.5)
    assert chosen_run(recipe, place).number == 1


def test_a_run_with_more_epochs_alone_goes_on(keeping: LyingHost) -> None:
    place = open_folder(keeping.folder / "north", "north")
    recipe = keeping.recipe
    first = require_value(read_run(place, 1), "it was signed")
    assert first.job.training.keep_state
    (recipe / "job.toml").write_text(kept_job(3))
    cut_off = chosen_run(recipe, place)  # what did not end is not gone on from
    assert not cut_off.job.training.continues
    place[cut_off.file].unlink()
    place[first.model].write_bytes(b"")
    (recipe / "job.toml").write_text(kept_job(3, rate=0.2))
    anew = chosen_run(recipe, place)
    assert not anew.job.training.continues
    assert anew.state(place) == "run-2/state"
    place[anew.file].unlink()
    (recipe / "job.toml").write_text(kept_job(3))
    later = chosen_run(recipe, place)
    assert later.job.training.continues == "wards"
    assert later.job.training.keep_state
    assert later.state(place) == "state"
    assert chosen_run(recipe, place) == later
    place[later.model].write_bytes(b"")
    (recipe / "job.toml").write_text(kept_job(4))
    last = chosen_run(recipe, place)
    assert last.job.training.continues == "wards"
    assert not last.job.training.keep_state  # nothing may follow
    assert "run 2 left" in last.beginning(place)


def test_a_run_goes_on_from_one_of_its_own_meeting_alone(keeping: LyingHost) -> None:
    place = open_folder(keeping.folder / "east", "east")
    (keeping.recipe / "job.toml").write_text(kept_job(3))
    address = keeping.host.declaration.job.split('orchestrator = "')[1].split('"')[0]

    def told(continues: str) -> MeetingRun:
        text = job_text(
            keeping.recipe, "wards", 2, address, 2, kind="code", continues=continues
        )
        return MeetingRun(2, text)

    place["receipt.json"].write_text("{}")
    assert refused(lambda: take_run(place, told("others"))).code == "run-differs"
    assert refused(lambda: take_run(place, told("wards-2"))).code == "run-differs"
    assert take_run(place, told("wards")) == told("wards")  # control
    place["job-2.toml"].unlink()


def test_a_state_is_kept_for_runs_that_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = kept_job(2).replace("runs = 3", "runs = 1")
    monkeypatch.setattr(lyinghost, "JOB", alone)
    with pytest.raises(UsageError) as caught:
        LyingHost(tmp_path)
    assert caught.value.code == "bad-choice"


@pytest.fixture
def told(keeping: LyingHost) -> Callable[..., MeetingRun]:
    """What a host may say of a run that goes on from the first."""
    address = keeping.host.declaration.job.split('orchestrator = "')[1].split('"')[0]

    def write(job: str, number: int = 2, *, is_last: bool = False) -> MeetingRun:
        (keeping.recipe / "job.toml").write_text(job)
        text = job_text(
            keeping.recipe, "wards", 2, address, number, kind="code",
            continues="wards", is_last=is_last,
        )  # fmt: skip
        return MeetingRun(number, text)

    return write


@pytest.fixture
def east(keeping: LyingHost) -> Iterator[PartyFolder]:
    """The folder of an owner that has the first run's receipt."""
    place = open_folder(keeping.folder / "east", "east")
    place["receipt.json"].write_text("{}")
    yield place
    for name in ("receipt.json", "job-2.toml"):
        place[name].unlink(missing_ok=True)


@pytest.mark.parametrize(
    "job",
    [
        kept_job(2),
        kept_job(1),
        kept_job(3, rate=0.2),
        kept_job(3).replace("batch_rows = 8", "batch_rows = 8\nseed = 1"),
        kept_job(3).replace("batch_rows = 8", "batch_rows = 8\nstop_after = 1"),
    ],
    ids=["as many epochs", "fewer", "a parameter", "another seed", "another end"],
)
def test_every_owner_refuses_a_run_that_goes_on_with_other_settings(
    east: PartyFolder, told: Callable[..., MeetingRun], job: str
) -> None:
    with pytest.raises((PolicyError, SealiftError)) as caught:
        take_run(east, told(job))
    assert caught.value.code in ("run-differs", "settings-differ")
    assert not east["job-2.toml"].exists()


def test_an_owner_whose_run_did_not_end_does_not_go_on_from_it(
    east: PartyFolder, told: Callable[..., MeetingRun]
) -> None:
    run = told(kept_job(3))
    east["receipt.json"].unlink()
    assert refused(lambda: take_run(east, run)).code == "run-differs"
    east["receipt.json"].write_text("{}")
    assert take_run(east, run) == run  # control


def test_a_state_that_no_run_can_go_on_from_is_deleted(
    east: PartyFolder, told: Callable[..., MeetingRun]
) -> None:
    file = east["state"] / "rank-0" / "checkpoint-1"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"sealed")
    run = take_run(east, told(kept_job(3)))
    forget_states(east, run)
    assert file.exists()  # this run goes on from it
    anew = MeetingRun(2, run.text.replace('continues = "wards"', 'continues = ""'))
    assert anew.state(east) == "run-2/state"
    receipt = east["receipt.json"]
    receipt.rename(east["elsewhere"])
    forget_states(east, anew)
    assert file.exists()  # the first run may be resumed
    east["elsewhere"].rename(receipt)
    forget_states(east, anew)
    assert not east["state"].exists()


def test_the_last_run_keeps_no_state(
    east: PartyFolder, told: Callable[..., MeetingRun]
) -> None:
    assert refused(lambda: take_run(east, told(kept_job(3), 3))).code == "run-differs"
    run = told(kept_job(3), 3, is_last=True)
    assert take_run(east, run) == run
    east[run.file].unlink()


def test_a_job_that_names_what_it_goes_on_from_is_refused(
    keeping: LyingHost, told: Callable[..., MeetingRun]
) -> None:
    job = kept_job(3).replace("batch_rows = 8", 'batch_rows = 8\ncontinues = "wards"')
    assert refused(lambda: told(job)).code == "bad-field"
