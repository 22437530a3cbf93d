"""Both ends of a private memory file in one process."""

from __future__ import annotations

import socket

from sealift.channel.transport.memfd import (
    DEFAULT_SLOT_BYTES,
    DEFAULT_SLOTS,
    MemfdTransport,
)


def memfd_pair(
    *, slot_bytes: int = DEFAULT_SLOT_BYTES, num_slots: int = DEFAULT_SLOTS
) -> tuple[MemfdTransport, MemfdTransport]:
    """Two connected ends in one process."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    offering = MemfdTransport.offer(left, slot_bytes=slot_bytes, num_slots=num_slots)
    return offering, MemfdTransport.accept(right)
