"""The processes of the travel measurement: the real holder, the real visit, and baselines.

The holder may run in another network namespace than everybody else. The accelerator has
no torch: what is measured here is how cargo gets in and out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes, token_urlsafe
from typing import Any, Final

from benchmarks.channel import copy_frames, pipe_over
from benchmarks.harness import Answer, End, pack, unpack
from benchmarks.shipping import ShippingListener, ship
from sealift.channel.record.rawfile import RawSealedFile
from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.channel.transport.unixsocket import LocalListener
from sealift.codec import decode, encode
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.identity import load_identity, save_identity
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.errors import JobError, require_value
from sealift.ids import Role
from sealift.release.agreement import Resource, TravelRule
from sealift.release.agreement.signed import SignedAgreement, verify
from sealift.session.direct import DirectOffer, PathDialler
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, connect
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.accelerator.setup import HostSetup
from sealift.travel.holder.visit import HeldResource, Provisioning
from sealift.travel.peers import accelerator_names, expect_accelerator, relay_name
from sealift.travel.visit.lease import HEADER_BYTES, Lease, SignedLease, frame_bytes
from sealift.travel.visit.memory import CPUPool, scrub
from tests.worlds.consortium import ONE_HOLDER, Consortium, make_consortium
from tests.worlds.visits import VisitWorld, seal_resource

OWNER: Final = "owner"
(NAME,) = accelerator_names()
MAX_VISITS: Final = 100_000
LEASE_S: Final = 3600.0
RECORD_BYTES: Final = 2 << 20
ROW_BYTES: Final = 4096
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


class HolderEnd(End):
    """Brings cargo as the product does, and as what it is compared with."""

    def __init__(self) -> None:
        self._files = ExitStack()
        self._model = memoryview(b"")

    def join(
        self, address: Any, folder: str, words: str, signed: str, leaves: list[str]
    ) -> None:
        """Dial the relay with what was made for its owner in a folder."""
        self._plain = Path(folder) / "plain"
        self._agreement = verify(decode(SignedAgreement, unpack(signed)))
        self._endpoint = Endpoint(
            role=Role.HOLDER,
            name=OWNER,
            agreement=self._agreement.digest,
            identity=load_identity(Path(folder) / "holder.key", words),
        )
        (resource,) = self._agreement.agreement.resources
        source = TimedSource(Path(folder) / f"{resource.name}.sealed")
        self._source = self._files.enter_context(source)
        hashes = tuple(map(unpack, leaves))
        self._held = HeldResource(resource, self._source, hashes)
        relay = RelayClient.dial(tuple(address), relay_name(Role.HOLDER, OWNER))
        self._link = self._files.enter_context(relay)

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
        policy = expect_accelerator(self._agreement, NAME, signed.body.accelerator)
        with connect(self._link.open(NAME), self._endpoint, policy) as session:
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
        transport = require_value(taken.transport, taken.why)
        for index in range(-(-total_bytes // record_bytes)):
            length = self._source.record_length(index)
            room = transport.reserve(HEADER_BYTES + length, WAIT_S)
            self._source.record_into(index, room[HEADER_BYTES:])
            transport.commit()
        transport.receive(WAIT_S)
        spent_s = time.perf_counter() - started
        transport.close()
        return {"seconds": spent_s}

    def ship(self, address: Any, certificate: str, total_bytes: int) -> Answer:
        """The baseline: the plaintext over TLS."""
        return {"seconds": ship(self._plain, total_bytes, address, unpack(certificate))}

    def train_here(self, address: Any, key: str, total_bytes: int) -> Answer:
        """The other baseline: the model comes here, and goes back."""
        if len(self._model) != total_bytes:
            self._model = memoryview(bytearray(total_bytes))
        started = time.perf_counter()
        transport = TcpTransport.dial(*address)
        with pipe_over(transport, key, opens=False, timeout_s=WAIT_S) as pipe:
            pipe.receive_into(self._model)
            pipe.send(self._model)
        return {"seconds": time.perf_counter() - started}

    def close(self) -> None:
        """Hang up."""
        self._files.close()


class CargoWorld(VisitWorld):
    """Everything but the holder; its data set lies in plaintext, too, for the baselines."""

    direct: DirectHost

    def seal(self, resource: Resource, consortium: Consortium) -> Resource:
        """Rows of which no two chunks are alike."""
        noise, total = token_bytes(CHUNK_BYTES), self.rows * ROW_BYTES
        with (self.folder / "plain").open("wb") as file:
            for start in range(0, total, CHUNK_BYTES):
                file.write((start.to_bytes(8, "big") + noise[8:])[: total - start])
        held = self.held[resource.name] = seal_resource(
            resource,
            (self.folder / "plain").read_bytes(),
            key=consortium.keys[resource.name],
            folder=self.folder,
            files=self.files,
            row_bytes=ROW_BYTES,
            record_bytes=RECORD_BYTES,
            schema={"fields": [{"name": "x", "dtype": "uint8", "shape": [ROW_BYTES]}]},
        )
        return held.resource

    def setup(self, meet: Callable[[Lease, float], Session]) -> HostSetup:
        """With the direct paths that a job's accelerator offers."""
        return replace(super().setup(meet), direct_host=self.direct)


