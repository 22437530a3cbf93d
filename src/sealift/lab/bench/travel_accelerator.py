"""The accelerator's process of the travel measurement: the real loader, and baselines.

``python -m sealift.lab.bench.travel_accelerator`` takes orders on stdin (``travel_wire``).
It has no torch: what is measured here is how cargo gets in and out.
"""

from __future__ import annotations

import time
from secrets import token_bytes
from typing import Any

from sealift.attest.development import DevelopmentAttester
from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.channel.transport.transport import SlotTransport
from sealift.channel.transport.unixsocket import LocalListener
from sealift.codec import decode
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.crypto.sign import SigningKey
from sealift.ids import Role
from sealift.lab.bench.travel_shipping import ShippingDock, receive_model, send_model
from sealift.lab.bench.travel_wire import Answer, pack, serve, unpack
from sealift.release.receipt import ScrubSummary
from sealift.release.signed import SignedAgreement, verify
from sealift.session.direct.host import DirectHost, DirectPlace
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.session import accept
from sealift.train.receipts import ReceiptWriter, prove_instance
from sealift.travel.frame import HEADER_BYTES, frame_bytes
from sealift.travel.hostsetup import VisitAccount
from sealift.travel.lease import Lease, SignedLease
from sealift.travel.load import CargoLoader, Loaded
from sealift.travel.messages import OfferVisit, Receipted, send_message
from sealift.travel.peers import accelerator_names, expect_holder
from sealift.travel.phases import PhaseTimer
from sealift.travel.pool import CPUPool
from sealift.travel.scrub import scrub
from sealift.travel.settings import TravelSettings
from sealift.travel.state import Visit

WAIT_S = 3600.0
TAG_BYTES = 16


