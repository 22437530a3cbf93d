"""Broker, relay, accelerators as processes, under one agreement: who is measured."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from sealift.attest.level import Level
from sealift.attest.tpm.references import TpmReferences
from sealift.codec import decode, encode
from sealift.crypto.identity import Card, create_identity
from sealift.crypto.sign import PublicKey
from sealift.lab.bench.travel_cast import RULE
from sealift.lab.bench.travel_wire import Answer, Child, pack, unpack
from sealift.release.agreement import (
    Agreement,
    Party,
    PartyRole,
    References,
    Resource,
    TravelRule,
)
from sealift.release.bundle import measure_bundle
from sealift.release.signed import SignedAgreement, add_signature

OPERATOR: Final = "operator"


class ReleaseCast:
    """One broker and its accelerators, joined.

    Args:
        folder: Empty; gets vault and log.
        clients: How many accelerators.
        entries: Length of the list of measurements of a rehearsed host; 0 for
            development evidence.
        heartbeat_s: Of the resource's lease; None for a release without one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clients: int = 1,
        entries: int = 0,
        heartbeat_s: float | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._operator = create_identity(OPERATOR)
        self.relay = self._start("sealift.lab.bench.release_relay")
        self.broker = self._start("sealift.lab.bench.release_broker")
        self.clients = [
            self._start("sealift.lab.bench.release_client") for _ in range(clients)
        ]
        made = self.broker.ask("make", heartbeat_s=heartbeat_s)
        host = self._boot(entries) if entries else None
        owner = decode(Card, unpack(made["card"]))
        resource = decode(Resource, unpack(made["resource"]))
        signed = self._agree(owner, resource, host)
        folder.mkdir()
        host_name, port = self.relay.ask("start")["address"]
        where = {"host": host_name, "port": port, "signed": signed}
        self.broker.ask("start", folder=str(folder), **where)
        self._all("join", **where)

    def release_together(self, times: int, order: str = "release") -> list[Answer]:
        """Every client collects so many keys, all at the same time."""
        for client in self.clients:
            client.tell(order, times=times)
        return [client.hear() for client in self.clients]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far: the broker's, the relay's, all clients'."""
        return {
            "broker": float(self.broker.ask("spent")["cpu_s"]),
            "relay": float(self.relay.ask("spent")["cpu_s"]),
            "clients": sum(float(c.ask("spent")["cpu_s"]) for c in self.clients),
        }

    def close(self) -> None:
        """End every process."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self, module: str) -> Child:
        child = Child((), module)
        self._stack.callback(child.close)
        return child

    def _boot(self, entries: int) -> TpmReferences:
        (client,) = self.clients
        answer = client.ask("host", entries=entries)
        return decode(TpmReferences, unpack(answer["references"]))

    def _all(self, order: str, **arguments: object) -> None:
        for number, client in enumerate(self.clients):
            client.tell(order, name=f"accelerator-{number}", **arguments)
        for client in self.clients:
            client.hear()

    def _agree(
        self, owner: Card, resource: Resource, host: TpmReferences | None
    ) -> str:
        """The agreement, signed by owner and operator."""
        attesters = () if host else tuple(map(_attester, self.clients))
        references = References(attesters)
        if host is not None:
            references = References((), enrollers=(owner.sign,), tpm=host)
        agreement = Agreement(
            about="train",
            name="bench",
            number=1,
            predecessor=None,
            parties=(
                _party(owner, ("data_owner",)),
                _party(self._operator.card, ("model_owner", "code_owner", "operator")),
            ),
            code=measure_bundle({"recipe.py": b"def build(): ...\n"}, "recipe.py"),
            accept=(Level.DEVELOPMENT,),
            rehearse=Level.ATTESTED_HOST if host else None,
            references=references,
            resources=(resource,),
            model_owner=OPERATOR,
            operator=OPERATOR,
            output=RULE,
            travel=TravelRule(1, 3600.0),
        )
        signed = add_signature(SignedAgreement(agreement), self._operator)
        answer = self.broker.ask("sign", signed=pack(encode(signed)))
        return str(answer["signed"])


def _attester(client: Child) -> PublicKey:
    return PublicKey.from_text(client.ask("start")["attester"])


def _party(card: Card, roles: tuple[PartyRole, ...]) -> Party:
    return Party(card.name, roles, card.sign, card.hpke)
