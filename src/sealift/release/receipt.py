"""The receipt: the accelerator's statement about a visit, signed by its instance key.

The receipt contains evidence that binds the instance key. So anybody who has the agreement
can check later, without torch, that an accelerator of an accepted level with the agreed
code signed it (rule M4). The part about overwritten memory is a report of that
accelerator, not a proof (rule H2).
Source: spec/release.md section Receipt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar, Final, Literal

from sealift.attest.evidence import Evidence
from sealift.attest.level import check_level
from sealift.attest.policy import AttestationResult
from sealift.codec import decode
from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label
from sealift.crypto.sign import Form, PublicKey, SignedDocument, Signer, sign_document
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PolicyError,
    RefusedError,
    UsageError,
    unreadable,
)
from sealift.ids import Digest, Role, VisitId
from sealift.release.agreement import Purpose, TravelRule, part_for
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole
from sealift.release.log.entries import SignedTreeHead, verify_head
from sealift.release.log.heads import log_owner
from sealift.session.endpoint import Endpoint

MAX_RECEIPT_BYTES: Final = 4 << 20
RECEIPTS_SUFFIX: Final = ".receipts.jsonl"  # all of a job, a line each
_REMEMBERED: Final = 256  # different evidences, and heads, that one pass remembers
RECEIPT_SUFFIX: Final = ".receipt.json"  # of one visit, as earlier versions wrote it


def require_agreed_cargo(buffers: int, mixed: bool, agreed: TravelRule) -> None:
    """Refuse a run with more buffers or more mixed rows than the agreement allows.

    Raises:
        PolicyError: code ``cargo-not-agreed``.
    """
    if buffers > agreed.buffers or mixed > agreed.mixed:
        raise PolicyError(
            "the run loaded more rows at one time than the agreement allows",
            why=f"buffers = {buffers}, mixed = {str(mixed).lower()}",
            code="cargo-not-agreed",
        )


@dataclass(frozen=True, slots=True)
class ScrubbedPart:
    """One region of the visit's memory after its scrub."""

    name: str
    size_bytes: int
    nonzero_bytes: int

    @property
    def told(self) -> bool:
        """Whether a recipe's process reported it: it is GPU memory, which was not read back."""
        return self.name.startswith("cuda:")


