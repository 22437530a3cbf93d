"""An owner's broker as a process: takes sessions from the relay, one thread each.

Accelerators must show evidence, holders their party's identity. Which policy applies is
chosen by the name on the relay; a peer that lies about it fails that policy. Threads are
kept for what comes next: starting one costs as much as its wake-ups.

It stands here and not beside what it serves (`release/broker`), since whose name at the
relay is whose (`travel/peers.py`) and the word that ends a job are known from here on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Final

from sealift.errors import PeerError, SealiftError, StaleError
from sealift.events import Sink, discard, emit, unfailing
from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.server import Broker
from sealift.release.client import request_sighting
from sealift.release.facts import Sighting
from sealift.release.log.heads import HeadStore
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.client import RelayClient
from sealift.session.session import accept, connect
from sealift.travel.holder.watches import Look, Watcher
from sealift.travel.peers import (
    ORCHESTRATOR,
    accelerator_names,
    expect_at_broker,
    expect_broker,
    expect_data_owner,
    expect_orchestrator,
    meet_broker,
    registry_of,
    relay_name,
)
from sealift.travel.visit.messages import (
    FAREWELL_S,
    Finished,
    await_end,
    receive_message,
    receive_receipt,
    send_finished,
)

Task = Callable[[], None]
MAX_SESSIONS: Final = 32  # of few parties; each further one may have two
MAX_EACH: Final = 8  # of them to one name on the relay; to all strangers' together
SILENCE_S: Final = 60.0
OWNERS_PAUSE_S: Final = 0.5
STATEMENTS_S: Final = 0.5


class BrokerService:
    """Serves a broker over the relay.

    Args:
        relay: The connection to it, under the broker's name.
        endpoint: With the owner's identity.
        agreement: Verified.
        broker: Decides, logs and seals.
        sink: Where events go.
        heads: What this owner remembers of every log; None remembers nothing.
        accelerators: Their names.
        keep: Gets the receipt of the run, as it came.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        broker: Broker,
        sink: Sink = discard,
        heads: HeadStore | None = None,
        accelerators: Sequence[str] = accelerator_names(),
        keep: Callable[[bytes], object] = lambda receipt: None,
    ) -> None:
        self._keep = keep
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._broker = broker
        self._sink = unfailing(sink)
        self._heads = heads
        most = max(MAX_SESSIONS, 2 * len(agreement.agreement.parties))
        self._places = threading.BoundedSemaphore(most)
        self._workers = Workers("broker session")
        self._accelerators = frozenset(accelerators)
        parties = registry_of(agreement).keys
        self._known = {*parties, *accelerators, ORCHESTRATOR}
        self._taken: Counter[str] = Counter()
        self._taking = threading.Lock()
        self._dismissed = False
        self._broken: BaseException | None = None

    def serve(self) -> None:
        """Take sessions until the orchestrator says that the job has ended.

        Raises:
            PeerError: when the orchestrator's relay is gone before that.
        Exception: what ended a watch: without it nothing more is released.
        """
        emit(self._sink, "broker.ready", broker=self._endpoint.name)
        looks: dict[str, Look] = {  # what is watched while sessions come and go
            "leases": self._broker.leases.look,
            "quorum": self._ask_owners,
            "statements": self._obey,
        }
        watchers = [
            Watcher(name, look, broken=self._break, sink=self._sink)
            for name, look in looks.items()
        ]
        try:
            for each in watchers:
                each.start()
            self._take_sessions()
        finally:
            for each in watchers:
                each.stop()
            self._workers.close()

    def _break(self, error: BaseException) -> None:
        """Without its watches no broker goes on."""
        self._broken = error
        self._relay.close()

    def _take_sessions(self) -> None:
        while True:
            try:
                circuit = self._relay.accept(None)
            except PeerError:
                if self._broken is not None:
                    raise self._broken from None
                if self._dismissed:
                    return
                raise
            if not self._take_place(self._share(circuit.peer_name)):
                circuit.close()
                continue
            self._workers.run(partial(self._serve_one, circuit))

    def _share(self, peer_name: str) -> str:
        """Whose places a peer takes; any other name costs a stranger nothing."""
        return peer_name if peer_name in self._known else ""

    def _take_place(self, name: str) -> bool:
        """A place for one more session, of which no single peer may have all."""
        with self._taking:
            if self._taken[name] >= MAX_EACH or not self._places.acquire(
                blocking=False
            ):
                return False
            self._taken[name] += 1
            return True

    def _leave_place(self, name: str) -> None:
        with self._taking:
            self._taken[name] -= 1
            if not self._taken[name]:
                del self._taken[name]
        self._places.release()

    def _serve_one(self, circuit: Circuit) -> None:
        try:
            if circuit.peer_name == ORCHESTRATOR:
                self._hear_the_end(circuit)
                return
            began_s = time.monotonic()
            try:
                policy = self._expect(circuit.peer_name)
                session = accept(circuit, self._endpoint, policy)
            except PeerError:
                return
            except SealiftError as error:
                self._broker.record_refused_handshake(error, name=circuit.peer_name)
                return
            with session, suppress(SealiftError):
                self._broker.serve(session, SILENCE_S, accepted_at_s=began_s)
        finally:
            self._leave_place(self._share(circuit.peer_name))

    def _expect(self, peer_name: str) -> PeerPolicy:
        if peer_name in self._accelerators:
            return expect_at_broker(self._agreement, peer_name)
        owner = peer_name.removeprefix(f"{Role.BROKER}-")
        if owner != peer_name:
            return expect_broker(self._agreement, owner)
        return expect_data_owner(self._agreement)

    def _obey(self) -> float:
        """A statement that came meanwhile ends leases, also while nobody asks."""
        self._broker.obey_statements()
        return STATEMENTS_S

    def _ask_owners(self) -> float | None:
        """Hear from a quorum of owners which agreement is the last, if one is wanted."""
        if not self._broker.gate.missing:
            return None
        try:
            self._broker.gate.ask(self._see)
        except StaleError as error:
            emit(self._sink, "broker.rolled-back", line=str(error))
            return None
        return OWNERS_PAUSE_S

    def _see(self, owner: str) -> Sighting | None:
        try:
            with meet_broker(
                self._relay,
                self._endpoint,
                self._agreement,
                owner,
                open_s=FAREWELL_S,
                timeout_s=FAREWELL_S,
            ) as session:
                return request_sighting(
                    session, owner, self._agreement, heads=self._heads
                )
        except SealiftError as error:
            emit(self._sink, "broker.unseen", owner=owner, line=str(error))
            return None

    def _hear_the_end(self, circuit: Circuit) -> None:
        policy = expect_orchestrator(self._agreement)
        with suppress(SealiftError):
            with accept(circuit, self._endpoint, policy) as session:
                told = receive_message(session, Finished, timeout_s=FAREWELL_S)
                self._dismissed = True  # before the session's end lets the relay go
                if receipt := receive_receipt(session, told, FAREWELL_S):
                    self._keep(receipt)
            self._relay.close()


