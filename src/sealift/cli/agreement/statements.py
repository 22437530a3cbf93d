"""`sealift agreement veto|cancel|leave`: a party's signed statement on an agreement."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from sealift.cli.arguments import Parser
from sealift.cli.console import confirm, say, unlock
from sealift.crypto.identity import Identity
from sealift.errors import PolicyError
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import (
    Equipment,
    SignedAgreement,
    VerifiedAgreement,
    load_signed,
    load_verified,
    verify_signatures,
)
from sealift.release.agreement.statements import (
    SignedStatement,
    StatementKind,
    save_statement,
    sign_statement,
)
from sealift.release.agreement.successors import has_veto
from sealift.release.broker.stores import destroy_keys

SEALED_SUFFIX: Final = ".sealed"
_MEANS: Final[dict[StatementKind, str]] = {
    "veto": "it never comes into force, and no agreement can follow it",
    "cancel": "this line of agreements ends when as many board members as its threshold say so",
    "leave": "none of your keys is ever released again in this line of agreements",
}


def add_statement_parsers(verbs: Any) -> None:
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
            help="also send it to the owners' brokers and the accelerator of this job",
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
        raise _no_right(name, "it has no right of veto")
    if kind == "cancel" and name not in agreement.effective_board.members:
        raise _no_right(name, "it is not a member of the board")


def _no_right(name: str, why: str) -> PolicyError:
    return PolicyError(
        f"{name} cannot make this statement on the agreement", why=why, code="no-right"
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