@dataclass(frozen=True, slots=True)
class ScrubSummary:
    """What the accelerator read back.

    Attributes:
        regions: Every region of the visit's pool; and of a GPU, named as torch does, what the
            recipe's process says that it overwrote there before it ended.
        freed_memory_overwritten: Whether the accelerator's own process overwrites what it frees.
        verified: Whether every byte that was read back was zero, and nothing was left out.
    """

    regions: tuple[ScrubbedPart, ...]
    freed_memory_overwritten: bool
    verified: bool

    @property
    def scrubbed_bytes(self) -> int:
        """Bytes that the accelerator overwrote and read back itself; not those of a GPU."""
        return sum(each.size_bytes for each in self.regions if not each.told)

    @property
    def told_bytes(self) -> int:
        """Bytes of a GPU that a recipe's process reported as overwritten."""
        return sum(each.size_bytes for each in self.regions if each.told)

    @property
    def nonzero_bytes(self) -> int:
        """Bytes that were not zero when they were read back."""
        return sum(region.nonzero_bytes for region in self.regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One visit.

    Attributes:
        content: Content commitment of the resource in the agreement; what was opened
            was checked against it.
        first_row: First row of the resource that was brought.
        cargo_bytes: Plaintext bytes placed in the buffer.
        sealed_bytes: Ciphertext bytes that crossed.
        phases_s: Seconds by phase.
        buffers: As the run had it; ``cargo_promise`` says what that guarantees.
        mixed: Whether batches were drawn across several owners' rows.
        sandbox: What kept the recipe in.
        level: Level that the evidence proved.
        evidence: Binds ``instance`` by ``instance_bound``.
        heads: Heads of every log that released a key to this accelerator.
    """

    FORM: ClassVar = Form(Label.RECEIPT, "receipt")

    format: Literal["sealift-receipt"] = "sealift-receipt"
    version: Literal[1] = 1
    visit: VisitId
    job: str
    agreement: Digest
    holder: str
    resource: str
    purpose: Purpose
    content: Digest
    first_row: int
    rows: int
    cargo_bytes: int
    sealed_bytes: int
    phases_s: dict[str, float]
    buffers: Literal[1, 2]
    mixed: bool
    sandbox: str
    level: str
    instance: PublicKey
    evidence: Evidence
    scrub: ScrubSummary
    heads: tuple[SignedTreeHead, ...]

    def __post_init__(self) -> None:
        check_level(self.level)


SignedReceipt = SignedDocument[Receipt]


def instance_bound(instance: PublicKey, agreement: Digest) -> bytes:
    """What evidence must carry to bind an instance key for receipts (32 bytes).

    A session's evidence starts with a side, this with ``receipt``, so that neither can be
    used in place of the other.
    """
    role = Role.ACCELERATOR.encode()
    return labelled(Label.EVIDENCE, b"receipt", role, instance.raw, agreement.raw)


def appraise_instance(
    evidence: Evidence, instance: PublicKey, verified: VerifiedAgreement
) -> AttestationResult:
    """What the evidence that binds an instance key proves under an agreement.

    Raises:
        RefusedError: if it does not bind the key, or is for another role, other code or
            a level that is not accepted.
    """
    bound = instance_bound(instance, verified.digest)
    result = verified.appraiser().appraise(evidence, bound)
    if result.claims.role not in (None, Role.ACCELERATOR.value):
        raise PolicyError("the evidence was made for another role", code="role-refused")
    return result


@dataclass(frozen=True, slots=True)
class InstanceProof:
    """Evidence that binds an instance key, and the level that it proves."""

    evidence: Evidence
    level: str


def prove_instance(endpoint: Endpoint, agreement: VerifiedAgreement) -> InstanceProof:
    """Collect the evidence for receipts and manifests, and appraise it first.

    So they name the level that their readers will find, whatever the agreement prefers.

    Raises:
        UsageError: if the endpoint has no attester.
        RefusedError: if the agreement does not accept what it proves.
    """
    if endpoint.attester is None:
        raise UsageError("an accelerator without an attester cannot sign receipts")
    instance = endpoint.instance.public_key
    evidence = endpoint.attester.collect(instance_bound(instance, agreement.digest))
    return InstanceProof(
        evidence, appraise_instance(evidence, instance, agreement).standing
    )


def sign_receipt(receipt: Receipt, instance: Signer) -> SignedReceipt:
    """Sign with the instance key that the receipt names."""
    if receipt.instance != instance.public_key:
        raise ValueError("the signing key must be the receipt's instance key")
    return sign_document(receipt, instance)


def load_receipt(path: Path) -> SignedReceipt:
    """The receipt of one visit, in a file of its own; nothing in it is verified yet.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: ``bad-receipt``.
    """
    return _decode_receipt(read_whole(path, MAX_RECEIPT_BYTES), path.name)


def receipts_in(folder: Path) -> list[Path]:
    """Files with an owner's receipts of visits: one for each job, and the former one for each visit."""
    names = (f"*{RECEIPTS_SUFFIX}", f"*{RECEIPT_SUFFIX}")
    return sorted(path for name in names for path in folder.rglob(name))


def read_receipts(path: Path, start: int = 0) -> Iterator[tuple[SignedReceipt, int]]:
    """Each receipt of a file that a holder kept, and where it ends; nothing is verified yet.

    A last line that is not complete was never kept: its process was killed, or is writing.

    Args:
        path: The file.
        start: Where an earlier receipt ended.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: ``bad-receipt``.
    """
    if not path.name.endswith(RECEIPTS_SUFFIX):
        if not start:
            yield load_receipt(path), path.stat().st_size
        return
    try:
        with path.open("rb") as file:
            file.seek(start)
            while (line := file.readline(MAX_RECEIPT_BYTES + 1)).endswith(b"\n"):
                place = f"{path.name}, at byte {start:,}"
                start += len(line)
                yield _decode_receipt(line[:-1], place), start
    except OSError as error:
        raise unreadable(path, error) from None
    if len(line) > MAX_RECEIPT_BYTES:
        raise MalformedError(
            f"{path.name} has a line that is too long", code="bad-receipt"
        )


def _decode_receipt(raw: bytes, place: str) -> SignedReceipt:
    try:
        return decode(SignedReceipt, raw, max_bytes=MAX_RECEIPT_BYTES)
    except MalformedError as error:
        raise MalformedError(
            f"{place} is not a receipt: {error.what}",
            why=error.why,
            field=error.field,
            offset=error.offset,
            code="bad-receipt",
        ) from None


class ReceiptVerifier:
    """Verifies receipts under one agreement, all as of one moment.

    The receipts of a job show the same evidence and log heads again and again. Each
    different evidence is judged once for the key that it must bind, and each different
    head is verified once, as neither depends on the rest of a receipt. Every receipt's
    own content is compared with what was found.

    Args:
        verified: The agreement. Without it a signature shows only that whoever holds
            the instance key wrote the receipt; a holder that met that key in an
            attested session knows the rest. With it everything is checked here.
    """

    def __init__(self, verified: VerifiedAgreement | None) -> None:
        self._agreement = verified
        if verified is None:
            return
        at_s = verified.equipment.clock()
        equipment = replace(verified.equipment, clock=lambda: at_s)
        fixed = self._agreement = verified.equipped(equipment)
        self._judge = lru_cache(_REMEMBERED)(partial(appraise_instance, verified=fixed))
        self._head_owner = lru_cache(_REMEMBERED)(
            partial(_verified_owner, verified=fixed)
        )

    def verify(self, signed: SignedReceipt) -> Receipt:
        """Return the receipt if its instance key signed it and all of it holds.

        Raises:
            RefusedError: ``receipt-altered``, or the rule that does not hold.
        """
        try:
            receipt = signed.verify(signed.body.instance)
        except AuthenticationError:
            raise RefusedError(
                "the receipt's signature does not match its content",
                why="the receipt was changed, or another key signed it",
                code="receipt-altered",
            ) from None
        if self._agreement is not None:
            self._verify_against(receipt, self._agreement)
        return receipt

    def _verify_against(self, receipt: Receipt, verified: VerifiedAgreement) -> None:
        if receipt.agreement != verified.digest:
            raise PolicyError(
                "the receipt belongs to another agreement", code="other-agreement"
            )
        result = self._judge(receipt.evidence, receipt.instance)
        _require_level(receipt, result)
        _verify_cargo(receipt, verified)
        shown = {self._head_owner(each) for each in receipt.heads}
        _require_heads(receipt, shown, verified)
        _verify_scrub(receipt)


def verify_receipt(
    signed: SignedReceipt, verified: VerifiedAgreement | None = None
) -> Receipt:
    """Return one receipt if it holds, as ``ReceiptVerifier`` says, which many need."""
    return ReceiptVerifier(verified).verify(signed)


def _verify_scrub(receipt: Receipt) -> None:
    """The report covers at least the memory that the rows were placed in."""
    scrub = receipt.scrub
    clean = scrub.verified and not scrub.nonzero_bytes
    if not clean or scrub.scrubbed_bytes < receipt.cargo_bytes:
        raise PolicyError(
            "the receipt reports that memory was not overwritten completely",
            code="scrub",
        )


def _require_level(receipt: Receipt, result: AttestationResult) -> None:
    if result.standing != receipt.level:
        raise PolicyError(
            "the receipt claims another level than its evidence proves",
            why=f"it claims {receipt.level}; the evidence proves {result.standing}",
            code="receipt-level",
        )


def _verify_cargo(receipt: Receipt, verified: VerifiedAgreement) -> None:
    resource = verified.resource(receipt.resource)
    require_agreed_cargo(receipt.buffers, receipt.mixed, verified.agreement.travel_rule)
    told = (receipt.holder, part_for(receipt.purpose), receipt.content)
    if told != (resource.owner, resource.part, resource.content):
        raise PolicyError(
            "the receipt's resource differs from the agreement's",
            code="foreign-receipt",
        )
    rows_fit = receipt.first_row >= 0 and receipt.rows >= 1
    if not rows_fit or receipt.first_row + receipt.rows > resource.rows:
        raise PolicyError(
            "the receipt names rows that the resource does not have", code="bad-rows"
        )
    if receipt.cargo_bytes != receipt.rows * resource.row_bytes:
        raise PolicyError(
            "the receipt's number of bytes does not match its rows", code="bad-rows"
        )


def _verified_owner(head: SignedTreeHead, verified: VerifiedAgreement) -> str:
    """The party whose log it is a head of, signed by that party."""
    verify_head(head)
    return log_owner(head, verified).name


def _require_heads(
    receipt: Receipt, shown: set[str], verified: VerifiedAgreement
) -> None:
    """Each head is of an owner's log, and the holder's own log is among them."""
    if not shown <= set(verified.agreement.holders):
        raise PolicyError(
            "the receipt has a log head that belongs to no owner", code="other-log"
        )
    if receipt.holder not in shown:
        raise PolicyError(
            f"the receipt has no head of {receipt.holder}'s log",
            why="only the broker of that log can have released its key",
            code="head-missing",
        )
