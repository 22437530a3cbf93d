"""Requests to a broker and its answers, as records of the codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.attest.tpm.enrolment import EnrolmentRequest, SignedEnrolment
from sealift.codec import MAX_INTEGER
from sealift.crypto.sign import PublicKey
from sealift.crypto.tpmcredential import Credential
from sealift.errors import MalformedError
from sealift.release.agreement import Purpose, RunTerms
from sealift.release.agreement.statements import SignedStatement
from sealift.release.checkpoint import CheckpointRequest, CheckpointStatus, ShareRelease
from sealift.release.grant import KeyRelease, ReleaseRequest, check_challenge
from sealift.release.log.entries import Logged, SignedTreeHead

MAX_WAIT_S: Final = 60.0
HEARTBEAT_MISSING: Final = "heartbeat-missing"


@dataclass(frozen=True, slots=True)
class ConsistencyRequest:
    """Asks for the proof that the log of ``second`` entries continues the first."""

    first: int
    second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """About leases of released keys.

    Attributes:
        action: ``prove``: this session was renewed with fresh evidence since the last
            answer. ``give-back``: the keys are needed no more. ``ask``: where does
            ``instance`` stand?
        instance: For ``ask``; the answer waits until it stands badly, or ``wait_s``.
        wait_s: For ``ask``: longest wait, in seconds.
    """

    action: Literal["prove", "give-back", "ask"]
    instance: PublicKey | None = None
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        if (self.instance is not None) != (self.action == "ask"):
            raise MalformedError(
                'only action = "ask" names an instance', field="instance"
            )
        if not 0 <= self.wait_s <= MAX_WAIT_S:
            raise MalformedError("the wait is too long", field="wait_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """Where one instance stands.

    Attributes:
        instance: Its key.
        good: Whether it may go on, as far as this broker knows.
        rule: Why not, or empty.
        due_s: Seconds until it must have proven itself again; 0 without a lease: then
            nobody looks after it, and who gives rows under a lease stops.
        ends_s: Seconds until its lease ends for good; 0 once it has.
    """

    instance: PublicKey
    good: bool
    rule: str = ""
    due_s: float = 0.0
    ends_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolRequest:
    """One of two steps: show the keys, answer the credential."""

    begin: EnrolmentRequest | None = None
    answer: bytes | None = None

    def __post_init__(self) -> None:
        if (self.begin is None) == (self.answer is None):
            raise MalformedError("an enrolment request has exactly one step")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRequest:
    """Asks to work on an owner's rows once more, before a pass over them begins.

    Attributes:
        run: What the job sets that it is for.
        purpose: Of the pass.
        visits: How many it counts as: the parts that its rows are worked on in.
        attempt: 32 fresh random bytes; an answer that was lost is asked for again with
            the same ones, and counts once.
        begins: Whether it begins then; else nothing is counted.
    """

    run: RunTerms
    purpose: Purpose
    visits: int
    attempt: bytes
    begins: bool = True

    def __post_init__(self) -> None:
        check_challenge(self.attempt)
        if not 0 < self.visits <= MAX_INTEGER:
            raise MalformedError("a pass must have at least one visit", field="visits")


@dataclass(frozen=True, slots=True)
class BrokerRequest:
    """One question. Exactly one field is set.

    Attributes:
        release: Asks for a key.
        head: Asks for the latest head.
        consistency: Asks for a proof between two heads.
        checkpoint: About a job's checkpoint.
        lease: About a lease: ours, or where an instance stands.
        enrol: From a host that has no evidence of a TPM yet.
        sighting: From another owner's broker: which agreement is served here?
        statement: From a party: obey this from now on. The answer shows all.
        statements: What has been said of the agreement?
        rows: Asks to work on rows that a key was released for.
    """

    release: ReleaseRequest | None = None
    head: bool = False
    consistency: ConsistencyRequest | None = None
    checkpoint: CheckpointRequest | None = None
    lease: LeaseRequest | None = None
    enrol: EnrolRequest | None = None
    sighting: bool = False
    statement: SignedStatement | None = None
    statements: bool = False
    rows: PassRequest | None = None

    def __post_init__(self) -> None:
        asked = (
            self.release,
            self.consistency,
            self.checkpoint,
            self.lease,
            self.enrol,
            self.head or None,
            self.sighting or None,
            self.statement,
            self.statements or None,
            self.rows,
        )
        if sum(each is not None for each in asked) != 1:
            raise MalformedError("a request asks exactly one thing")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not: the rule's stable name and one line for people."""

    rule: str
    line: str


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """The answer. Exactly one is set.

    Attributes:
        status: To a claim and a deposit.
        logged: To a commit and a finish.
        share: To a fetch.
        standing: To everything about leases.
        credential: To a host that begins to enrol.
        enrolment: To its answer.
        served: To another broker: the entry with which serving began.
        statements: Each signed by whom it names; nothing of them is verified.
        visits: To a pass: how many were counted for its purpose, with this one's.
    """

    release: KeyRelease | None = None
    refusal: Refusal | None = None
    head: SignedTreeHead | None = None
    proof: tuple[bytes, ...] | None = None
    status: CheckpointStatus | None = None
    logged: Logged | None = None
    share: ShareRelease | None = None
    standing: LeaseStatus | None = None
    credential: Credential | None = None
    enrolment: SignedEnrolment | None = None
    served: Logged | None = None
    statements: tuple[SignedStatement, ...] | None = None
    visits: int | None = None
