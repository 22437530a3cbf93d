"""``python -m sealift.train.worker DESCRIPTOR SANDBOX``: where recipes are run from.

Started by ``Workshop`` alone. With namespaces this process only forks the one that is
process 1 in there, and waits for it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from sealift.train.sandbox import kernel as limits
from sealift.train.sandbox import namespaces
from sealift.train.sandbox.confine import Confinement
from sealift.train.sandbox.kernel import PR_SET_PDEATHSIG, prctl
from sealift.train.sandbox.places import readable
from sealift.train.worker.messages import NO_NAMESPACES


def main() -> int:
    """Serve until the parent closes its end; the exit code."""
    control = socket.socket(fileno=int(sys.argv[1]))
    wanted = Confinement.parse(sys.argv[2])
    limits.die_first()
    places = tuple(readable())
    if "namespaces" in wanted.parts:
        try:
            namespaces.leave_world()
        except OSError:
            return NO_NAMESPACES
        child = os.fork()
        if child:
            control.close()
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            namespaces.enter_root(places)
        except OSError:
            return NO_NAMESPACES
    from sealift.train.worker.zygote import Zygote

    Zygote(control, wanted, places).serve()
    return 0


if __name__ == "__main__":
    os._exit(main())  # nothing of ours is left to do, and the parent waits for it
