"""Where the invitations of `sealift host` lead, as its screen says."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sealift.cli.meeting.host import LISTEN, _open_book
from sealift.cli.meeting.place import open_folder
from sealift.crypto.identity import create_identity
from sealift.meet.declaration import invitations_for
from sealift.meet.invitation import HOST
from sealift.meet.state import MeetingState

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
    _open_book(args, place).close()
    said = capsys.readouterr().err
    assert ("these invitations work on this machine only" in said) is here_only
    assert ("--listen 0.0.0.0:7420 and --address NAME:7420" in said) is here_only
