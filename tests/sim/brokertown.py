"""A relay with owners' brokers on it, each served as its process would."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sealift.attest.development import DevelopmentAttester
from sealift.errors import PolicyError, SealiftError
from sealift.events import wall_clock
from sealift.ids import Role
from sealift.release.client import collect_release
from sealift.session.endpoint import Endpoint
from sealift.session.relay.server import Relay
from sealift.session.session import Session, connect
from sealift.travel.broker import BrokerService
from sealift.travel.peers import expect_broker
from tests.sim.owners import BrokerBox, make_broker
from tests.worlds.consortium import RUN, Consortium


class Town:
    """A relay, and the brokers that a test starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._relay = self._stack.enter_context(Relay.listen())

    @property
    def address(self) -> tuple[str, int]:
        """Of the relay."""
        return self._relay.address

    def start(
        self, consortium: Consortium, owner: str, statements: Path | None = None
    ) -> BrokerBox:
        """An owner's broker, which keeps statements in a folder."""
        folder = self._folder / f"{owner}-{consortium.agreement.number}"
        folder.mkdir()
        box = make_broker(consortium, owner, folder, statements, wall_clock)
        self._stack.callback(box.close)
        ended = threading.Event()
        self._stack.callback(ended.wait, 5.0)
        link = self._stack.enter_context(self._relay.local_client(f"broker-{owner}"))
        endpoint = self._endpoint(
            consortium, Role.BROKER, owner, identity=consortium.identities[owner]
        )
        broker_service = BrokerService(
            link, endpoint, consortium.verified(), broker=box.broker
        )

        def serve() -> None:
            with suppress(SealiftError):
                broker_service.serve()
            ended.set()

        threading.Thread(target=serve, daemon=True).start()
        return box

    @contextmanager
    def session(self, consortium: Consortium, owner: str) -> Iterator[Session]:
        """An accelerator's, with an owner's broker."""
        attester = DevelopmentAttester(
            consortium.attester,
            role=Role.ACCELERATOR,
            code_bundle=consortium.agreement.code.digest,
        )
        ours = self._endpoint(
            consortium, Role.ACCELERATOR, "accelerator-0", attester=attester
        )
        policy = expect_broker(consortium.verified(), owner)
        with (
            self._relay.local_client("accelerator-0") as link,
            connect(link.open(f"broker-{owner}", 5.0), ours, policy) as session,
        ):
            yield session

    def collect(self, consortium: Consortium, owner: str) -> str:
        """``released``, or why not."""
        with self.session(consortium, owner) as session:
            try:
                key, _ = collect_release(
                    session,
                    consortium.verified(),
                    f"{owner}-train",
                    clock=time.monotonic,
                    run=RUN,
                )
            except PolicyError as error:
                return error.why
        key.wipe()
        return "released"

    def _endpoint(self, consortium: Consortium, role: Role, name: str, **proof: object):  # type: ignore[no-untyped-def]
        digest = consortium.agreement.digest
        return Endpoint(role=role, name=name, agreement=digest, **proof)  # type: ignore[arg-type]

    def close(self) -> None:
        self._stack.close()
