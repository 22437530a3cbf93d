"""Receipts that claim what did not happen (rule M4): altered, forged, dressed up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.policy import AttestationResult
from sealift.cli.receipt import ReceiptTotals, _receipt_facts
from sealift.codec import encode
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import EvidenceError, MalformedError, PolicyError, RefusedError
from sealift.ids import Role
from sealift.release import receipt as receipts
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.equip import equip
from sealift.release.log.entries import SignedTreeHead
from sealift.release.receipt import (
    Receipt,
    ReceiptVerifier,
    ScrubbedPart,
    ScrubSummary,
    SignedReceipt,
    instance_bound,
    load_receipt,
    sign_receipt,
    verify_receipt,
)
from tests.sim.owners import BrokerBox, make_broker
from tests.sim.paperwork import draft_receipt, release_once, signed_receipt
from tests.worlds.consortium import Consortium, make_consortium


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


@pytest.fixture(scope="module")
def boxes(
    consortium: Consortium, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, BrokerBox]]:
    folder = tmp_path_factory.mktemp("brokers")
    made = {name: make_broker(consortium, name, folder) for name in ("ada", "bern")}
    yield made
    for box in made.values():
        box.close()


@pytest.fixture(scope="module")
def heads(
    consortium: Consortium, boxes: dict[str, BrokerBox]
) -> tuple[SignedTreeHead, ...]:
    return tuple(release_once(consortium, box, name) for name, box in boxes.items())


def summed(*receipts: Receipt) -> str:
    totals = ReceiptTotals()
    for each in receipts:
        totals.add(each)
    return str(totals.facts("")["scrub"])


def test_truthful_receipt_survives_the_disk(
    consortium: Consortium, heads: tuple[SignedTreeHead, ...], tmp_path: Path
) -> None:
    signed = signed_receipt(consortium, heads)
    (tmp_path / "receipt.json").write_bytes(encode(signed))
    loaded = load_receipt(tmp_path / "receipt.json")
    assert verify_receipt(loaded, consortium.verified()) == signed.body
    assert loaded.body.scrub.scrubbed_bytes == 640


def test_a_gpus_part_is_told_apart(
    consortium: Consortium, heads: tuple[SignedTreeHead, ...]
) -> None:
    """The control of the claims about it: such a receipt holds, and adds nothing up."""
    instance = SigningKey.generate()
    receipt = with_regions(
        draft_receipt(consortium, instance, heads),
        ScrubbedPart("buffer", 640, 0),
        ScrubbedPart("cuda:0", 4096, 0),
    )
    found = verify_receipt(sign_receipt(receipt, instance), consortium.verified())
    assert (found.scrub.scrubbed_bytes, found.scrub.told_bytes) == (640, 4096)
    said = summed(found, found)
    assert said.startswith(
        "1,280 bytes, 0 not zero when read back; 8,192 bytes of GPUs"
    )
    assert "in 1 region, 0 not zero" in _receipt_facts(found, "")["scrub"]
    failed = replace(found, scrub=replace(found.scrub, verified=False))
    assert summed(found, failed).endswith("1 scrub not verified")


CHANGES: dict[str, Callable[[Receipt], Receipt]] = {
    "rows": lambda r: replace(r, rows=1),
    "level": lambda r: replace(r, level=Level.TEE),
    "scrub": lambda r: replace(r, scrub=replace(r.scrub, regions=())),
    "heads": lambda r: replace(r, heads=()),
    "phases": lambda r: replace(r, phases_s={}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_altered_receipt_is_refused(
    consortium: Consortium,
    heads: tuple[SignedTreeHead, ...],
    change: Callable[[Receipt], Receipt],
) -> None:
    signed = signed_receipt(consortium, heads)
    altered = SignedReceipt(change(signed.body), signed.signature)
    with pytest.raises(RefusedError) as caught:
        verify_receipt(altered)
    assert caught.value.code == "receipt-altered"


def forged_by_holder(
    consortium: Consortium, heads: tuple[SignedTreeHead, ...]
) -> SignedReceipt:
    """A holder signs with a key of its own and borrows an accelerator's evidence."""
    genuine = draft_receipt(consortium, SigningKey.generate(), heads)
    own = SigningKey.generate()
    return sign_receipt(replace(genuine, instance=own.public_key, rows=40), own)


def test_borrowed_evidence_does_not_bind_the_forgers_key(
    consortium: Consortium, heads: tuple[SignedTreeHead, ...]
) -> None:
    forged = forged_by_holder(consortium, heads)
    with pytest.raises(EvidenceError) as caught:
        verify_receipt(forged, consortium.verified())
    assert caught.value.code == "evidence-unbound"


