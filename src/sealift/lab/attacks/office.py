"""Where keys are asked for: an owner's broker, and a host that proves what it runs.

Vault, log, broker, sessions, enrolment, quotes and leases are the real code, the first
two on the disk. The TPM is a software TPM, and what its kernel measures is played: an
attack needs a host that does what it is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_bytes
from typing import Final

from sealift.attest.attester import Attester
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent
from sealift.channel.record.commitment import key_commitment
from sealift.channel.transport.memory import memory_pair
from sealift.channel.transport.transport import Transport
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.errors import PeerError, SealiftError
from sealift.ids import Buffer, Digest, Role
from sealift.lab.worlds.softwarehost import SoftwareHost, software_host
from sealift.release.agreement import (
    Agreement,
    OutputRule,
    Party,
    References,
    ReleaseRule,
    Resource,
    TravelRule,
)
from sealift.release.bundle import measure_bundle
from sealift.release.collect import collect_release
from sealift.release.enrol import enrol
from sealift.release.equip import equip
from sealift.release.signed import (
    SignedAgreement,
    add_signature,
    verify,
)
from sealift.release.stores import keep_keys, opened_broker
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.session import Session, accept, connect
from sealift.travel.peers import expect_at_broker, expect_broker

OWNER: Final = "ada"
OPERATOR: Final = "bern"
RESOURCE: Final = "ada-train"
PROGRAMS: Final = (
    ("/usr/bin/python3.11", b"interpreter"),
    ("/usr/bin/agent", b"agent"),
)
HEARTBEAT_S: Final = 30.0
WAIT_S: Final = 20.0
Change = Callable[[Appraiser], Appraiser]


def as_agreed(appraiser: Appraiser) -> Appraiser:
    """No change."""
    return appraiser


@dataclass
class Wire:
    """Everything that crossed between accelerator and broker."""

    seen: list[bytes] = field(default_factory=list)

    def tapped(self, transport: Transport) -> Transport:
        """The transport, listened to."""
        send = transport.send

        def listened(frame: Buffer) -> None:
            self.seen.append(bytes(frame))
            send(frame)

        transport.send = listened  # type: ignore[method-assign]
        return transport


class Office:
    """One owner's broker and one host. Use as a context manager, or call ``close``.

    Args:
        folder: Gets vault, log and the software TPM; its path must be short.

    Raises:
        UnavailableError: ``guest-tpm``, without swtpm.
    """

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self.folder = folder
        self.wire = Wire()
        self.identities = {name: create_identity(name) for name in (OWNER, OPERATOR)}
        self.material = token_bytes(KEY_BYTES)
        self.key = SecretKey(self.material)
        self.refused = ""
        (folder / "host").mkdir(parents=True)
        self.host: SoftwareHost = self._stack.enter_context(
            software_host(folder / "host", PROGRAMS)
        )
        self.signed = self.sign(SignedAgreement(self._draft()))
        self.agreement = equip(
            verify(self.signed), clock=now_s, enroller=self.identity.public_key
        )
        stores = folder / "vault.db", folder / "audit.db"
        keep_keys(stores[0], self.identity, {RESOURCE: self.key})
        self.broker = self._stack.enter_context(
            opened_broker(
                *stores, self.identity, lambda ledger: self.agreement, clock=now_s
            )
        )
        bundle = self.agreement.agreement.code.digest
        self.host.attester.measure(RuntimeEvent(CODE_BUNDLE, bundle.raw))
        self._enrol()

    @property
    def identity(self) -> Identity:
        """The owner's."""
        return self.identities[OWNER]

    def sign(self, signed: SignedAgreement) -> SignedAgreement:
        """The same, signed by both parties."""
        for identity in self.identities.values():
            signed = add_signature(signed, identity)
        return signed

    def ask(self, attester: Attester | None = None, change: Change = as_agreed) -> str:
        """Ask for the key: why it was refused, or nothing if it came.

        Args:
            attester: Whose evidence is shown, if not the host's.
            change: What the agreement says otherwise.
        """
        endpoint = self.endpoint(attester or self.host.attester)
        try:
            with self.session(endpoint, change) as session:
                self.collect(session)
        except SealiftError as error:
            return self.refused or error.code
        return ""

    def endpoint(self, attester: Attester | None) -> Endpoint:
        """A fresh accelerator on the host."""
        return Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator",
            agreement=self.agreement.digest,
            attester=attester,
        )

    def collect(self, session: Session) -> None:
        """The key of the one resource, verified and forgotten."""
        key, _ = collect_release(
            session, self.agreement, RESOURCE, clock=time.monotonic
        )
        key.wipe()

    @contextmanager
    def session(
        self, endpoint: Endpoint, change: Change = as_agreed
    ) -> Iterator[Session]:
        """A session with the broker, which serves it in a thread."""
        here, there = memory_pair()
        policy = expect_at_broker(self.agreement)
        if change is not as_agreed:
            assert policy.appraiser is not None
            policy = replace(policy, appraiser=change(policy.appraiser))
        self.refused = ""
        server = threading.Thread(target=self._serve, args=(there, policy), daemon=True)
        server.start()
        expected = expect_broker(self.agreement, OWNER)
        try:
            with connect(self.wire.tapped(here), endpoint, expected) as session:
                yield session
        finally:
            here.close()
            server.join(WAIT_S)

    def close(self) -> None:
        """Switch the host off, close vault and log."""
        self._stack.close()

    def __enter__(self) -> Office:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _serve(self, line: Transport, policy: PeerPolicy) -> None:
        endpoint = Endpoint(
            role=Role.BROKER,
            name=OWNER,
            agreement=self.agreement.digest,
            identity=self.identity,
        )
        began_s = time.monotonic()
        try:
            with accept(self.wire.tapped(line), endpoint, policy) as session:
                self.broker.serve(session, WAIT_S, accepted_at_s=began_s)
        except SealiftError as error:
            if not isinstance(error, PeerError):
                self.refused = error.code
                self.broker.record_refused_handshake(error, name=endpoint.name)

    def _enrol(self) -> None:
        with self.session(self.endpoint(None)) as session:
            enrol(session, self.host.attester, self.identity.public_key)

    def _draft(self) -> Agreement:
        return Agreement(
            about="train",
            name="office",
            number=1,
            predecessor=None,
            parties=tuple(map(_party, self.identities.values())),
            code=measure_bundle({"recipe.py": b"def build(): ...\n"}, "recipe.py"),
            accept=(Level.DEVELOPMENT,),
            rehearse=Level.ATTESTED_HOST,
            references=References(
                (), enrollers=(self.identity.public_key,), tpm=self.host.references()
            ),
            resources=(self._resource(),),
            model_owner=OPERATOR,
            operator=OPERATOR,
            output=RULE,
            travel=TravelRule(1, 60.0),
        )

    def _resource(self) -> Resource:
        return Resource(
            name=RESOURCE,
            owner=OWNER,
            part="train",
            rows=64,
            row_bytes=16,
            cell_rows=1,
            total_bytes=1024,
            record_bytes=256,
            schema={"fields": [{"name": "x", "dtype": "float64", "shape": [2]}]},
            content=Digest.of(b"rows"),
            key=key_commitment(self.key, RESOURCE),
            rule=ReleaseRule(lease_s=600.0, heartbeat_s=HEARTBEAT_S),
        )


RULE: Final = OutputRule(
    metrics=("loss",),
    digits=3,
    values_per_visit=8,
    metric_rows=1,
    audience="everyone",
    min_visits=1,
    max_visits=50,
    min_holders=1,
    min_rows=1,
    baseline_alone=False,
    recipe_text=False,
)


def now_s() -> float:
    """Seconds since 1970: certificates of software TPMs begin when they are made."""
    return time.time()  # noqa: TID251 - a demonstration of today


def _party(identity: Identity) -> Party:
    own = identity.name == OPERATOR
    return Party(
        identity.name,
        ("model_owner", "code_owner", "operator") if own else ("data_owner",),
        identity.public_key,
        identity.card.hpke,
    )
