"""``sealift broker``: an owner's broker, which logs each key release and then releases the key.

`sealift join` runs one beside the holder, in a process of its own. An owner without a broker
takes no part in a job, so a broker that ends with an error ends the holder. One that was killed
is started again, a few times; its vault and log withstand that.

``sealift broker backup``, ``restore`` and ``upgrade``: copies of vault and log.

A copy is made also while the broker runs, put back in the place of both, and kept before
a vault's schema is brought forward.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from sealift.cli.arguments import Parser
from sealift.cli.console import say
from sealift.cli.judging import JUDGING, equip_from, option_words
from sealift.cli.roles import (
    add_role_arguments,
    keep_run_in,
    require_data_owner,
    set_up_role,
    statements_folder,
)
from sealift.events import wall_clock
from sealift.health.reporting import Counts, Reporter, memory_and_disk
from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.server import Broker
from sealift.release.broker.stores import (
    LOG,
    StoreBackup,
    back_up,
    opened_broker,
    restore,
    upgrade,
)
from sealift.release.files import handed_on
from sealift.release.log.heads import HeadStore, find_head, read_head
from sealift.release.vault.ledger import Ledger
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import prover
from sealift.train.job.rejoin import Joined, Rejoining
from sealift.train.job.rolesetup import RoleSetup
from sealift.train.job.signals import followed, on_second_signal, stop_postponed
from sealift.travel.broker import BrokerService
from sealift.travel.peers import accelerator_names, relay_name


def add_backup(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker backup",
        run=_run_backup,
        description="Copies vault and log and verifies the copies. They do not include the "
        "identity key and its passphrase: use `sealift key backup`, and store it elsewhere.",
    )
    parser.add_file("--vault", required=True, help="vault to copy")
    parser.add_file("--log", required=True, help="log to copy")
    parser.add_path("-o", "--output", required=True, metavar="DIR", help="a new folder")


def _run_backup(args: argparse.Namespace) -> int:
    """Copy, check, say."""
    _print_copy(back_up(args.vault, args.log, args.output))
    say(
        f"keep {args.output} as secret as the vault: whoever has it and the identity key "
        "can read the data keys"
    )
    return 0


def _print_copy(copy: StoreBackup) -> None:
    """What a copy holds, for people."""
    print(f"vault form   {copy.form}")
    print(f"log owner    {copy.log.owner}")
    print(f"entries      {copy.log.size}")
    print(f"releases     {copy.log.releases}")
    print(f"verified     {copy.log.statement}")
    print(
        "             the vault is whole, and has every use and revocation of the log"
    )


def add_restore(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker restore",
        run=_run_restore,
        description="A broker that is restored from an older copy has forgotten the uses and "
        "revocations since then. With --head the command refuses a copy that is older than "
        "the head of this log that another party kept.",
    )
    parser.add_path("copy", metavar="DIR", help="a folder of `broker backup`")
    parser.add_file("--vault", required=True)
    parser.add_file("--log", required=True)
    parser.add_file("--head", help="a signed head, or another party's file of heads")


def _run_restore(args: argparse.Namespace) -> int:
    """Check, copy, say."""
    outside = None
    if args.head is not None:
        outside = find_head(args.head, read_head(args.copy / LOG).body.log)
    _print_copy(restore(args.copy, args.vault, args.log, outside))
    if outside is None:
        say(
            "uses and revocations since this copy are forgotten, if there were any; add "
            "--head FILE to compare it with a head that another party kept"
        )
    return 0


def add_upgrade(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker upgrade",
        run=_run_upgrade,
        description="Stop the broker first. A broker also upgrades a vault when it opens it, "
        "but this command first makes a copy that the older version can read.",
    )
    parser.add_file("--vault", required=True)
    parser.add_file("-o", "--output", required=True, help="where to write the copy")


def _run_upgrade(args: argparse.Namespace) -> int:
    """Copy, upgrade, say."""
    before, now = upgrade(args.vault, args.output)
    print(f"vault form   {before} -> {now}")
    print(f"copy         {args.output}")
    return 0


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker",
        run=run,
        description="Connects to the orchestrator and releases keys to accelerators whose "
        "evidence the agreement accepts. Each release and refusal is logged first.",
    )
    add_role_arguments(parser)
    add_store_arguments(parser)
    parser.add_path(
        "--receipts",
        metavar="DIR",
        help="the receipt of the run is kept beside this folder; default: beside the log",
    )


def add_store_arguments(parser: Parser) -> None:
    """Add the owner's vault and log."""
    parser.add_file("--vault", required=True, help="your vault with the data keys")
    parser.add_file(
        "--log", required=True, help="your log; created if it does not exist"
    )
    parser.add_status()


