"""`sealift key`: make, back up and restore an identity."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sealift.channel.record.outputfile import open_output
from sealift.cli.console import ask_terminal, read_passphrase, say, unlock
from sealift.codec import encode
from sealift.crypto.identity import (
    Identity,
    backup_identity,
    create_identity,
    restore_identity,
    save_identity,
)
from sealift.errors import UsageError
from sealift.release.files import read_secret_line

CARD_SUFFIX = ".card.json"


def add_parser(subparsers: Any) -> None:
    """Add the noun `key`."""
    verbs = subparsers.add_parser("key").add_verbs()
    _add_make(verbs)
    _add_backup(verbs)
    _add_restore(verbs)


def _add_make(verbs: Any) -> None:
    parser = verbs.add_parser(
        "new",
        run=_make,
        help="make an identity and its public card",
        description="Write NAME.key, which the passphrase protects, and NAME.card.json, "
        "which the others put into the agreement.",
    )
    parser.add_argument("name", help="the party's name: a-z, 0-9 and '-'")
    parser.add_path("-o", "--out", default=Path(), metavar="DIR", help="default: here")
    parser.add_passphrase()


def _add_backup(verbs: Any) -> None:
    parser = verbs.add_parser(
        "backup",
        run=_backup,
        help="write a backup that a recovery code opens",
        description="Write a second, sealed copy of an identity and print the recovery "
        "code that opens it. Keep the two in different places.",
    )
    parser.add_path("key", help="NAME.key")
    parser.add_file("-o", "--out", required=True)
    parser.add_passphrase()


def _add_restore(verbs: Any) -> None:
    parser = verbs.add_parser(
        "restore",
        run=_restore,
        help="make the identity again from a backup",
        description="Write NAME.key and NAME.card.json from a backup, under a "
        "passphrase that is chosen now.",
    )
    parser.add_path("backup", help="what `key backup` wrote")
    parser.add_path("-o", "--out", default=Path(), metavar="DIR", help="default: here")
    parser.add_file(
        "--recovery-code-file",
        help="read the recovery code from the first line of FILE; without it the "
        "terminal is asked",
    )
    parser.add_passphrase()


def _make(args: argparse.Namespace) -> None:
    identity = create_identity(args.name)
    prompt = f"Choose a passphrase for {args.name}"
    _write(identity, args, prompt)


def _backup(args: argparse.Namespace) -> None:
    identity = unlock(args, args.key, f"Passphrase of {args.key}")
    code = backup_identity(identity, args.out)
    say(
        f"{args.out} opens with the recovery code below and nothing else; write it down"
    )
    print(code)


def _restore(args: argparse.Namespace) -> None:
    if args.recovery_code_file is None:
        code = ask_terminal("Recovery code")
    else:
        code = read_secret_line(args.recovery_code_file)
    identity = restore_identity(args.backup, code)
    _write(identity, args, f"Choose a passphrase for {identity.name}")


def _write(identity: Identity, args: argparse.Namespace, prompt: str) -> None:
    """Key file and card, both or neither."""
    key = args.out / f"{identity.name}.key"
    card = args.out / f"{identity.name}{CARD_SUFFIX}"
    for path in (key, card):
        if path.exists():
            raise UsageError(
                f"{path} exists",
                fix="Choose another folder; keys are never overwritten",
                code="output-exists",
            )
    passphrase = read_passphrase(args.passphrase_file, prompt=prompt, twice=True)
    with open_output(card) as output:
        output.write(encode(identity.card))
        save_identity(identity, key, passphrase)
    say(f"{card.name} is for the others; keep {key.name}, and make a backup of it")
    print(f"{'key':<5}  {key}\n{'card':<5}  {card}\nsigns  {identity.public_key}")
