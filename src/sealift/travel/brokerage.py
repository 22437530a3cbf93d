"""An owner's broker as a process: takes sessions from the relay, one thread each.

Accelerators must show evidence, holders their party's identity. Which policy applies is
chosen by the name on the relay; a peer that lies about it fails that policy.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from sealift.errors import PeerError, SealiftError
from sealift.events import Sink, discard, emit
from sealift.release.brokerserver import Broker
from sealift.release.signed import VerifiedAgreement
from sealift.session.circuit import Circuit
from sealift.session.endpoint import Endpoint
from sealift.session.establish import accept
from sealift.session.link import Link
from sealift.travel.peers import ACCELERATOR, expect_accelerator, expect_data_owner

MAX_SESSIONS: Final = 32
SILENCE_S: Final = 60.0


class Brokerage:
    """Serves a broker over a link.

    Args:
        link: To the relay, under the broker's name.
        endpoint: With the owner's identity.
        agreement: Verified.
        broker: Decides, logs and seals.
        sink: Where events go.
    """

    def __init__(
        self,
        link: Link,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        broker: Broker,
        sink: Sink = discard,
    ) -> None:
        self._link = link
        self._endpoint = endpoint
        self._agreement = agreement
        self._broker = broker
        self._sink = sink
        self._places = threading.BoundedSemaphore(MAX_SESSIONS)

    def serve(self) -> None:
        """Take sessions until the link ends.

        Raises:
            PeerError: when the orchestrator's relay is gone.
        """
        emit(self._sink, "broker.ready", broker=self._endpoint.name)
        while True:
            circuit = self._link.accept(None)
            if not self._places.acquire(blocking=False):
                circuit.close()
                continue
            threading.Thread(
                target=self._serve_one,
                args=(circuit,),
                name=f"broker session {circuit.peer_name}",
                daemon=True,
            ).start()

    def _serve_one(self, circuit: Circuit) -> None:
        try:
            is_accelerator = circuit.peer_name == ACCELERATOR
            expect = expect_accelerator if is_accelerator else expect_data_owner
            try:
                session = accept(circuit, self._endpoint, expect(self._agreement))
            except PeerError:
                return
            except SealiftError as error:
                self._broker.record_refused_handshake(error, name=circuit.peer_name)
                return
            with session, suppress(SealiftError):
                self._broker.serve(session, SILENCE_S)
        finally:
            self._places.release()
