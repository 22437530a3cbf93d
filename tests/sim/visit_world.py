"""A small world for visits: an agreement, sealed files, an accelerator, three holders.

Keys, evidence, sealed files, leases, sessions and receipts are real. In memory are the
line between holder and accelerator, the clock, and the work: it keeps a copy of the rows
that it was shown. Tests attack by setting attributes (`faults`, `change_lease`).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from sealift.errors import SealiftError
from sealift.events import Event
from sealift.ids import VisitId
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint
from sealift.session.frames import FrameKind
from sealift.session.session import Session
from sealift.travel.accelerator.setup import (
    Columns,
    GroupResult,
    HostSetup,
    LoadedCargo,
)
from sealift.travel.visit.lease import SignedLease
from sealift.travel.visit.messages import OfferVisit
from tests.sim.faultyline import Fault, FaultyLine
from tests.sim.hands import Bring, Hand, honest
from tests.sim.outcome import Outcome
from tests.sim.visit_parts import FakeClock, GuardedPool, TappedTransport
from tests.worlds import visits as worlds
from tests.worlds.consortium import make_consortium
from tests.worlds.memorytransport import MemoryTransport, memory_pair

OWNERS = ("ada", "bern", "cleo")


def described_by(schema: object) -> bytes:
    """What a file of this world says that it is."""
    return repr(schema).encode()


class VisitWorld(worlds.VisitWorld):
    """Three owners with sealed rows, and one accelerator that visits them.

    Use as a context manager, or call `close`.
    """

    clock: FakeClock

    def __init__(
        self, folder: Path, *, rows: int = 20, cell_rows: int = 1, lease_s: float = 30.0
    ) -> None:
        super().__init__(
            folder,
            make_consortium(OWNERS, cell_rows=cell_rows),
            rows=rows,
            lease_s=lease_s,
            clock=FakeClock(),
        )
        self.trained: list[tuple[VisitId, bytes]] = []
        self.pools: list[GuardedPool] = []
        self._model = secrets.token_bytes(256)
        self.model = bytearray(self._model)
        self.fails_in_work: Callable[[], None] = lambda: None
        self.columns: Columns = lambda resource: described_by(resource.schema)
        self.faults: Sequence[Fault] = ()
        self.direct_host: DirectHost | None = None
        self.events: list[Event] = []

    def raw_frames(self, outcome: Outcome) -> list[bytes]:
        """The visit frames of a visit, as they crossed the line."""
        return [frame[1:] for frame in outcome.wire if frame[0] == FrameKind.RAW]

    def untouched(self) -> bool:
        """Whether everything that no frame may touch is as it was."""
        intact = all(pool.intact for pool in self.pools)
        return intact and bytes(self.model) == self._model

    def start_accelerator(self) -> Endpoint:
        """A fresh process: another instance key."""
        return self.consortium.accelerator()

    def visit(
        self,
        owner: str,
        bring: Bring = honest,
        *,
        offer: OfferVisit | None = None,
        signed: SignedLease | None = None,
    ) -> Outcome:
        """One whole visit: accelerator in this thread, holder in another."""
        offer = offer or self.offer(owner)
        stalled = threading.Event()
        wire: list[bytes] = []
        theirs, ours = memory_pair(FaultyLine(self.faults))
        line = TappedTransport(ours, self.clock, stalled, wire)
        hosted = self.host(
            offer, lambda lease, left_s: self.accept(line, lease, left_s)
        )
        signed = signed or self.grant(offer, hosted)
        outcome = Outcome(offer, signed, wire=wire)
        thread = self.send_holder(theirs, outcome, bring, stalled)
        try:
            outcome.ended = hosted.run(signed)
        except BaseException as error:
            outcome.error = error
        finally:
            line.close()
            thread.join(300)
            assert not thread.is_alive()
        return outcome

    def send_holder(
        self,
        line: MemoryTransport,
        outcome: Outcome,
        bring: Bring,
        stalled: threading.Event,
    ) -> threading.Thread:
        """A holder in a thread, with its lease in its hand."""

        def provision() -> None:
            try:
                with self.connect(line, outcome.offer.holder) as session:
                    hand = Hand(
                        self.held[outcome.offer.resource],
                        outcome.lease,
                        session=session,
                        clock=self.clock,
                        stalled=stalled,
                    )
                    outcome.secrets, outcome.th2 = hand.secrets(), session.th2
                    outcome.receipt = bring(hand)
            except SealiftError as error:
                outcome.holder_error = error
            finally:
                line.close()

        thread = threading.Thread(target=provision, name=outcome.offer.holder)
        thread.start()
        return thread

    def describe(self, schema: object) -> bytes:
        return described_by(schema)

    def setup(self, meet: Callable[..., Session]) -> HostSetup:
        return replace(
            super().setup(meet),
            direct_host=self.direct_host,
            sink=self.events.append,
            columns=self.columns,
        )

    def work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        self.trained += [
            (cast("OfferVisit", each.stop).visit, bytes(each.memory.view))
            for each in cargo
        ]
        self.fails_in_work()
        return super().work(cargo)

    def make_pool(self, buffer_bytes: int, record_bytes: int) -> GuardedPool:
        self.pools.append(GuardedPool(buffer_bytes, record_bytes))
        return self.pools[-1]
