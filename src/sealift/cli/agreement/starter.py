"""`sealift agreement new`: a commented starter document from cards and a code folder."""

from __future__ import annotations

import argparse
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from sealift.attest.level import Level
from sealift.attest.reference import (
    MAX_SET_BYTES,
    SetName,
    parse_set,
    verify_set,
)
from sealift.channel.record.outputfile import open_output
from sealift.cli.arguments import Parser
from sealift.cli.console import ask_line, ask_words, has_terminal, say
from sealift.crypto.identity import load_card
from sealift.crypto.sign import PublicKey
from sealift.data.schema.alike import demand_alike
from sealift.data.schema.card import ResourceCard, read_card
from sealift.errors import MalformedError, UsageError
from sealift.release.agreement import About
from sealift.release.agreement.code import measure_assets, measure_bundle, read_bundle
from sealift.release.agreement.signed import load_signed
from sealift.release.agreement.starter import MAX_USES, Starter
from sealift.release.files import read_whole

_NEEDED = ("name", "party", "resource", "code")


def add_starter_parser(verbs: Any) -> None:
    """Add the verb `new`."""
    parser = verbs.add_parser(
        "new",
        run=_write_starter,
        help="write a commented agreement.toml from cards and a code folder",
        description="Asks for missing arguments if there is a terminal.",
    )
    parser.add_argument("--name", help="name of the agreement and its successors")
    parser.add_path("--party", nargs="+", metavar="NAME.card.json", help="all parties")
    parser.add_path(
        "--resource", nargs="+", metavar="NAME.resource.json", help="sealed data"
    )
    parser.add_argument(
        "--about", choices=get_args(About),
        help="default: train, or serve if the resources are models; a group has no resources",
    )  # fmt: skip
    parser.add_path("--code", metavar="DIR", help="folder with the code")
    parser.add_argument(
        "--entry",
        default="recipe.py",
        help="the recipe in that folder; default: recipe.py",
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
        help="key (ed25519:...) or card of the accelerator's development attester",
    )
    parser.add_file("--predecessor", help="the previous signed agreement")
    parser.add_file(
        "--references",
        nargs="+",
        default=[],
        help="signed reference sets of accepted hosts",
    )
    _add_rule_arguments(parser)
    parser.add_path("-o", "--out", default=Path("agreement.toml"))


def _add_rule_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--level",
        nargs="+",
        type=Level,
        choices=list(Level),
        metavar="LEVEL",
        help="accepted levels, best first; default: development, which protects nobody",
    )
    parser.add_argument(
        "--rehearse", type=Level, choices=list(Level), metavar="LEVEL",
        help="with development: the level to rehearse",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=int, metavar="N",
        help="how many parties must sign a successor; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--veto",
        nargs="*",
        metavar="PARTY",
        help="parties with a veto; default: each data owner",
    )
    parser.add_argument(
        "--until", metavar="TIME", help="when it ends (RFC 3339); default: in 90 days"
    )
    parser.add_argument(
        "--max-uses", type=int, default=MAX_USES, metavar="N",
        help=f"how often each key may be released; 0: no limit; default: {MAX_USES}",
    )  # fmt: skip


def _write_starter(args: argparse.Namespace) -> None:
    """Write the document; refuse what could not become an agreement."""
    _complete(args)
    starter = _starter(args)
    measure_bundle(read_bundle(args.code), args.entry, measure_assets(args.code))
    with open_output(args.out) as output:
        output.write(starter.to_toml().encode())
    say(f"edit {args.out}, then `sealift agreement check {args.out}`")
    print(args.out)


def _complete(args: argparse.Namespace) -> None:
    """Ask for what was not given.

    Raises:
        UsageError: without a terminal, naming the flags.
    """
    missing = [name for name in _NEEDED if not getattr(args, name)]
    if args.about == "group" and "resource" in missing:
        missing.remove("resource")
    if not missing:
        return
    if not has_terminal():
        raise UsageError(
            f"--{' and --'.join(missing)} must be given",
            why="there is no terminal to ask",
        )
    args.name = args.name or ask_line("Name of the agreement")
    args.party = args.party or _ask_paths("Cards of all parties (NAME.card.json)")
    if args.about != "group":
        question = "Cards of the sealed tables (NAME.resource.json)"
        args.resource = args.resource or _ask_paths(question)
    args.code = args.code or Path(ask_line("Folder with the code"))
    _ask_rules(args)


def _ask_paths(question: str) -> list[Path]:
    return [Path(word) for word in ask_words(question)]


