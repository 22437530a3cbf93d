"""Where the invitations of `sealift host` lead, as its screen says; and that there are none to nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sealift.cli.meeting.host import LISTEN, _open_book
from sealift.cli.meeting.place import open_folder
from sealift.crypto.identity import create_identity
from sealift.errors import SealiftError
from sealift.meet.declaration import invitations_for
from sealift.meet.invitation import HOST
from sealift.meet.state import MeetingState
from tests.sim.lyinghost import SCHEMA

NAMES = ["north", "east"]


@pytest.mark.parametrize(
    ("address", "here_only"), [("", True), ("host.example:7420", False)]
)
def test_invitations_to_this_machine_are_said_to_be_that(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    address: str,
    here_only: bool,
) -> None:
    args = argparse.Namespace(
        invite=NAMES, listen=LISTEN, address=address, days=2, no_terminal=None
    )
    place = open_folder(tmp_path, HOST)
    invited = invitations_for(
        create_identity(HOST), NAMES, address=address or LISTEN, days=2
    )
    MeetingState.create(place["meeting.db"], invited).close()
    _open_book(args, place, (), None).close()
    said = capsys.readouterr().err
    assert ("these invitations work on this machine only" in said) is here_only
    assert ("--listen 0.0.0.0:7420 and --address NAME:7420" in said) is here_only


STEPS = "[privacy]\nclip = 1.0\nnoise = 1.0\nbatch = 16\n"


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (f"{STEPS}honest_ranks = 3\n", "bad-agreement"),
        (f'{STEPS}honest_ranks = 2\n[slices]\nsums = "open"\n', "bad-agreement"),
        (f"{STEPS}[training]\nbatch_rows = 32\n", "privacy-not-enforced"),
        (STEPS.replace("batch = 16", "batch = 0"), "bad-privacy"),
    ],
)
def test_nobody_is_invited_to_what_cannot_be_agreed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str, code: str
) -> None:
    recipe = tmp_path / "wards"
    recipe.mkdir()
    (recipe / "recipe.py").write_text("def build():\n    return None\n")
    (recipe / "schema.toml").write_text(SCHEMA)
    (recipe / "job.toml").write_text(job)
    args = argparse.Namespace(
        recipe=recipe, invite=["north", "east", "south"], listen="127.0.0.1:0",
        address="host.example:7420", days=2, no_terminal=None,
    )  # fmt: skip
    place = open_folder(tmp_path, HOST)
    with pytest.raises(SealiftError) as refused:
        _open_book(args, place, (), None)
    assert refused.value.code == code
    assert not place["meeting.db"].exists()
    assert capsys.readouterr().out == ""
