"""The runs of one meeting: which job each of them has, and where its files are.

All parties sign ranges of settings, and how many runs there may be. The first run has the job
that stands in what they signed; a later one has the host's ``job.toml`` as it is then, if the
agreement allows it. Its job, ``job-2.toml``, is compared by every party, and again by every
role. Source: spec/meeting.md section 8.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sealift.codec import parse_toml
from sealift.crypto.identity import Identity
from sealift.errors import (
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    UnavailableError,
    quote_foreign,
)
from sealift.meet.connection import Conversation
from sealift.meet.declaration import job_text
from sealift.meet.folder import PartyFolder
from sealift.meet.invitation import Invitation
from sealift.meet.messages import AskRun, Over, Run
from sealift.meet.terms import MAX_JOB_BYTES, Terms
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import load_verified
from sealift.release.decision import require_run
from sealift.release.files import read_whole, write_whole
from sealift.train.job.settings import JobTable, parse_job
from sealift.train.plans import PLANS
from sealift.travel.settings import JobSettings, run_terms
from sealift.travel.visit.messages import RUN_RECEIPT_NAME

# Which settings the agreement compares; the rest of a later job is the first one's.
_SETTINGS: Final = ("training", "travel", "run", "slices", "servers", "agreed")
DIAL_S: Final = 5.0
MODEL_NAME: Final = "model.safetensors"  # of the first run


@dataclass(frozen=True, slots=True)
class MeetingRun:
    """One of the runs.

    Attributes:
        number: From 1.
        text: Of its job file.
    """

    number: int
    text: str

    @property
    def job(self) -> JobTable:
        """What the file says.

        Raises:
            MalformedError: it is no job.
        """
        plain = parse_toml(self.text.encode(), source=self.file)
        return parse_job(plain, name=self.file)

    @property
    def file(self) -> str:
        """Name of the job file."""
        return "job.toml" if self.number == 1 else f"job-{self.number}.toml"

    @property
    def folder(self) -> str:
        """Name of the folder of what comes of it."""
        return "run" if self.number == 1 else f"run-{self.number}"

    def state(self, place: PartyFolder) -> str:
        """Folder of its checkpoints, at the owner who keeps them."""
        first = _first_of(self, place)
        return "state" if first.number == 1 else f"{first.folder}/state"

    def beginning(self, place: PartyFolder) -> str:
        """What it starts with, for people."""
        first = _first_of(self, place)
        if first is self:
            return "starts with a new model"
        return f"continues from the state that run {_before(self, place).number} left"

    @property
    def model(self) -> str:
        """Name of the host's file with the model."""
        return MODEL_NAME if self.number == 1 else f"model-{self.number}.safetensors"


def read_run(place: PartyFolder, number: int) -> MeetingRun | None:
    """The run of that number, if it was begun in this folder."""
    path = place[MeetingRun(number, "").file]
    if not path.exists():
        return None
    return MeetingRun(
        number, read_whole(path, MAX_JOB_BYTES).decode("utf-8", "replace")
    )


def _first_run(place: PartyFolder) -> MeetingRun:
    """The run whose job was signed.

    Raises:
        UnavailableError: ``cannot-read``: its job is not there any more.
    """
    text = read_whole(place[MeetingRun(1, "").file], MAX_JOB_BYTES)
    return MeetingRun(1, text.decode("utf-8", "replace"))


def last_run(place: PartyFolder) -> MeetingRun:
    """The latest run that was begun here; the first one is, once all have signed.

    Raises:
        UnavailableError: ``cannot-read``.
    """
    found = _first_run(place)
    while (later := read_run(place, found.number + 1)) is not None:
        found = later
    return found


def chosen_run(recipe: Path, place: PartyFolder) -> MeetingRun:
    """The run that the recipe's folder asks for now; a new one is written down.

    Raises:
        PolicyError: ``settings-differ``, ``too-many-runs``: it would not be one of those
            that all parties signed.
        SealiftError: its job.toml does not fit.
    """
    first, last = _first_run(place), last_run(place)
    name, guests, address = (
        first.job.name,
        first.job.slices.count,
        first.job.orchestrator,
    )
    number = last.number + 1
    kind = first.job.recipe
    text = job_text(recipe, name, guests, address, number, kind=kind)
    asked = MeetingRun(number, text)
    for number in range(last.number, 0, -1):
        before = read_run(place, number)
        if before is not None and _computes(before.job) == _computes(asked.job):
            if _plain(before.job) != _plain(asked.job):
                place.say(f"the time limits stay as they are in {before.file}")
            return before
    ended = place[last.model].exists()
    if not ended:
        place.say(f"run {last.number} did not end; what it had computed is not used")
    agreement = load_verified(place["agreement.json"]).agreement
    goes_on = ended and _may_go_on(last.job, asked.job)
    if asked.job.training.keep_state:
        continues = last.job.training.checkpoints_of(last.job.name) if goes_on else ""
        is_last = asked.number == agreement.training_rule.runs
        text = job_text(
            recipe, name, guests, address, asked.number, kind=kind, continues=continues, is_last=is_last,
        )  # fmt: skip
        asked = MeetingRun(asked.number, text)
    _require_agreed_run(asked, place, agreement)
    write_whole(place[asked.file], asked.text.encode())
    begins = "It begins with epoch 1" if not goes_on else (
        f"It continues from the state that run {last.number} left, with epoch {last.job.training.epochs + 1}"
    )  # fmt: skip
    place.say(
        f"run {asked.number}: other settings than before, within what all parties agreed; "
        f"owners whose command has --stay take part. {begins}"
    )
    return asked


