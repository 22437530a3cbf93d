"""Two connected ends over sockets of the system, which take so much and then no more."""

from __future__ import annotations

import socket

from sealift.channel.transport.tcp import TcpTransport


def tcp_pair() -> tuple[TcpTransport, TcpTransport]:
    """Both ends, of one process."""
    here, there = socket.socketpair()
    return TcpTransport(here), TcpTransport(there)