class AcceleratorEnd(End):
    """Takes cargo as the product does, and as what it is compared with.

    It is the orchestrator's hand as well: it makes offers and signs leases.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._model = memoryview(b"")

    def make(self, folder: str, total_bytes: int) -> Answer:
        """The owner's identity and data set, and the agreement that everybody signed."""
        place, words = Path(folder), token_urlsafe(18)
        travel = TravelRule(1, LEASE_S)
        world = make_consortium((OWNER,), ("train",), output=ONE_HOLDER, travel=travel)
        save_identity(world.identities[OWNER], place / "holder.key", words)
        rows = total_bytes // ROW_BYTES
        clock = time.perf_counter  # for phases of less than a millisecond
        made = CargoWorld(place, world, rows=rows, lease_s=LEASE_S, clock=clock)
        self._world = self._stack.enter_context(made)
        self._world.rules = VisitRules(max_visits=MAX_VISITS)
        (held,) = self._world.held.values()
        signed = pack(encode(self._world.consortium.signed()))
        leaves = list(map(pack, held.leaves))
        return {"folder": folder, "words": words, "signed": signed, "leaves": leaves}

    def listen(self, host: str) -> Answer:
        """Listen for cargo, shipped data sets and models; where."""
        self._direct = TcpListener(host)
        self._models = self._stack.enter_context(closing(TcpListener(host)))
        self._shipping = self._stack.enter_context(closing(ShippingListener((host, 0))))
        places = {
            "direct": self._direct.address,
            "models": self._models.address,
            "shipping": self._shipping.address,
        }
        return {"places": places, "certificate": pack(self._shipping.certificate)}

    def join(self, address: Any, direct: str) -> None:
        """Dial the relay; holders are told to come to ``direct``."""
        relay = RelayClient.dial(tuple(address), NAME)
        self._link = self._stack.enter_context(relay)
        host = DirectHost(local=LocalListener(), tcp=self._direct, tcp_address=direct)
        self._world.direct = self._stack.enter_context(closing(host))

    def offer(self, rows: int) -> Answer:
        """A visit with a buffer for so many rows, memory that has been touched; its lease."""
        offer = self._world.offer(OWNER, rows=rows)
        self._visit = self._world.host(offer, self._meet)
        started = time.perf_counter()
        self._lease = self._world.grant(offer, self._visit)
        signed = pack(encode(self._lease))
        return {"lease": signed, "lease_s": time.perf_counter() - started}

    def visit(self) -> Answer:
        """One visit from the lease to the scrub; seconds by phase.

        Raises:
            JobError: if it ended otherwise than in a verified scrub.
        """
        ended = self._visit.run(self._lease)
        if ended.outcome != "verified":
            raise JobError("a visit of the measurement failed", why=ended.line)
        return {f"{name}_s": spent_s for name, spent_s in ended.phases_s.items()}

    def open_plain(self, total_bytes: int) -> Answer:
        """A buffer and a place for the plain copy."""
        material = token_bytes(KEY_BYTES)
        self._pool = CPUPool(total_bytes, RECORD_BYTES)
        longest = frame_bytes(RECORD_BYTES)
        self._place = self._world.direct.offer(SecretKey(material), longest)
        offers = [(o.kind, o.address, pack(o.token)) for o in self._place.offers]
        return {"offers": offers, "key": pack(material)}

    def plain(self) -> None:
        """Copy what comes into the buffer, as fast as it comes."""
        transport = self._place.transport(WAIT_S)
        record = slice(HEADER_BYTES, -TAG_BYTES)
        copy_frames(transport, self._pool.buffer, record, WAIT_S)
        transport.send(b"done")
        self._world.direct.withdraw(self._place)
        self._scrub()

    def take_shipped(self, total_bytes: int) -> None:
        """Receive a data set over TLS into the buffer."""
        self._pool = CPUPool(total_bytes, RECORD_BYTES)
        self._shipping.take(self._pool.buffer)
        self._scrub()

    def lend_model(self, key: str, total_bytes: int) -> None:
        """Send the model to the holder and take it back."""
        if len(self._model) != total_bytes:
            self._model = memoryview(bytearray(total_bytes))
        transport = self._models.accept(WAIT_S)
        with pipe_over(transport, key, opens=True, timeout_s=WAIT_S) as pipe:
            pipe.send(self._model)
            pipe.receive_into(self._model)

    def close(self) -> None:
        """Hang up and stop listening."""
        self._stack.close()

    def _meet(self, lease: Lease, left_s: float) -> Session:
        return self._world.accept(self._link.accept(WAIT_S), lease, left_s)

    def _scrub(self) -> None:
        scrub(self._pool.regions())
        self._pool.close()
