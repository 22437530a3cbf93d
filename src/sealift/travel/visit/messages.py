"""What orchestrator, accelerator and holders say to each other inside their sessions.

Each message is a frozen dataclass in canonical JSON behind its name:
``{"body": {...}, "type": "offer-visit"}``. A reader names the messages that it expects;
any other is refused. ``Failed`` may stand in for every answer.

The last words of an orchestrator: that the job has ended, and the receipt of its run.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Final, TypeVar, overload

from sealift.codec import encode_named, from_plain, parse_named
from sealift.data.schedule.visits import Stop
from sealift.errors import MalformedError, PeerError, SealiftError, meaning
from sealift.ids import Digest, Handle, VisitId, check_name
from sealift.release.agreement import Purpose
from sealift.release.agreement.statements import SignedStatement
from sealift.release.log.entries import SignedTreeHead
from sealift.release.receipt import SignedReceipt
from sealift.session.direct import DirectOffer, PathName
from sealift.session.session import Session
from sealift.travel.visit.lease import SignedLease

MAX_MESSAGE_BYTES: Final = 1 << 20
LEAVES_PER_MESSAGE: Final = 8192
FAREWELL_S: Final = 2.0
PART_BYTES: Final = 512 << 10  # of what is too long for one message
RUN_RECEIPT_NAME: Final = "receipt.json"
MAX_RUN_RECEIPT_BYTES: Final = 64 << 20
M = TypeVar("M")
N = TypeVar("N")


def send_finished(session: Session, finished: Finished, receipt: bytes = b"") -> None:
    """Say that the job has ended, and hand out the run's receipt."""
    send_message(session, replace(finished, receipt_bytes=len(receipt)))
    for start in range(0, len(receipt), PART_BYTES):
        part = receipt[start : start + PART_BYTES]
        last = start + PART_BYTES >= len(receipt)
        send_message(session, Output(RUN_RECEIPT_NAME, part, last))


def receive_receipt(session: Session, finished: Finished, timeout_s: float) -> bytes:
    """The receipt that follows an orchestrator's last word; empty if there is none.

    Raises:
        PeerError: if it breaks off.
        MalformedError: if something else comes.
    """
    receipt = bytearray()
    while len(receipt) < finished.receipt_bytes:
        piece = receive_message(session, Output, timeout_s=timeout_s)
        receipt += piece.part
        if len(receipt) > finished.receipt_bytes:
            raise MalformedError(
                "the receipt is longer than announced", code="bad-message"
            )
        if piece.name != RUN_RECEIPT_NAME or not piece.part:
            raise MalformedError(
                "the message is not the run's receipt", code="bad-message"
            )
    return bytes(receipt)


def await_end(session: Session, timeout_s: float = FAREWELL_S) -> None:
    """Wait until the peer has closed its end, so it has heard what was said before."""
    with suppress(SealiftError):
        session.receive(timeout_s)


@dataclass(frozen=True, slots=True)
class Failed:
    """The peer could not do it: an error's stable name and its one line.

    Attributes:
        line: Empty of a rank: its line may name files and values of its owner's machine.
        ranks: Numbers of the ranks that it is about.
    """

    code: str
    line: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Alive:
    """A rank says again and again that its process runs, whatever it works on."""


class FailedError(PeerError):
    """The peer said ``Failed`` where something else was expected."""

    default_code = "peer-failed"

    def __init__(self, failed: Failed) -> None:
        why = failed.line[:300] or meaning(failed.code) or "it did not say why"
        super().__init__(f"the peer refused: {why}")
        self.failed = failed


# orchestrator -> accelerator, and its answers


@dataclass(frozen=True, slots=True)
class StartJob:
    """Open a job.

    Attributes:
        settings: Settings of the training loop, canonical JSON.
    """

    job: str
    settings: bytes

    def __post_init__(self) -> None:
        check_name(self.job, what="job name")


@dataclass(frozen=True, slots=True)
class JobReady:
    """The accelerator holds the agreement, the code and every key.

    Attributes:
        level: Assurance level of its evidence.
        keys: Number of data keys released to it.
        position: First group of the plan that is still to be worked on.
        buffer_bytes: Largest cargo of one visit.
        why: Why it is that long.
        sandbox: What keeps the recipe in.
    """

    level: str
    keys: int
    position: int = 0
    buffer_bytes: int = 0
    why: str = ""
    sandbox: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferVisit(Stop):
    """Ask the accelerator for a buffer for a visit to a stop of the plan.

    Attributes:
        position: Of its group in the plan.
    """

    visit: VisitId
    position: int = 0
    number: int

    @property
    def stop(self) -> Stop:
        """The stop by itself."""
        return Stop(*(getattr(self, each.name) for each in fields(Stop)))


@dataclass(frozen=True, slots=True)
class BufferOffered:
    """A scrubbed buffer, by handle."""

    visit: VisitId
    handle: Handle
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class Granted:
    """The signed lease, to accelerator and holder alike."""

    lease: SignedLease


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The offered visit will not be granted: its holder is gone."""

    visit: VisitId


@dataclass(frozen=True, slots=True)
class VisitLoaded:
    """A visit's cargo is complete and checked; it waits to be worked on."""

    visit: VisitId


