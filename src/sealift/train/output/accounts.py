"""What each accelerator of a run signs for itself, and that all of them found the same.

One accelerator writes the receipt of a run, so its word alone would prove nothing. Each one
therefore signs an account: what it computed of the joint result (model, steps, numbers),
and what it did with the rows that it read. Where rows stay at home the owner's own identity
key signs; elsewhere the instance key, to which the owners' logs released their keys. All
accelerators exchange their accounts before the receipt is written, and refuse whatever
differs from what they computed themselves (rules O4, O5).
Source: spec/release.md section Account of an accelerator.

What rows were used for is counted as their receipts are signed: sums for each table and
purpose, and the digest of every receipt, so that an owner finds its own ones in the account
of the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import ClassVar, Final, Literal, NamedTuple

from sealift.codec import encode
from sealift.crypto.keys import Label
from sealift.crypto.sign import Form, PublicKey, SignedDocument
from sealift.errors import AuthenticationError, IntegrityError, PolicyError
from sealift.ids import DIGEST_BYTES, Digest, cut_names
from sealift.release.agreement import Purpose
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import CLOCKS_DIFFER_S
from sealift.release.log.entries import SignedTreeHead, verify_head
from sealift.release.receipt import SignedReceipt
from sealift.train.output.manifest import RunManifest
from sealift.train.plans import PlanName
from sealift.travel.peers import accelerator_names

COMMON: Final = (
    "job", "agreement", "level", "plan", "buffers", "mixed", "ranks", "collectives",
    "traces", "weights", "steps", "visits", "metrics", "statistics", "prepared",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccount:
    """One accelerator's own account of a run, signed by its party.

    Attributes:
        party: The data owner where rows stay at home; else the accelerator's name.
        instance: Its instance key.
        result: Digest of each part of the result that all accelerators must find
            (``digest_result``); without a part that it did not hear.
        passes_before: Passes of the job that a checkpoint had done before its start.
        rows: That it trained on itself, with repetition.
        tables: What it used rows for itself.
        receipts: Digest of the list of the receipts that it signed for these uses.
        released: Digests of what the owners' logs say of the keys that it knows of.
        head: Of the party's own log; None if it has no log.
        at_s: Seconds since 1970 by its clock.
    """

    FORM: ClassVar = Form(Label.RUN_ACCOUNT, "account")

    format: Literal["sealift-run-account"] = "sealift-run-account"
    version: Literal[1] = 1
    party: str
    instance: PublicKey
    result: dict[str, Digest]
    passes_before: int
    rows: int
    tables: tuple[TableUse, ...]
    receipts: Digest
    released: tuple[Digest, ...]
    head: SignedTreeHead | None
    at_s: int


SignedAccount = SignedDocument[RunAccount]


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
    """Who signs the accounts of a run, in the order of its accelerators."""
    parties, keys = accelerator_names(len(ranks)), tuple(ranks)
    if own_parties(plan, verified):
        parties = verified.agreement.data_owners
        keys = tuple(verified.party(owner).sign for owner in parties)
    return list(map(AccountSigner, parties, keys, ranks))


def own_parties(plan: PlanName, verified: VerifiedAgreement) -> bool:
    """Whether each accelerator of a run belongs to a party of its own."""
    return plan == "ddp" and verified.agreement.rows_at_home


def digest_result(manifest: RunManifest, **others: object) -> dict[str, Digest]:
    """Digests of what every accelerator computes for itself, by name.

    Args:
        manifest: Its ``COMMON`` fields.
        others: What is not in it: model file, settings, distinct rows.
    """
    parts = {name: getattr(manifest, name) for name in COMMON} | others
    return {name: Digest.of(encode(part)) for name, part in parts.items()}


def verify_accounts(
    accounts: Sequence[SignedAccount],
    signers: Sequence[AccountSigner],
    result: Mapping[str, Digest],
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
            f"the receipt contains accounts of {len(accounts)} accelerators; "
            f"{len(signers)} are expected",
            why=(
                "these parties ran accelerators: "
                f"{', '.join(each.party for each in signers)}"
            ),
            code="account-missing",
        )
    for signed, signer in zip(accounts, signers, strict=True):
        account = signed.body
        _verify_signature(signed, signer)
        unheard = {"metrics"} if account.passes_before else set()
        for name, here in result.items():
            known = name in account.result or name not in unheard
            if known and account.result.get(name) != here:
                what = f"a different value of {name.replace('_', ' ')}"
                raise _differs(account.party, what)
        if account.passes_before != accounts[0].body.passes_before:
            raise _differs(
                account.party, "an account that begins at another checkpoint"
            )
        _demand_own(account, signer, verified)
    return [each.body for each in accounts]


def _verify_signature(signed: SignedAccount, signer: AccountSigner) -> None:
    account = signed.body
    try:
        signed.verify(signer.key)
        if (account.party, account.instance) != (signer.party, signer.instance):
            raise AuthenticationError
    except AuthenticationError:
        raise IntegrityError(
            f"the account of {signer.party} is not signed by {signer.party}",
            why="the account was changed, or another party wrote it",
            code="account-unsigned",
        ) from None


def _demand_own(
    account: RunAccount, signer: AccountSigner, verified: VerifiedAgreement
) -> None:
    """It speaks of its own rows and of its own log, and at a time that can be true."""
    for use in account.tables if signer.key != signer.instance else ():
        if verified.resource(use.resource).owner != account.party:
            raise _differs(
                account.party,
                f"a use of {use.resource}, which belongs to another party",
            )
    if account.head is None:
        return
    head = verify_head(account.head)
    if head.log != signer.key:
        raise _differs(account.party, "a head of another party's log")
    if account.at_s < head.at_s - CLOCKS_DIFFER_S:
        raise _differs(account.party, "a time before the last entry of its own log")


def demand_uses(
    accounts: Sequence[RunAccount], uses: Uses, released: Iterable[Digest]
) -> None:
    """The accounts come to what is said of all rows and keys; ``account-differs`` if not.

    Of passes before a restart there is no account, and nothing is compared.
    """
    shown, start = set(released), 0
    for each in accounts:
        if not shown.issuperset(each.released):
            raise _differs(each.party, "a key release that is missing from the receipt")
    if accounts[0].passes_before:
        return
    if join_uses(Uses(each.tables) for each in accounts).tables != uses.tables:
        users = (a for a in accounts if not set(a.tables) <= set(uses.tables))
        party = next((each.party for each in users), accounts[0].party)
        raise _differs(party, "other numbers of used rows than the receipt")
    for each in accounts:
        end = start + sum(use.visits for use in each.tables)
        if Digest.of(encode(uses.receipts[start:end])) != each.receipts:
            raise _differs(
                each.party,
                "other receipts for the use of its rows than the receipt of the run",
            )
        start = end


def _differs(party: str, what: str) -> PolicyError:
    why = "this differs from the other accounts or from the receipt"
    return PolicyError(f"{party} signed {what}", why=why, code="account-differs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """One table's rows for one purpose.

    Attributes:
        visits: How often some of its rows were used.
        rows: Of all these times together.
        cargo_bytes: Plaintext that was placed in a buffer.
        sealed_bytes: Ciphertext that crossed to it; 0 where the files are the reader's own.
        scrubbed_bytes: Memory that was overwritten and read back.
        nonzero_bytes: Of these, what was not zero when it was read back.
    """

    resource: str
    purpose: Purpose
    visits: int = 0
    rows: int = 0
    cargo_bytes: int = 0
    sealed_bytes: int = 0
    scrubbed_bytes: int = 0
    nonzero_bytes: int = 0

    def plus(self, other: TableUse) -> TableUse:
        """Both together; of the same table and purpose."""
        counted = [each.name for each in fields(self)][2:]
        sums = {name: getattr(self, name) + getattr(other, name) for name in counted}
        return TableUse(resource=self.resource, purpose=self.purpose, **sums)


@dataclass(frozen=True, slots=True)
class Uses:
    """Of all tables.

    Attributes:
        tables: Sorted, each table and purpose once.
        receipts: Digest of every signed receipt, in the order of their signing.
    """

    tables: tuple[TableUse, ...] = ()
    receipts: tuple[Digest, ...] = ()

    @classmethod
    def of(cls, signed: SignedReceipt) -> Uses:
        """One receipt's."""
        receipt = signed.body
        use = TableUse(
            resource=receipt.resource,
            purpose=receipt.purpose,
            visits=1,
            rows=receipt.rows,
            cargo_bytes=receipt.cargo_bytes,
            sealed_bytes=receipt.sealed_bytes,
            scrubbed_bytes=receipt.scrub.scrubbed_bytes,
            nonzero_bytes=receipt.scrub.nonzero_bytes,
        )
        return cls((use,), (receipt_digest(signed),))


