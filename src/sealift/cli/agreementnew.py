"""`sealift agreement new`: a commented starter document from cards and a code folder."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from sealift.channel.outputfile import open_output
from sealift.crypto.identity import load_card
from sealift.crypto.sign import PublicKey
from sealift.data.card import read_card
from sealift.errors import MalformedError, UsageError
from sealift.release.bundle import measure_bundle, read_bundle
from sealift.release.signed import load_signed
from sealift.release.starter import Starter


def add_starter_parser(verbs: Any) -> None:
    """Add the verb `new`."""
    parser = verbs.add_parser(
        "new", help="write a commented agreement.toml from cards and a code folder"
    )
    parser.add_argument("--name", required=True, help="name of the line of agreements")
    parser.add_argument(
        "--party", type=Path, nargs="+", required=True, metavar="NAME.card.json"
    )
    parser.add_argument(
        "--resource", type=Path, nargs="+", required=True, metavar="NAME.resource.json"
    )
    parser.add_argument("--code", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--entry", default="recipe.py", help="the recipe in DIR; default: recipe.py"
    )
    parser.add_argument(
        "--model-owner", metavar="PARTY", help="default: the last party"
    )
    parser.add_argument("--operator", metavar="PARTY", help="default: the model owner")
    parser.add_argument(
        "--attester",
        nargs="*",
        default=[],
        metavar="KEY",
        help="ed25519:... of the accelerator's development attester, or its card",
    )
    parser.add_argument(
        "--predecessor", type=Path, metavar="FILE", help="the signed agreement before"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("agreement.toml"))


def write_starter(args: argparse.Namespace) -> None:
    """Write the document; refuse what could not become an agreement."""
    starter = _starter(args)
    measure_bundle(read_bundle(args.code), args.entry)
    with open_output(args.out) as output:
        output.write(starter.to_toml().encode())
    print(
        f"sealift: edit {args.out}, then `sealift agreement check {args.out}`",
        file=sys.stderr,
    )
    print(args.out)


def _starter(args: argparse.Namespace) -> Starter:
    folder = args.out.parent
    parties = [(_relative(path, folder), load_card(path).name) for path in args.party]
    owners = [
        (_relative(path, folder), read_card(path).resource.owner)
        for path in args.resource
    ]
    names = [name for _, name in parties]
    model_owner = args.model_owner or names[-1]
    operator = args.operator or model_owner
    for name in (model_owner, operator, *(owner for _, owner in owners)):
        _require_party(name, names)
    before = load_signed(args.predecessor).agreement if args.predecessor else None
    return Starter(
        name=args.name,
        number=before.number + 1 if before else 1,
        predecessor=_relative(args.predecessor, folder) if before else "",
        party_cards=parties,
        resource_cards=owners,
        bundle=_relative(args.code, folder),
        entry=args.entry,
        model_owner=model_owner,
        operator=operator,
        attesters=[_attester(text) for text in args.attester],
    )


def _require_party(name: str, names: list[str]) -> None:
    if name not in names:
        raise UsageError(
            f"{name} is not among the parties",
            fix="Give its card with --party",
            code="not-a-party",
        )


def _attester(text: str) -> PublicKey:
    if text.startswith("ed25519:"):
        return PublicKey.from_text(text)
    try:
        return load_card(Path(text)).sign
    except MalformedError:
        raise UsageError(
            f"{text[:80]} is neither a key nor a card",
            fix="Give ed25519:... or a NAME.card.json",
        ) from None


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
