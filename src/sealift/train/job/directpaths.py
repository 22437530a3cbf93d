"""Where an accelerator listens for those who need not go through the relay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sealift.channel.transport.tcp import TcpListener
from sealift.channel.transport.unixsocket import LocalListener
from sealift.errors import UnavailableError
from sealift.events import Sink
from sealift.session.directhost import DirectHost
from sealift.train.job.settings import parse_address


@contextmanager
def open_direct_host(
    *, relay_only: bool, direct: str | None, listen: str | None, sink: Sink
) -> Iterator[DirectHost | None]:
    """The listening end; None with ``relay_only``.

    Args:
        relay_only: Whether nothing may go past the relay.
        direct: Address that others are told to dial; None is this machine alone.
        listen: Where to listen for it, if that is elsewhere.
        sink: Where events go.

    Raises:
        UnavailableError: if an address that was asked for cannot be listened on.
    """
    if relay_only:
        yield None
        return
    tcp, told = None, ""
    if direct is not None:
        tcp = TcpListener(*parse_address(listen or direct))
        told = direct if listen else ""
    direct_host = DirectHost(local=_local(), tcp=tcp, tcp_address=told, sink=sink)
    try:
        yield direct_host
    finally:
        direct_host.close()


def _local() -> LocalListener | None:
    """Without a place for a local socket there is still the relay."""
    with suppress(UnavailableError):
        return LocalListener()
    return None
