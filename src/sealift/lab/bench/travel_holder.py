"""The holder's process of the travel measurement: the real holder, and the baselines.

``python -m sealift.lab.bench.travel_holder`` takes orders on stdin (``travel_wire``). It may
run in another network namespace than everybody else.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_bytes
from typing import Any

from sealift.channel.record.commitment import key_commitment
from sealift.channel.record.rawfile import RawSealedFile
from sealift.channel.record.sealedfile import write_sealed_file
from sealift.channel.transport.tcp import TcpTransport
from sealift.codec import decode, encode
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.ids import Role
from sealift.lab.bench.travel_shipping import receive_model, send_model, ship
from sealift.lab.bench.travel_wire import Answer, pack, serve, unpack
from sealift.release.agreement import Resource
from sealift.release.signed import (
    SignedAgreement,
    VerifiedAgreement,
    add_signature,
    verify,
)
from sealift.session.direct.dial import PathDialler
from sealift.session.direct.exchange import DirectOffer
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.session import connect
from sealift.travel.frame import HEADER_BYTES, frame_bytes
from sealift.travel.holder import HeldResource, Provisioning
from sealift.travel.lease import SignedLease
from sealift.travel.peers import accelerator_names, expect_accelerator, relay_name

NAME = "holder"
RESOURCE = "holder-train"
CHUNK_BYTES = 1 << 20
WAIT_S = 3600.0


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


class HolderEnd:
    """Does what the measurement orders."""

    def __init__(self) -> None:
        self._identity = create_identity(NAME)
        self._relay: RelayClient | None = None
        self._files = ExitStack()
        self._model = memoryview(b"")

    def make(
        self, folder: str, total_bytes: int, row_bytes: int, record_bytes: int
    ) -> Answer:
        """Write the data set in plaintext (for the baseline) and sealed."""
        self._plain = Path(folder) / "plain"
        material = token_bytes(KEY_BYTES)
        key = SecretKey(material)
        with self._plain.open("wb") as file:
            for chunk in _chunks(total_bytes):
                file.write(chunk)
        card = write_sealed_file(
            Path(folder) / "sealed",
            _read(self._plain),
            key=key,
            total_bytes=total_bytes,
            record_bytes=record_bytes,
        )
        resource = Resource(
            name=RESOURCE,
            owner=NAME,
            part="train",
            rows=total_bytes // row_bytes,
            row_bytes=row_bytes,
            cell_rows=1,
            total_bytes=total_bytes,
            record_bytes=record_bytes,
            schema={"fields": [{"name": "x", "dtype": "uint8", "shape": [row_bytes]}]},
            content=card.content.digest,
            key=key_commitment(key, RESOURCE),
        )
        self._files.close()  # of the measurement before
        self._source = self._files.enter_context(TimedSource(card.path))
        self._held = HeldResource(resource, self._source, card.leaves)
        return {
            "card": pack(encode(self._identity.card)),
            "resource": pack(encode(resource)),
            "key": pack(material),
        }

    def sign(self, signed: str) -> Answer:
        """Sign the agreement."""
        agreement = decode(SignedAgreement, unpack(signed))
        return {"signed": pack(encode(add_signature(agreement, self._identity)))}

    def join(self, host: str, port: int, signed: str) -> Answer:
        """Dial the relay."""
        self._agreement: VerifiedAgreement = verify(
            decode(SignedAgreement, unpack(signed))
        )
        if self._relay is not None:
            self._relay.close()
        self._relay = RelayClient.dial((host, port), relay_name(Role.HOLDER, NAME))
        return {}

    def visit(self, lease: str, kinds: list[Any], places: list[str]) -> Answer:
        """Bring the cargo of one lease; the real holder."""
        assert self._relay is not None
        signed = decode(SignedLease, unpack(lease))
        endpoint = Endpoint(
            role=Role.HOLDER,
            name=NAME,
            agreement=self._agreement.digest,
            identity=self._identity,
        )
        policy = expect_accelerator(
            self._agreement, accelerator_names()[0], signed.lease.accelerator
        )
        paths: list[str] = []
        self._source.read_s = 0.0
        started = time.perf_counter()
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
            sink=lambda event: paths.extend(
                [str(event.fields["path"])] if event.kind == "visit.path" else []
            ),
        )
        with connect(
            self._relay.open(accelerator_names()[0]), endpoint, policy
        ) as session:
            provisioning.provision(session)
        spent_s = time.perf_counter() - started
        return {"seconds": spent_s, "read_s": self._source.read_s, "path": paths[0]}

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
        return {"path": taken.name, "seconds": spent_s}

    def ship(self, host: str, port: int, certificate: str, total_bytes: int) -> Answer:
        """The baseline: the plaintext over TLS."""
        address = (host, port)
        return {"seconds": ship(self._plain, total_bytes, address, unpack(certificate))}

    def train_here(self, host: str, port: int, key: str, total_bytes: int) -> Answer:
        """The other baseline: the model comes here, and goes back."""
        if len(self._model) != total_bytes:
            self._model = memoryview(bytearray(total_bytes))
        started = time.perf_counter()
        transport = TcpTransport.dial(host, port)
        receive_model(transport, self._model, SecretKey(unpack(key)))
        send_model(transport, self._model, SecretKey(unpack(key)))
        transport.receive(WAIT_S)
        transport.close()
        return {"seconds": time.perf_counter() - started}

    def close(self) -> None:
        """Hang up."""
        if self._relay is not None:
            self._relay.close()
        self._files.close()


def _chunks(total_bytes: int) -> Iterator[bytes]:
    """Bytes of which no two chunks are alike."""
    noise = secrets.token_bytes(CHUNK_BYTES)
    for start in range(0, total_bytes, CHUNK_BYTES):
        chunk = start.to_bytes(8, "big") + noise[8:]
        yield chunk[: total_bytes - start]


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


if __name__ == "__main__":
    serve(HolderEnd())
