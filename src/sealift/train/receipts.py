"""Receipts: one visit's account in the form that the holder keeps (rule M4)."""

from __future__ import annotations

from sealift.attest.evidence import Evidence
from sealift.errors import UsageError
from sealift.release.audit import SignedTreeHead
from sealift.release.receipt import (
    ONE_BUFFER,
    Receipt,
    SignedReceipt,
    instance_bound,
    sign_receipt,
)
from sealift.release.signed import VerifiedAgreement
from sealift.session.endpoint import Endpoint
from sealift.travel.accelerator import VisitAccount


def collect_evidence(endpoint: Endpoint, agreement: VerifiedAgreement) -> Evidence:
    """Evidence that binds the instance key that signs receipts and manifests.

    Raises:
        UsageError: if the endpoint has no attester.
    """
    if endpoint.attester is None:
        raise UsageError("an accelerator without attester signs no receipts")
    bound = instance_bound(endpoint.instance.public_key, agreement.digest)
    return endpoint.attester.collect(bound)


class ReceiptWriter:
    """Writes and signs receipts for one accelerator instance.

    The evidence that binds the instance key for receipts is collected once.

    Args:
        agreement: Under which the visits take place.
        endpoint: Ours; needs an attester.
        heads: Heads of every log that released a key to us.
    """

    def __init__(
        self,
        agreement: VerifiedAgreement,
        endpoint: Endpoint,
        heads: tuple[SignedTreeHead, ...],
    ) -> None:
        self._agreement = agreement
        self._instance = endpoint.instance
        self._heads = heads
        self._evidence = collect_evidence(endpoint, agreement)

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
            mode="at-rest",
            buffers=ONE_BUFFER,
            level=self._agreement.accept[0],
            instance=self._instance.public_key,
            evidence=self._evidence,
            scrub=account.scrubbed,
            heads=self._heads,
        )
        return sign_receipt(receipt, self._instance)
