"""What each accelerator of a run signs for itself, and that all of them found the same.

One accelerator writes the receipt of a run, so its word alone would prove nothing. Each one
therefore signs an account: what it computed of the joint result (model, steps, numbers),
and what it did with the rows that it read. Where rows stay at home the owner's own identity
key signs; elsewhere the instance key, to which the owners' logs released their keys. All
accelerators exchange their accounts before the receipt is written, and refuse whatever
differs from what they computed themselves (rules O4, O5).
Source: spec/release.md section Receipt of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal, NamedTuple

from sealift.codec import encode
from sealift.crypto.keys import Label
from sealift.crypto.sign import Form, PublicKey, Signed
from sealift.errors import AuthenticationError, IntegrityError, PolicyError
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import CLOCKS_DIFFER_S
from sealift.release.log.entries import SignedTreeHead, verify_head
from sealift.train.output.uses import TableUse, Uses, join_uses
from sealift.train.plans import PlanName
from sealift.travel.peers import accelerator_names

_NAMES: Final = {
    "distinct_rows": "number of distinct rows",
    "passes_before": "number of passes before its start",
    "statistics": "sums of `prepare`",
    "subject": "model file",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What every accelerator of a run computes for itself; all must find the same.

    Attributes:
        settings: Digest of the settings of the job that it ran under.
        passes_before: Passes of the job that a checkpoint had done before its start.
        subject: SHA-256 of ``model.safetensors``, or of ``statistics.json`` without one.
        weights: Digest of the model's state; None without a model.
        steps: Optimizer steps.
        metrics: As in the manifest; None if they were measured before its start.
        statistics: SHA-256 of ``statistics.json`` as it is made of the totals.
        visits: Training visits by data owner.
        distinct_rows: Different rows that were trained on, by data owner.
    """

    job: str
    agreement: Digest
    settings: Digest
    passes_before: int
    subject: Digest
    weights: Digest | None
    steps: int
    metrics: dict[str, float] | None
    statistics: Digest
    visits: dict[str, int]
    distinct_rows: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccount:
    """One accelerator's own account of a run, signed by its party.

    Attributes:
        party: The data owner where rows stay at home; else the accelerator's name.
        instance: Its instance key.
        result: What all of them must find.
        rows: That it trained on itself, with repetition.
        tables: What it used rows for itself.
        receipts: Digest of the list of the receipts that it signed for these uses.
        released: Digests of what the owners' logs say of the keys that it got.
        head: Of the party's own log; None if it has no log.
        at_s: Seconds since 1970 by its clock.
    """

    FORM: ClassVar = Form(Label.RUN_ACCOUNT, "account")

    format: Literal["sealift-run-account"] = "sealift-run-account"
    version: Literal[1] = 1
    party: str
    instance: PublicKey
    result: RunResult
    rows: int
    tables: tuple[TableUse, ...]
    receipts: Digest
    released: tuple[Digest, ...]
    head: SignedTreeHead | None
    at_s: int


SignedAccount = Signed[RunAccount]


@dataclass(frozen=True, slots=True)
class SharedAccount:
    """A rank's word to all others."""

    account: SignedAccount


class AccountSigner(NamedTuple):
    """Who must sign the account of one accelerator."""

    party: str
    key: PublicKey
    instance: PublicKey


def account_signers(
    plan: PlanName, ranks: Sequence[PublicKey], verified: VerifiedAgreement
) -> list[AccountSigner]:
    """Who signs the accounts of a run, in the order of its accelerators.

    Args:
        plan: Of the run.
        ranks: Instance keys of its accelerators.
        verified: The agreement.
    """
    if not own_parties(plan, verified):
        names = accelerator_names(len(ranks))
        return [AccountSigner(n, key, key) for n, key in zip(names, ranks, strict=True)]
    owners = verified.agreement.data_owners
    return [
        AccountSigner(owner, verified.party(owner).sign, instance)
        for owner, instance in zip(owners, ranks, strict=True)
    ]


def own_parties(plan: PlanName, verified: VerifiedAgreement) -> bool:
    """Whether each accelerator of a run belongs to a party of its own."""
    return plan == "ddp" and verified.agreement.rows_at_home


def list_digest(receipts: Sequence[Digest]) -> Digest:
    """What an account names the list of its receipts by."""
    return Digest.of(encode(list(receipts)))


