"""The two roles that `sealift train` starts: orchestrator and accelerator, as children.

One that was killed is started again, a few times: the other one waits for it, and the
job goes on from its last checkpoint. One that ended by itself said why, and is not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sealift.cli.hostattester import HOST
from sealift.cli.judging import JUDGING, option_words
from sealift.cli.signals import followed, stop_postponed
from sealift.train.eventlines import RoleEvent
from sealift.train.household import Household

ORCHESTRATOR: Final = "orchestrator"
ACCELERATOR: Final = "accelerator"


class TravelRoles:
    """Starts both, and again.

    Args:
        house: Where they run.
        args: Of the command.
        restarts: Most times that each is started again.
        say: Gets a line for people.
    """

    def __init__(
        self,
        house: Household,
        args: argparse.Namespace,
        *,
        restarts: int,
        say: Callable[[str], None],
    ) -> None:
        self._house = house
        self._args = args
        self._say = say
        self._address = args.orchestrator
        self._listening: RoleEvent | None = None
        self._left = {ORCHESTRATOR: restarts, ACCELERATOR: restarts}

    def start_orchestrator(self) -> None:
        """At the address that was asked for, or where it listened before."""
        args = self._args
        words: list[str | Path] = [ORCHESTRATOR, args.job, "--events", "-"]
        words += ["--key", args.key[0], "--passphrase-file", args.passphrase_file[0]]
        if args.output is not None:
            words += ["--output", args.output]
        if self._address is not None:
            words += ["--orchestrator", self._address]
        words += option_words(args, JUDGING)
        self._start(ORCHESTRATOR, words)

    def take_listening(self, event: RoleEvent) -> None:
        """The orchestrator listens: time for the accelerator, unless it is there."""
        self._address = f"{event.text('host')}:{event.fields['port']}"
        self._listening = event
        if ACCELERATOR not in self._house.children:
            self._start_accelerator(event)

    def start_again(self, name: str) -> bool:
        """Start a role that was killed; False if it ended otherwise, or too often."""
        if not self._left[name] or not self._house.was_killed(name):
            return False
        self._left[name] -= 1
        self._say(f"the {name} was killed; started again")
        if name == ORCHESTRATOR:
            self.start_orchestrator()
        elif self._listening is not None:
            self._start_accelerator(self._listening)
        return True

    def _start_accelerator(self, listening: RoleEvent) -> None:
        args, host = self._args, listening.text("host")
        here = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared
        words: list[str | Path] = [ACCELERATOR, args.job, "--events", "-"]
        words += ["--orchestrator", f"{here}:{listening.fields['port']}"]
        words += ["--key", args.attester_key]
        words += ["--passphrase-file", args.attester_passphrase_file]
        if args.state is not None:
            words += ["--state", args.state]
        if args.must_resume:
            words.append("--must-resume")
        words += option_words(args, (*JUDGING, *HOST))
        self._start(ACCELERATOR, words)

    def _start(self, name: str, words: list[str | Path]) -> None:
        with stop_postponed():
            self._house.start(name, "sealift", words, followed())
