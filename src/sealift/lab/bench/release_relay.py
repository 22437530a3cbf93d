"""The relay's process of the release measurement, as an orchestrator's in a job.

``python -m sealift.lab.bench.release_relay`` takes orders on stdin (``travel_wire``).
"""

from __future__ import annotations

import time
from typing import Final

from sealift.lab.bench.travel_wire import Answer, serve
from sealift.session.relay.envelope import Registry
from sealift.session.relay.server import Relay

CLIENTS: Final = 256  # all of them from this machine, under names without keys


class RelayEnd:
    """Forwards frames."""

    def __init__(self) -> None:
        self._relay = Relay.listen(
            registry=Registry(strangers=CLIENTS, strangers_each=CLIENTS)
        )

    def start(self) -> Answer:
        """Where to dial."""
        return {"address": list(self._relay.address)}

    def spent(self) -> Answer:
        """CPU seconds of this process so far."""
        return {"cpu_s": time.process_time()}

    def close(self) -> None:
        """Stop."""
        self._relay.close()


if __name__ == "__main__":
    serve(RelayEnd())
