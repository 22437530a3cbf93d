"""`sealift agreement`: what the parties agree on, in their words and in signed bytes.

Agreements as files: the TOML that people write, or what is signed of it.

`sealift agreement veto|cancel|leave`: a party's signed statement on an agreement.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealift.cli.agreement.starter import add_starter_parser
from sealift.cli.arguments import Parser
from sealift.cli.console import confirm, has_terminal, say, unlock
from sealift.codec import to_plain
from sealift.crypto.identity import Identity, load_own_card
from sealift.errors import PolicyError, RefusedError, UsageError, ascii_only
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import load_bundle, review_code
from sealift.release.agreement.explain import explain, explain_lines
from sealift.release.agreement.holes import find_holes, require_allowed
from sealift.release.agreement.phrases import count
from sealift.release.agreement.signed import (
    Equipment,
    SignedAgreement,
    VerifiedAgreement,
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
    StatementKind,
    find_signer,
    load_statements,
    save_statement,
    sign_statement,
)
from sealift.release.agreement.successors import has_veto, require_follows
from sealift.release.broker.stores import destroy_keys
from sealift.release.files import locked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sealift.crypto.identity import Identity

FILE_HELP = "agreement.toml, or the signed agreement.json"


SEALED_SUFFIX: Final = ".sealed"
_MEANS: Final[dict[StatementKind, str]] = {
    "veto": "it never comes into force, and no agreement can follow it",
    "cancel": "this line of agreements ends when as many board members cancel it as its threshold requires",
    "leave": "none of your keys is released in this line of agreements any more",
}


def _add_statement_parsers(verbs: Any) -> None:
    """Add the verbs `veto`, `cancel` and `leave`."""
    for kind, meaning in _MEANS.items():
        parser = verbs.add_parser(
            kind,
            run=_make_statement,
            help=f"{kind} an agreement: {meaning}",
            description="Writes a signed statement beside the agreement. Give the file to the "
            "other parties: it applies in each folder where it is beside the agreement.",
        )
        parser.add_path("file", help="the signed agreement.json")
        parser.add_path("--key", required=True, help="your identity key")
        parser.add_flag("--yes", "do not ask")
        parser.add_path(
            "--tell",
            metavar="JOB",
            help="also send it to the brokers, the accelerator and the orchestrator of this job",
        )
        parser.add_passphrase()
        if kind == "leave":
            _add_leave_arguments(parser)


def _make_statement(args: argparse.Namespace) -> None:
    """Sign the statement of the verb and write it beside the agreement."""
    kind: StatementKind = args.verb
    signed = verify_signatures(load_signed(args.file))
    agreement = signed.agreement
    say(f"{kind} of {agreement.name}, number {agreement.number}: {_MEANS[kind]}")
    say(f"digest {agreement.digest}")
    confirm(f"{kind} this agreement", yes=args.yes)
    identity = unlock(args, args.key, f"Passphrase of {args.key}")
    _require_right(kind, signed, identity.name)
    said = sign_statement(kind, agreement, identity, now_s())
    telling = _ready_to_tell(args, identity)
    print(f"statement  {save_statement(said, args.file.parent)}")
    if telling is not None:
        _tell(args.tell, telling, identity, said)
    if kind == "leave":
        _clean_up(args, agreement, identity)


def _ready_to_tell(
    args: argparse.Namespace, identity: Identity
) -> VerifiedAgreement | None:
    """The agreement as it was: beside what is said now it may verify no more."""
    if args.tell is None:
        return None
    from sealift.travel.notify import require_teller

    agreement = load_verified(args.file)
    require_teller(agreement, identity)
    return agreement.equipped(Equipment(clock=now_s))


def _tell(
    job: Path, agreement: VerifiedAgreement, identity: Identity, said: SignedStatement
) -> None:
    from sealift.train.job.settings import read_job
    from sealift.travel.notify import tell_running

    address = read_job(job).address
    for who, problem in tell_running(address, agreement, identity, said):
        if problem:
            say(f"{who} did not get it: {problem}")
        else:
            print(f"sent to    {who}")


def _add_leave_arguments(parser: Parser) -> None:
    parser.add_file("--vault", help="destroy your data keys in this vault")
    parser.add_path(
        "--sealed",
        nargs="+",
        default=[],
        metavar="DIR",
        help="where to search for sealed copies; default: beside the agreement",
    )


def _require_right(kind: StatementKind, signed: SignedAgreement, name: str) -> None:
    agreement = signed.agreement
    agreement.party(name)
    before = signed.before[-1].agreement if signed.before else None
    if kind == "veto" and not has_veto(agreement, before, name):
        raise _no_right(name, "it has no veto")
    if kind == "cancel" and name not in agreement.effective_board.members:
        raise _no_right(name, "it is not a member of the board")


def _no_right(name: str, why: str) -> PolicyError:
    return PolicyError(
        f"{name} has no right to make this statement", why=why, code="no-right"
    )


def _clean_up(args: argparse.Namespace, agreement: Agreement, owner: Identity) -> None:
    """Destroy the keys, and name what cannot be destroyed from here."""
    names = [resource.name for resource in agreement.resources_of(owner.name)]
    if args.vault is not None:
        for name in destroy_keys(args.vault, owner, names):
            print(f"destroyed  key of {name}")
    elif names:
        say("your data keys are still in your vault; add --vault FILE to destroy them")
    for path in _copies(names, args.sealed or [args.file.parent]):
        print(f"delete     {path}")
    if names:
        say(
            "ask everybody who has a sealed copy, or a backup of the vault, to delete it"
        )


def _copies(names: Iterable[str], folders: Iterable[Path]) -> Iterator[Path]:
    wanted = {f"{name}{SEALED_SUFFIX}" for name in names}
    for folder in folders:
        yield from sorted(
            path for path in folder.rglob(f"*{SEALED_SUFFIX}") if path.name in wanted
        )


def now_s() -> float:
    """Seconds since 1970."""
    return time.time()  # noqa: TID251 - the end of the command line


def load_document(path: Path) -> SignedAgreement:
    """From TOML, without signatures, or from JSON, with signatures that fit.

    Raises:
        UnavailableError: if it, or a card that it names, cannot be read.
        MalformedError: if it is no agreement.
        AuthenticationError: if a signature does not fit.
    """
    if path.suffix != ".toml":
        return verify_signatures(load_signed(path))
    from sealift.data.schema.card import read_card
    from sealift.release.agreement.document import compile_document

    return compile_document(path, lambda card: read_card(card).resource)


def add_parser(subparsers: Any) -> None:
    """Add the noun `agreement`."""
    verbs = subparsers.add_parser("agreement").add_verbs()
    add_starter_parser(verbs)
    _add_check(verbs)
    _add_show(verbs)
    _add_sign(verbs)
    _add_verify(verbs)
    _add_statement_parsers(verbs)


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
