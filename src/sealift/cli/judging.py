"""Arguments and files with which commands verify evidence: times, bundles, reference sets."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from sealift.attest.evidence import MAX_BODY_BYTES, Evidence, require_bound
from sealift.attest.snp.endorsement import parse_certificates
from sealift.attest.tools.vendorfiles import wrap
from sealift.cli.arguments import Parser
from sealift.cli.console import say
from sealift.codec import decode
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, UsageError
from sealift.events import wall_clock
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.equip import equip_from_files
from sealift.release.files import read_whole
from sealift.release.vault.ledger import Ledger

MAX_FILE_BYTES: Final = 2 * MAX_BODY_BYTES  # the body in base64, and a little

MAX_CHAIN_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class LoadedEvidence:
    """Evidence of a file.

    Attributes:
        evidence: As it is, or wrapped.
        form: What else the file was; empty for a file of ours.
    """

    evidence: Evidence
    form: str = ""


def add_collateral_argument(parser: Parser) -> None:
    """Add the bundle."""
    parser.add_file("--collateral", help="a bundle of vendors' certificates and lists")


def add_time_argument(parser: Parser) -> None:
    """Add the time to judge at."""
    parser.add_argument(
        "--at", metavar="TIME", help="verify as of this time (RFC 3339)"
    )


def add_evidence_arguments(parser: Parser) -> None:
    """Add the file, and what a vendor's form has no place for."""
    parser.add_path(
        "file",
        help="a file of `attest collect`, or in a vendor's form: a TDX quote, an SNP report, "
        "evidence of NVIDIA's, Trustee's or dstack's tools, in hex or base64",
    )
    parser.add_file(
        "--certificates",
        many=True,
        help="certificates of the key that signed a vendor's file (PEM or DER)",
    )
    parser.add_argument(
        "--device",
        type=int,
        default=0,
        metavar="N",
        help="which entry of a list, from 0",
    )


def load_evidence(args: argparse.Namespace) -> LoadedEvidence:
    """The evidence of a file, in our form or in a vendor's.

    Raises:
        MalformedError: ``bad-evidence-file`` or ``evidence-other-kind``.
    """
    raw = read_whole(args.file, MAX_FILE_BYTES)
    try:
        return LoadedEvidence(decode(Evidence, raw, max_bytes=MAX_FILE_BYTES))
    except MalformedError as error:
        ours = error
    chains = (read_whole(path, MAX_CHAIN_BYTES) for path in args.certificates)
    chain = tuple(each.der for raw in chains for each in parse_certificates(raw))
    try:
        wrapped = wrap(raw, chain, args.device)
    except MalformedError as error:
        if error.code == "evidence-other-kind":
            what = f"{args.file}: {error.what}"
            raise MalformedError(what, fix=error.fix, code=error.code) from None
        why = f"{ours.what}; {error.what}{f' ({error.why})' if error.why else ''}"
        raise MalformedError(
            f"{args.file} is not a file of evidence", why=why, code="bad-evidence-file"
        ) from None
    say(
        f"{args.file} is {wrapped.form}; it is read as {wrapped.evidence.kind} evidence"
    )
    return LoadedEvidence(wrapped.evidence, wrapped.form)


def parse_bound(text: str) -> bytes:
    """The bytes that evidence must carry; its kind says how many it can.

    Raises:
        UsageError: for anything else.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise UsageError("--bound is not bytes in hex", code="usage") from None
    require_bound(raw)
    return raw


def parse_time(text: str | None, option: str = "--at") -> float:
    """Seconds since 1970 of a time that a person wrote; without one, now.

    Raises:
        UsageError: if it is no time.
    """
    if text is None:
        return wall_clock()
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text[:40]!r} is not a time", fix="Write 2026-01-31 or RFC 3339"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp()


JUDGING: Final = ("collateral", "references")


def add_judging_arguments(parser: Parser) -> None:
    """Add what evidence is judged with."""
    parser.add_file(
        "--collateral",
        help="a bundle of vendors' certificates and lists, to verify evidence offline",
    )
    text = "a signed reference set that the agreement names"
    parser.add_file("--references", many=True, help=text)


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
    return equip_from_files(
        agreement,
        clock=clock or wall_clock,
        collateral=args.collateral,
        references=args.references,
        enroller=enroller,
        ledger=ledger,
    )


def load_equipped(args: argparse.Namespace) -> VerifiedAgreement:
    """The agreement of ``--agreement``, equipped, judging at ``--at`` if that is said.

    Raises:
        SealiftError: as ``parse_time``, ``load_verified`` and ``equip_from``.
    """
    said = getattr(args, "at", None)
    at_s = None if said is None else parse_time(said)
    clock = wall_clock if at_s is None else lambda: at_s
    return equip_from(args, load_verified(args.agreement), clock=clock)
