"""`sealift attest collateral`: make, show and fetch bundles of vendors' certificates."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from sealift.attest.collateral import (
    DAY_S,
    MAX_BUNDLE_BYTES,
    Collateral,
    pack_bundle,
)
from sealift.attest.tools.collateral import (
    Services,
    bundle,
    fetch,
    item_times,
    to_items,
    wanted,
)
from sealift.cli.arguments import Parser
from sealift.cli.console import say
from sealift.cli.judging import add_evidence_arguments, load_evidence, parse_time
from sealift.crypto.certificate import say_time
from sealift.errors import MalformedError, UsageError, visible
from sealift.release.equip import load_collateral
from sealift.release.files import read_whole, require_absent, write_whole

SERVICES: Final = ("intel", "intel-root", "amd", "nvidia")


def add_collateral_parser(verbs: Any) -> None:
    """Add the verb `collateral` with verbs of its own."""
    parser = verbs.add_parser(
        "collateral",
        help="make, show or fetch bundles of vendors' certificates and lists",
    )
    steps = parser.add_subparsers(dest="step", required=True, metavar="VERB")
    make = steps.add_parser(
        "make",
        run=_run_collateral,
        help="make a bundle of files that you have",
        description="Recognizes files by their content: Intel's lists, revocation lists, "
        "certificate chains, certificates of AMD and of TPM makers, NVIDIA's manifests and "
        "OCSP answers. Nothing is verified here: each verifier verifies the whole bundle.",
    )
    make.add_file("files", nargs="*")
    make.add_argument(
        "--item",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="add a file as NAME",
    )
    make.add_path("--add", metavar="BUNDLE", help="start with its items")
    _add_output(make)
    show = steps.add_parser(
        "show", run=_run_collateral, help="show a bundle's items, and how old they are"
    )
    show.add_path("bundle")
    show.add_argument(
        "--at", metavar="TIME", help="show ages as of this time; default: now"
    )
    fetched = steps.add_parser(
        "fetch",
        run=_run_collateral,
        help="fetch what some evidence needs from the vendors' services",
        description="This command needs the network. All others work offline.",
    )
    add_evidence_arguments(fetched)
    fetched.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME=URL",
        help=f"use this mirror or cache; NAME: {', '.join(SERVICES)}",
    )
    fetched.add_path("--add", metavar="BUNDLE", help="start with its items")
    _add_output(fetched)


def _run_collateral(args: argparse.Namespace) -> int:
    """Run the verb; the exit code."""
    if args.step == "show":
        _show(load_collateral(args.bundle), int(parse_time(args.at)))
        return 0
    require_absent(args.out)
    items = dict(load_collateral(args.add).items)
    items |= _made(args) if args.step == "make" else _fetched(args)
    as_of_s = int(parse_time(args.as_of, "--as-of")) if args.as_of else None
    now_s = int(parse_time(None))
    if args.step == "fetch" and as_of_s is None:
        as_of_s = now_s if args.add is None else None
    made = bundle(items, now_s=now_s, as_of_s=as_of_s)
    write_whole(args.out, pack_bundle(made))
    _show(made, now_s)
    return 0


def _add_output(parser: Parser) -> None:
    parser.add_file("-o", "--out", required=True)
    parser.add_argument(
        "--as-of",
        metavar="TIME",
        help="when it was fetched; default: the time of the newest item",
    )


def _made(args: argparse.Namespace) -> dict[str, bytes]:
    items: dict[str, bytes] = {}
    for path in args.files:
        try:
            items |= to_items(read_whole(path, MAX_BUNDLE_BYTES), path.stem)
        except MalformedError as error:
            raise MalformedError(
                f"{path}: {error.what}", why=error.why, fix=error.fix, code=error.code
            ) from None
    for name, value in (_split(each, "--item") for each in args.item):
        items[name] = read_whole(Path(value), MAX_BUNDLE_BYTES)
    return items


def _fetched(args: argparse.Namespace) -> dict[str, bytes]:
    chosen = dict(_split(each, "--service") for each in args.service)
    if strange := sorted(chosen.keys() - set(SERVICES)):
        raise UsageError(
            f"--service {strange[0]} is unknown",
            fix=f"Use {', '.join(SERVICES)}",
            code="usage",
        )
    addresses = {name.replace("-", "_"): url for name, url in chosen.items()}
    needed = wanted(load_evidence(args).evidence, Services(**addresses))
    for each in needed:
        say(f"fetching {visible(each.url)}")
    return fetch(needed)


def _split(text: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (name and found and value):
        raise UsageError(f"{option} takes NAME=VALUE", why=text[:60], code="usage")
    return name, value


def _show(collateral: Collateral, at_s: int) -> None:
    age = (at_s - collateral.as_of_s) / DAY_S
    print(f"as of  {say_time(collateral.as_of_s)}, {age:.1f} days ago\n")
    width = max((len(name) for name in collateral.items), default=4)
    print(f"{'item':<{width}}  {'bytes':>7}  {'issued':<20}  valid until")
    for name, raw in sorted(collateral.items.items()):
        times = item_times(raw)
        line = f"{name:<{width}}  {len(raw):>7}  {_say(times.issued_s):<20}  "
        over = times.due_s is not None and times.due_s < at_s
        print(visible(line + _say(times.due_s) + (" (expired)" if over else "")))


def _say(at_s: int | None) -> str:
    return "unknown" if at_s is None else say_time(at_s)
