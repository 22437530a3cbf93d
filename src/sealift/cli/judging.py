"""What a command judges evidence with: bundles of vendors, signed reference sets."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from sealift.attest.collateral import MAX_BUNDLE_BYTES, Collateral, parse_bundle
from sealift.attest.reference import MAX_SET_BYTES, parse_set
from sealift.crypto.sign import PublicKey
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.equip import equip
from sealift.release.files import read_whole
from sealift.release.vault.ledger import Ledger

JUDGING: Final = ("collateral", "references")


def add_judging_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what evidence is judged with."""
    parser.add_argument(
        "--collateral",
        type=Path,
        metavar="FILE",
        help="what vendors say of their hardware (a bundle), to judge evidence offline",
    )
    parser.add_argument(
        "--references",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a signed set of reference values that the agreement names",
    )


def option_words(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """What was given, as words of another command line that takes the same options."""
    words: list[str] = []
    for name in names:
        given = getattr(args, name)
        for value in given if isinstance(given, list) else [given]:
            if value is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def equip_from(
    args: argparse.Namespace,
    agreement: VerifiedAgreement,
    enroller: PublicKey | None = None,
    ledger: Ledger | None = None,
    clock: Callable[[], float] | None = None,
) -> VerifiedAgreement:
    """The agreement with what the command line names.

    Args:
        args: With ``add_judging_arguments``.
        agreement: Verified.
        clock: Seconds since 1970 to judge at; None judges now.
        enroller: The only key whose enrolments count; None believes all agreed ones.
        ledger: Remembers what was used; None remembers nothing.

    Raises:
        UnavailableError: ``references-absent``, or a file that cannot be read.
        EvidenceError, StaleError: a set is not the agreed one.
    """
    collateral = Collateral()
    if args.collateral is not None:
        collateral = parse_bundle(read_whole(args.collateral, 2 * MAX_BUNDLE_BYTES))
    sets = [parse_set(read_whole(path, MAX_SET_BYTES)) for path in args.references]
    return equip(
        agreement,
        clock=clock or wall_clock,
        collateral=collateral,
        sets=sets,
        enroller=enroller,
        ledger=ledger,
    )


def wall_clock() -> float:
    """Seconds since 1970: certificates, validity, and what people read."""
    return time.time()  # noqa: TID251 - the end of the command line
