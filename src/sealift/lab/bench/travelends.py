"""The processes of the travel measurement: the real holder, the real visit, and baselines.

The holder may run in another network namespace than everybody else. The accelerator has
no torch: what is measured here is how cargo gets in and out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from secrets import token_bytes
from typing import Any, Final

from sealift.attest.development import DevelopmentAttester
from sealift.channel.record.rawfile import RawSealedFile
from sealift.channel.record.sealedfile import write_sealed_file
from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.channel.transport.unixsocket import LocalListener
from sealift.codec import decode
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import JobError
from sealift.ids import Role, VisitId
from sealift.lab.bench.harness import Answer, End, pack, unpack
from sealift.lab.bench.parties import OWNER, OwnerEnd, agreed
from sealift.lab.bench.pipeline import receive_model, send_model
from sealift.lab.bench.shipping import ShippingDock, ship
from sealift.lab.worlds.consortium import make_resource
from sealift.session.direct.dial import PathDialler
from sealift.session.direct.exchange import DirectOffer
from sealift.session.direct.host import DirectHost
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, accept, connect
from sealift.train.receipts import ReceiptWriter, prove_instance
from sealift.travel.accelerator import HostedVisit
from sealift.travel.frame import HEADER_BYTES, frame_bytes
from sealift.travel.holder import HeldResource, Provisioning
from sealift.travel.hostsetup import GroupResult, HostSetup, ReleasedResource
from sealift.travel.lease import Lease, LeaseTerms, SignedLease
from sealift.travel.messages import OfferVisit
from sealift.travel.peers import (
    accelerator_names,
    expect_accelerator,
    expect_holder,
    relay_name,
)
from sealift.travel.pool import CPUPool
from sealift.travel.rules import VisitRules
from sealift.travel.scrub import scrub
from sealift.travel.settings import TravelSettings

JOB: Final = "bench"
(NAME,) = accelerator_names()
MAX_VISITS: Final = 100_000
CHUNK_BYTES: Final = 1 << 20
WAIT_S: Final = 3600.0


class TimedSource(RawSealedFile):
    """A sealed file that counts how long its records take to read."""

    read_s = 0.0

    def record_into(self, index: int, out: bytearray | memoryview) -> int:
        """One record, timed."""
        started = time.perf_counter()
        try:
            return super().record_into(index, out)
        finally:
            self.read_s += time.perf_counter() - started


class HolderEnd(OwnerEnd):
    """Brings cargo as the product does, and as what it is compared with."""

    def __init__(self) -> None:
        super().__init__()
        self._files = ExitStack()
        self._model = memoryview(b"")

    def make(
        self, folder: str, total_bytes: int, row_bytes: int, record_bytes: int
    ) -> Answer:
        """Write the data set in plaintext (for the baseline) and sealed."""
        self._plain = Path(folder) / "plain"
        with self._plain.open("wb") as file:
            file.writelines(_chunks(total_bytes))
        with self._plain.open("rb") as file:
            card = write_sealed_file(
                Path(folder) / "sealed",
                iter(lambda: file.read(CHUNK_BYTES), b""),
                key=self.key,
                total_bytes=total_bytes,
                record_bytes=record_bytes,
            )
        resource = make_resource(
            OWNER,
            key=self.key,
            rows=total_bytes // row_bytes,
            row_bytes=row_bytes,
            record_bytes=record_bytes,
            schema={"fields": [{"name": "x", "dtype": "uint8", "shape": [row_bytes]}]},
            content=card.content.digest,
        )
        self._source = self._files.enter_context(TimedSource(card.path))
        self._held = HeldResource(resource, self._source, card.leaves)
        return {**self.introduced(resource), "key": pack(self.material)}

    def join(self, address: list[Any], signed: str) -> None:
        """Dial the relay."""
        self.agreement = agreed(signed)
        name, relay = relay_name(Role.HOLDER, OWNER), (str(address[0]), int(address[1]))
        self._link = self._files.enter_context(RelayClient.dial(relay, name))

    def visit(self, lease: str, kinds: list[str], places: list[str]) -> Answer:
        """Bring the cargo of one lease; the real holder."""
        signed = decode(SignedLease, unpack(lease))
        self._source.read_s = 0.0
        provisioning = Provisioning(
            self._held,
            signed,
            clock=time.monotonic,
            check_heads=lambda heads: None,
            require_allowed=lambda: None,
            receipt_wait_s=WAIT_S,
            dialler=PathDialler(
                local="memfd" in kinds, places=places if "tcp" in kinds else ()
            ),
        )
        policy = expect_accelerator(self.agreement, NAME, signed.lease.accelerator)
        line = self._link.open(NAME)
        with connect(line, self.endpoint(Role.HOLDER), policy) as session:
            provisioning.provision(session)
        return {"read_s": self._source.read_s}

    def plain(self, offers: list[list[str]], key: str, total_bytes: int) -> Answer:
        """The same records over the same transport: no crypto, no checks.

        The seconds run from dialling until the last byte is in the buffer, as a visit's
        load does, which also makes its own transport.
        """
        told = tuple(DirectOffer(k, a, unpack(t)) for k, a, t in offers)  # type: ignore[arg-type]
        record_bytes = self._held.resource.record_bytes
        started = time.perf_counter()
        taken = PathDialler(places=[offer.address for offer in told]).take(
            told, SecretKey(unpack(key)), frame_bytes(record_bytes)
        )
        assert taken.transport is not None, taken.why
        for index in range(-(-total_bytes // record_bytes)):
            length = self._source.record_length(index)
            room = taken.transport.reserve(HEADER_BYTES + length, WAIT_S)
            self._source.record_into(index, room[HEADER_BYTES:])
            taken.transport.commit()
        taken.transport.receive(WAIT_S)
        spent_s = time.perf_counter() - started
        taken.transport.close()
        return {"seconds": spent_s}

    def ship(self, address: list[Any], certificate: str, total_bytes: int) -> Answer:
        """The baseline: the plaintext over TLS."""
        place = str(address[0]), int(address[1])
        return {"seconds": ship(self._plain, total_bytes, place, unpack(certificate))}

    def train_here(self, address: list[Any], key: str, total_bytes: int) -> Answer:
        """The other baseline: the model comes here, and goes back."""
        if len(self._model) != total_bytes:
            self._model = memoryview(bytearray(total_bytes))
        started = time.perf_counter()
        transport = TcpTransport.dial(str(address[0]), int(address[1]))
        receive_model(transport, self._model, SecretKey(unpack(key)))
        send_model(transport, self._model, SecretKey(unpack(key)))
        transport.receive(WAIT_S)
        transport.close()
        return {"seconds": time.perf_counter() - started}

    def close(self) -> None:
        """Hang up."""
        self._files.close()


def _chunks(total_bytes: int) -> Iterator[bytes]:
    """Bytes of which no two chunks are alike."""
    noise = token_bytes(CHUNK_BYTES)
    for start in range(0, total_bytes, CHUNK_BYTES):
        chunk = start.to_bytes(8, "big") + noise[8:]
        yield chunk[: total_bytes - start]


class AcceleratorEnd(End):
    """Takes cargo as the product does, and as what it is compared with."""

    def __init__(self) -> None:
        self._attester = SigningKey.generate()
        self._stack = ExitStack()
        self._model = memoryview(b"")
        self._visits = 0

    def attester(self) -> Answer:
        """The key that the agreement must name."""
        return {"key": self._attester.public_key.to_text()}

    def listen(self, host: str) -> Answer:
        """Listen for cargo, shipped data sets and models; where."""
        self._direct = TcpListener(host)
        self._models = self._stack.enter_context(closing(TcpListener(host)))
        self._shipping = self._stack.enter_context(closing(ShippingDock((host, 0))))
        places = {
            "direct": self._direct.address,
            "models": self._models.address,
            "shipping": self._shipping.address,
        }
        return {"places": places, "certificate": pack(self._shipping.certificate)}

    def join(self, address: list[Any], direct: str, signed: str, key: str) -> Answer:
        """Dial the relay; holders are told to come to ``direct``."""
        verified = agreed(signed)
        agreement = verified.agreement
        (self._resource,) = agreement.resources
        endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name=NAME,
            agreement=verified.digest,
            attester=DevelopmentAttester(
                self._attester,
                role=Role.ACCELERATOR,
                code_bundle=agreement.code.digest,
            ),
        )
        instance = endpoint.instance
        relay = RelayClient.dial((str(address[0]), int(address[1])), NAME)
        link = self._stack.enter_context(relay)
        host = DirectHost(local=LocalListener(), tcp=self._direct, tcp_address=direct)
        self._host = self._stack.enter_context(closing(host))

        def meet(lease: Lease, left_s: float) -> Session:
            policy = expect_holder(verified, lease)
            return accept(link.accept(WAIT_S), endpoint, policy, left_s)

        released = ReleasedResource(self._resource, SecretKey(unpack(key)))
        self._setup = HostSetup(
            released={self._resource.name: released},
            terms=LeaseTerms(
                orchestrator=agreement.party(agreement.operator).sign,
                job=JOB,
                agreement=verified.digest,
                accelerator=instance.public_key,
                longest_s=agreement.travel_rule.lease_s,
            ),
            heads=tuple,
            rules=VisitRules(max_visits=MAX_VISITS),
            meet=meet,
            check=lambda cargo: None,
            work=lambda cargo: GroupResult({}),
            sign=ReceiptWriter(
                instance,
                prove_instance(endpoint, verified),
                tuple,
                TravelSettings(),
                "none",
            ),
            make_pool=CPUPool,
            clock=time.perf_counter,
            tell=lambda phase: None,
            direct_host=self._host,
        )
        return {"instance": instance.public_key.to_text()}

    def offer(self, rows: int) -> Answer:
        """A visit with a buffer for so many rows: memory that has been touched."""
        self._visits += 1
        offer = OfferVisit(
            visit=VisitId.generate(),
            position=self._visits,
            number=self._visits,
            epoch=0,
            holder=OWNER,
            resource=self._resource.name,
            purpose="train",
            first_row=0,
            rows=rows,
        )
        self._visit = HostedVisit(offer, self._setup)
        handle = self._visit.offered().handle
        return {"visit": offer.visit.to_text(), "handle": handle.to_text()}

    def visit(self, lease: str) -> Answer:
        """One visit from the lease to the scrub; seconds by phase.

        Raises:
            JobError: if it ended otherwise than in a verified scrub.
        """
        ended = self._visit.run(decode(SignedLease, unpack(lease)))
        if ended.outcome != "verified":
            raise JobError("a visit of the measurement failed", why=ended.line)
        return {f"{name}_s": spent_s for name, spent_s in ended.phases_s.items()}

    def open_plain(self, total_bytes: int) -> Answer:
        """A buffer and a place for the plain copy."""
        material = token_bytes(KEY_BYTES)
        self._pool = CPUPool(total_bytes, self._resource.record_bytes)
        longest = frame_bytes(self._resource.record_bytes)
        self._place = self._host.offer(SecretKey(material), longest)
        offers = [(o.kind, o.address, pack(o.token)) for o in self._place.offers]
        return {"offers": offers, "key": pack(material)}

    def plain(self) -> None:
        """Copy what comes into the buffer, as fast as it comes."""
        transport = self._place.transport(WAIT_S)
        buffer, filled = self._pool.buffer, 0
        while filled < len(buffer):
            frame = transport.borrow(WAIT_S)[HEADER_BYTES:-TAG_BYTES]
            buffer[filled : filled + len(frame)] = frame
            filled += len(frame)
            transport.give_back()
        transport.send(b"done")
        self._host.withdraw(self._place)
        self._scrub()

    def take_shipped(self, total_bytes: int) -> None:
        """Receive a data set over TLS into the buffer."""
        self._pool = CPUPool(total_bytes, self._resource.record_bytes)
        self._shipping.take(self._pool.buffer)
        self._scrub()

    def lend_model(self, key: str, total_bytes: int) -> None:
        """Send the model to the holder and take it back."""
        if len(self._model) != total_bytes:
            self._model = memoryview(bytearray(total_bytes))
        transport = self._models.accept(WAIT_S)
        send_model(transport, self._model, SecretKey(unpack(key)))
        receive_model(transport, self._model, SecretKey(unpack(key)))
        transport.send(b"done")
        transport.close()

    def close(self) -> None:
        """Hang up and stop listening."""
        self._stack.close()

    def _scrub(self) -> None:
        scrub(self._pool.regions())
        self._pool.close()
