"""The processes of the release measurement: relay, broker and accelerators, as in a job.

Vault and log are on the disk, the broker dials the relay. An accelerator's evidence is a
development attester's, or of a software TPM that it runs beside itself.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Answer, End, pack, unpack
from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Attester, Evidence
from sealift.attest.level import Level
from sealift.attest.reference import TpmReferences
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent
from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.codec import decode, encode
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import PeerError, StaleError, require_value
from sealift.ids import Digest, Role
from sealift.release.agreement import KeyLease, References, ReleaseRule
from sealift.release.agreement.signed import SignedAgreement, verify
from sealift.release.client import ask_lease, collect_release, prove_lease
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import Registry
from sealift.session.relay.server import Relay
from sealift.session.session import Session, connect
from sealift.train.job.leasekeeping import LeaseKeeper
from sealift.train.job.releasedkeys import enrol_where_missing
from sealift.travel.broker import BrokerService
from sealift.travel.holder.watches import LeaseWatch
from sealift.travel.peers import accelerator_names, expect_broker, relay_name
from tests.worlds.brokers import open_broker
from tests.worlds.consortium import (
    ONE_HOLDER,
    RUN,
    make_consortium,
    make_resource,
)
from tests.worlds.softwarehost import SoftwareHost, software_host

OWNER: Final = "owner"
RESOURCE: Final = "owner-train"
BROKER: Final = relay_name(Role.BROKER, OWNER)
HEARTBEAT_S: Final = 1.0
CLIENTS: Final = 256  # all of them from this machine, under names without keys
CHUNK: Final = bytes(1 << 16)
PAUSE_S: Final = 0.002  # between chunks: enough to time the last one by
WAIT_S: Final = 60.0
DIALS: Final = 20
MAX_PROGRAMS: Final = 1000  # different ones; a longer list names them again


class RelayEnd(End):
    """Forwards frames, as an orchestrator does in a job."""

    def __init__(self) -> None:
        registry = Registry(strangers=CLIENTS, strangers_each=CLIENTS)
        self._relay = Relay.listen(registry=registry)

    def start(self) -> Answer:
        """Where to dial."""
        return {"address": list(self._relay.address)}

    def close(self) -> None:
        """Stop."""
        self._relay.close()


class BrokerEnd(End):
    """The owner's broker, and its holder where rows flow; the owner runs the rest, too."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def agree(
        self, attesters: list[str], tpm: str, heartbeat_s: float | None
    ) -> Answer:
        """The agreement that everybody signed.

        Args:
            attesters: Keys of those who show development evidence.
            tpm: References of the host that is rehearsed, if it is one.
            heartbeat_s: Of the resource's lease; None for a release without one.
        """
        rule = ReleaseRule(lease_s=0.0)
        if heartbeat_s is not None:
            rule = replace(rule, lease_s=3600.0, heartbeat_s=heartbeat_s)
        made = partial(make_resource, rows=1024, record_bytes=4096, rule=rule)
        keys = References(tuple(map(PublicKey.from_text, attesters)))
        terms: dict[str, Any] = {"references": keys, "output": ONE_HOLDER}
        world = make_consortium((OWNER,), ("train",), make=made, **terms)
        if tpm:
            enrollers = (world.identities[OWNER].public_key,)
            host = decode(TpmReferences, unpack(tpm))
            references = References((), enrollers=enrollers, tpm=host)
            rehearsed = {"rehearse": Level.ATTESTED_HOST, "references": references}
            world = world.changed(**rehearsed)
        self._world = world
        return {"signed": pack(encode(world.signed()))}

    def join(self, address: Any, folder: str, clients: int) -> None:
        """Dial the relay and begin to serve so many accelerators."""
        box = self._open.enter_context(open_broker(self._world, OWNER, Path(folder)))
        self._address, self._agreement = tuple(address), box.agreement
        link = self._open.enter_context(RelayClient.dial(self._address, BROKER))
        door = BrokerService(
            link,
            self._world.endpoint(Role.BROKER, OWNER),
            box.agreement,
            broker=box.broker,
            accelerators=accelerator_names(clients),
        )

        def serve() -> None:
            with suppress(PeerError):  # the link is closed at the end
                door.serve()

        threading.Thread(target=serve, daemon=True).start()

    def give(self, host: str, port: int, instance: str) -> None:
        """Be this owner's holder: send rows to an instance until its lease is lost."""
        endpoint = self._world.endpoint(Role.HOLDER, OWNER)
        endpoint = replace(endpoint, instance=SigningKey.generate())
        key, name = PublicKey.from_text(instance), relay_name(Role.HOLDER, OWNER)
        line = TcpTransport.dial(host, port)
        policy = expect_broker(self._agreement, OWNER)
        with (
            RelayClient.dial(self._address, name) as link,
            connect(link.open(BROKER), endpoint, policy) as session,
            closing(
                LeaseWatch(
                    lambda wait_s: ask_lease(session, key, wait_s=wait_s),
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

    def close(self) -> None:
        """Stop serving."""
        self._open.close()


class FallibleAttester:
    """Development evidence, until it falls: then it is another attester's."""

    def __init__(self, key: SigningKey, bundle: Digest) -> None:
        self._good, self._bad = (
            DevelopmentAttester(each, role=Role.ACCELERATOR, code_bundle=bundle)
            for each in (key, SigningKey.generate())
        )
        self.fallen = False

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound``."""
        return (self._bad if self.fallen else self._good).collect(bound)


class ClientEnd(End):
    """An accelerator: asks for keys, and times the answers."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._key = SigningKey.generate()
        self._host: SoftwareHost | None = None

    def attester(self) -> Answer:
        """The key that the agreement must name."""
        return {"key": self._key.public_key.to_text()}

    def host(self, entries: int) -> Answer:
        """Boot a rehearsed host with a list of so many entries; its references."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tpm-"))
        listed = min(entries - 1, MAX_PROGRAMS)
        programs = map(_program, range(listed))
        self._host = self._stack.enter_context(software_host(Path(folder), programs))
        self._grow(entries - 1 - listed)
        return {"references": pack(encode(self._host.references()))}

    def join(self, address: Any, signed: str, name: str) -> None:
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
            name=name,
            agreement=self._agreement.digest,
            attester=attester,
        )
        relay = _dialled(tuple(address), name)
        self._link = self._stack.enter_context(relay)
        self._policy = expect_broker(self._agreement, OWNER)
        enrol_where_missing(
            self._link,
            self._endpoint,
            self._agreement,
            wait_s=WAIT_S,
            sink=lambda event: None,
        )

    def release(self, times: int) -> Answer:
        """So many releases, a new session each: milliseconds, and of the session alone."""
        whole, sessions = [], []
        for _ in range(times):
            started = time.perf_counter()
            with self._open() as session:
                sessions.append((time.perf_counter() - started) * 1000)
                whole.append(sessions[-1] + _timed_ms(lambda: self._collect(session)))
        return {"ms": whole, "session_ms": sessions}

    def release_again(self, times: int) -> Answer:
        """So many releases in one session that stands: milliseconds, without opening."""
        with self._open() as session:
            return {
                "ms": [_timed_ms(lambda: self._collect(session)) for _ in range(times)]
            }

    def attest(self, times: int) -> Answer:
        """Only the evidence: collected, not sent; milliseconds."""
        attester = require_value(self._endpoint.attester)
        return {
            "ms": [_timed_ms(lambda: attester.collect(bytes(32))) for _ in range(times)]
        }

    def hold(self) -> None:
        """Take a key under a lease, in a session that stays open."""
        self._held = self._stack.enter_context(self._open())
        self._collect(self._held)

    def renew(self, times: int, grow: int) -> Answer:
        """Renew that session while the list grows, each counted; milliseconds."""
        spent = []
        for _ in range(times):
            self._grow(grow)
            spent.append(_timed_ms(lambda: prove_lease(self._held, WAIT_S)))
        return {"ms": spent}

    def keep(self) -> Answer:
        """As a fresh instance, collect a key and keep its lease; where rows may come."""
        self._endpoint = replace(self._endpoint, instance=SigningKey.generate())
        with self._open() as session:
            self._collect(session)
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
        host, port = self._listener.address
        instance = self._endpoint.instance.public_key.to_text()
        return {"instance": instance, "host": host, "port": port}

    def fall(self, after_s: float) -> Answer:
        """Take rows; after a while its evidence is another's. When the last row came."""
        line = self._listener.accept(WAIT_S)
        fallen_s = time.monotonic() + after_s
        last_s = 0.0
        with suppress(PeerError):
            while True:
                line.receive(WAIT_S)
                last_s = time.monotonic()
                if last_s >= fallen_s:
                    self._attester.fallen = True
        self._keeper.close()
        self._listener.close()
        self._attester.fallen = False
        return {"seconds": last_s - fallen_s}

    def close(self) -> None:
        """Hang up, and switch the host off."""
        self._stack.close()

    def _open(self) -> Session:
        return connect(self._link.open(BROKER, WAIT_S), self._endpoint, self._policy)

    def _collect(self, session: Session) -> None:
        key, _ = collect_release(
            session, self._agreement, RESOURCE, clock=time.monotonic, run=RUN
        )
        key.wipe()

    def _grow(self, entries: int) -> None:
        """The first program runs again, which the kernel measures each time."""
        for _ in range(entries):
            require_value(self._host).kernel.run(*_program(0), allow=False)


def _program(number: int) -> tuple[str, bytes]:
    """A file that runs on the rehearsed host."""
    return f"/usr/lib/python3/dist-packages/module{number}.so", str(number).encode()


def _timed_ms(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return (time.perf_counter() - started) * 1000


def _dialled(address: tuple[str, int], name: str) -> RelayClient:
    """Who is crowded out while many register at once dials again, as roles do."""
    for _ in range(DIALS - 1):
        with suppress(PeerError):
            return RelayClient.dial(address, name)
    return RelayClient.dial(address, name)
