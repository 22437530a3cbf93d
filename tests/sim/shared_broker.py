"""A shared broker over a real relay: its desk, two owners that may entrust, one that not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sealift.attest.attester import Attester
from sealift.attest.attesters.development import DevelopmentAttester
from sealift.attest.policy import Appraiser
from sealift.crypto.identity import Identity
from sealift.crypto.keys import TOKEN
from sealift.errors import PeerError, SealiftError
from sealift.ids import Digest, Role
from sealift.release.agreement import SharedBroker
from sealift.release.appointment import SignedAppointment
from sealift.release.collect import collect_release
from sealift.release.custody import Custody
from sealift.release.entrust import Terms, broker_appraiser, entrust
from sealift.release.signed import Equipment, VerifiedAgreement
from sealift.release.statementdesk import StatementDesk
from sealift.release.vault import Vault
from sealift.session import Endpoint, Relay, Session, connect
from sealift.session.link import Link
from sealift.travel.meetbroker import meet_broker
from sealift.travel.peers import expect_shared_broker
from sealift.travel.sharedbrokerage import DESK, ENTRUST, SharedBrokerage
from tests.sim.owners import NOW_S, Consortium, make_consortium

CODE = Digest.of(b"the code of the broker")
TERMS = Terms(3, int(NOW_S) + 600)
SHARED = SharedBroker("cleo", CODE, ("ada", "bern"))


def entrusting(consortium: Consortium | None = None, **changes: Any) -> Consortium:
    """Three owners; ada and bern may entrust, with a rule of at most ten uses each."""
    plain = consortium or make_consortium()
    resources = tuple(
        replace(each, rule=replace(each.rule, max_uses=10))
        for each in plain.agreement.resources
    )
    agreement = replace(
        plain.agreement, **{"resources": resources, "shared_broker": SHARED, **changes}
    )
    return replace(plain, agreement=agreement)


def equipped(
    consortium: Consortium, clock: Callable[[], float] = lambda: NOW_S
) -> VerifiedAgreement:
    return consortium.verified().equipped(Equipment(clock=clock))


def broker_attester(
    consortium: Consortium, *, code: Digest = CODE, role: Role = Role.BROKER
) -> Attester:
    return DevelopmentAttester(consortium.attester, role=role, code_bundle=code)


def owner_vault(consortium: Consortium, owner: str, path: Path) -> Vault:
    vault = Vault.create(path, consortium.identities[owner])
    for name, data_key in consortium.keys.items():
        if name.startswith(f"{owner}-"):
            vault.store(name, data_key)
    return vault


@dataclass
class Clock:
    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Town:
    """One relay, one shared broker."""

    consortium: Consortium
    folder: Path
    clock: Clock = field(default_factory=Clock)
    attester: Attester | None = None
    statements: Path | None = None

    def __post_init__(self) -> None:
        self.stack = ExitStack()
        self.relay = self.stack.enter_context(Relay.listen())
        self.events: list[tuple[str, dict[str, object]]] = []
        self.verified = equipped(self.consortium, self.clock)
        self.folder.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """A fresh process's state: nothing of an earlier one."""
        self.custody = Custody(
            self.verified,
            self.folder,
            clock=self.clock,
            monotonic=time.monotonic,
            statements=StatementDesk(self.verified, self.statements),
            sink=lambda event: self.events.append((event.kind, dict(event.fields))),
        )
        self.links: list[Link] = []
        self.ended = ""
        shared = SharedBrokerage(
            self.verified,
            self.custody,
            self.attester or broker_attester(self.consortium),
            keep=self._keep,
            sink=lambda event: self.events.append((event.kind, dict(event.fields))),
        )

        def serve() -> None:
            try:
                shared.serve()
            except SealiftError as error:
                self.ended = error.code

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()

    @contextmanager
    def link(self, name: str) -> Iterator[Link]:
        """The relay frees the name of a link that was closed a moment later."""
        deadline = time.monotonic() + 5
        while True:
            try:
                link = self.relay.local_link(name)
                break
            except PeerError as error:
                if error.code != "name-taken" or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        with link:
            yield link

    def crash(self) -> None:
        """Its memory is gone; what is on the disk stays."""
        for link in list(self.links):
            link.close()
        self.thread.join(10)

    def _keep(self, name: str, serve: Callable[[Link], None]) -> None:
        with self.link(name) as link:
            self.links.append(link)
            serve(link)

    @contextmanager
    def meet(self, owner: str, appraiser: Appraiser | None = None) -> Iterator[Session]:
        """The owner's session at the desk."""
        judge = appraiser or broker_appraiser(self.verified, owner)
        policy = expect_shared_broker(self.verified, owner, judge)
        with self.link(f"{ENTRUST}{owner}") as link:
            circuit = link.open(DESK, 5.0, wait_s=5.0)
            with connect(circuit, self.holder(owner), policy) as session:
                yield session

    def entrust(
        self, owner: str, vault: Vault, terms: Terms = TERMS
    ) -> SignedAppointment:
        with self.meet(owner) as session:
            return entrust(
                session,
                self.verified,
                self.identity(owner),
                vault,
                terms=terms,
                clock=self.clock,
            )

    def terms(self, lasts_s: int) -> Terms:
        return Terms(3, int(self.clock.now_s) + lasts_s)

    def identity(self, owner: str) -> Identity:
        return self.consortium.identities[owner]

    def holder(self, owner: str) -> Endpoint:
        return Endpoint(
            role=Role.HOLDER,
            name=owner,
            agreement=self.verified.digest,
            identity=self.identity(owner),
        )

    def accelerator(self) -> Endpoint:
        attester = DevelopmentAttester(
            self.consortium.attester,
            role=Role.ACCELERATOR,
            code_bundle=self.consortium.agreement.code.digest,
        )
        return Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator",
            agreement=self.verified.digest,
            attester=attester,
        )

    @contextmanager
    def reach(
        self,
        owner: str,
        endpoint: Endpoint | None = None,
        agreement: VerifiedAgreement | None = None,
    ) -> Iterator[Session]:
        """An accelerator's session with whoever keeps the owner's keys."""
        with (
            self.link("accelerator") as link,
            meet_broker(
                link,
                endpoint or self.accelerator(),
                agreement or self.verified,
                owner,
                wait_s=0.3,
            ) as session,
        ):
            yield session

    def collect(self, owner: str) -> str:
        """``released``, or the code of the error and the broker's reason."""
        resource = f"{owner}-train"
        try:
            with self.reach(owner) as session:
                key, _ = collect_release(
                    session, self.verified, resource, clock=time.monotonic
                )
        except SealiftError as error:
            return f"{error.code} {error.why}"
        right = key.reveal(TOKEN) == self.consortium.keys[resource].reveal(TOKEN)
        key.wipe()
        return "released" if right else "another key"

    def close(self) -> None:
        self.stack.close()
        self.thread.join(10)