class AcceleratorEnd:
    """Does what the measurement orders."""

    def __init__(self) -> None:
        self._attester = SigningKey.generate()
        self._client: RelayClient | None = None
        self._direct_host: DirectHost | None = None
        self._shipping: ShippingDock | None = None
        self._models: TcpListener | None = None
        self._direct: TcpListener | None = None
        self._model = memoryview(b"")

    def start(self) -> Answer:
        """The key that the agreement must name."""
        return {"attester": self._attester.public_key.to_text()}

    def listen(self, host: str) -> Answer:
        """Listen for cargo, shipped data sets and models; where."""
        self._direct, self._models = TcpListener(host), TcpListener(host)
        self._shipping = ShippingDock((host, 0))
        places = {
            "direct": self._direct.address,
            "models": self._models.address,
            "shipping": self._shipping.address,
        }
        return {"places": places, "certificate": pack(self._shipping.certificate)}

    def join(self, relay: list[Any], direct: str, signed: str, key: str) -> Answer:
        """Dial the relay; holders are told to come to ``direct``."""
        self._agreement = verify(decode(SignedAgreement, unpack(signed)))
        self._resource = self._agreement.agreement.resources[0]
        self._key = SecretKey(unpack(key))
        self._endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name=accelerator_names()[0],
            agreement=self._agreement.digest,
            attester=DevelopmentAttester(
                self._attester,
                role=Role.ACCELERATOR,
                code_bundle=self._agreement.agreement.code.digest,
            ),
        )
        proof = prove_instance(self._endpoint, self._agreement)
        self._writer = ReceiptWriter(
            self._endpoint.instance, proof, tuple, TravelSettings(), "none"
        )
        self._client = RelayClient.dial(
            (str(relay[0]), int(relay[1])), accelerator_names()[0]
        )
        self._direct_host = DirectHost(
            local=LocalListener(), tcp=self._direct, tcp_address=direct
        )
        return {"instance": self._endpoint.instance.public_key.to_text()}

    def offer(self, visit: str, rows: int) -> Answer:
        """A buffer for a visit: memory that has been touched."""
        started = time.perf_counter()
        self._make_pool(rows * self._resource.row_bytes)
        spent_s = time.perf_counter() - started
        return {"handle": self._pool.handle.to_text(), "offer_s": spent_s}

    def visit(self, lease: str) -> Answer:
        """One visit from the lease to the scrub, phase by phase."""
        assert self._client is not None
        signed = decode(SignedLease, unpack(lease)).lease
        buffer_bytes = len(self._pool.buffer)
        visit = Visit(
            signed.visit, self._pool.handle, buffer_bytes, clock=time.perf_counter
        )
        visit.accept(signed, self._resource.record_bytes)
        timer = PhaseTimer(time.perf_counter, lambda name: None)
        with timer.phase("handshake"):
            circuit = self._client.accept(WAIT_S)
            policy = expect_holder(self._agreement, signed)
            session = accept(circuit, self._endpoint, policy, WAIT_S)
        busy = time.process_time()
        with timer.phase("load"):
            loader = CargoLoader(
                visit,
                self._resource,
                self._key,
                pool=self._pool,
                heads=(),
                direct_host=self._direct_host,
            )
            loaded: Loaded = loader.load(session)
        busy = time.process_time() - busy
        scrubbed = self._scrub(timer)
        with timer.phase("return"):
            account = VisitAccount(
                lease=signed,
                offer=_offer(signed),
                loaded=loaded,
                phases_s=dict(timer.seconds),
                scrubbed=scrubbed,
            )
            send_message(session, Receipted(self._writer(account), {}))
        session.close()
        phases = {f"{name}_s": spent for name, spent in timer.seconds.items()}
        return {**phases, "load_cpu_s": busy, "path": loaded.path}

    def open_plain(self, total_bytes: int) -> Answer:
        """A buffer and a place for the plain copy."""
        assert self._direct_host is not None
        material = token_bytes(KEY_BYTES)
        key = SecretKey(material)
        self._make_pool(total_bytes)
        longest = frame_bytes(self._resource.record_bytes)
        told = pack(material)
        self._offer_place: DirectPlace = self._direct_host.offer(key, longest)
        offers = [(o.kind, o.address, pack(o.token)) for o in self._offer_place.offers]
        return {"offers": offers, "key": told}

    def plain(self) -> Answer:
        """Copy what comes into the buffer, as fast as it comes."""
        assert self._direct_host is not None
        transport = self._offer_place.transport(WAIT_S)
        busy = time.process_time()
        _copy_all(transport, self._pool.buffer)
        busy = time.process_time() - busy
        transport.send(b"done")
        self._direct_host.withdraw(self._offer_place)
        self._scrub(PhaseTimer(time.perf_counter, lambda name: None))
        return {"cpu_s": busy}

    def take_shipped(self, total_bytes: int) -> Answer:
        """Receive a data set over TLS into the buffer."""
        assert self._shipping is not None
        self._make_pool(total_bytes)
        self._shipping.take(self._pool.buffer)
        self._scrub(PhaseTimer(time.perf_counter, lambda name: None))
        return {}

    def lend_model(self, key: str, total_bytes: int) -> Answer:
        """Send the model to the holder and take it back."""
        assert self._models is not None
        if len(self._model) != total_bytes:
            self._model = memoryview(bytearray(total_bytes))
        transport: TcpTransport = self._models.accept(WAIT_S)
        send_model(transport, self._model, SecretKey(unpack(key)))
        receive_model(transport, self._model, SecretKey(unpack(key)))
        transport.send(b"done")
        transport.close()
        return {}

    def close(self) -> None:
        """Hang up and stop listening."""
        for each in (self._client, self._direct_host, self._shipping, self._models):
            if each is not None:
                each.close()

    def _make_pool(self, buffer_bytes: int) -> None:
        self._pool = CPUPool(buffer_bytes, self._resource.record_bytes)

    def _scrub(self, timer: PhaseTimer) -> ScrubSummary:
        with timer.phase("scrub"):
            report = scrub(self._pool.regions())
            self._pool.close()
        return report


def _copy_all(transport: SlotTransport, buffer: memoryview) -> None:
    filled = 0
    while filled < len(buffer):
        frame = transport.borrow(WAIT_S)[HEADER_BYTES:-TAG_BYTES]
        buffer[filled : filled + len(frame)] = frame
        filled += len(frame)
        transport.give_back()


def _offer(lease: Lease) -> OfferVisit:
    return OfferVisit(
        visit=lease.visit,
        number=1,
        epoch=0,
        holder=lease.holder,
        resource=lease.resource,
        purpose=lease.purpose,
        first_row=lease.first_row,
        rows=lease.shape[0],
    )


if __name__ == "__main__":
    serve(AcceleratorEnd())
