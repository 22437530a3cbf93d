"""Where visits meet their holders: circuits to the visit that waits for that holder.

Several visits may wait at one time. A circuit carries the name of its holder, which
the handshake then proves. A holder may be early: it hears of its lease before the
accelerator does, so its newest circuit is kept for a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from sealift.errors import PeerError, SealiftError
from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import SignedStatement
from sealift.session.endpoint import Endpoint
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, accept
from sealift.travel.peers import (
    expect_data_owner,
    expect_holder,
    relay_name,
    teller_name,
)
from sealift.travel.visit.farewell import await_end
from sealift.travel.visit.lease import Lease
from sealift.travel.visit.messages import (
    Failed,
    Said,
    receive_message,
    send_message,
)
from sealift.travel.visit.state import Clock

EARLY_S: Final = 5.0  # that a holder may come before its visit waits for it
TELLER_S: Final = 5.0
Heard = Callable[[SignedStatement], None]


class Arrivals:
    """Brings visits and holders together.

    Args:
        relay: The connection to it; this object accepts every circuit of it.
        endpoint: Ours.
        agreement: Names the holders.
        clock: Seconds that also count while the machine sleeps.
        heard: Obeys what a data owner comes to say; raises if it counts for nothing.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        clock: Clock,
        *,
        heard: Heard,
    ) -> None:
        self._heard = heard
        # Who may come now to say something; each party once at a time.
        self._tellers = {teller_name(each.name) for each in agreement.agreement.parties}
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._clock = clock
        holders = agreement.agreement.holders
        self._names = {relay_name(Role.HOLDER, holder) for holder in holders}
        self._changed = threading.Condition()
        self._parked: dict[str, tuple[Circuit, float]] = {}
        self._over: PeerError | None = None
        self._router = threading.Thread(
            target=self._route, name="arrivals", daemon=True
        )

    def start(self) -> None:
        """Begin to accept."""
        self._router.start()

    def __call__(self, lease: Lease, timeout_s: float) -> Session:
        """A session with the lease's holder.

        Raises:
            PeerError: code ``holder-missing``, if it does not come in time.
        """
        deadline = self._clock() + timeout_s
        name = relay_name(Role.HOLDER, lease.holder)
        policy = expect_holder(self._agreement, lease)
        while (circuit := self._next(name, deadline)) is not None:
            left_s = max(0.001, deadline - self._clock())
            with suppress(SealiftError):  # somebody else, or a failed handshake
                return accept(circuit, self._endpoint, policy, left_s)
        raise PeerError(
            f"{lease.holder} did not connect within {timeout_s:g} s",
            code="holder-missing",
        )

    def _next(self, name: str, deadline: float) -> Circuit | None:
        with self._changed:
            while (left_s := deadline - self._clock()) > 0:
                circuit, since = self._parked.pop(name, (None, 0.0))
                if circuit is not None and self._clock() - since < EARLY_S:
                    return circuit
                if circuit is not None:
                    circuit.close()
                elif self._over is not None:
                    raise PeerError(str(self._over), code=self._over.code)
                else:
                    self._changed.wait(left_s)
        return None

    def _route(self) -> None:
        while True:
            try:
                circuit = self._relay.accept(None)
            except PeerError as error:
                with self._changed:
                    self._over = error
                    self._changed.notify_all()
                return
            self._park(circuit)

    def _listen(self, circuit: Circuit) -> None:
        """What an owner says that left, or ended the agreement: in a session of its own."""
        try:
            policy = expect_data_owner(self._agreement)
            with (
                suppress(SealiftError),
                accept(circuit, self._endpoint, policy, TELLER_S) as session,
            ):
                said = receive_message(session, Said, timeout_s=TELLER_S)
                answer: Said | Failed = said
                try:
                    self._heard(said.statement)
                except SealiftError as error:
                    answer = Failed(error.code, str(error))
                send_message(session, answer)
                await_end(session)
        finally:
            with self._changed:
                self._tellers.add(circuit.peer_name)

    def _park(self, circuit: Circuit) -> None:
        """Keep a holder's newest circuit; nobody else has business here but tellers."""
        with self._changed:
            teller = circuit.peer_name in self._tellers
            self._tellers.discard(circuit.peer_name)
        if teller:
            listen = partial(self._listen, circuit)
            threading.Thread(target=listen, name="teller", daemon=True).start()
            return
        if circuit.peer_name not in self._names:
            circuit.close()
            return
        with self._changed:
            former = self._parked.pop(circuit.peer_name, None)
            self._parked[circuit.peer_name] = (circuit, self._clock())
            self._changed.notify_all()
        if former is not None:
            former[0].close()