def test_mutant_without_the_evidence_check_believes_it(
    consortium: Consortium,
    heads: tuple[SignedTreeHead, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receipts, "appraise_instance", lambda *args, verified: None)
    monkeypatch.setattr(receipts, "_require_level", lambda *args: None)
    forged = forged_by_holder(consortium, heads)
    assert verify_receipt(forged, consortium.verified()) == forged.body


def test_evidence_of_another_role_makes_no_receipt(
    consortium: Consortium, heads: tuple[SignedTreeHead, ...]
) -> None:
    instance = SigningKey.generate()
    draft = draft_receipt(consortium, instance, heads)
    code = consortium.agreement.code.digest
    holder = DevelopmentAttester(
        consortium.attester, role=Role.HOLDER, code_bundle=code
    )
    bound = instance_bound(instance.public_key, consortium.agreement.digest)
    signed = sign_receipt(replace(draft, evidence=holder.collect(bound)), instance)
    with pytest.raises(PolicyError) as caught:
        verify_receipt(signed, consortium.verified())
    assert caught.value.code == "role-refused"


# Signed by a genuine accelerator that says something else than the agreement.
def with_regions(receipt: Receipt, *regions: ScrubbedPart) -> Receipt:
    return replace(receipt, scrub=ScrubSummary(regions, True, True))


CLAIMS: dict[str, tuple[Callable[[Receipt], Receipt], str]] = {
    "a better level": (lambda r: replace(r, level=Level.TEE), "receipt-level"),
    "another holder": (lambda r: replace(r, holder="bern"), "foreign-receipt"),
    "another content": (
        lambda r: replace(r, content=r.agreement),
        "foreign-receipt",
    ),
    "another purpose": (lambda r: replace(r, purpose="heldout"), "foreign-receipt"),
    "unknown resource": (lambda r: replace(r, resource="zoe-train"), "no-resource"),
    "too many rows": (lambda r: replace(r, rows=41), "bad-rows"),
    "negative row": (lambda r: replace(r, first_row=-1), "bad-rows"),
    "other bytes": (lambda r: replace(r, cargo_bytes=1), "bad-rows"),
    "two buffers": (lambda r: replace(r, buffers=2), "cargo-not-agreed"),
    "mixed cargo": (lambda r: replace(r, mixed=True), "cargo-not-agreed"),
    "a scrub that failed": (
        lambda r: replace(
            r, scrub=ScrubSummary((ScrubbedPart("buffer", 640, 3),), True, True)
        ),
        "scrub",
    ),
    "no scrub": (
        lambda r: replace(r, scrub=replace(r.scrub, verified=False)),
        "scrub",
    ),
    "what a recipe's process says of a GPU, for the rows' own memory": (
        lambda r: with_regions(
            r, ScrubbedPart("buffer", 639, 0), ScrubbedPart("cuda:0", 10**15, 0)
        ),
        "scrub",
    ),
    "a GPU whose scrub failed": (
        lambda r: with_regions(
            r, ScrubbedPart("buffer", 640, 0), ScrubbedPart("cuda:0", 4096, 1)
        ),
        "scrub",
    ),
    "no head of the holder's log": (
        lambda r: replace(r, heads=r.heads[1:]),
        "head-missing",
    ),
    "unsigned head": (
        lambda r: replace(r, heads=(replace(r.heads[0], signature=bytes(64)),)),
        "head-unsigned",
    ),
}


@pytest.mark.parametrize(("claim", "code"), CLAIMS.values(), ids=CLAIMS.keys())
def test_claims_that_the_agreement_contradicts(
    consortium: Consortium,
    heads: tuple[SignedTreeHead, ...],
    claim: Callable[[Receipt], Receipt],
    code: str,
) -> None:
    """Alone, and after a truthful receipt that shows the same evidence and heads."""
    instance, verified = SigningKey.generate(), consortium.verified()
    truthful = draft_receipt(consortium, instance, heads)
    said = sign_receipt(claim(truthful), instance)
    with pytest.raises(RefusedError) as caught:
        verify_receipt(said, verified)
    assert caught.value.code == code
    verifier = ReceiptVerifier(verified)
    assert verifier.verify(sign_receipt(truthful, instance)) == truthful
    with pytest.raises(RefusedError) as caught:
        verifier.verify(said)
    assert caught.value.code == code


def test_evidence_that_was_judged_binds_no_other_key(
    consortium: Consortium, heads: tuple[SignedTreeHead, ...]
) -> None:
    instance, own = SigningKey.generate(), SigningKey.generate()
    truthful = draft_receipt(consortium, instance, heads)
    verifier = ReceiptVerifier(consortium.verified())
    verifier.verify(sign_receipt(truthful, instance))
    with pytest.raises(EvidenceError) as caught:
        verifier.verify(sign_receipt(replace(truthful, instance=own.public_key), own))
    assert caught.value.code == "evidence-unbound"


def test_equal_evidence_is_judged_once_and_as_of_one_moment(
    consortium: Consortium,
    heads: tuple[SignedTreeHead, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[float] = []
    appraise = receipts.appraise_instance

    def count(
        evidence: Evidence, instance: PublicKey, verified: VerifiedAgreement
    ) -> AttestationResult:
        judged.append(verified.equipment.clock())
        return appraise(evidence, instance, verified)

    monkeypatch.setattr(receipts, "appraise_instance", count)
    moments = iter((100.0, 200.0, 300.0))
    verified = equip(consortium.verified(), clock=lambda: next(moments))
    verifier = ReceiptVerifier(verified)
    instances = [SigningKey.generate() for _ in range(2)]
    drafts = [draft_receipt(consortium, each, heads) for each in instances]
    for rows in (1, 2, 3):
        for draft, instance in zip(drafts, instances, strict=True):
            row_bytes = draft.cargo_bytes // draft.rows
            told = replace(draft, rows=rows, cargo_bytes=rows * row_bytes)
            assert verifier.verify(sign_receipt(told, instance)).rows == rows
    assert judged == [100.0, 100.0]


def test_receipt_under_another_agreement(
    consortium: Consortium, heads: tuple[SignedTreeHead, ...]
) -> None:
    after = consortium.successor().verified()
    with pytest.raises(PolicyError) as caught:
        verify_receipt(signed_receipt(consortium, heads), after)
    assert caught.value.code == "other-agreement"


def test_not_a_receipt(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'{"receipt":{},"signature":""}')
    with pytest.raises(MalformedError) as caught:
        load_receipt(tmp_path / "x.json")
    assert caught.value.code == "bad-receipt"
