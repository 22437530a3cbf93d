"""An accelerator's process of the release measurement: asks for keys, times the answers.

``python -m sealift.lab.bench.release_client`` takes orders on stdin (``travel_wire``). Its
evidence is a development attester's, or of a software TPM that it runs beside itself.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from sealift.attest.attester import Attester
from sealift.attest.development.attester import DevelopmentAttester
from sealift.attest.evidence import Evidence
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent
from sealift.channel.transport.tcp import TcpListener
from sealift.codec import decode, encode
from sealift.crypto.sign import SigningKey
from sealift.errors import PeerError
from sealift.ids import Digest, Role
from sealift.lab.bench.release_broker import BROKER, HEARTBEAT_S, OWNER, RESOURCE
from sealift.lab.bench.travel_wire import Answer, pack, serve, unpack
from sealift.lab.worlds.softwarehost import SoftwareHost, software_host
from sealift.release.agreement import KeyLease
from sealift.release.collect import collect_release
from sealift.release.lease import prove_lease
from sealift.release.signed import SignedAgreement, verify
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, connect
from sealift.train.enrolling import enrol_where_missing
from sealift.train.leasekeeping import LeaseKeeper
from sealift.travel.peers import ACCELERATOR, expect_broker

WAIT_S = 60.0
DIALS = 20
MAX_PROGRAMS = 1000  # different ones; a longer list names them again


def program(number: int) -> tuple[str, bytes]:
    """A file that runs on the rehearsed host."""
    return f"/usr/lib/python3/dist-packages/module{number}.so", str(number).encode()


class FallibleAttester:
    """Development evidence, until it falls: then it is another attester's."""

    def __init__(self, key: SigningKey, bundle: Digest) -> None:
        keys = (key, SigningKey.generate())
        self._good, self._bad = (
            DevelopmentAttester(each, role=Role.ACCELERATOR, code_bundle=bundle)
            for each in keys
        )
        self.media_type = self._good.media_type
        self.fallen = False

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound``."""
        return (self._bad if self.fallen else self._good).collect(bound)


def dialled(address: tuple[str, int], name: str) -> RelayClient:
    """A link; who is crowded out while many register at once dials again, as roles do."""
    for _ in range(DIALS - 1):
        with suppress(PeerError):
            return RelayClient.dial(address, name)
    return RelayClient.dial(address, name)


class ClientEnd:
    """Does what the measurement orders."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._key = SigningKey.generate()
        self._host: SoftwareHost | None = None

    def start(self) -> Answer:
        """The key that the agreement must name."""
        return {"attester": self._key.public_key.to_text()}

    def host(self, entries: int) -> Answer:
        """Boot a rehearsed host with a list of so many entries; its references."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tpm-"))
        listed = min(entries - 1, MAX_PROGRAMS)
        programs = map(program, range(listed))
        self._host = self._stack.enter_context(software_host(Path(folder), programs))
        self.grow(entries - 1 - listed)
        return {"references": pack(encode(self._host.references()))}

    def grow(self, entries: int) -> Answer:
        """The last program runs again, which the kernel measures each time."""
        assert self._host is not None
        for _ in range(entries):
            self._host.kernel.run(*program(0), allow=False)
        return {}

    def join(self, host: str, port: int, signed: str, name: str) -> Answer:
        """Dial the relay, and be enrolled where that is needed."""
        self._agreement = verify(decode(SignedAgreement, unpack(signed)))
        bundle = self._agreement.agreement.code.digest
        attester: Attester
        if self._host is not None:
            attester = self._host.attester
            attester.measure(RuntimeEvent(CODE_BUNDLE, bundle.raw))
        else:
            attester = self._attester = FallibleAttester(self._key, bundle)
        self._endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name=ACCELERATOR,
            agreement=self._agreement.digest,
            attester=attester,
        )
        self._relay = self._stack.enter_context(dialled((host, port), name))
        self._policy = expect_broker(self._agreement, OWNER)
        enrol_where_missing(
            self._relay,
            self._endpoint,
            self._agreement,
            wait_s=WAIT_S,
            sink=lambda event: None,
        )
        return {}

    def release(self, times: int) -> Answer:
        """So many releases, a new session each: milliseconds, and of the session alone."""
        whole, sessions = [], []
        for _ in range(times):
            started = time.perf_counter()
            with self._open() as session:
                opened = time.perf_counter()
                key, _ = collect_release(
                    session, self._agreement, RESOURCE, clock=time.monotonic
                )
                done = time.perf_counter()
                key.wipe()
            whole.append((done - started) * 1000)
            sessions.append((opened - started) * 1000)
        return {"ms": whole, "session_ms": sessions, "cpu_s": time.process_time()}

    def release_again(self, times: int) -> Answer:
        """So many releases in one session that stands: milliseconds, without opening."""
        spent = []
        with self._open() as session:
            for _ in range(times):
                started = time.perf_counter()
                key, _ = collect_release(
                    session, self._agreement, RESOURCE, clock=time.monotonic
                )
                spent.append((time.perf_counter() - started) * 1000)
                key.wipe()
        return {"ms": spent}

    def attest(self, times: int) -> Answer:
        """Only the evidence: collected, not sent; milliseconds."""
        attester = self._endpoint.attester
        assert attester is not None
        spent, size = [], 0
        for _ in range(times):
            started = time.perf_counter()
            size = len(attester.collect(bytes(32)).body)
            spent.append((time.perf_counter() - started) * 1000)
        return {"ms": spent, "bytes": size}

    def hold(self) -> Answer:
        """Take a key under a lease, in a session that stays open."""
        self._held = self._stack.enter_context(self._open())
        key, _ = collect_release(
            self._held, self._agreement, RESOURCE, clock=time.monotonic
        )
        key.wipe()
        return {}

    def renew(self, times: int, grow: int) -> Answer:
        """Renew that session while the list grows, each counted; milliseconds."""
        spent = []
        for _ in range(times):
            self.grow(grow)
            started = time.perf_counter()
            prove_lease(self._held, WAIT_S)
            spent.append((time.perf_counter() - started) * 1000)
        return {"ms": spent}

    def keep(self) -> Answer:
        """As a fresh instance, collect a key and keep its lease; where rows may come."""
        self._endpoint = replace(self._endpoint, instance=SigningKey.generate())
        with self._open() as session:
            key, _ = collect_release(
                session, self._agreement, RESOURCE, clock=time.monotonic
            )
            key.wipe()
        self._listener = TcpListener("127.0.0.1", 0)
        self._keeper = LeaseKeeper(
            lambda owner: self._open(),
            {OWNER: KeyLease(lease_s=HEARTBEAT_S, heartbeat_s=HEARTBEAT_S)},
            clock=time.monotonic,
            lost=lambda error: None,
            left=lambda owner, error: None,
            sink=lambda event: None,
        )
        self._keeper.begin(OWNER)
        instance = self._endpoint.instance.public_key.to_text()
        return {"instance": instance, "address": list(self._listener.address)}

    def fall(self, after_s: float) -> Answer:
        """Take rows; after a while its evidence is another's. When the last row came."""
        line = self._listener.accept(WAIT_S)
        fallen_s = time.monotonic() + after_s
        last_s, received = 0.0, 0
        with suppress(PeerError):
            while True:
                received += len(line.receive(WAIT_S))
                last_s = time.monotonic()
                if last_s >= fallen_s:
                    self._attester.fallen = True
        self._keeper.close()
        self._listener.close()
        self._attester.fallen = False
        return {"seconds": last_s - fallen_s, "bytes": received}

    def spent(self) -> Answer:
        """CPU seconds of this process so far."""
        return {"cpu_s": time.process_time()}

    def close(self) -> None:
        """Hang up, and switch the host off."""
        self._stack.close()

    def _open(self) -> Session:
        return connect(self._relay.open(BROKER, WAIT_S), self._endpoint, self._policy)


if __name__ == "__main__":
    serve(ClientEnd())