def run(args: argparse.Namespace) -> int:
    """Serve until the job has ended."""
    setup = set_up_role(args, "broker")
    require_data_owner(setup, "broker")
    counts = Counts()

    def equipped(ledger: Ledger) -> VerifiedAgreement:
        enroller = setup.identity.public_key
        return equip_from(args, setup.agreement, enroller=enroller, ledger=ledger)

    with opened_broker(
        args.vault,
        args.log,
        setup.identity,
        equipped,
        clock=wall_clock,
        sink=counts.sink(setup.sink),
        statements=statements_folder(setup),
    ) as broker:
        setup = replace(setup, agreement=broker.verified)
        heads = HeadStore(args.log.with_name(f"{args.log.name}.heads.json"))
        rejoining = Rejoining(setup.job.run.rejoin_s, sink=setup.sink)
        keep = keep_run_in((args.receipts or args.log).parent, setup)
        with reporting(args.status, broker, counts):
            rejoining.run(
                lambda joined: _serve(
                    setup, broker, heads, rejoining.dial_s, joined, keep=keep
                )
            )
    return 0


def _serve(
    setup: RoleSetup,
    broker: Broker,
    heads: HeadStore,
    dial_s: float,
    joined: Joined,
    *,
    keep: Callable[[bytes], object],
) -> None:
    """Serve over one connection, with an instance key of its own."""
    name = setup.identity.name
    endpoint = setup.endpoint(Role.BROKER)
    called = relay_name(Role.BROKER, name)
    prove = prover(setup.identity, setup.agreement.digest, called)
    with RelayClient.dial(setup.address, called, dial_s, prove) as relay:
        joined()
        BrokerService(
            relay,
            endpoint,
            setup.agreement,
            broker=broker,
            sink=setup.sink,
            heads=heads,
            accelerators=accelerator_names(setup.agreement.agreement.ranks),
            keep=keep,
        ).serve()


@contextmanager
def reporting(folder: Path | None, broker: Broker, counts: Counts) -> Iterator[None]:
    """Says how the broker is while it is open, if somebody wants to know.

    Raises:
        UnavailableError: ``cannot-write`` or ``disk-full``.
    """
    if folder is None:
        yield
        return

    def gauges() -> dict[str, int]:
        entries = broker.head().body.size
        own = {"leases_open": broker.open_leases(), "log_entries": entries}
        return own | memory_and_disk()

    with Reporter(
        folder,
        "broker",
        counts,
        require_ready=broker.require_ready,
        gauges=gauges,
        clock=wall_clock,
    ):
        yield


STOP_S: Final = 10.0
OWN_FAILURES: Final = frozenset({1, 2, 3, 5, 6, 7})  # 4 is a peer's, a signal is ours
MAX_RESTARTS: Final = 20
_PASSED_ON: Final = (
    "key", "passphrase_file", "orchestrator", "vault", "log", "status", "receipts",
)  # fmt: skip


class BrokerBeside:
    """Starts, watches and ends it.

    Args:
        command: What runs.
        ended: Called when it ended with an error of its own.
        say: Gets a line for people.
    """

    def __init__(
        self,
        command: list[str],
        *,
        ended: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._command = command
        self._ended = ended
        self._say = say
        self._lock = threading.Lock()
        self._stopping = False
        self._restarts = 0
        with stop_postponed():
            self._process = self._start()
            on_second_signal(self._kill, ends_children=True)
        threading.Thread(target=self._watch, name="broker's end", daemon=True).start()

    @property
    def failed(self) -> bool:
        """Whether it ended with an error of its own."""
        return self._process.poll() in OWN_FAILURES

    def stop(self) -> None:
        """Ask it to stop, wait, and end it if it does not."""
        with self._lock:
            self._stopping = True
            process = self._process
        _stop_process(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - ourselves
            self._command,
            env={**os.environ, **followed()},
            pass_fds=handed_on(self._command),
        )

    def _watch(self) -> None:
        while True:
            code = self._process.wait()
            if code in OWN_FAILURES:
                self._ended()
            if code >= 0 or not self._start_again():
                return

    def _start_again(self) -> bool:
        with self._lock:
            if self._stopping or self._restarts >= MAX_RESTARTS:
                return False
            self._restarts += 1
            self._process = self._start()
        self._say("the broker was killed; it was started again")
        return True

    def _kill(self) -> None:
        self._stopping = True
        self._process.kill()


def broker_command(args: argparse.Namespace) -> list[str]:
    """`sealift broker` with what `sealift join` was given."""
    command = [sys.executable, "-m", "sealift", "broker", str(args.job)]
    return command + option_words(args, (*_PASSED_ON, *JUDGING))


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Ask a child to stop, wait, and end it if it does not."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
