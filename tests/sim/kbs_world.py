"""A broker with its HTTP rim on loopback, and clients of the KBS protocol."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from sealift.attest.attesters.development import DevelopmentAttester
from sealift.codec import encode
from sealift.crypto.hash import digest
from sealift.crypto.jwe import RecipientKeyPair
from sealift.ids import Digest, Role
from sealift.release.agreement import ReleaseRule
from sealift.release.audit import LogEntry, read_entry
from sealift.service.app import make_application
from sealift.service.limits import Limits
from sealift.service.metrics import Metrics
from sealift.service.server import RimServer
from tests.sim.owners import NOW_S, BrokerBox, Consortium, make_broker, make_consortium

RESOURCE = "/kbs/v0/resource/joint-digits/train/ada-train"
AUTH = {
    "version": "0.4.0",
    "tee": "sealift",
    "extra-params": {"supported-hash-algorithms": ["sha256", "sha384", "sha512"]},
}


def open_to_kbs(consortium: Consortium, **rule: Any) -> Consortium:
    """The same, where ada's resources may be fetched by the KBS protocol."""
    opened = ReleaseRule(kbs=True, **rule)
    resources = tuple(
        replace(each, rule=opened) if each.owner == "ada" else each
        for each in consortium.agreement.resources
    )
    agreement = replace(consortium.agreement, resources=resources)
    return replace(consortium, agreement=agreement)


@dataclass
class KbsWorld:
    consortium: Consortium
    box: BrokerBox
    metrics: Metrics
    url: str
    time_s: list[float]
    address: tuple[str, int]
    clients: ExitStack
    bugs: list[Exception]

    def last_entry(self) -> LogEntry:
        entry = read_entry(list(self.box.log.entries())[-1])
        assert isinstance(entry, LogEntry)
        return entry

    def client(self) -> KbsGuest:
        http = httpx.Client(base_url=self.url, timeout=10)
        return KbsGuest(self, self.clients.enter_context(http))


@contextmanager
def kbs_world(
    folder: Path,
    *,
    consortium: Consortium | None = None,
    limits: Limits | None = None,
    **rule: Any,
) -> Iterator[KbsWorld]:
    consortium = consortium or open_to_kbs(make_consortium(), **rule)
    box = make_broker(consortium, "ada", folder)
    metrics = Metrics()
    box.broker._sink = metrics.sink(lambda event: None)
    time_s = [NOW_S]
    limits = limits or Limits(per_address=1e6, in_all=1e6)
    bugs: list[Exception] = []
    application = make_application(
        box.broker,
        metrics,
        limits=limits,
        clock=lambda: time_s[0],
        report_bug=bugs.append,
    )
    server = RimServer(application, ("127.0.0.1", 0), limits=limits)
    with closing(box), server, ExitStack() as clients:
        host, port = server.address
        yield KbsWorld(
            consortium,
            box,
            metrics,
            f"http://{host}:{port}",
            time_s,
            (host, port),
            clients,
            bugs,
        )


@dataclass
class KbsGuest:
    """A client that follows the protocol, step by step, and can be made not to."""

    world: KbsWorld
    http: httpx.Client
    keys: RecipientKeyPair = field(default_factory=RecipientKeyPair)
    additional: str = ""

    def auth(self, **changes: Any) -> httpx.Response:
        return self.http.post("/kbs/v0/auth", json={**AUTH, **changes})

    def attestation(
        self, challenge: dict[str, Any], *, code: Digest | None = None, **runtime: Any
    ) -> dict[str, Any]:
        covered = {
            "nonce": challenge["nonce"],
            "tee-pubkey": dict(self.keys.public.jwk),
            **runtime,
        }
        name = challenge["extra-params"]["selected-hash-algorithm"]
        bound = digest(
            name, encode({**covered, "additional-evidence": self.additional})
        )
        return {
            "runtime-data": covered,
            "tee-evidence": {
                "primary_evidence": self.evidence(bound[:32], code),
                "additional_evidence": self.additional,
            },
        }

    def evidence(self, bound: bytes, code: Digest | None = None) -> dict[str, str]:
        evidence = development(self.world, code).collect(bound)
        return {
            "kind": evidence.kind,
            "media_type": evidence.media_type,
            "body": base64.b64encode(evidence.body).decode(),
        }

    def attest(self, **changes: Any) -> httpx.Response:
        challenge = self.auth().raise_for_status().json()
        return self.send(self.attestation(challenge, **changes))

    def send(self, attestation: dict[str, Any]) -> httpx.Response:
        return self.http.post("/kbs/v0/attest", json=attestation)

    def token(self) -> str:
        return str(self.attest().raise_for_status().json()["token"])

    def get(self, path: str = RESOURCE, token: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return self.http.get(path, headers=headers)

    def open(self, response: httpx.Response) -> bytes:
        return self.keys.open(response.raise_for_status().json())


def problem(response: httpx.Response) -> tuple[int, str, str]:
    """Status, last part of the type, and our rule's name in the detail."""
    content = json.loads(response.content)
    assert set(content) == {"type", "detail"}
    prefix, _, kind = content["type"].rpartition("/")
    assert prefix == "https://github.com/confidential-containers/kbs/errors"
    return response.status_code, kind, content["detail"].rpartition("[")[2].rstrip("]")


def development(world: KbsWorld, code: Digest | None = None) -> DevelopmentAttester:
    return DevelopmentAttester(
        world.consortium.attester,
        role=Role.ACCELERATOR,
        code_bundle=code or world.consortium.agreement.code.digest,
    )