def _ask_rules(args: argparse.Namespace) -> None:
    """What has a default, shown with it."""
    names = [load_card(path).name for path in args.party]
    args.entry = ask_line("Recipe in that folder", args.entry)
    args.model_owner = ask_line(
        "Party that gets the model", args.model_owner or names[-1]
    )
    args.operator = ask_line(
        "Party that runs the job", args.operator or args.model_owner
    )
    levels = ask_words("Accepted levels, best first", "development")
    try:
        args.level = args.level or [Level(word) for word in levels]
    except ValueError:
        unknown = next(word for word in levels if word not in [*Level])
        raise UsageError(
            f"{unknown[:80]} is not a level", fix=f"Use one of {', '.join(Level)}"
        ) from None
    if Level.DEVELOPMENT in args.level and not args.attester:
        args.attester = ask_words("Key or card of the accelerator's attester")
    needed = ask_line("Number of signatures that a successor needs", str(len(names)))
    if not needed.isdecimal():
        raise UsageError(f"{needed[:80]} is not a number")
    args.threshold = args.threshold or int(needed)


def _starter(args: argparse.Namespace) -> Starter:
    folder = args.out.parent
    parties = [(_relative(path, folder), load_card(path).name) for path in args.party]
    cards = [(path, read_card(path)) for path in args.resource or ()]
    owners = [(_relative(path, folder), card.resource.owner) for path, card in cards]
    demand_alike([card.resource for _, card in cards])
    names = [name for _, name in parties]
    model_owner = args.model_owner or names[-1]
    operator = args.operator or model_owner
    for name in (model_owner, operator, *(owner for _, owner in owners)):
        if name not in names:
            raise UsageError(
                f"{name} is not among the parties",
                fix="Add its card to --party",
                code="not-a-party",
            )
    before = load_signed(args.predecessor).agreement if args.predecessor else None
    train_rows = _train_rows([card for _, card in cards])
    every = args.threshold is None or args.threshold == len(names)
    veto = list(train_rows) if args.veto is None else args.veto
    return Starter(
        name=args.name,
        about=args.about or _about([card for _, card in cards]),
        number=before.number + 1 if before else 1,
        predecessor=_relative(args.predecessor, folder) if before else "",
        party_cards=parties,
        resource_cards=owners,
        bundle=_relative(args.code, folder),
        entry=args.entry,
        model_owner=model_owner,
        operator=operator,
        attesters=[_attester(text) for text in args.attester],
        enrollers=_enrollers(args, owners),
        reference_sets=[_set_name(path) for path in args.references],
        now_s=time.time(),  # noqa: TID251 - the end of the command line
        train_rows=train_rows,
        accept=args.level or (Level.DEVELOPMENT,),
        rehearse=args.rehearse,
        threshold=0 if every and args.veto is None else args.threshold or len(names),
        veto=veto,
        not_after_s=_parse_until(args.until) if args.until else None,
        max_uses=args.max_uses,
    )


def _about(cards: list[ResourceCard]) -> About:
    models = any(card.resource.part == "model" for card in cards)
    return "serve" if models else "train"


def _train_rows(cards: list[ResourceCard]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for resource in (card.resource for card in cards):
        if resource.part == "train":
            rows[resource.owner] = rows.get(resource.owner, 0) + resource.rows
    return rows


def _parse_until(text: str) -> int:
    """Seconds since 1970 of RFC 3339 text; raises UsageError for anything else."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise UsageError(
            f"{text[:80]} is not a time with a UTC offset",
            fix='Write it like "2027-01-31T12:00:00Z"',
        )
    return int(at.timestamp())


def _enrollers(
    args: argparse.Namespace, owners: list[tuple[str, str]]
) -> list[PublicKey]:
    """Where a TPM is to prove itself, each owner finds out itself which one it is."""
    if Level.ATTESTED_HOST not in (*(args.level or ()), args.rehearse):
        return []
    names = {owner for _, owner in owners}
    cards = [load_card(path) for path in args.party]
    return [card.sign for card in cards if card.name in names]


def _set_name(path: Path) -> SetName:
    """The set of a file as an agreement names it; its signature is checked."""
    signed = parse_set(read_whole(path, MAX_SET_BYTES))
    found = signed.set
    name = SetName(name=found.name, signer=signed.signer, number=found.number)
    verify_set(signed, name)
    return name


def _attester(text: str) -> PublicKey:
    if text.startswith("ed25519:"):
        return PublicKey.from_text(text)
    try:
        return load_card(Path(text)).sign
    except MalformedError:
        raise UsageError(
            f"{text[:80]} is neither a key nor a card",
            fix="Use ed25519:... or a file NAME.card.json",
        ) from None


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
