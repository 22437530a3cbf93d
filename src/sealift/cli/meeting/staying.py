"""How an owner takes part once all have signed: in one run, or in all that the host begins."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sealift.cli.console import Caller, say, show
from sealift.cli.meeting.place import PartyFolder
from sealift.cli.meeting.runs import (
    MeetingRun,
    last_run,
    long_command,
    take_run,
)
from sealift.crypto.identity import Identity
from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    quote_foreign,
)
from sealift.meet.door import Conversation
from sealift.meet.invitation import Invitation
from sealift.meet.messages import AskRun, Over, Run
from sealift.meet.terms import MAX_JOB_BYTES, Terms
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import load_verified
from sealift.release.files import make_folder, read_whole, write_whole
from sealift.train.job.talk import Talk
from sealift.travel.visit.messages import RUN_RECEIPT_NAME

PAUSE_S: Final = 1.0
DIAL_S: Final = 5.0
# How a run may end without an end to the owner's part: it came to its end, a party was
# gone, or the job failed; the host may start it again, or another one.
_GOES_ON: Final = (0, PeerError.exit_code, JobError.exit_code)


def require_signed(
    place: PartyFolder, terms: Terms | None, agreement: Agreement | None
) -> None:
    """The job that begins is the one that was signed: agreement and job file.

    Raises:
        PolicyError: ``other-meeting``, ``job-differs``.
    """
    agreed = load_verified(place["agreement.json"]).agreement
    if terms is None or agreement is None or agreed != agreement:
        raise PolicyError(
            "agreement.json is not what was signed in this folder", code="other-meeting"
        )
    path, job = place["job.toml"], terms.declaration.job.encode()
    if not path.exists():
        write_whole(path, job)
    elif read_whole(path, MAX_JOB_BYTES) != job:
        raise PolicyError(
            "job.toml is not the job that was signed",
            why="it was changed after the signature",
            code="job-differs",
        )


def take_part(place: PartyFolder, *, view: bool) -> None:
    """Become the long command of the last run, which anybody may type again."""
    run = last_run(place)
    if _has_ended(place, run):
        say(
            "the job has ended; `sealift receipt verify` shows what its receipt proves, and "
            "with --stay this command takes part in the host's next run"
        )
        receipt = str(_receipt_of(place, run).relative_to(place.folder))
        show({"receipt": receipt}, as_json=not sys.stdout.isatty(), width=9)
        return
    words = _words(place, run, view=view)
    caller, descriptors = Caller.hand_on()
    for each in descriptors:
        os.set_inheritable(each, True)
    os.environ.update(caller)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "sealift", *words])  # noqa: S606 - ourselves


def stay(
    place: PartyFolder,
    invitation: Invitation,
    identity: Identity,
    *,
    view: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Take part in run after run, until one is refused or this is stopped; the exit code.

    Raises:
        PolicyError: the host begins a run that was not agreed on.
        MalformedError: what the host sends is no run.
    """
    talk, run = Talk(sys.stderr), last_run(place)
    while True:
        if not _has_ended(place, run):
            talk.wait_for("")
            code = long_command(_words(place, run, view=view))
            if code not in _GOES_ON:
                return code
            sleep(PAUSE_S)
        ended = run.number if _has_ended(place, run) else run.number - 1
        talk.wait_for("the host's next run")
        while (told := _next_run(invitation, identity, ended)) is None:
            sleep(PAUSE_S)
        run = take_run(place, told)
        talk.wait_for("")
        if not _has_ended(place, run):
            talk.say(
                f"the host begins run {run.number}, whose settings were agreed on ({run.file})"
            )


def _next_run(
    invitation: Invitation, identity: Identity, after: int
) -> MeetingRun | None:
    """What the host has begun; None while it is away, or has not begun anything."""
    try:
        with Conversation(invitation, identity, dial_s=DIAL_S) as host:
            told = host.say(AskRun(after))
    except PeerError as error:
        if error.code == "peer-refused":
            raise
        return None
    if isinstance(told, Over):
        raise RefusedError(quote_foreign(told.why), code=told.code)
    if not isinstance(told, Run):
        return None
    if told.number <= after:
        raise MalformedError("the host sent a run that has ended", code="bad-message")
    return MeetingRun(told.number, told.job)


def _has_ended(place: PartyFolder, run: MeetingRun) -> bool:
    """Whether this party has the run's receipt."""
    return _receipt_of(place, run).exists()


def _receipt_of(place: PartyFolder, run: MeetingRun) -> Path:
    """Where the run's receipt is, or will be."""
    return (place.folder if run.number == 1 else place[run.folder]) / RUN_RECEIPT_NAME


def _words(place: PartyFolder, run: MeetingRun, *, view: bool) -> list[str]:
    """The long command; what comes of a later run is in a folder of its own."""
    place.identity()  # asks, where no file has the passphrase
    home = "" if run.number == 1 else f"{run.folder}/"
    if home:
        make_folder(place[run.folder])
    words = ["join", run.file, "--key", place.key.name]
    words += ["--passphrase-file", place.passphrase]
    words += ["--vault", "vault.db", "--log", "audit.db", "--heads", "heads.json"]
    words += ["--sealed", "sealed", "--receipts", f"{home}receipts"]
    words += ["--state", f"{home}state", *(["--view"] if view else [])]
    return words
