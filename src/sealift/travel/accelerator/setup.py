"""What the accelerator's side of a visit needs from outside, and what it hands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sealift.crypto.keys import SecretKey
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import Stop
from sealift.errors import PeerError, SealiftError
from sealift.events import Sink, discard
from sealift.release.agreement import Resource
from sealift.release.log.entries import SignedTreeHead
from sealift.release.receipt import ScrubSummary, SignedReceipt
from sealift.session.direct import PathName
from sealift.session.directhost import DirectHost
from sealift.session.session import Session
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.visit.lease import Lease, LeaseTerms
from sealift.travel.visit.memory import CPUPool
from sealift.travel.visit.messages import VisitPhase
from sealift.travel.visit.state import Clock


def _nothing() -> None:
    """For a caller whose work ends by itself."""


def _free(_stop: Stop) -> None:
    """For rows without a budget that somebody keeps."""


class StartOverError(PeerError):
    """What was to be worked on cannot be trusted: come back, from the last checkpoint.

    Work raises it. No visit is told; whoever hosts them abandons and scrubs all.
    """

    default_code = "state-restored"


@dataclass(frozen=True, slots=True)
class LoadedCargo:
    """What the work sees: rows of one resource, in a visit's pool or read here.

    Attributes:
        stop: Which rows; of a visit, its offer.
        resource: As the agreement binds it.
        memory: Rows x row_bytes bytes, which a worker may map to read; gone when the
            work returns.
    """

    stop: Stop
    resource: Resource
    memory: SharedBuffer


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What came of working on a group, as the output rule lets it out.

    Attributes:
        metrics: By resource.
        curve: Values of the loss in the order of the steps.
    """

    metrics: Mapping[str, Mapping[str, float]]
    curve: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleasedResource:
    """A resource whose key was released to this process."""

    resource: Resource
    data_key: SecretKey


@dataclass(frozen=True, slots=True)
class LoadedVisit:
    """What was loaded: frames and ciphertext bytes, and on which path they came."""

    frames: int
    sealed_bytes: int
    path: PathName = "relay"


Columns = Callable[[Resource], bytes]
Work = Callable[[Sequence[LoadedCargo]], GroupResult]
Check = Callable[[LoadedCargo], None]
Meet = Callable[[Lease, float], Session]
MakePool = Callable[[int, int], CPUPool]
SignReceipt = Callable[
    [Lease, LoadedVisit, Mapping[str, float], ScrubSummary], SignedReceipt
]


@dataclass(slots=True, kw_only=True)
class HostSetup:
    """Everything a visit needs from outside.

    Attributes:
        released: Released resources by name.
        terms: What every lease must say.
        heads: Signed tree heads, shown to every holder.
        rules: What is enforced against the orchestrator.
        meet: Wait for the lease's holder; returns an established session.
        check: Raises unless the rows are what their schema says; sees no recipe.
        work: What is done with the loaded cargo of one group.
        sign: Makes and signs the receipt: of a lease, what was loaded, seconds by phase,
            and the scrub.
        make_pool: Makes a pool of (buffer bytes, quarantine bytes).
        clock: Seconds that also count while the machine sleeps.
        tell: Progress, to the orchestrator.
        direct_host: Where holders may connect; None is the relay only.
        sink: Gets ``visit.path``.
        columns: What a resource's rows are said to be; a file that was sealed as
            something else is refused.
        departed: Why no visit to an owner begins any more, by owner.
        cut: Ends the work that is under way.
        debit: Has the owner's broker count a visit, before anything works on its rows;
            raises if it may not be.
    """

    released: Mapping[str, ReleasedResource]
    terms: LeaseTerms
    heads: Callable[[], tuple[SignedTreeHead, ...]]
    rules: VisitRules
    meet: Meet
    check: Check
    work: Work
    sign: SignReceipt
    make_pool: MakePool
    clock: Clock
    tell: Callable[[VisitPhase], None]
    direct_host: DirectHost | None = None
    sink: Sink = discard
    columns: Columns | None = None
    departed: Mapping[str, SealiftError] = field(default_factory=dict)
    cut: Callable[[], None] = _nothing
    debit: Callable[[Stop], None] = _free


# Our phases beside the five that the travelling-GPU prototype reports: grab_gpu is
# handshake, import_key is release (once a job), buffer_read and gpu_write are load,
# export_key has no counterpart: no key leaves the accelerator.
PHASES = ("offer", "handshake", "load", "check", "wait", "train", "scrub", "receipt")


class PhaseTimer:
    """Accumulates seconds by phase.

    Args:
        clock: Monotonic seconds.
        tell: Called with each phase as it begins.
    """

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._tell = tell
        self._began: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside; the offer is told by the offer itself."""
        self.begin(name)
        try:
            yield
        finally:
            self.end(name)

    def begin(self, name: str) -> None:
        """A phase begins that another thread may end."""
        if name != "offer":
            self._tell(name)
        self._began[name] = self._clock()

    def end(self, name: str) -> None:
        """It is over, if it goes on at all."""
        began = self._began.pop(name, None)
        if began is not None:
            spent = self._clock() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
