"""``sealift join INVITATION DATA``: join a meeting, sign its terms, then run the job."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

from sealift.cli.console import ask_afresh, has_terminal, say, show
from sealift.cli.data import add_source_options, source_options
from sealift.cli.meeting.place import add_ask_argument, open_folder, read_invitation
from sealift.cli.meeting.unattended import Unattended, attend
from sealift.cli.view import add_view_argument
from sealift.crypto.identity import Identity
from sealift.crypto.keys import Label
from sealift.data.schema.split import Split
from sealift.errors import JobError, PeerError, UsageError
from sealift.events import emit, wall_clock
from sealift.meet.folder import PartyFolder
from sealift.meet.invitation import Invitation
from sealift.meet.owner import OwnerMeeting, read_kept
from sealift.meet.runs import (
    MeetingRun,
    forget_states,
    has_ended,
    last_run,
    next_run,
    receipt_of,
    require_signed,
    take_run,
)
from sealift.meet.table import BroughtTable
from sealift.release.files import make_folder
from sealift.train.job.caller import Caller, long_command
from sealift.train.job.talk import Talk
from sealift.train.output.results import PartResult
from sealift.travel.visit.memory import ALLOCATOR_ENVIRONMENT

PAUSE_S: Final = 1.0
MOST_DOUBLED: Final = 6  # of the pause after a run that failed here: 2 s, 4 s, to 64 s
# How a run may end without an end to the owner's part: it came to its end, a party was
# gone, or the job failed; the host may start it again, or another one.
_GOES_ON: Final = (0, PeerError.exit_code, JobError.exit_code)
_PERCENT: Final = re.compile(r"([0-9]+) ?%")


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "join INVITATION",
        run=run,
        description="Creates an identity and asks whether it may compare your table, on this "
        "machine, with what the host declares. Then it explains what signing means, asks, and "
        "takes part in the training. All files are written to the current folder; run the same "
        "command there again to continue.",
    )
    parser.add_argument(
        "invitation",
        metavar="INVITATION",
        help="a file with the invitation; - reads it from standard input",
    )
    parser.add_path(
        "data",
        metavar="DATA",
        help="your rows: a .csv, .tsv, .npy, .npz, .safetensors or .parquet file; a folder with "
        "images by class, with Parquet files, or from Dataset.save_to_disk",
    )
    parser.add_path(
        "--heldout",
        metavar="FILE|N%",
        help="rows to measure on, not to train on: a file of their own, or for example 20%% of "
        "DATA, chosen by a hash with your key, so that the same row is always on the same side",
    )
    add_source_options(parser)
    add_view_argument(parser)
    add_ask_argument(parser)
    parser.add_argument(
        "--compare-if",
        metavar="DIGEST",
        default="",
        help="compare the table without a question if the host's declaration has this digest",
    )
    parser.add_argument(
        "--sign-if",
        metavar="DIGEST",
        default="",
        help="sign without a question if the terms have this digest",
    )
    parser.add_flag(
        "--only-graph",
        "refuse a recipe that is a program; release your keys only for a graph",
    )
    parser.add_argument(
        "--privacy",
        nargs=2,
        type=float,
        metavar=("EPSILON", "DELTA"),
        help="the most that all jobs together may spend on your table, by differential privacy; "
        "your broker keeps to it (`sealift privacy plan` says what a budget pays for)",
    )
    parser.add_flag(
        "--stay",
        "take part in the host's next runs, too, as far as the signed agreement allows them",
    )
    parser.add_flag(
        "--decline", "say no without a question; the other parties are told"
    )
    parser.add_allow()


def run(args: argparse.Namespace) -> int:
    """Meet, and go on as the long command."""
    desk = attend(args, owner=True)
    invitation = read_invitation(args.invitation)
    place = open_folder(Path.cwd(), invitation.name, ask=args.passphrase, desk=desk)
    kept = read_kept(place, invitation)
    if not place["agreement.json"].exists():
        invitation.require_in_time(wall_clock())
        if not args.decline and find_spec("torch") is None:
            raise ModuleNotFoundError(name="torch")  # rows will train here, at home
        heldout = args.heldout
        split = heldout is not None and percent_of(heldout) is not None
        for each in (args.data, *([] if split or not heldout else [heldout])):
            if not each.exists():
                raise UsageError(f"{each} does not exist", code="cannot-read")
        identity = place.identity()
        emit(desk.sink, "meeting.attended", name=invitation.name)
        kept = OwnerMeeting(
            invitation,
            place,
            identity,
            brought_by(args, identity),
            kept,
            desk.answers,
            ask=ask_afresh if has_terminal() and desk.file is None else None,
        ).attend()
    require_signed(place, kept.terms, kept.agreement)
    emit(desk.sink, "meeting.signed", name=invitation.name)
    more = [*(["--view"] if args.view else []), *desk.words]
    if args.stay:
        return stay(place, invitation, place.identity(), more)
    return take_part(place, more, desk)


def brought_by(
    args: argparse.Namespace, identity: Identity
) -> tuple[BroughtTable, ...]:
    """The table to train on, and the held-out one if there is one.

    Raises:
        UsageError: an option that does not fit, or no part of a table.
        UnavailableError, MalformedError: as ``load_own_table``.
    """
    return tuple(_brought(args, identity))


def _brought(args: argparse.Namespace, identity: Identity) -> Iterator[BroughtTable]:
    options = source_options(args, args.data)
    if args.heldout is None or (percent := percent_of(args.heldout)) is None:
        yield BroughtTable("train", args.data, options)
        if args.heldout is not None:
            yield BroughtTable(
                "heldout", args.heldout, source_options(args, args.heldout)
            )
        return
    split = Split(identity.derive(Label.HELDOUT_SPLIT), percent, heldout=False)
    yield BroughtTable("train", args.data, replace(options, split=split))
    heldout = replace(split, heldout=True)
    yield BroughtTable("heldout", args.data, replace(options, split=heldout))


def percent_of(heldout: Path) -> int | None:
    """The share of the rows that is held out; None for a file.

    Raises:
        UsageError: a share of all rows, or of none.
    """
    found = _PERCENT.fullmatch(str(heldout))
    if found is None:
        return None
    if not 1 <= int(found[1]) <= 99:
        raise UsageError(f"--heldout {heldout} is not 1% to 99%")
    return int(found[1])


def take_part(place: PartyFolder, more: Sequence[str], desk: Unattended) -> int:
    """Become the long command of the last run, which anybody may type again; the exit code.

    Without a terminal it runs beside this process, which goes on passing its lines on.
    """
    run = last_run(place)
    if has_ended(place, run):
        say(
            "the job has ended; `sealift receipt verify` shows what its receipt proves, and "
            "with --stay this command takes part in the host's next run"
        )
        receipt = receipt_of(place, run).relative_to(place.folder)
        ended: PartResult = {"receipt": str(receipt)}
        show(ended, as_json=not sys.stdout.isatty(), width=9)
        return 0
    words = _words(place, run, more)
    if desk.file is None:
        _become(words)
    return long_command(words)


def _become(words: list[str]) -> NoReturn:
    caller, descriptors = Caller.hand_on()
    for each in descriptors:
        os.set_inheritable(each, True)
    os.environ.update(caller | ALLOCATOR_ENVIRONMENT)  # which it would start again for
    os.execv(sys.executable, [sys.executable, "-P", "-m", "sealift", *words])  # noqa: S606 - ourselves


def stay(
    place: PartyFolder,
    invitation: Invitation,
    identity: Identity,
    more: Sequence[str],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Take part in run after run, until one is refused or this is stopped; the exit code.

    Raises:
        PolicyError: the host begins a run that was not agreed on.
        MalformedError: what the host sends is no run.
    """
    talk, run = Talk(sys.stderr), last_run(place)
    failures = 0  # in turn, of this run
    while True:
        if not has_ended(place, run):
            talk.wait_for("")
            code = long_command(_words(place, run, more))
            if code not in _GOES_ON:
                return code
            sleep(PAUSE_S)
        failed = not has_ended(place, run)
        failures = failures + 1 if failed else 0
        pauses = 2 ** min(failures, MOST_DOUBLED) if failed else 0
        if failed:
            talk.say(
                f"run {run.number} ended here without a result (see above); this command takes part "
                f"in it again in {pauses * PAUSE_S:.0f} s, or as soon as the host has started it again"
            )
        talk.wait_for("the host's next run")
        ended = run.number - 1 if failed else run.number
        while (told := next_run(invitation, identity, ended)) is None or (
            pauses > 0 and told.number == run.number
        ):
            pauses = pauses - 1 if told is not None else 0  # it is away: it starts anew
            sleep(PAUSE_S)
        number, run = run.number, take_run(place, told)
        forget_states(place, run)
        failures = failures if run.number == number else 0
        talk.wait_for("")
        if not has_ended(place, run):
            talk.say(
                f"the host begins run {run.number}, whose settings were agreed on ({run.file}); it "
                f"{run.beginning(place)}"
            )


def _words(place: PartyFolder, run: MeetingRun, more: Sequence[str]) -> list[str]:
    """The long command; what comes of a later run is in a folder of its own."""
    place.identity()  # asks, where no file has the passphrase
    home = "" if run.number == 1 else f"{run.folder}/"
    if home:
        make_folder(place[run.folder])
    words = ["join", run.file, "--key", place.key.name]
    words += ["--passphrase-file", place.passphrase]
    words += ["--vault", "vault.db", "--log", "audit.db", "--heads", "heads.json"]
    words += ["--sealed", "sealed", "--receipts", f"{home}receipts"]
    return [*words, "--state", run.state(place), *more]
