"""Run a command with nothing but a loopback network: `offline.py COMMAND...`.

Shows that the default tests and the demo need no network. Where the kernel does not
let this user make namespaces, says so and runs the command with the network on.
The command keeps its user id: an empty user namespace is entered, bringing loopback up
is done before `exec` drops the capabilities that came with it.
"""

from __future__ import annotations

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


def leave_network() -> None:
    """Move this process into a fresh user and network namespace.

    Raises:
        OSError: the kernel or its policy does not allow it.
    """
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def bring_loopback_up() -> None:
    """Set the flag IFF_UP of the interface `lo` (netdevice(7))."""
    request = struct.pack("16sh14x", b"lo", IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, request)


def main() -> None:
    """Cut the network, then become the command."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: offline.py COMMAND [ARGUMENT...]")
    try:
        leave_network()
        bring_loopback_up()
    except OSError as error:
        print(f"offline: the network stays on: {error.strerror}", file=sys.stderr)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - becoming it is the purpose


if __name__ == "__main__":
    main()
