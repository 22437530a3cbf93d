"""`sealift.host`, `sealift.join` and `sealift.run`: the commands, their errors, their end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import sealift
from sealift.api import Meeting, Question
from sealift.cli.main import EXIT_BUG, main
from sealift.errors import (
    JobError,
    RefusedError,
    SealiftError,
    UnavailableError,
    UsageError,
)
from sealift.ids import Digest
from sealift.meet.question import words_of
from tests.sim.jobworld import Wishes, fresh_world
from tests.sim.ownaddress import own_address

pytestmark = pytest.mark.distributed
SOURCE = str(Path(sealift.__file__).parent.parent)
WAIT_S = 240.0
RECIPE = """
import torch
from torch import nn


class Guess(nn.Module):
    def __init__(self):
        super().__init__()
        self.shares = nn.Parameter(torch.zeros(2))

    def training_step(self, batch, step):
        guessed = self.shares.expand(len(batch["kind"]), 2)
        return nn.functional.cross_entropy(guessed, batch["kind"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def build():
    return Guess()
"""
SCHEMA = '[[fields]]\nname = "kind"\ndtype = "int64"\nclasses = 2\n'


def wait_until(listening: bool, address: str) -> None:
    """Until somebody listens there, or nobody."""
    where, _, port = address.partition(":")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with socket.socket() as dialled:
            if (dialled.connect_ex((where, int(port))) == 0) is listening:
                return
        time.sleep(0.05)
    raise AssertionError(f"listening is not {listening}")


class Two:
    """A host and two owners, each with its folder; north is looked at."""

    def __init__(self, folder: Path) -> None:
        self.host, self.north = folder / "host", folder / "north"
        self.south = folder / "south"
        (self.host / "kinds").mkdir(parents=True)
        (self.host / "kinds" / "recipe.py").write_text(RECIPE)
        (self.host / "kinds" / "schema.toml").write_text(SCHEMA)
        rows = "".join(f"{row % 2}\n" for row in range(40))
        for home in (self.north, self.south):
            home.mkdir()
            (home / "train.csv").write_text(f"kind\n{rows}")
        self.address = own_address()
        self.said: list[str] = []

    def call(self) -> Meeting:
        return sealift.host(
            "kinds",
            ["north", "south"],
            folder=self.host,
            listen=self.address,
            talk=self.said.append,
        )

    def beside(self, meeting: Meeting) -> threading.Thread:
        """South brings its card, and signs nothing."""

        def take_part() -> None:
            heard: list[str] = []
            words = (meeting.invitations["south"], "train.csv")
            with suppress(SealiftError):
                sealift.join(*words, folder=self.south, talk=heard.append)
            with suppress(SealiftError):
                digest = digests(heard)[0]
                sealift.join(
                    *words, folder=self.south, talk=heard.append, compare=digest
                )

        thread = threading.Thread(target=take_part)
        thread.start()
        return thread


def digests(heard: list[str]) -> list[str]:
    """What each question was about, in the order of the questions."""
    lines = [each for each in heard if each.startswith("sealift: digest ")]
    return [each.split()[-1] for each in lines]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    return Two(tmp_path)


def test_importing_the_product_loads_no_command() -> None:
    program = (
        "import sys, sealift\n"
        "assert not any(each.startswith('sealift.') for each in sys.modules)\n"
        "names = [sealift.host, sealift.join, sealift.run]\n"
        "sys.exit(9 if {'torch', 'numpy', 'pydantic'} & set(sys.modules) else 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("job", "options", "kind"),
    [
        ("nothing.toml", {}, UnavailableError),
        ("job.toml", {"sealed": "--nothing", "frist": 1}, UsageError),
    ],
)
def test_an_error_is_the_command_s(
    tmp_path: Path, job: str, options: dict, kind: type[SealiftError]
) -> None:
    heard: list[str] = []
    with pytest.raises(kind) as caught:
        sealift.run(job, folder=tmp_path, talk=heard.append, **options)
    assert f"sealift: {caught.value} [{caught.value.code}]" == heard[-1]
    words = [f"--{name}={value}" for name, value in options.items()]
    typed = subprocess.run(
        [sys.executable, "-m", "sealift", "train", job, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert typed.returncode == kind.exit_code
    assert typed.stderr.splitlines()[-1] == heard[-1]


def test_talk_goes_to_stderr(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        sealift.run("nothing.toml", folder=tmp_path)
    said = capfd.readouterr()
    assert said.err == f"sealift: {caught.value} [cannot-read]\n"
    assert said.out == ""


def test_no_folder_and_no_name(two: Two) -> None:
    with pytest.raises(UnavailableError, match="nowhere") as caught:
        sealift.run("job.toml", folder=two.host / "nowhere")
    assert caught.value.code == "cannot-read"
    with pytest.raises(UsageError):
        sealift.host("kinds", [], folder=two.host, talk=two.said.append)


def test_a_job_s_result(tmp_path: Path) -> None:
    world = fresh_world(tmp_path, Wishes(plan="local", owners=("north",), epochs=1))
    home = world.home("north")
    ran = sealift.run(
        world.job.name,
        folder=tmp_path,
        key=[home.key],
        passphrase_file=[home.passphrase],
        vault=home.vault,
        sealed=[home.sealed],
        watch=True,
        state=None,
    )
    assert ran["plan"] == "local"
    assert (tmp_path / ran["run"] / "model.safetensors").is_file()


def test_what_talk_raises_ends_the_command(two: Two) -> None:
    def interrupt(line: str) -> None:
        raise LookupError(line)

    with pytest.raises(LookupError, match="sealift: "):
        sealift.host(
            "kinds", ["north", "south"], folder=two.host, talk=interrupt
        ).wait()


def test_the_same_call_goes_on_and_leaving_ends_it(two: Two) -> None:
    with two.call() as meeting:
        wait_until(True, two.address)
        first = meeting.invitations
    wait_until(False, two.address)
    with pytest.raises(JobError) as caught:  # it was ended here
        meeting.wait()
    assert caught.value.code == "role-ended"
    with two.call() as again:
        assert again.invitations == first
    assert list(first) == ["north", "south"]
    assert again.printed == [f"{name}  {line}" for name, line in first.items()]
    with pytest.raises(UsageError) as other:
        sealift.host("kinds", ["south", "east"], folder=two.host, talk=two.said.append)
    assert other.value.code == "other-meeting"


def test_a_model_that_lies_there_already(two: Two) -> None:
    (two.host / "model.safetensors").write_bytes(b"whole")
    with pytest.raises(UsageError) as caught:
        two.call().wait()
    assert caught.value.code == "output-exists"
    assert (two.host / "model.safetensors").read_bytes() == b"whole"
    assert not (two.host / "meeting.db").exists()


def test_it_outlives_the_thread_that_called(two: Two) -> None:
    found: list[Meeting] = []
    caller = threading.Thread(target=lambda: found.append(two.call()))
    caller.start()
    caller.join()
    with found[0] as meeting:
        wait_until(True, two.address)
        with pytest.raises(UsageError, match="terminal"):
            sealift.join(meeting.invitations["north"], "train.csv", folder=two.north)


def test_it_ends_with_the_process_that_called(two: Two) -> None:
    program = (
        "import sealift, sys, time\n"
        "held = sealift.host('kinds', ['north', 'south'], folder=sys.argv[1],"
        " listen=sys.argv[2])\n"
        "time.sleep(1000)\n"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", program, two.host, two.address],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(True, two.address)
    finally:
        caller.kill()
        caller.wait()
    wait_until(False, two.address)


def test_nothing_is_signed_without_a_yes(two: Two) -> None:
    heard: list[str] = []
    asked: list[Question] = []

    def take_part(sign: object, compare: str | None = None) -> SealiftError:
        with pytest.raises(SealiftError) as caught:
            sealift.join(
                meeting.invitations["north"],
                "train.csv",
                folder=two.north,
                compare=compare,
                sign=sign,
                talk=heard.append,
            )
        return caught.value

    with two.call() as meeting:
        south = two.beside(meeting)
        refused = take_part(f"sha256:{'0' * 64}")  # to sign says nothing of comparing
        assert isinstance(refused, UsageError)
        assert refused.code == "not-confirmed"
        (declared,) = digests(heard)
        assert not (two.north / "sealed").exists()
        refused = take_part(None, f"sha256:{'0' * 64}")
        assert refused.code == "not-confirmed"

        refused = take_part(None, declared)
        south.join()
        assert isinstance(refused, UsageError)
        assert refused.code == "not-confirmed"
        digest = digests(heard)[-1]
        assert digest != declared
        assert any("At level development, your rows" in each for each in heard)
        assert heard[-1].endswith("[not-confirmed]")

        refused = take_part(f"sha256:{'0' * 64}")
        assert isinstance(refused, UsageError)
        assert refused.code == "not-confirmed"

        heard.clear()
        refused = take_part(asked.append)  # which says neither yes nor no
        assert isinstance(refused, RefusedError)
        assert refused.code == "meeting-declined"
        assert not any("not-confirmed" in each for each in heard)
    (question,) = asked
    assert (question.about, question.digest) == ("sign", digest)
    assert question.words.split() == [*words_of(Digest.from_text(digest))]
    assert any("At level development" in line for line in question.lines)
    assert str(question).endswith(digest)
    assert any("north: said no" in each for each in two.said)
    assert not (two.north / "sealed").exists()
    assert not (two.north / "agreement.json").exists()


def test_a_command_s_command_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for code, seen in ((7, 7), (None, 0), ("text", EXIT_BUG)):

        def run(words: list[str], code: object = code) -> int:
            raise SystemExit(code)

        monkeypatch.setattr("sealift.cli.main.install_stop_signals", lambda: None)
        monkeypatch.setattr("sealift.cli.main._run", run)
        assert main(["explain"]) == seen
