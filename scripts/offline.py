"""Run a command with nothing but a loopback network: `offline.py COMMAND...`.

Shows that the default tests and the demo need no network. Where the kernel does not
let this user make namespaces, says so and runs the command with the network on.
The command keeps its user id: who is not root enters a user namespace of its own, and
`exec` drops the capabilities that came with it once loopback is up.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWUSER = 0x10000000  # linux/sched.h
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914  # linux/sockios.h
IFF_UP = 0x1


def unshare(flags: int) -> None:
    """Detach this process from the namespaces that `flags` name (man 2 unshare)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def leave_network() -> None:
    """Move this process into a network of its own, and a user namespace if it must.

    Raises:
        OSError: the kernel or its policy does not allow it.
    """
    with contextlib.suppress(OSError):
        unshare(CLONE_NEWNET)
        return
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def bring_loopback_up() -> None:
    """Set the flag IFF_UP of the interface `lo` (netdevice(7))."""
    request = struct.pack("16sh14x", b"lo", IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, request)


def cut_network() -> None:
    """Leave only loopback.

    Raises:
        OSError: not allowed; how far it came is undefined.
    """
    leave_network()
    bring_loopback_up()


def obstacle() -> str:
    """Try it in a child, because a policy may stop it halfway; return what stopped it."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            cut_network()
        except OSError as error:
            os.write(writer, (error.strerror or "unknown").encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as told:
        return told.read()


def main() -> None:
    """Cut the network, then become the command."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: offline.py COMMAND [ARGUMENT...]")
    if stopped_by := obstacle():
        print(f"offline: the network stays on: {stopped_by}", file=sys.stderr)
    else:
        cut_network()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - becoming it is the purpose


if __name__ == "__main__":
    main()
