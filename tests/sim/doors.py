"""ada's broker, holder and feeder at their doors, and who wants something of them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from sealift.attest.level import Level
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import SigningKey, sign_document
from sealift.feed import terms
from sealift.ids import Digest, Role
from sealift.release.agreement import ReleaseRule
from sealift.release.agreement.signed import Equipment
from sealift.release.broker import keyrelease as door
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.broker.messages import PassRequest
from sealift.release.checkpoint import CheckpointMark
from sealift.release.checkpointclient import Shares
from sealift.release.client import collect_release, request_pass
from sealift.release.facts import ReleaseKind
from sealift.release.log.heads import HeadStore, read_entries
from sealift.session.endpoint import Endpoint
from sealift.travel.holder import jobs as holder_jobs
from sealift.travel.holder.jobs import HolderJob, Receipts
from sealift.travel.holder.visit import SERVED_NAME, HeldResource, ServedVisits
from tests.sim.owners import (
    NOW_S,
    AcceleratorSide,
    BrokerBox,
    SimPeer,
    make_broker,
    session_pair,
)
from tests.unit.travel.leases import LEASE
from tests.worlds.consortium import RUN, Consortium, make_consortium

RULE = ReleaseRule(accept=(Level.TEE,), not_after=int(NOW_S) + 50, lease_s=0.0)
MARK = CheckpointMark(1, Digest.of(b"a checkpoint"), ("ada",))
SHARE = bytes(range(32))
OUT = "out"


class Circuit:
    """Leads to a stand-in for a session."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def close(self) -> None:
        """Nothing is open."""


class LeftError(Exception):
    """Something left the holder."""


@dataclass
class World:
    """ada's broker, holder and feeder, and an accelerator at level tee."""

    folder: Path
    serves: bool = False
    now_s: float = NOW_S
    spoilt: Callable[[SimPeer], SimPeer] = field(default=lambda peer: peer)

    def __post_init__(self) -> None:
        self.consortium = agreed(self.serves)
        verified = self.consortium.verified()
        self.verified = verified.equipped(Equipment(clock=lambda: self.now_s))
        self.statements = self.folder / "statements"
        self.statements.mkdir()
        self.box: BrokerBox = make_broker(
            self.consortium, "ada", self.folder, statements=self.statements
        )
        self.box.broker._releases._clock = lambda: self.now_s
        self.instance = SigningKey.generate().public_key

    def session(self) -> AcceleratorSide:
        side = session_pair(self.consortium, self.box.broker, "ada")
        peer = replace(at_level(side.other.peer, Level.TEE), instance=self.instance)
        side.other.peer = self.spoilt(peer)
        return side

    def release(self, resource: str) -> bytes:
        key, _ = collect_release(
            self.session(), self.verified, resource, clock=lambda: 0.0, run=RUN
        )
        return key.reveal(TOKEN)

    def shares(self) -> Shares:
        return Shares(
            self.session(), self.verified, "ada", job="digits", clock=lambda: 0.0
        )

    def rules(self) -> list[str]:
        return [
            each.rule for each in read_entries(self.folder / "ada.log") if each.rule
        ]


def at_level(peer: SimPeer, level: Level) -> SimPeer:
    assert peer.result is not None
    claims = replace(peer.result.claims, level=level)
    return replace(peer, result=replace(peer.result, claims=claims))


def agreed(serves: bool) -> Consortium:
    plain = make_consortium()
    agreement = plain.agreement
    resources = tuple(replace(each, rule=RULE) for each in agreement.resources)
    changes: dict[str, Any] = {}
    if serves:
        resources = tuple(
            replace(
                each, part="model", rows=1, row_bytes=each.total_bytes,
                **({"cell_rows": 1} if hasattr(each, "cell_rows") else {}),
            )
            for each in resources
        )  # fmt: skip
        changes = {
            "about": "serve",
            "model_owner": None,
            "output": None,
            "travel": None,
            "training": None,
            "parties": tuple(
                replace(each, roles=("model_owner", "code_owner", "operator"))
                for each in agreement.parties
            ),
        }
    return replace(
        plain,
        agreement=replace(
            agreement,
            accept=(Level.TEE, Level.ATTESTED_HOST),
            not_after=int(NOW_S) + 100,
            resources=resources,
            **changes,
        ),
    )


# each door, as who wants something of it


def data_key(world: World) -> None:
    assert world.release("ada-train") == world.consortium.keys["ada-train"].reveal(
        TOKEN
    )


def share(world: World) -> None:
    """Of a checkpoint that counts; its instance got every key of ada."""
    found, _ = world.shares().fetch(MARK)
    assert found.reveal(TOKEN) == SHARE


def a_pass(world: World) -> None:
    """Over ada's rows, by an instance that got their key."""
    attempt = secrets.token_bytes(32)
    request = PassRequest(run=RUN, purpose="train", visits=1, attempt=attempt)
    request_pass(cast(Any, world.session()), request)


def rows(world: World) -> None:
    """The holder's process, from the lease on; what it says first has left."""

    def left(raw: bytes) -> None:
        if b'"present"' in raw:  # else it says why not
            raise LeftError

    session = SimpleNamespace(
        peer=world.session().other.peer,
        export=lambda *args: SecretKey.generate(),
        send=left,
    )
    circuit = Circuit(session)
    holder = holding(world, SimpleNamespace(open=lambda *args, **more: circuit))
    with suppress(LeftError):
        holder._provision(leased(world))


def holding(world: World, link: Any) -> HolderJob:
    consortium = world.consortium
    resource = consortium.agreement.resource("ada-train")
    source: Any = SimpleNamespace(check_unchanged=lambda: None, header_bytes=b"header")
    endpoint = Endpoint(
        role=Role.HOLDER,
        name="ada",
        agreement=world.verified.digest,
        identity=consortium.identities["ada"],
    )
    return HolderJob(
        link,
        endpoint,
        world.verified,
        held={"ada-train": HeldResource(resource, source, (bytes(32),))},
        heads=HeadStore(world.folder / "heads.json"),
        served=ServedVisits(world.folder / SERVED_NAME),
        receipts=Receipts(world.folder),
        run=LEASE.run,
        clock=lambda: 0.0,
        statements=StatementsInForce(
            world.verified, world.statements, clock=lambda: world.now_s
        ),
    )


def leased(world: World) -> Any:
    resource = world.consortium.agreement.resource("ada-train")
    lease = replace(
        LEASE,
        agreement=world.verified.digest,
        holder="ada",
        resource="ada-train",
        content=resource.content,
        shape=(resource.rows, resource.row_bytes),
        first_row=0,
        max_bytes=resource.total_bytes,
        lease_s=30.0,
    )
    return sign_document(lease, world.consortium.identities["cleo"])


def fed_device(world: World) -> None:
    peer = cast(Any, world.session().other.peer)
    ada = world.consortium.identities["ada"]
    with patch.object(terms, "wall_clock", lambda: world.now_s):
        terms.FeedDecision(
            world.verified, world.statements, ada, peer, time.monotonic()
        ).require()


DOORS: dict[ReleaseKind, tuple[Callable[[World], None], ModuleType]] = {
    ReleaseKind.DATA_KEY: (data_key, door),
    ReleaseKind.MODEL_KEY: (data_key, door),
    ReleaseKind.CHECKPOINT_SHARE: (share, door),
    ReleaseKind.ROWS: (rows, holder_jobs),
    ReleaseKind.FED_DEVICE: (fed_device, terms),
    ReleaseKind.PASSES: (a_pass, door),
}