@dataclass(frozen=True, slots=True)
class WorkVisits:
    """Work on loaded visits together, as one group of the plan.

    Attributes:
        position: The group's place in the plan; it only grows.
        visits: Those of its visits that were loaded.
    """

    position: int
    visits: tuple[VisitId, ...]


@dataclass(frozen=True, slots=True)
class Departed:
    """An owner's keys have ended, and its rows are gone: no more visits to it."""

    owner: str
    code: str
    line: str


@dataclass(frozen=True, slots=True)
class VisitPhase:
    """Where the visit stands; for progress only."""

    visit: VisitId
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitEnded:
    """A visit's end.

    Attributes:
        outcome: ``verified`` or ``failed``.
        reason: Stable name of what went wrong, or empty.
        line: The one line that goes with it.
        sealed_bytes: Ciphertext that crossed.
        phases_s: Seconds by phase.
        metrics: What the output rule lets out.
        scrubbed_bytes: Bytes overwritten and read back as zero.
        fatal: Whether the job cannot go on (the recipe failed).
        curve: Values of the loss within the visit, as the output rule lets them out.
    """

    visit: VisitId
    outcome: str
    reason: str = ""
    line: str = ""
    sealed_bytes: int = 0
    phases_s: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    scrubbed_bytes: int = 0
    fatal: bool = False
    curve: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded:
    """All ranks have done a pass; numbers as the output rule lets them out."""

    purpose: Purpose
    epoch: int
    rows: int
    seconds: float
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class FinishJob:
    """No more visits; hand out what the output rule allows.

    Attributes:
        model: Whether a model is expected; not where statistics alone were made.
    """

    job: str
    model: bool = True


@dataclass(frozen=True, slots=True)
class Output:
    """One piece of the sealed output; the last one is marked."""

    name: str
    part: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class OutputKept:
    """Everything handed out is synced in its place: nobody resumes this job."""

    job: str


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The accelerator's own account of the job, canonical JSON, and its signature."""

    manifest: bytes
    signature: bytes


# holder -> accelerator, and its answers


@dataclass(frozen=True, slots=True)
class Present:
    """A holder's first word in a visit."""

    lease: SignedLease
    header: bytes
    num_leaves: int


@dataclass(frozen=True, slots=True)
class Leaves:
    """Keyed hashes of the sealed file's plaintext records, in order.

    Attributes:
        hashes: 32 bytes each, one after the other: one string, not thousands.
    """

    hashes: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """Send.

    Attributes:
        window: Most frames ahead of what was acknowledged, through the relay.
        direct: Where the holder may connect instead.
    """

    window: int
    heads: tuple[SignedTreeHead, ...]
    direct: tuple[DirectOffer, ...] = ()


@dataclass(frozen=True, slots=True)
class PathTaken:
    """Which way the frames go; why is the holder's own matter."""

    path: PathName


@dataclass(frozen=True, slots=True)
class Credit:
    """Frames opened, checked and placed so far."""

    frames: int


@dataclass(frozen=True, slots=True)
class Cargo:
    """The holder's count at the end of the cargo."""

    frames: int
    cargo_bytes: int


@dataclass(frozen=True, slots=True)
class Receipted:
    """The signed receipt, after the scrub was read back, and the holder's own numbers."""

    receipt: SignedReceipt
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Said:
    """What a party says of the agreement; said back once it is obeyed."""

    statement: SignedStatement


# orchestrator -> holder


@dataclass(frozen=True, slots=True)
class Finished:
    """The job has ended.

    Attributes:
        receipt_bytes: Of the run's receipt, which follows in pieces; 0 without one.
        code: What ended a job that failed, by its name in the catalogue.
        missing: Owners that had not come then.
    """

    outcome: str
    agreement: Digest
    receipt_bytes: int = 0
    code: str = ""
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.receipt_bytes <= MAX_RUN_RECEIPT_BYTES:
            raise MalformedError(
                "a receipt cannot have this length", code="bad-message"
            )


def message_name(kind: type) -> str:
    """``OfferVisit`` -> ``offer-visit``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def send_message(session: Session, message: object) -> None:
    """Send one message."""
    session.send(encode_named(message_name(type(message)), message))


@overload
def receive_message(
    session: Session, kind: type[M], /, *, timeout_s: float | None
) -> M: ...
@overload
def receive_message(
    session: Session,
    kind: type[M],
    other: type[N],
    /,
    *,
    timeout_s: float | None,
) -> M | N: ...
def receive_message(
    session: Session, /, *kinds: type, timeout_s: float | None
) -> object:
    """Receive one of one or two kinds.

    Raises:
        PeerError: if the peer said ``Failed`` and that is none of them; with its line.
        MalformedError: for any other message.
    """
    message = parse_message(session.receive(timeout_s), (*kinds, Failed))
    if isinstance(message, Failed) and Failed not in kinds:
        raise FailedError(message)
    return message


def parse_message(raw: bytes, kinds: tuple[type, ...]) -> object:
    """Parse one of ``kinds``.

    Raises:
        MalformedError: if it is none of them.
    """
    name, body = parse_named(raw, max_bytes=MAX_MESSAGE_BYTES)
    for kind in kinds:
        if message_name(kind) == name:
            return from_plain(kind, body, "body")
    expected = ", ".join(message_name(kind) for kind in kinds)
    raise MalformedError(
        f"the peer sent an unexpected message {name[:40]!r}",
        why=f"expected was {expected}",
        code="bad-message",
    )
