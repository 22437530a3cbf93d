"""What the long-running commands share: the job, the identity, events, direct paths."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from sealift.channel.transport.tcp import TcpListener
from sealift.channel.transport.unixsocket import LocalListener
from sealift.cli.arguments import Parser
from sealift.cli.console import unlock
from sealift.cli.judging import add_judging_arguments, equip_from, wall_clock
from sealift.errors import (
    PolicyError,
    UnavailableError,
    visible,
)
from sealift.events import Event, Sink
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.train.job.roleprocesses import EventLines
from sealift.train.job.rolesetup import RoleSetup, own_enroller, read_role
from sealift.train.job.settings import parse_address
from sealift.train.plans import PlanRole


def boot_clock() -> float:
    """Seconds that also count while the machine sleeps (rule H5)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def add_role_arguments(parser: Parser) -> None:
    """Add what every role takes."""
    parser.add_path("job", metavar="JOB", help="the job, a TOML file")
    parser.add_file("--key", required=True, help="identity file")
    parser.add_argument(
        "--orchestrator",
        metavar="HOST:PORT",
        help="where the orchestrator listens, instead of what the job says",
    )
    add_judging_arguments(parser)
    parser.add_passphrase()
    _add_events_argument(parser)


def set_up_role(args: argparse.Namespace, role: PlanRole) -> RoleSetup:
    """Read and verify everything that a role starts from.

    Args:
        args: With ``add_role_arguments``.
        role: Which process this is.

    Raises:
        SealiftError: the first thing that is wrong, before anything is started.
    """
    job, agreement = read_role(args.job, role, clock=wall_clock)
    address = parse_address(args.orchestrator) if args.orchestrator else job.address
    identity = unlock(args, args.key)
    sink = open_events(args.events)
    agreement = equip_from(args, agreement, own_enroller(agreement, identity))
    folder = args.job.resolve().parent
    return RoleSetup(job, folder, agreement, identity, sink, address)


def require_data_owner(setup: RoleSetup, role: str) -> None:
    """The identity must be a data owner of the agreement.

    Raises:
        PolicyError: code ``other-key``, ``not-a-party`` or ``not-a-data-owner``.
    """
    name = setup.identity.name
    require_party(setup, name, role)
    if name not in setup.agreement.agreement.holders:
        raise PolicyError(
            f"{name} brings no data to this agreement", code="not-a-data-owner"
        )


def require_party(setup: RoleSetup, name: str, role: str) -> None:
    """The identity must be the party that the agreement gives this role to.

    Raises:
        PolicyError: code ``other-key`` or ``not-a-party``.
    """
    party = setup.agreement.party(name)
    if party.sign != setup.identity.public_key:
        raise PolicyError(
            f"this identity is not the agreement's {name}",
            why=f"it is {setup.identity.name}",
            fix=f"The {role} runs with the key of {name}",
            code="other-key",
        )


def add_host_arguments(parser: Parser) -> None:
    """Add what an accelerator takes."""
    _add_relay_only_argument(parser)
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


def add_dialler_arguments(parser: Parser) -> None:
    """Add what a holder takes."""
    _add_relay_only_argument(parser)
    parser.add_argument(
        "--direct",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="dial the accelerator there if it offers that; no other address is dialled",
    )


def _add_relay_only_argument(parser: Parser) -> None:
    """Add what both ends take."""
    parser.add_flag(
        "--relay-only",
        "let cargo cross through the orchestrator's port and nowhere else",
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


def _add_events_argument(parser: Parser) -> None:
    """Add ``--events``."""
    parser.add_argument(
        "--events",
        metavar="FILE",
        default="",
        help="write events as JSON lines to FILE, or to stdout for '-'",
    )


def open_events(place: str) -> Sink:
    """A sink that writes to ``place``; people get short lines on stderr without one.

    Raises:
        UnavailableError: if the file cannot be written.
    """
    if not place:
        return _Talk(sys.stderr)
    if place == "-":
        return EventLines(sys.stdout)
    try:
        return EventLines(Path(place).open("a", encoding="utf-8"))
    except OSError as error:
        raise UnavailableError(
            f"cannot write {place}", why=error, code="disk"
        ) from None


class _Talk:
    """What a person at a terminal wants to know; frames and phases are too many."""

    _QUIET = frozenset({"holder.frame", "holder.phase", "visit.phase"})

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        if event.kind in self._QUIET:
            return
        shown = {name: value for name, value in event.fields.items() if value != ""}
        fields = " ".join(f"{name}={_short(value)}" for name, value in shown.items())
        with self._lock:
            line = visible(f"sealift: {event.kind} {fields}")
            print(line, file=self._stream, flush=True)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
