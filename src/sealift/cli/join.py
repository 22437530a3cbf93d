"""``sealift join``: take part in a job as a data owner: a broker, and a holder beside it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sealift.channel.opener import RecordOpener
from sealift.channel.rawfile import RawSealedFile
from sealift.cli.broker import add_store_arguments
from sealift.cli.dock import add_relay_only_argument, pathfinder
from sealift.cli.roles import (
    RoleSetup,
    add_role_arguments,
    require_data_owner,
    set_up_role,
)
from sealift.cli.signals import followed, on_second_signal, stop_postponed
from sealift.data.card import CARD_SUFFIX, SEALED_SUFFIX, read_card
from sealift.errors import (
    AuthenticationError,
    JobError,
    MalformedError,
    PeerError,
    UnavailableError,
)
from sealift.ids import Role
from sealift.release.files import make_folder
from sealift.release.heads import HeadStore
from sealift.release.vault import Vault
from sealift.session.endpoint import Endpoint
from sealift.session.link import Link
from sealift.travel.attendance import Attendance
from sealift.travel.holder import HeldResource
from sealift.travel.peers import link_name

STOP_S: Final = 10.0
OWN_FAILURES: Final = frozenset({1, 2, 3, 5, 6, 7})  # 4 is a peer's, a signal is ours
Broker = subprocess.Popen[bytes]


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "join",
        help="take part in a job with this owner's sealed data",
        description="Runs this owner's broker and holder until the job ends. Both dial "
        "out to the orchestrator; nothing listens here.",
    )
    parser.set_defaults(run=run)
    add_role_arguments(parser)
    add_store_arguments(parser)
    parser.add_argument(
        "--sealed",
        type=Path,
        required=True,
        metavar="DIR",
        help="sealed files and cards",
    )
    parser.add_argument(
        "--receipts", type=Path, required=True, metavar="DIR", help="gets the receipts"
    )
    parser.add_argument(
        "--heads",
        type=Path,
        required=True,
        metavar="FILE",
        help="last heads of all logs",
    )
    parser.add_argument(
        "--holder-only", action="store_true", help="the broker runs elsewhere"
    )
    add_relay_only_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Attend until the job ends."""
    if not args.holder_only:
        _require_passphrase_file(args)
    setup = set_up_role(args)
    require_data_owner(setup, "holder")
    held = load_held(setup, args.sealed)
    if setup.job.travel.mode != "at-rest":
        held = with_keys(setup, args.vault, held)
    if not args.holder_only:
        check_keys(setup, args.vault, held)
    make_folder(args.receipts)
    with _broker_beside(args) as broker, holder_link(setup) as link:
        attendance = make_attendance(args, setup, link, held)
        with _ending_with(broker, link):
            finished = attendance.serve()
    if finished.outcome != "finished":
        raise JobError("the job failed", why="the orchestrator's output says how")
    print(json.dumps({"receipts": attendance.kept, "failed": attendance.failed}))
    return 0


def check_keys(setup: RoleSetup, vault: Path, held: dict[str, HeldResource]) -> None:
    """The sealed files must be those that the vault's keys are for.

    Raises:
        MalformedError: if a file was sealed with another key: it is another file.
        UnavailableError: if the vault cannot be opened, or has no such key.
    """
    with closing(Vault.open(vault, setup.identity)) as keys:
        for name, each in held.items():
            try:
                RecordOpener(keys.fetch(name), each.source.header_bytes).close()
            except AuthenticationError:
                raise MalformedError(
                    f"{name}{SEALED_SUFFIX} is not the file that its key is for",
                    fix="Use the files that the agreement was made with",
                    code="other-resource",
                ) from None


def with_keys(
    setup: RoleSetup, vault: Path, held: dict[str, HeldResource]
) -> dict[str, HeldResource]:
    """The same with their data keys, for modes that seal records again at home.

    Raises:
        UnavailableError: if the vault cannot be opened, or has no such key.
    """
    with closing(Vault.open(vault, setup.identity)) as keys:
        return {
            name: replace(each, data_key=keys.fetch(name))
            for name, each in held.items()
        }


def load_held(setup: RoleSetup, folder: Path) -> dict[str, HeldResource]:
    """This owner's sealed files, each compared with the agreement.

    Raises:
        UnavailableError: if one is missing.
        MalformedError: if one is not the agreed one, or not whole.
    """
    held = {}
    for resource in setup.agreement.agreement.resources_of(setup.identity.name):
        card = read_card(folder / f"{resource.name}{CARD_SUFFIX}")
        if card.resource != resource:
            raise MalformedError(
                f"{resource.name} is not sealed as the agreement says",
                why="its card differs",
                fix="Use the files that the agreement was made with",
                code="other-resource",
            )
        source = RawSealedFile(folder / f"{resource.name}{SEALED_SUFFIX}")
        held[resource.name] = HeldResource(resource, source, card.leaves)
    return held


def holder_link(setup: RoleSetup) -> Link:
    """Dial the relay under the holder's name."""
    return Link.dial(setup.address, link_name(Role.HOLDER, setup.identity.name))


def make_attendance(
    args: argparse.Namespace,
    setup: RoleSetup,
    link: Link,
    held: dict[str, HeldResource],
) -> Attendance:
    """The holder of this command line."""
    endpoint = Endpoint(
        role=Role.HOLDER,
        name=setup.identity.name,
        agreement=setup.agreement.digest,
        identity=setup.identity,
    )
    return Attendance(
        link,
        endpoint,
        setup.agreement,
        held=held,
        heads=HeadStore(args.heads),
        receipts=args.receipts,
        job=setup.job.name,
        clock=time.monotonic,
        receipt_wait_s=setup.job.travel.lease_s + setup.job.travel.work_s,
        pathfinder=pathfinder(args),
        sink=setup.sink,
        mode=setup.job.travel.mode,
    )


@contextmanager
def _ending_with(broker: Broker | None, link: Link) -> Iterator[None]:
    """Without its broker an owner takes no part: end the block when it fails.

    Raises:
        JobError: ``role-ended``; what the broker said stands on stderr.
    """
    if broker is None:
        yield
        return

    def watch() -> None:
        if broker.wait() in OWN_FAILURES:
            link.close()

    threading.Thread(target=watch, name="broker's end", daemon=True).start()
    try:
        yield
    except PeerError:
        if broker.poll() not in OWN_FAILURES:
            raise
        raise JobError(
            "the broker beside the holder ended early",
            why="it said why in the line before",
            code="role-ended",
        ) from None


def _require_passphrase_file(args: argparse.Namespace) -> None:
    """Two processes need the passphrase, and only one could ask."""
    if args.passphrase_file is None:
        raise UnavailableError(
            "the broker beside the holder needs a passphrase file",
            fix="Name one with --passphrase-file, or run `sealift broker` and "
            "`sealift join --holder-only`",
            code="no-terminal",
        )


@contextmanager
def _broker_beside(args: argparse.Namespace) -> Iterator[Broker | None]:
    """The broker in a process of its own, unless it runs elsewhere."""
    if args.holder_only:
        yield None
        return
    command = [sys.executable, "-m", "sealift", "broker", str(args.job)]
    for name in ("key", "passphrase_file", "orchestrator", "vault", "log"):
        value = getattr(args, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    with stop_postponed():
        process = subprocess.Popen(command, env={**os.environ, **followed()})  # noqa: S603 - ourselves
        on_second_signal(process.kill)
    try:
        yield process
    finally:
        stop_process(process)


def stop_process(process: Broker) -> None:
    """Ask a child to stop, wait, and end it if it does not."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