@dataclass(frozen=True, slots=True)
class PackedUses:
    """The same in a checkpoint, of which every receipt of the run is a part.

    Attributes:
        tables: As in ``Uses``.
        receipts: Their digests, end to end: text of each would be most of a checkpoint.
    """

    tables: tuple[TableUse, ...]
    receipts: bytes

    @classmethod
    def of(cls, uses: Uses) -> PackedUses:
        """Packed."""
        return cls(uses.tables, b"".join(each.raw for each in uses.receipts))

    def unpack(self) -> Uses:
        """As they were.

        Raises:
            MalformedError: the receipts are no digests.
        """
        digests = cut_names(self.receipts, DIGEST_BYTES)
        return Uses(self.tables, tuple(map(Digest, digests)))


def wrong_uses(told: Sequence[TableUse], planned: Sequence[TableUse]) -> str:
    """What of a rank's account cannot be; empty if it fits the plan.

    How much memory was scrubbed is at least the plan's: what of a GPU's memory stands in
    a receipt besides is not everybody's to compute.
    """
    for use, own in zip_longest(told, planned):
        if use is None or own is None or use.resource != own.resource:
            return "it reports rows of other tables than the plan has"
        if replace(use, scrubbed_bytes=own.scrubbed_bytes) != own:
            return f"it reports {use.rows:,} rows of {own.resource} in {use.visits:,} uses; the plan has {own.rows:,} in {own.visits:,}"
        if use.scrubbed_bytes < own.scrubbed_bytes:
            return (
                f"it reports less overwritten memory than the rows of {own.resource} "
                "take"
            )
    return ""


def receipt_digest(signed: SignedReceipt) -> Digest:
    """What a run's account names a receipt by."""
    return Digest.of(encode(signed))


def join_uses(found: Iterable[Uses]) -> Uses:
    """All of them together."""
    tables: dict[tuple[str, str], TableUse] = {}
    receipts: list[Digest] = []
    for each in found:
        receipts += each.receipts
        for use in each.tables:
            place = (use.resource, use.purpose)
            tables[place] = tables[place].plus(use) if place in tables else use
    return Uses(tuple(tables[place] for place in sorted(tables)), tuple(receipts))