def dismiss_brokers(
    relay: RelayClient,
    endpoint: Endpoint,
    agreement: VerifiedAgreement,
    outcome: str,
    *,
    until: float = 0.0,
    receipt: bytes = b"",
) -> None:
    """Tell every owner's broker that the job has ended; who is away need not know.

    Args:
        relay: The orchestrator's client of it.
        endpoint: With the operator's identity.
        agreement: Verified; names the owners.
        outcome: ``finished`` or ``failed``.
        until: When nobody that is away is waited for any more, in monotonic seconds.
        receipt: Of the run.
    """
    for owner in agreement.agreement.holders:
        with suppress(SealiftError):
            name = relay_name(Role.BROKER, owner)
            wait_s = max(0.0, until - time.monotonic())
            circuit = relay.open(name, FAREWELL_S, wait_s=wait_s)
            policy = expect_broker(agreement, owner)
            with connect(circuit, endpoint, policy, FAREWELL_S) as session:
                send_finished(session, Finished(outcome, agreement.digest), receipt)
                await_end(session)


class Workers:
    """Runs tasks, each at once and in a thread of its own.

    Args:
        name: Of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._idle = 0
        self._closed = False
        self._lock = threading.Lock()

    def run(self, task: Task) -> None:
        """Begin a task; an error in it ends its thread, and nothing else."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._tasks.put(task)
                return
        threading.Thread(
            target=self._work, args=(task,), name=self._name, daemon=True
        ).start()

    def close(self) -> None:
        """Let every thread end after its task; does not wait for them."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._tasks.put(None)
            self._idle = 0

    def _work(self, task: Task | None) -> None:
        while task is not None:
            task()
            with self._lock:
                if self._closed:
                    return
                self._idle += 1
            task = self._tasks.get()
