"""An owner's broker on disk, and sessions with it over a line in memory.

Vault, log, broker and session are the real code; the broker serves in a thread, and what
crossed can be looked at::

    with open_broker(consortium, "ada", folder) as box:
        with box.session(consortium.accelerator()) as session:
            key, logged = collect_release(session, box.agreement, "ada-train", clock=..., run=RUN)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sealift.channel.transport.transport import Transport
from sealift.crypto.identity import Identity
from sealift.errors import PeerError, SealiftError
from sealift.ids import Buffer, Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.server import Broker
from sealift.release.broker.stores import keep_keys, opened_broker
from sealift.release.equip import equip
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.session import Session, accept, connect
from sealift.travel.peers import expect_at_broker, expect_broker
from tests.worlds.consortium import Consortium
from tests.worlds.memorytransport import memory_pair

WAIT_S: Final = 20.0


def now_s() -> float:
    """Seconds since 1970: certificates of software TPMs begin when they are made."""
    return time.time()  # noqa: TID251 - worlds are made today


@dataclass
class OpenBroker:
    """One owner's broker.

    Attributes:
        agreement: As the broker was equipped with it.
        crossed: Every frame of its sessions, both ways.
        refused: Why it refused the last session that ended so, or empty.
    """

    identity: Identity
    agreement: VerifiedAgreement
    broker: Broker
    crossed: list[bytes] = field(default_factory=list)
    refused: str = ""

    @contextmanager
    def session(
        self, endpoint: Endpoint, policy: PeerPolicy | None = None
    ) -> Iterator[Session]:
        """A session with it.

        Args:
            endpoint: Who asks.
            policy: What the broker expects of who asks, if not what was agreed.
        """
        here, there = memory_pair()
        self.refused = ""
        wanted = policy or expect_at_broker(self.agreement, "accelerator-0")
        server = threading.Thread(target=self._serve, args=(there, wanted), daemon=True)
        server.start()
        expected = expect_broker(self.agreement, self.identity.name)
        try:
            with connect(self._tapped(here), endpoint, expected) as session:
                yield session
        finally:
            here.close()
            server.join(WAIT_S)

    def _serve(self, line: Transport, policy: PeerPolicy) -> None:
        endpoint = Endpoint(
            role=Role.BROKER,
            name=self.identity.name,
            agreement=self.agreement.digest,
            identity=self.identity,
        )
        began_s = time.monotonic()
        try:
            with accept(self._tapped(line), endpoint, policy) as session:
                self.broker.serve(session, WAIT_S, accepted_at_s=began_s)
        except SealiftError as error:
            if not isinstance(error, PeerError):
                self.refused = error.code
                self.broker.record_refused_handshake(error, name=endpoint.name)

    def _tapped(self, transport: Transport) -> Transport:
        send = transport.send

        def listened(frame: Buffer) -> None:
            self.crossed.append(bytes(frame))
            send(frame)

        transport.send = listened  # type: ignore[method-assign]
        return transport


@contextmanager
def open_broker(
    consortium: Consortium, owner: str, folder: Path
) -> Iterator[OpenBroker]:
    """An owner's broker, with its keys in a vault.

    Args:
        folder: Gets ``vault.db`` and ``audit.db``.
    """
    identity = consortium.identities[owner]
    agreement = equip(consortium.verified(), clock=now_s, enroller=identity.public_key)
    resources = consortium.agreement.resources_of(owner)
    keys = {each.name: consortium.keys[each.name] for each in resources}
    stores = folder / "vault.db", folder / "audit.db"
    keep_keys(stores[0], identity, keys)
    with opened_broker(*stores, identity, lambda _: agreement, clock=now_s) as broker:
        yield OpenBroker(identity, agreement, broker)
