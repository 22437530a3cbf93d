"""Options of both sides of a meeting: the party's folder, its passphrase, its invitation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from sealift.cli.arguments import Parser
from sealift.cli.console import read_passphrase, say
from sealift.cli.meeting.unattended import Unattended
from sealift.meet.folder import PartyFolder
from sealift.meet.invitation import PREFIX, Invitation, parse_invitation
from sealift.meet.owner import unanswered
from sealift.release.files import read_whole

_MAX_READ: Final = 1 << 16


def add_ask_argument(parser: Parser) -> None:
    """Add ``--passphrase``."""
    parser.add_flag("--passphrase", "ask for the key's passphrase; write it to no file")
    parser.add_file(
        "--no-terminal",
        help="ask nothing: FILE, a TOML file, has the answers (docs/reference/answers.md); "
        "everything that is said is written to standard output, one event in JSON a line",
    )
    parser.add_status()


def read_invitation(text: str) -> Invitation:
    """The invitation in a file, from standard input for ``-``, or the line itself.

    Raises:
        MalformedError: code ``bad-invitation``.
        UnavailableError: the file cannot be read.
    """
    if text.startswith(PREFIX):
        say(
            "every user of this machine can read this invitation in the list of processes; "
            "save it in a file and give the name of the file"
        )
    elif text == "-":
        source = sys.stdin  # at a terminal the answers to questions follow
        text = source.readline(_MAX_READ) if source.isatty() else source.read(_MAX_READ)
    else:
        text = read_whole(Path(text), _MAX_READ).decode("utf-8", "replace")
    return parse_invitation(text)


def open_folder(
    folder: Path,
    name: str,
    *,
    ask: bool = False,
    desk: Unattended = Unattended(),  # noqa: B008 - frozen
) -> PartyFolder:
    """The folder of a party, whose passphrase is asked for at this terminal if there is one."""

    def read(prompt: str, twice: bool) -> str:
        if desk.file is not None:
            say(f"the {prompt} is needed")
            raise unanswered(desk.file.name, 'passphrase_file = "FILE"')
        return read_passphrase(None, prompt=prompt, twice=twice)

    return PartyFolder(
        folder,
        name,
        ask,
        say=say,
        read_passphrase=read,
        passphrase_file=desk.passphrase_file,
    )
