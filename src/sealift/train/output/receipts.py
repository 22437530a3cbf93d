"""Receipts: one visit's account in the form that the holder keeps (rule M4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sealift.attest.evidence import Evidence
from sealift.crypto.sign import SigningKey
from sealift.errors import UsageError
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.log.entries import SignedTreeHead
from sealift.release.receipt import (
    Receipt,
    SignedReceipt,
    appraise_instance,
    instance_bound,
    sign_receipt,
)
from sealift.session.endpoint import Endpoint
from sealift.travel.accelerator.setup import VisitAccount
from sealift.travel.settings import TravelSettings


@dataclass(frozen=True, slots=True)
class InstanceProof:
    """Evidence that binds an instance key, and the level that it proves."""

    evidence: Evidence
    level: str


def prove_instance(endpoint: Endpoint, agreement: VerifiedAgreement) -> InstanceProof:
    """Collect the evidence that receipts and manifests carry, and appraise it ourselves.

    So they name the level that their readers will find, whatever the agreement prefers.

    Raises:
        UsageError: if the endpoint has no attester.
        RefusedError: if the agreement does not accept what it proves.
    """
    if endpoint.attester is None:
        raise UsageError("an accelerator without attester signs no receipts")
    instance = endpoint.instance.public_key
    evidence = endpoint.attester.collect(instance_bound(instance, agreement.digest))
    return InstanceProof(
        evidence, appraise_instance(evidence, instance, agreement).standing
    )


class ReceiptWriter:
    """Writes and signs receipts for one accelerator instance.

    Args:
        instance: Our instance key.
        proof: Binds it.
        heads: Heads of every log that released a key to us.
        travel: How the job travels.
        sandbox: What keeps the recipe in.
    """

    def __init__(
        self,
        instance: SigningKey,
        proof: InstanceProof,
        heads: Callable[[], tuple[SignedTreeHead, ...]],
        travel: TravelSettings,
        sandbox: str,
    ) -> None:
        self._instance = instance
        self._proof = proof
        self._heads = heads
        self._travel = travel
        self._sandbox = sandbox

    def __call__(self, account: VisitAccount) -> SignedReceipt:
        """The signed receipt of one visit."""
        lease = account.lease
        receipt = Receipt(
            visit=lease.visit,
            job=lease.job,
            agreement=lease.agreement,
            holder=lease.holder,
            resource=lease.resource,
            purpose=lease.purpose,
            content=lease.content,
            first_row=lease.first_row,
            rows=lease.shape[0],
            cargo_bytes=lease.cargo_bytes,
            sealed_bytes=account.loaded.sealed_bytes,
            phases_s=dict(account.phases_s),
            buffers=self._travel.buffers,
            mixed=self._travel.mixed,
            sandbox=self._sandbox,
            level=self._proof.level,
            instance=self._instance.public_key,
            evidence=self._proof.evidence,
            scrub=account.scrubbed,
            heads=self._heads(),
        )
        return sign_receipt(receipt, self._instance)
