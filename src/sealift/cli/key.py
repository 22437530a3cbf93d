"""`sealift key`: create, back up and restore an identity key."""

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
        help="create an identity key and its public card",
        description="Writes NAME.key, encrypted with a passphrase, and NAME.card.json, the "
        "public card that the other parties need for the agreement.",
    )
    parser.add_argument("name", help="the party's name: a-z, 0-9 and '-'")
    parser.add_path("-o", "--out", default=Path(), metavar="DIR", help="default: .")
    parser.add_passphrase()


def _add_backup(verbs: Any) -> None:
    parser = verbs.add_parser(
        "backup",
        run=_backup,
        help="write a backup and print the recovery code that opens it",
        description="Writes an encrypted copy of an identity key and prints the recovery code "
        "that decrypts it. Store the two in different places.",
    )
    parser.add_path("key", help="NAME.key")
    parser.add_file("-o", "--out", required=True)
    parser.add_passphrase()


def _add_restore(verbs: Any) -> None:
    parser = verbs.add_parser(
        "restore",
        run=_restore,
        help="restore an identity key from a backup",
        description="Writes NAME.key and NAME.card.json from a backup, with a new passphrase.",
    )
    parser.add_path("backup", help="the file that `key backup` wrote")
    parser.add_path("-o", "--out", default=Path(), metavar="DIR", help="default: .")
    parser.add_file(
        "--recovery-code-file",
        help="read the recovery code from the first line of FILE; without it the "
        "terminal is asked",
    )
    parser.add_passphrase()


def _make(args: argparse.Namespace) -> None:
    _write(create_identity(args.name), args)


def _backup(args: argparse.Namespace) -> None:
    identity = unlock(args, args.key, f"Passphrase of {args.key}")
    code = backup_identity(identity, args.out)
    say(f"write down the recovery code below: only it can open {args.out}")
    print(code)


def _restore(args: argparse.Namespace) -> None:
    if args.recovery_code_file is None:
        code = ask_terminal("Recovery code")
    else:
        code = read_secret_line(args.recovery_code_file)
    identity = restore_identity(args.backup, code)
    _write(identity, args)


def _write(identity: Identity, args: argparse.Namespace) -> None:
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
    prompt = f"Choose a passphrase for {identity.name}"
    passphrase = read_passphrase(args.passphrase_file, prompt=prompt, twice=True)
    with open_output(card) as output:
        output.write(encode(identity.card))
        save_identity(identity, key, passphrase)
    say(
        f"give {card.name} to the other parties; keep {key.name} secret, and back it up"
    )
    print(f"{'key':<5}  {key}\n{'card':<5}  {card}\nsigns  {identity.public_key}")