def verify_accounts(
    accounts: Sequence[SignedAccount],
    signers: Sequence[AccountSigner],
    result: RunResult,
    verified: VerifiedAgreement,
) -> list[RunAccount]:
    """Return the accounts, if each accelerator signed its own and all found this result.

    Args:
        accounts: In the order of the accelerators.
        signers: Who must have signed them.
        result: What we computed ourselves, or what the receipt says.
        verified: The agreement.

    Raises:
        PolicyError: ``account-missing``, or ``account-differs`` with the party that
            signed something else.
        IntegrityError: ``account-unsigned``, with the party that did not sign.
    """
    if len(accounts) != len(signers):
        raise PolicyError(
            f"accounts of {len(accounts)} accelerators, not of {len(signers)}",
            why=f"the run was of {', '.join(each.party for each in signers)}",
            code="account-missing",
        )
    bodies = []
    for signed, signer in zip(accounts, signers, strict=True):
        account = _verify_signature(signed, signer)
        _demand_same(account, result)
        _demand_own(account, signer, verified)
        bodies.append(account)
    return bodies


def _verify_signature(signed: SignedAccount, signer: AccountSigner) -> RunAccount:
    account = signed.body
    try:
        signed.verify(signer.key)
        if (account.party, account.instance) != (signer.party, signer.instance):
            raise AuthenticationError
    except AuthenticationError:
        raise IntegrityError(
            f"the account that stands for {signer.party} is not signed by it",
            why="it was changed, or another party wrote it",
            code="account-unsigned",
        ) from None
    return account


def _demand_same(account: RunAccount, result: RunResult) -> None:
    """What it signed of the joint result is this result."""
    for each in fields(RunResult):
        theirs, here = getattr(account.result, each.name), getattr(result, each.name)
        unknown = each.name == "metrics" and None in (theirs, here)
        if theirs != here and not unknown:
            name = _NAMES.get(each.name, each.name)
            raise _differs(account.party, f"another {name}", f"{theirs}, not {here}")


def _demand_own(
    account: RunAccount, signer: AccountSigner, verified: VerifiedAgreement
) -> None:
    """It speaks of its own rows and of its own log, and at a time that can be true."""
    if signer.key != signer.instance:  # it is an owner's
        for use in account.tables:
            if verified.resource(use.resource).owner != account.party:
                raise _differs(account.party, f"a use of {use.resource}", "not its own")
    if account.head is None:
        return
    head = verify_head(account.head)
    if head.log != signer.key:
        raise _differs(account.party, "a head of another log", f"{head.log}")
    if account.at_s < head.at_s - CLOCKS_DIFFER_S:
        raise _differs(account.party, "a time before its own log", f"{account.at_s}")


def demand_uses(
    accounts: Sequence[RunAccount], uses: Uses, released: Iterable[Digest]
) -> None:
    """The accounts come to what a receipt says of all rows and keys.

    Of passes before a restart there is no account: the receipt may name more then.

    Raises:
        PolicyError: ``account-differs``.
    """
    shown = set(released)
    for each in accounts:
        if not shown.issuperset(each.released):
            raise _differs(each.party, "a key release", "the receipt leaves it out")
    whole = not accounts[0].result.passes_before
    joined = {(u.resource, u.purpose): u for u in _join(accounts)}
    said = {(u.resource, u.purpose): u for u in uses.tables}
    for place in sorted(joined.keys() | said.keys() if whole else joined.keys()):
        theirs, here = joined.get(place), said.get(place)
        more = theirs and here and theirs.visits <= here.visits
        if theirs == here or (more and not whole):
            continue
        users = [a.party for a in accounts if place in _places(a)]
        party = ", ".join(users) or "nobody"
        raise _differs(party, f"another use of {place[0]}", "rows or times differ")
    start = 0
    for each in accounts if whole else ():
        end = start + sum(use.visits for use in each.tables)
        if list_digest(uses.receipts[start:end]) != each.receipts:
            raise _differs(each.party, "other receipts", "for its own use of rows")
        start = end


def demand_rows(accounts: Sequence[RunAccount], rows: int) -> None:
    """The rows that all of them trained on come to this number; PolicyError if not."""
    trained = sum(each.rows for each in accounts)
    if not accounts[0].result.passes_before and rows != trained:
        names = ", ".join(each.party for each in accounts)
        raise _differs(names, "another number of rows", f"{trained}, not {rows}")


def _join(accounts: Iterable[RunAccount]) -> tuple[TableUse, ...]:
    return join_uses(Uses(each.tables) for each in accounts).tables


def _places(account: RunAccount) -> set[tuple[str, str]]:
    return {(use.resource, use.purpose) for use in account.tables}


def _differs(party: str, what: str, why: str) -> PolicyError:
    return PolicyError(f"{party} signed {what}", why=why, code="account-differs")
