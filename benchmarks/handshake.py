"""How long a handshake takes, over memory and through the loopback relay.

Both ends are threads of this process: the exchange is sequential, so that costs nothing
but the switch, and both sides' work is in the number. The accelerator shows development
evidence, the holder its identity key. The bar is a median under 10 ms.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import quantiles
from typing import Final

from benchmarks.report import BenchReport, interleaved, start_report
from sealift.channel.transport.transport import Transport
from sealift.ids import Role
from sealift.session.endpoint import PeerPolicy
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.session.session import accept, connect
from sealift.travel.peers import accelerator_names, expect_accelerator
from tests.worlds.consortium import ONE_HOLDER, make_consortium
from tests.worlds.memorytransport import memory_pair

OWNER: Final = "owner"
(NAME,) = accelerator_names()
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
        ends = _Ends()
        spent = interleaved(
            {name: partial(ends.shake_hands, dial) for name, dial in arms.items()},
            repeats,
            warm_up=_WARM_UP,
        )
    for name, each in spent.items():
        times_ms = [took * 1000 for took in each.seconds]
        report.rows.append(
            {
                "transport": name,
                "median_ms": round(each.median * 1000, 3),
                "p90_ms": round(quantiles(times_ms, n=10)[-1], 3),
                "handshakes": len(times_ms),
                "bar_ms": BAR_MS,
            }
        )
        report.ratios[f"handshake_{name}_p50_ms"] = each.median * 1000
    return report


def _relayed(stack: ExitStack) -> Dial:
    relay = stack.enter_context(Relay.listen())
    holder = stack.enter_context(RelayClient.dial(relay.address, "holder"))
    accelerator = stack.enter_context(RelayClient.dial(relay.address, NAME))
    return lambda: (holder.open(NAME), accelerator.accept(5))


class _Ends:
    """A holder and an accelerator under one agreement."""

    def __init__(self) -> None:
        world = make_consortium((OWNER,), ("train",), output=ONE_HOLDER)
        self._holder = world.endpoint(Role.HOLDER, OWNER)
        self._accelerator = world.accelerator()
        self._of_accelerator = expect_accelerator(world.verified(), NAME)
        self._of_holder = PeerPolicy(
            roles=frozenset({Role.HOLDER}),
            require_identity=True,
            identities={OWNER: world.identities[OWNER].public_key},
        )

    def shake_hands(self, dial: Dial) -> float:
        """One handshake; its seconds, from the first message to both sessions."""
        here, there = dial()

        def answer() -> None:
            accept(there, self._accelerator, self._of_holder).close()

        answering = threading.Thread(target=answer)
        answering.start()
        start = time.perf_counter()
        session = connect(here, self._holder, self._of_accelerator)
        took_s = time.perf_counter() - start
        session.close()
        answering.join()
        return took_s
