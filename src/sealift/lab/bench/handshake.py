"""How long a handshake takes, over memory and through the loopback relay.

Both ends are threads of this process: the exchange is sequential, so that costs nothing
but the switch, and both sides' work is in the number. The accelerator shows development
evidence, the holder its identity key. The bar is a median under 10 ms.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from sealift.attest.development.attester import DevelopmentAttester
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.reference import ReferenceValues
from sealift.channel.transports.memory import memory_pair
from sealift.channel.transports.transport import Transport
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest, Role
from sealift.lab.bench.report import BenchReport, start_report
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.establish import accept, connect
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay

BAR_MS: Final = 10.0
REPEATS: Final = 200
QUICK_REPEATS: Final = 40
_WARM_UP: Final = 5

Dial = Callable[[], tuple[Transport, Transport]]


def run(*, quick: bool = False) -> BenchReport:
    """Measure both transports; about 3 s, with ``quick`` under 1 s."""
    report = start_report("handshake")
    report.real = ["both ends in one process", "loopback TCP, one relay"]
    repeats = QUICK_REPEATS if quick else REPEATS
    with ExitStack() as stack:
        arms = {"memory": memory_pair, "relay": _relayed(stack)}
        for name, dial in arms.items():
            _add(report, name, _measure(dial, repeats))
    return report


def _relayed(stack: ExitStack) -> Dial:
    relay = stack.enter_context(Relay.listen())
    holder = stack.enter_context(RelayClient.dial(relay.address, "holder"))
    accelerator = stack.enter_context(RelayClient.dial(relay.address, "accelerator"))
    return lambda: (holder.open("accelerator"), accelerator.accept(5))


def _measure(dial: Dial, repeats: int) -> list[float]:
    """Milliseconds of each handshake, from the first message to both sessions."""
    cast = _Cast()
    return [cast.shake_hands(*dial()) for _ in range(_WARM_UP + repeats)][_WARM_UP:]


class _Cast:
    """A holder and an accelerator under one agreement."""

    def __init__(self) -> None:
        attester_key, identity = SigningKey.generate(), SigningKey.generate()
        agreement = Digest.of(b"bench")
        attester = DevelopmentAttester(attester_key, role=Role.ACCELERATOR)
        self._accelerator = Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator",
            agreement=agreement,
            attester=attester,
        )
        self._holder = Endpoint(
            role=Role.HOLDER, name="holder", agreement=agreement, identity=identity
        )
        self._of_accelerator = PeerPolicy(
            roles=frozenset({Role.ACCELERATOR}),
            require_evidence=True,
            appraiser=Appraiser(
                accept=(Level.DEVELOPMENT,),
                references=ReferenceValues(
                    development_attesters=(attester_key.public_key,)
                ),
            ),
        )
        self._of_holder = PeerPolicy(
            roles=frozenset({Role.HOLDER}),
            require_identity=True,
            identities={"holder": identity.public_key},
        )

    def shake_hands(self, here: Transport, there: Transport) -> float:
        """One handshake; returns its milliseconds."""
        answering = threading.Thread(target=self._answer, args=(there,))
        answering.start()
        start = time.perf_counter()
        session = connect(here, self._holder, self._of_accelerator)
        took_ms = (time.perf_counter() - start) * 1000
        session.close()
        answering.join()
        return took_ms

    def _answer(self, transport: Transport) -> None:
        accept(transport, self._accelerator, self._of_holder).close()


def _add(report: BenchReport, name: str, times_ms: list[float]) -> None:
    median_ms = statistics.median(times_ms)
    report.rows.append(
        {
            "transport": name,
            "median_ms": round(median_ms, 3),
            "p90_ms": round(statistics.quantiles(times_ms, n=10)[-1], 3),
            "handshakes": len(times_ms),
            "bar_ms": BAR_MS,
        }
    )
    report.ratios[f"handshake_{name}_p50_ms"] = median_ms