def _may_go_on(before: JobTable, job: JobTable) -> bool:
    """Whether a job is the one before with more epochs, and that one's state was kept."""
    old, new = before.training, job.training
    keeps = old.keep_state and (new.keep_state or new.continues)
    if not keeps or new.epochs <= old.epochs:
        return False
    alike = before.settings.checkpoint_shape == job.settings.checkpoint_shape
    return alike and not new.stop_after


def _first_of(run: MeetingRun, place: PartyFolder) -> MeetingRun:
    """The run under whose name its checkpoints are: itself, unless it goes on from another."""
    return next(
        (
            each
            for each in _runs_before(run, place)
            if each.job.name == run.job.training.continues
        ),
        run,
    )


def _before(run: MeetingRun, place: PartyFolder) -> MeetingRun:
    """The last run whose state it goes on from.

    Raises:
        PolicyError: ``run-differs``: no run before it has that state.
    """
    name = run.job.training.continues
    kept = [
        each
        for each in _runs_before(run, place)
        if name in (each.job.name, each.job.training.continues)
    ]
    if not kept:
        raise PolicyError(
            f"{run.file} continues job {name}",
            why="no earlier run of this meeting has that name",
            code="run-differs",
        )
    return kept[-1]


def _runs_before(run: MeetingRun, place: PartyFolder) -> list[MeetingRun]:
    found = (read_run(place, number) for number in range(1, run.number))
    return [each for each in found if each is not None]


def _require_agreed_run(
    asked: MeetingRun, place: PartyFolder, agreement: Agreement
) -> None:
    """Refuse a later run that is not one of those which all parties signed.

    Args:
        asked: The run.
        place: With the jobs of the runs before it.
        agreement: What was signed.

    Raises:
        PolicyError: ``settings-differ``, ``too-many-runs``, ``run-differs``.
        MalformedError: its job is none.
    """
    job, signed = asked.job, _first_run(place).job
    rule = agreement.training_rule
    require_run(asked.number, rule.runs)
    PLANS[job.plan].check_terms(job.settings, agreement)
    named = {"name": f"{signed.name}-{asked.number}", "output": asked.folder}
    own = {each: getattr(job, each) for each in _SETTINGS}
    if signed.model_copy(update=named | own) != job:
        raise PolicyError(
            f"{asked.file} differs from the signed job in more than its settings",
            why="a later run has the plan, the code and the addresses of the first",
            code="run-differs",
        )
    if job.training.keep_state and asked.number == rule.runs:
        raise PolicyError(
            f"{asked.file} keeps its state, and is the last of the agreed runs",
            why="no run could continue from it",
            code="run-differs",
        )
    # Every party compares: the state itself is with one of them, which may side with the host.
    if job.training.continues and not _may_go_on(
        (before := _before(asked, place)).job, job
    ):
        raise PolicyError(
            f"{asked.file} continues run {before.number}, but does not only add epochs",
            why="its state belongs to other settings, or was not kept",
            code="run-differs",
        )


def take_run(place: PartyFolder, told: MeetingRun) -> MeetingRun:
    """Write down the job of a run that the host begins, once it is found to be allowed.

    Raises:
        PolicyError: as ``_require_agreed_run``; ``run-changed``, if the host sent another
            job for this run before.
        MalformedError: it is no job.
    """
    if told.number == 1:
        return _first_run(place)  # which was signed
    agreement = load_verified(place["agreement.json"]).agreement
    _require_agreed_run(told, place, agreement)
    before = read_run(place, told.number)
    if before is not None and before != told:
        raise PolicyError(
            f"the host sent another job for run {told.number} than before",
            why=f"{told.file} holds the first one",
            code="run-changed",
        )
    if told.job.training.continues:
        earlier = _before(told, place)
        if not has_ended(place, earlier):
            raise PolicyError(
                f"the host continues run {earlier.number}, of which this folder has no receipt",
                why="here that run did not end, or its receipt was refused; with another training.seed "
                "the host begins with epoch 1",
                code="run-differs",
            )
    write_whole(place[told.file], told.text.encode())
    return told


def forget_states(place: PartyFolder, run: MeetingRun) -> None:
    """Delete what earlier runs left for later ones, where no run can go on from it any more.

    A run goes on from the one before it, or begins with epoch 1: what is older than such a
    beginning is of no use. A run that did not end keeps its checkpoints, as it may be resumed.

    Raises:
        UnavailableError: it cannot be deleted.
    """
    earlier = _runs_before(run, place)
    kept = {run.state(place)}
    kept |= {each.state(place) for each in earlier if not has_ended(place, each)}
    for name in sorted({each.state(place) for each in earlier} - kept):
        try:
            if place[name].is_dir() and not place[name].is_symlink():
                kept_one = any(place[name].iterdir())  # each rank makes the folder
                shutil.rmtree(place[name])
                if kept_one:
                    place.say(
                        f"deleted {name}: no run can continue from the state in it any more"
                    )
        except OSError as error:
            raise UnavailableError(
                f"cannot delete {place[name]}", why=error, code="cannot-write"
            ) from error


def _computes(job: JobTable) -> object:
    """What decides the bits of a run, whatever its name."""
    return run_terms("", job.plan, _plain(job))


def _plain(job: JobTable) -> JobSettings:
    """All settings, but for where the first epochs are from and whether the state is kept."""
    training = replace(job.training, keep_state=False, continues="")
    return replace(job.settings, training=training)


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


def next_run(
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


def has_ended(place: PartyFolder, run: MeetingRun) -> bool:
    """Whether this party has the run's receipt."""
    return receipt_of(place, run).exists()


def receipt_of(place: PartyFolder, run: MeetingRun) -> Path:
    """Where the run's receipt is, or will be."""
    return (place.folder if run.number == 1 else place[run.folder]) / RUN_RECEIPT_NAME
