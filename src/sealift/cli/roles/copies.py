"""``sealift broker backup``, ``restore`` and ``upgrade``: copies of vault and log.

A copy is made also while the broker runs, put back in the place of both, and kept before
a vault's schema is brought forward.
"""

from __future__ import annotations

import argparse
from typing import Any

from sealift.cli.console import say
from sealift.release.broker.stores import LOG, StoreBackup, back_up, restore, upgrade
from sealift.release.log.heads import find_head, read_head


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
