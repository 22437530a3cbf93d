"""The broker's process of the release measurement: it dials the relay, as in a job.

``python -m sealift.lab.bench.release_broker`` takes orders on stdin (``travel_wire``).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from sealift.channel.record.commitment import key_commitment
from sealift.channel.transport.tcp import TcpTransport
from sealift.codec import decode, encode
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import PeerError, StaleError
from sealift.ids import Digest, Role
from sealift.lab.bench.travel_wire import Answer, pack, serve, unpack
from sealift.release.agreement import KeyLease, ReleaseRule, Resource
from sealift.release.equip import equip
from sealift.release.lease import ask_standing
from sealift.release.signed import SignedAgreement, add_signature, verify
from sealift.release.stores import keep_keys, opened_broker
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.client import RelayClient
from sealift.session.session import connect
from sealift.travel.brokerage import Brokerage
from sealift.travel.leasewatch import LeaseWatch
from sealift.travel.peers import (
    ACCELERATOR,
    expect_at_broker,
    expect_broker,
    relay_name,
)

OWNER = "owner"
RESOURCE = "owner-train"
BROKER = relay_name(Role.BROKER, OWNER)
HEARTBEAT_S = 1.0
CHUNK = bytes(1 << 16)
PAUSE_S = 0.002  # between chunks: enough to time the last one by


class _Crowded(Brokerage):
    """Many accelerators at once need a name each on the relay, which only routes."""

    def _expect(self, peer_name: str) -> PeerPolicy:
        if peer_name.startswith(ACCELERATOR):
            return expect_at_broker(self._agreement)
        return super()._expect(peer_name)

    def _share(self, peer_name: str) -> str:
        return peer_name


class BrokerEnd:
    """Does what the measurement orders."""

    def __init__(self) -> None:
        self._identity = create_identity(OWNER)
        self._key = SecretKey.generate()
        self._client: RelayClient | None = None
        self._open = ExitStack()

    def make(self, heartbeat_s: float | None) -> Answer:
        """The owner's card and its one resource."""
        rule = ReleaseRule(lease_s=0.0)
        if heartbeat_s is not None:
            rule = replace(rule, lease_s=3600.0, heartbeat_s=heartbeat_s)
        resource = Resource(
            name=RESOURCE,
            owner=OWNER,
            part="train",
            rows=1024,
            row_bytes=16,
            cell_rows=1,
            total_bytes=1 << 14,
            record_bytes=4096,
            schema={"fields": [{"name": "x", "dtype": "float64", "shape": [2]}]},
            content=Digest.of(b"rows of nobody"),
            key=key_commitment(self._key, RESOURCE),
            rule=rule,
        )
        card = pack(encode(self._identity.card))
        return {"card": card, "resource": pack(encode(resource))}

    def sign(self, signed: str) -> Answer:
        """Sign the agreement as its owner."""
        found = decode(SignedAgreement, unpack(signed))
        return {"signed": pack(encode(add_signature(found, self._identity)))}

    def start(self, signed: str, folder: str, host: str, port: int) -> Answer:
        """Dial the relay and begin to serve."""
        verified = equip(
            verify(decode(SignedAgreement, unpack(signed))),
            clock=_now_s,
            enroller=self._identity.public_key,
        )
        stores = Path(folder) / "vault.db", Path(folder) / "audit.db"
        keep_keys(stores[0], self._identity, {RESOURCE: self._key})
        self._broker = self._open.enter_context(
            opened_broker(
                *stores, self._identity, lambda ledger: verified, clock=_now_s
            )
        )
        self._policy = expect_broker(verified, OWNER)
        self._endpoint = Endpoint(
            role=Role.BROKER,
            name=OWNER,
            agreement=verified.digest,
            identity=self._identity,
        )
        self._relay = host, port
        self._client = RelayClient.dial(self._relay, BROKER)
        door = _Crowded(self._client, self._endpoint, verified, broker=self._broker)
        threading.Thread(target=_serve, args=(door,), daemon=True).start()
        return {}

    def give(self, host: str, port: int, instance: str) -> Answer:
        """Be this owner's holder: send rows to an instance until its lease is lost."""
        endpoint = replace(
            self._endpoint, role=Role.HOLDER, instance=SigningKey.generate()
        )
        key = PublicKey.from_text(instance)
        line = TcpTransport.dial(host, port)
        with (
            RelayClient.dial(self._relay, relay_name(Role.HOLDER, OWNER)) as client,
            connect(client.open(BROKER), endpoint, self._policy) as session,
            closing(
                LeaseWatch(
                    lambda wait_s: ask_standing(session, key, wait_s=wait_s),
                    KeyLease(lease_s=HEARTBEAT_S, heartbeat_s=HEARTBEAT_S),
                    time.monotonic,
                )
            ) as watch,
            suppress(PeerError, StaleError),
        ):
            watch.start()
            with watch.visit(line.close) as require_good:
                while True:
                    require_good()
                    line.send(CHUNK)
                    time.sleep(PAUSE_S)
        return {}

    def spent(self) -> Answer:
        """CPU seconds of this process so far, and entries in the log."""
        return {"cpu_s": time.process_time(), "entries": self._broker.head().size}

    def close(self) -> None:
        """Stop serving."""
        if self._client is not None:
            self._client.close()
            self._open.close()


def _serve(door: Brokerage) -> None:
    with suppress(PeerError):  # the link is closed at the end
        door.serve()


def _now_s() -> float:
    return time.time()  # noqa: TID251 - certificates and the log, as of today


if __name__ == "__main__":
    serve(BrokerEnd())
