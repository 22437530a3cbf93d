"""`sealift agreement`: what the parties agree on, in their words and in signed bytes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift.cli.agreement.documents import load_document
from sealift.cli.agreement.starter import add_starter_parser
from sealift.cli.agreement.statements import (
    add_statement_parsers,
    now_s,
)
from sealift.cli.console import confirm, has_terminal, say, unlock
from sealift.codec import to_plain
from sealift.crypto.identity import load_own_card
from sealift.errors import PolicyError, RefusedError, UsageError, ascii_only
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import load_bundle, review_code
from sealift.release.agreement.explain import count, explain, explain_lines
from sealift.release.agreement.floor import require_allowed
from sealift.release.agreement.holes import find_holes
from sealift.release.agreement.signed import (
    SignedAgreement,
    add_former_key,
    add_signature,
    load_signed,
    load_verified,
    save_signed,
    verify,
    verify_signatures,
)
from sealift.release.agreement.statements import (
    SignedStatement,
    find_signer,
    load_statements,
)
from sealift.release.agreement.successors import require_follows
from sealift.release.files import locked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sealift.crypto.identity import Identity

FILE_HELP = "agreement.toml, or the signed agreement.json"


def add_parser(subparsers: Any) -> None:
    """Add the noun `agreement`."""
    verbs = subparsers.add_parser("agreement").add_verbs()
    add_starter_parser(verbs)
    _add_check(verbs)
    _add_show(verbs)
    _add_sign(verbs)
    _add_verify(verbs)
    add_statement_parsers(verbs)


def _add_check(verbs: Any) -> None:
    parser = verbs.add_parser(
        "check",
        run=_check,
        help="explain in plain words what each party gives and receives",
    )
    parser.add_path("file", help=FILE_HELP)
    parser.add_json()


def _add_show(verbs: Any) -> None:
    parser = verbs.add_parser(
        "show",
        run=_show,
        help="print the document that is signed; with --code, the agreed code",
        description="--code lists the files of the code, and how each has changed since the "
        "predecessor. With both folders, it prints the differences.",
    )
    parser.add_path("file", help=FILE_HELP)
    parser.add_flag("--code", "show the code instead of the document")
    parser.add_path("--bundle", metavar="DIR", help="folder with the agreed code")
    parser.add_file("--predecessor", help="the previous agreement")
    parser.add_path("--predecessor-bundle", metavar="DIR", help="folder with its code")


def _add_sign(verbs: Any) -> None:
    parser = verbs.add_parser(
        "sign",
        run=_sign,
        help="sign an agreement",
        description="For agreement.toml it writes agreement.json, with your signature. For "
        "agreement.json it adds your signature.",
    )
    parser.add_path("file", help=FILE_HELP)
    parser.add_path("--key", required=True, help="your identity key")
    parser.add_file(
        "--former-key", help="your old key, if this names a new one for you"
    )
    parser.add_flag(
        "--yes", "sign without showing the agreement and without a question"
    )
    parser.add_allow()
    parser.add_passphrase()


def _add_verify(verbs: Any) -> None:
    parser = verbs.add_parser("verify", run=_verify, help="verify all signatures")
    parser.add_path("file", help="the signed agreement.json")
    parser.add_file("--predecessor", help="verify that it follows this agreement")


def _check(args: argparse.Namespace) -> None:
    signed = load_document(args.file)
    agreement = signed.agreement
    _require_alike(agreement)
    sentences = explain(agreement)
    names = [
        party.name for party in agreement.parties if party.name in signed.signatures
    ]
    if args.json:
        facts = {"name": agreement.name, "digest": agreement.digest}
        facts |= {"signed": names, "missing": signed.missing}
        facts |= {"binds": _binds(signed, args.file)}
        said = {"sentences": sentences, "holes": find_holes(agreement)}
        print(json.dumps(to_plain({**facts, **said})))
        return
    print(f"agreement  {agreement.name}, number {agreement.number}")
    print(f"digest     {agreement.digest}")
    print(f"signed by  {', '.join(names) or 'nobody yet'}")
    print(f"missing    {', '.join(signed.missing) or 'nobody'}")
    print(ascii_only(f"binding    {_binds(signed, args.file)}"))
    _print_time(agreement)
    print()
    for line in explain_lines(sentences):
        print(ascii_only(line))
    holes = find_holes(agreement)
    print(f"{count(len(holes), 'known gap')}:")
    for hole in holes:
        print(ascii_only(f"  ! {hole.line} [{hole.name}]"))


def _binds(signed: SignedAgreement, path: Path) -> str:
    """Whether it is in force, as far as this folder shows; else the first reason."""
    try:
        verify(signed, load_statements(path.parent, signed.agreement.name))
    except RefusedError as error:
        return f"no: {error.what}; {error.why}" if error.why else f"no: {error.what}"
    return "yes"


def _print_time(agreement: Agreement) -> None:
    """Print a line if no key is released at this time."""
    try:
        agreement.require_time(now_s())
    except PolicyError as error:
        print(f"time       {error} [{error.code}]")


def _show(args: argparse.Namespace) -> None:
    signed = load_document(args.file)
    if args.code:
        for line in _code(args, signed.agreement):
            print(line)
        return
    print(_readable(signed.agreement))
    for line in explain_lines(explain(signed.agreement)):
        say(ascii_only(line))
    for line in _who(signed, load_statements(args.file.parent, signed.agreement.name)):
        print(line, file=sys.stderr)


def _readable(agreement: Agreement) -> str:
    """What is signed, every character of it plain ASCII; the order is the canonical."""
    return json.dumps(to_plain(agreement), indent=2, sort_keys=True)


def _who(
    signed: SignedAgreement, statements: tuple[SignedStatement, ...]
) -> Iterator[str]:
    """Who signed, and who said what afterwards."""
    names = [
        each.name for each in signed.agreement.parties if each.name in signed.signatures
    ]
    yield f"sealift: signed by {', '.join(names) or 'nobody yet'}"
    parties = [party for link in signed.line for party in link.agreement.parties]
    for each in statements:
        find_signer(each, parties)
        said = each.body
        about = "this one" if said.digest == signed.agreement.digest else "another one"
        yield f"sealift: {said.kind} by {said.party}, number {said.number} ({about})"


def _code(args: argparse.Namespace, agreement: Agreement) -> Iterator[str]:
    before = load_signed(args.predecessor).agreement if args.predecessor else None
    if before is not None and agreement.predecessor != before.digest:
        raise UsageError(
            f"{args.predecessor} is not the predecessor of this agreement",
            why=f"the agreement names {agreement.predecessor or 'none'}",
            code="other-agreement",
        )
    if args.predecessor_bundle and before is None:
        raise UsageError("--predecessor-bundle needs --predecessor")
    files = load_bundle(args.bundle, agreement.code) if args.bundle else None
    files_before = (
        load_bundle(args.predecessor_bundle, before.code)
        if before and args.predecessor_bundle
        else None
    )
    return review_code(
        agreement.code,
        before=before.code if before else None,
        files=files,
        files_before=files_before,
    )


def _sign(args: argparse.Namespace) -> None:
    target = args.file.with_suffix(".json")
    document = load_document(args.file)
    agreement = document.agreement
    _require_not_over(agreement)
    _require_alike(agreement)
    say(f"you are signing {agreement.name}, number {agreement.number}")
    say(f"digest {agreement.digest}; `sealift agreement check {args.file}` explains it")
    name = load_own_card(args.key).name
    if not args.yes and has_terminal():
        print(_readable(agreement), file=sys.stderr)
        sentences = explain(agreement, name)
        for line in explain_lines(sentences, colour=sys.stderr.isatty()):
            say(line)
    require_allowed(agreement, name, args.allow)
    confirm("sign this agreement", yes=args.yes)
    identity = _identity(args, args.key)
    former = _identity(args, args.former_key) if args.former_key else None
    with locked(target.parent):
        signed = add_signature(_current(target, document), identity)
        if former is not None:
            signed = add_former_key(signed, former)
        save_signed(signed, target)
    print(f"{'signed':<7}  {target}\n{'digest':<7}  {agreement.digest}")
    print(f"missing  {', '.join(signed.missing) or 'nobody'}")


def _require_not_over(agreement: Agreement) -> None:
    """What has ended binds nobody to anything; a date was mistyped, or the file is old.

    Raises:
        PolicyError: ``agreement-expired``.
    """
    try:
        agreement.require_time(now_s())
    except PolicyError as error:
        if error.code == "agreement-expired":
            raise


def _require_alike(agreement: Agreement) -> None:
    """Before anybody signs what the first visit would refuse."""
    from sealift.data.schema.alike import demand_alike

    demand_alike(agreement.resources)


def _identity(args: argparse.Namespace, key: Path) -> Identity:
    return unlock(args, key, f"Passphrase of {key}")


def _verify(args: argparse.Namespace) -> None:
    verified = load_verified(args.file)
    if args.predecessor:
        require_follows(verified.agreement, load_signed(args.predecessor).agreement)
    agreement = verified.agreement
    signers = verified.signers
    names = ", ".join(each.name for each in agreement.parties if each.name in signers)
    print(f"agreement  {agreement.name}, number {agreement.number}")
    print(f"digest     {verified.digest}")
    print(f"signed by  {names}")
    silent = [each.name for each in agreement.parties if each.name not in signers]
    if silent:
        print(f"unsigned   {', '.join(silent)}: none of their keys is released")
    if verified.backing.left:
        print(f"left       {', '.join(sorted(verified.backing.left))}")
    _print_time(agreement)


def _current(target: Path, document: SignedAgreement) -> SignedAgreement:
    """What stands in the target: the same agreement, or nothing yet."""
    if not target.exists():
        return document
    signed = verify_signatures(load_signed(target))
    if signed.agreement.digest != document.agreement.digest:
        raise UsageError(
            f"{target} has another agreement",
            why="the document, a card or the code was changed after the first signature",
            fix="Sign that file, or remove it and let all parties sign again",
            code="other-agreement",
        )
    return signed
