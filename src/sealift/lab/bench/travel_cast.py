"""The processes of the travel measurement, and what the measurement asks of them.

This process is the orchestrator: its relay is the one port, it signs the leases. Holder
and accelerator are processes of their own, the holder in another network namespace where
the link is shaped. Each arm is one transfer of the first bytes of the same cargo.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from secrets import token_bytes
from typing import Final, Self

from sealift.attest.level import Level
from sealift.codec import decode, encode
from sealift.crypto.identity import Card, create_identity
from sealift.crypto.keys import KEY_BYTES
from sealift.crypto.sign import PublicKey
from sealift.ids import Handle, VisitId
from sealift.lab.bench.travel_limit import Link
from sealift.lab.bench.travel_wire import Answer, Child, pack, unpack
from sealift.release.agreement import (
    Agreement,
    OutputRule,
    Party,
    PartyRole,
    References,
    Resource,
    TravelRule,
)
from sealift.release.bundle import measure_bundle
from sealift.release.signed import SignedAgreement, add_signature
from sealift.session.relay.server import Relay
from sealift.travel.lease import Lease, sign_lease

LEASE_S: Final = 3600.0
ROW_BYTES: Final = 4096
OPERATOR: Final = "operator"
LOOPBACK: Final = "127.0.0.1"
RULE: Final = OutputRule(
    metrics=("loss",),
    digits=3,
    values_per_visit=1,
    metric_rows=1,
    audience="everyone",
    min_visits=1,
    max_visits=1000,
    min_holders=1,
    min_rows=1,
    baseline_alone=False,
    recipe_text=False,
)


class Cast:
    """Holder, accelerator and this process as orchestrator.

    Args:
        folder: Gets the data set, in plaintext and sealed.
        total_bytes: Of the data set.
        record_bytes: Plaintext bytes of one record.
        link: The holder lives at its far end; None is loopback.
    """

    def __init__(
        self,
        folder: Path,
        total_bytes: int,
        record_bytes: int,
        link: Link | None = None,
    ) -> None:
        self._operator = create_identity(OPERATOR)
        self._stack = ExitStack()
        host = link.here if link else LOOPBACK
        there: tuple[str, ...] = link.inside(()) if link else ()
        self.holder = self._start(there, "sealift.lab.bench.travel_holder")
        self.accelerator = self._start((), "sealift.lab.bench.travel_accelerator")
        made = self.holder.ask(
            "make",
            folder=str(folder),
            total_bytes=total_bytes,
            row_bytes=ROW_BYTES,
            record_bytes=record_bytes,
        )
        self.resource = decode(Resource, unpack(made["resource"]))
        signed = self._agree(decode(Card, unpack(made["card"])))
        relay = self._stack.enter_context(Relay.listen(host))
        dial = link.through(relay.address) if link else relay.address
        self.holder.ask("join", host=dial[0], port=dial[1], signed=signed)
        listening = self.accelerator.ask("listen", host=host)
        places = {
            name: link.through(tuple(place)) if link else place
            for name, place in listening["places"].items()
        }
        self._direct = "{}:{}".format(*places["direct"])
        joined = self.accelerator.ask(
            "join",
            relay=list(relay.address),
            direct=self._direct,
            signed=signed,
            key=made["key"],
        )
        self._instance = PublicKey.from_text(joined["instance"])
        self._places, self._certificate = places, listening["certificate"]

    def travel(self, cargo_bytes: int, kinds: Sequence[str]) -> Answer:
        """Ours: the accelerator visits the holder. Seconds by phase, and ``seconds``."""
        visit, rows = VisitId.generate(), cargo_bytes // ROW_BYTES
        offered = self.accelerator.ask("offer", visit=visit.to_text(), rows=rows)
        started = time.perf_counter()
        lease = self._lease(visit, rows, Handle.from_text(offered["handle"]))
        signed = pack(encode(sign_lease(lease, self._operator)))
        lease_s = time.perf_counter() - started
        self.accelerator.tell("visit", lease=signed)
        self.holder.tell(
            "visit", lease=signed, kinds=list(kinds), places=[self._direct]
        )
        there, here = self.holder.hear(), self.accelerator.hear()
        spent_s = here["handshake_s"] + here["load_s"] + here["return_s"]
        return {
            **here,
            "offer_s": offered["offer_s"],
            "lease_s": lease_s,
            "read_s": there["read_s"],
            "seconds": lease_s + spent_s,
        }

    def plain(self, cargo_bytes: int) -> Answer:
        """A copy of the same records over the same transport: ``seconds``, ``cpu_s``."""
        opened = self.accelerator.ask("open_plain", total_bytes=cargo_bytes)
        self.accelerator.tell("plain")
        offers, key = opened["offers"], opened["key"]
        told = self.holder.ask("plain", offers=offers, key=key, total_bytes=cargo_bytes)
        return {**self.accelerator.hear(), **told}

    def ship(self, cargo_bytes: int) -> float:
        """The data set over TLS; seconds."""
        host, port = self._places["shipping"]
        self.accelerator.tell("take_shipped", total_bytes=cargo_bytes)
        told = self.holder.ask(
            "ship",
            host=host,
            port=port,
            certificate=self._certificate,
            total_bytes=cargo_bytes,
        )
        self.accelerator.hear()
        return float(told["seconds"])

    def ship_model(self, model_bytes: int) -> float:
        """The model to the holder and back, sealed; seconds."""
        host, port = self._places["models"]
        key = pack(token_bytes(KEY_BYTES))
        self.accelerator.tell("lend_model", key=key, total_bytes=model_bytes)
        told = self.holder.ask(
            "train_here", host=host, port=port, key=key, total_bytes=model_bytes
        )
        self.accelerator.hear()
        return float(told["seconds"])

    def close(self) -> None:
        """End every process."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self, command: Sequence[str], module: str) -> Child:
        child = Child(command, module)
        self._stack.callback(child.close)
        return child

    def _agree(self, holder: Card) -> str:
        """The agreement, signed by holder and operator."""
        attester = self.accelerator.ask("start")["attester"]
        agreement = Agreement(
            about="train",
            name="bench",
            number=1,
            predecessor=None,
            parties=(
                _party(holder, ("data_owner",)),
                _party(self._operator.card, ("model_owner", "code_owner", "operator")),
            ),
            code=measure_bundle({"recipe.py": b"def build(): ...\n"}, "recipe.py"),
            accept=(Level.DEVELOPMENT,),
            references=References((PublicKey.from_text(attester),)),
            resources=(self.resource,),
            model_owner=OPERATOR,
            operator=OPERATOR,
            output=RULE,
            travel=TravelRule(1, LEASE_S),
        )
        self._agreement = agreement
        signed = add_signature(SignedAgreement(agreement), self._operator)
        answer = self.holder.ask("sign", signed=pack(encode(signed)))
        return str(answer["signed"])

    def _lease(self, visit: VisitId, rows: int, handle: Handle) -> Lease:
        return Lease(
            job="bench",
            visit=visit,
            agreement=self._agreement.digest,
            accelerator=self._instance,
            holder=self.resource.owner,
            resource=self.resource.name,
            purpose="train",
            handle=handle,
            offset=0,
            max_bytes=rows * ROW_BYTES,
            dtype="uint8",
            shape=(rows, ROW_BYTES),
            first_row=0,
            mode="write-only",
            lease_s=LEASE_S,
            content=self.resource.content,
        )


def _party(card: Card, roles: tuple[PartyRole, ...]) -> Party:
    return Party(card.name, roles, card.sign, card.hpke)
