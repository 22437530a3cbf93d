"""A meeting without a terminal: a file answers what would be asked, and all that is said is JSON.

The yes of a file is the digest of what was read, and never a plain yes: what the host shows
later, it has not answered. Whatever this process and those that it starts write for people
goes to standard output, one event a line, so that a service's log has one form.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sealift.codec import parse_toml
from sealift.errors import MalformedError, UsageError, nearest
from sealift.events import Event, Sink, discard, emit
from sealift.health.reporting import report_until_exit
from sealift.ids import Digest
from sealift.meet.question import OwnerAnswers
from sealift.release.accountant import require_accountant
from sealift.release.agreement import PrivacyBudget
from sealift.release.agreement.holes import EXCEPTIONS
from sealift.release.files import read_whole
from sealift.train.job.roleprocesses import EventLines, RoleEvent, parse_line
from sealift.train.job.service import with_notices

LAST_LINES_S: Final = 5.0  # a child that was killed may keep the pipe open
_MAX_READ: Final = 1 << 16
_HOSTS: Final[dict[str, type]] = {"passphrase_file": str}
_OWNERS: Final[dict[str, type]] = {
    **_HOSTS,
    "compare": str,
    "sign": str,
    "decline": bool,
    "allow": list,
    "send_texts": list,
}
_KINDS: Final = {str: "a text", bool: "true or false", list: "a list of texts"}


@dataclass(frozen=True, slots=True)
class Unattended:
    """What one side of a meeting has instead of a terminal.

    Attributes:
        file: With the answers; None at a terminal.
        passphrase_file: What opens the identity key; None for the one of this folder.
        answers: An owner's.
        sink: Gets what the role does.
    """

    file: Path | None = None
    passphrase_file: Path | None = None
    answers: OwnerAnswers = field(default_factory=OwnerAnswers)
    sink: Sink = discard

    @property
    def words(self) -> tuple[str, ...]:
        """Options of a role's command that is started for this one."""
        return () if self.file is None else ("--events", "-")


def _rule_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say of the owner's own rule.

    Raises:
        MalformedError: ``bad-privacy``.
        UnavailableError: ``extra-missing``: nothing here counts a budget.
    """
    if args.privacy is None:
        return {"only_graph": args.only_graph}
    require_accountant()
    epsilon, delta = args.privacy
    budget = PrivacyBudget(epsilon=epsilon, delta=delta)
    return {"only_graph": args.only_graph, "privacy": budget}


def attend(args: argparse.Namespace, *, owner: bool) -> Unattended:
    """Read the answers of ``--no-terminal FILE``, and write everything as events from here on.

    Raises:
        UsageError: ``usage``: an answer is given on the command line, too.
        MalformedError: ``unknown-field``, ``bad-field``.
        UnavailableError: the file cannot be read.
    """
    given = OwnerAnswers()
    if owner:
        given = OwnerAnswers(args.compare_if, args.sign_if, args.decline, args.allow)
    rule = _rule_of(args) if owner else {}  # no answer: it is never asked for
    if args.no_terminal is None:
        if args.status is not None:
            raise UsageError("--status needs --no-terminal")
        return Unattended(answers=replace(given, **rule))
    if args.passphrase or given not in (OwnerAnswers(), OwnerAnswers(allow=[])):
        raise UsageError(
            "an option and the file of --no-terminal answer the same questions",
            fix=f"Write all answers to {args.no_terminal}",
        )
    found = _read(args.no_terminal, _OWNERS if owner else _HOSTS)
    own = found.get("passphrase_file")
    texts = found.get("send_texts")
    answers = OwnerAnswers(
        found.get("compare", ""),
        found.get("sign", ""),
        found.get("decline", False),
        found.get("allow", []),
        file=args.no_terminal.name if owner else "",
        send_texts=None if texts is None else tuple(texts),
        **rule,
    )
    return Unattended(
        args.no_terminal,
        None if own is None else args.no_terminal.resolve().parent / own,
        answers,
        _told_as_events(args.status),
    )


def _read(file: Path, known: dict[str, type]) -> dict[str, Any]:
    """The keys of the file, each of its kind.

    Raises:
        MalformedError: ``unknown-field``, ``bad-field``.
    """
    found = parse_toml(read_whole(file, _MAX_READ), source=str(file))
    for key, value in found.items():
        if key not in known:
            raise MalformedError(
                f"{file.name} has a key that belongs to no question",
                field=key,
                fix=nearest(key, known) or f"It may have: {', '.join(known)}",
                code="unknown-field",
            )
        texts = value if isinstance(value, list) else []
        if not isinstance(value, known[key]) or not all(
            isinstance(each, str) for each in texts
        ):
            raise MalformedError(
                f"{file.name} has an answer of another kind",
                field=key,
                why=f"it must be {_KINDS[known[key]]}",
                code="bad-field",
            )
    for digest in filter(None, map(found.get, ("compare", "sign"))):
        Digest.from_text(digest)
    for name in set(found.get("allow", [])) - set(EXCEPTIONS):
        raise MalformedError(
            f"{file.name} allows an exception that does not exist",
            field=f"allow: {name}",
            fix=nearest(name, EXCEPTIONS),
            code="bad-field",
        )
    return found


def _told_as_events(status: Path | None) -> Sink:
    """A sink on standard output, where all other lines go as well, those of children too.

    What is a line of JSON already stays as it is; events of children are counted.

    Args:
        status: Folder of this role's state, if somebody wants to know.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    places = sys.stdout.fileno(), sys.stderr.fileno()
    reading, writing = os.pipe()
    for each in places:
        os.dup2(writing, each)
    os.close(writing)
    written = EventLines(out)
    counted = report_until_exit(status, "meeting", discard)

    def pass_on() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if (found := parse_line("", line)) is not None:
                    out.write(line)
                    out.flush()
                    if isinstance(found, RoleEvent):
                        counted(Event(found.kind, found.fields))
                elif said := line.rstrip("\n").removeprefix("sealift: "):
                    emit(written, "said", line=said)

    thread = threading.Thread(target=pass_on, name="lines", daemon=True)
    thread.start()

    def last_lines() -> None:
        for stream, place in zip((sys.stdout, sys.stderr), places, strict=True):
            stream.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), place)
        thread.join(LAST_LINES_S)

    atexit.register(last_lines)
    return with_notices(EventLines(sys.stdout))
