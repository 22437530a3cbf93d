"""Direct paths on the command line: where an accelerator offers them, who takes them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sealift.channel.transport.tcp import TcpListener
from sealift.channel.transport.unixsocket import LocalListener
from sealift.errors import UnavailableError
from sealift.events import Sink
from sealift.session.direct.dial import PathDialler
from sealift.session.direct.host import DirectHost
from sealift.train.settings import parse_address


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what an accelerator takes."""
    add_relay_only_argument(parser)
    parser.add_argument(
        "--direct",
        metavar="HOST:PORT",
        help="let holders bring their cargo to this address, past the relay",
    )
    parser.add_argument(
        "--direct-listen",
        metavar="HOST:PORT",
        help="listen there for --direct, when a NAT or a proxy stands in between",
    )


def add_dialler_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a holder takes."""
    add_relay_only_argument(parser)
    parser.add_argument(
        "--direct",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="dial the accelerator there if it offers that; no other address is dialled",
    )


def add_relay_only_argument(parser: argparse.ArgumentParser) -> None:
    """Add what both ends take."""
    parser.add_argument(
        "--relay-only",
        action="store_true",
        help="let cargo cross through the orchestrator's port and nowhere else",
    )


@contextmanager
def open_direct_host(
    args: argparse.Namespace, sink: Sink
) -> Iterator[DirectHost | None]:
    """The listening end of this command line; None with ``--relay-only``.

    Raises:
        UnavailableError: if an address that was asked for cannot be listened on.
    """
    if args.relay_only:
        yield None
        return
    tcp, told = None, ""
    if args.direct is not None:
        tcp = TcpListener(*parse_address(args.direct_listen or args.direct))
        told = args.direct if args.direct_listen else ""
    direct_host = DirectHost(local=_local(), tcp=tcp, tcp_address=told, sink=sink)
    try:
        yield direct_host
    finally:
        direct_host.close()


def dialler(args: argparse.Namespace) -> PathDialler:
    """Which offered paths the holder of this command line takes."""
    if args.relay_only:
        return PathDialler(local=False)
    for place in args.direct:
        parse_address(place)  # whoever mistypes one hears of it now
    return PathDialler(places=args.direct)


def _local() -> LocalListener | None:
    """Without a place for a local socket there is still the relay."""
    with suppress(UnavailableError):
        return LocalListener()
    return None
