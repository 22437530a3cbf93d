"""A broker that is killed at the moment its answer leaves: MODE FOLDER.

MODE ``product`` runs the broker as it is. ``sends-first`` is a mutant that hands the key
out before it writes the log. The answer lies in FOLDER/sent when it left.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sealift.codec import encode
from sealift.release.broker.messages import BrokerRequest
from sealift.release.broker.server import Broker
from sealift.release.grant import ReleaseRequest
from sealift.release.log.entries import Logged
from tests.sim.owners import BrokerSide, make_broker, session_pair
from tests.worlds.consortium import RUN, make_consortium


def main(mode: str, folder: Path) -> None:
    consortium = make_consortium(("ada", "bern"))
    box = make_broker(consortium, "ada", folder)
    side = session_pair(consortium, box.broker, "ada").other

    def leave_and_die(message: object) -> None:
        (folder / "sent").write_bytes(encode(message))
        os.kill(os.getpid(), signal.SIGKILL)

    side.send_message = leave_and_die  # type: ignore[method-assign]
    if mode == "sends-first":
        _send_before_logging(box.broker, side)
    request = ReleaseRequest("ada-train", "train", bytes(32), RUN)
    side.inbox.append(encode(BrokerRequest(release=request)))
    box.broker.serve(side, accepted_at_s=time.monotonic())


def _send_before_logging(broker: Broker, side: BrokerSide) -> None:
    def append(*args: Any, **fields: Any) -> Logged:
        side.send_message("the sealed key")
        raise AssertionError("not reached")

    broker._releases.append = append  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
