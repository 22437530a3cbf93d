"""What a small run leaves on disk: logs, kept heads, a receipt, a signed agreement."""

from __future__ import annotations

from pathlib import Path

from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Evidence
from sealift.codec import encode
from sealift.crypto.sign import SigningKey
from sealift.ids import Role, VisitId
from sealift.release.agreement.signed import save_signed
from sealift.release.client import collect_release
from sealift.release.database import copy_database
from sealift.release.log.auditlog import APPLICATION_ID
from sealift.release.log.entries import SignedTreeHead
from sealift.release.log.heads import HeadStore
from sealift.release.receipt import (
    Receipt,
    ScrubbedPart,
    ScrubSummary,
    SignedReceipt,
    instance_bound,
    sign_receipt,
)
from tests.sim.owners import BrokerBox, make_broker, session_pair
from tests.worlds.consortium import RUN, Consortium, make_consortium


def release_once(consortium: Consortium, box: BrokerBox, owner: str) -> SignedTreeHead:
    """One release by a broker; the head that covers it."""
    session = session_pair(consortium, box.broker, owner)
    resource = f"{owner}-train"
    key, logged = collect_release(
        session, consortium.verified(), resource, clock=lambda: 0.0, run=RUN
    )
    key.wipe()
    return logged.head


def draft_receipt(
    consortium: Consortium, instance: SigningKey, heads: tuple[SignedTreeHead, ...]
) -> Receipt:
    """A truthful receipt of a visit to ada."""
    agreement = consortium.agreement
    resource = agreement.resource("ada-train")
    attester = DevelopmentAttester(
        consortium.attester, role=Role.ACCELERATOR, code_bundle=agreement.code.digest
    )
    bound = instance_bound(instance.public_key, agreement.digest)
    return Receipt(
        visit=VisitId(bytes(16)),
        job="job-1",
        agreement=agreement.digest,
        holder="ada",
        resource=resource.name,
        purpose="train",
        content=resource.content,
        first_row=0,
        rows=resource.rows,
        cargo_bytes=resource.total_bytes,
        sealed_bytes=resource.total_bytes + 16 * resource.num_records,
        phases_s={"load": 0.25, "train": 1.5},
        buffers=1,
        mixed=False,
        sandbox="none",
        level="development",
        instance=instance.public_key,
        evidence=attester.collect(bound),
        scrub=ScrubSummary((ScrubbedPart("buffer", 640, 0),), True, True),
        heads=heads,
    )


def bound_evidence(consortium: Consortium) -> Evidence:
    """Genuine evidence over 32 bytes of 01."""
    bundle = consortium.agreement.code.digest
    attester = DevelopmentAttester(
        consortium.attester, role=Role.ACCELERATOR, code_bundle=bundle
    )
    return attester.collect(b"\1" * 32)


def signed_receipt(
    consortium: Consortium, heads: tuple[SignedTreeHead, ...]
) -> SignedReceipt:
    instance = SigningKey.generate()
    return sign_receipt(draft_receipt(consortium, instance, heads), instance)


def write_paperwork(folder: Path) -> None:
    """agreement.json, evidence.json, ada.log, heads.json, receipt.json, and the log one entry short.

    forked.json is a receipt whose head is of another log of ada's, as long as this one.
    """
    consortium = make_consortium()
    save_signed(consortium.signed(), folder / "agreement.json")
    save_signed(consortium.signed("ada", "bern"), folder / "unsigned.json")
    box = make_broker(consortium, "ada", folder)
    copy_database(folder / "ada.log", folder / "early.log", APPLICATION_ID)
    head = release_once(consortium, box, "ada")
    HeadStore(folder / "heads.json").admit(head)
    receipt = signed_receipt(consortium, (head,))
    (folder / "receipt.json").write_bytes(encode(receipt))
    (folder / "fork").mkdir()
    other = make_broker(consortium, "ada", folder / "fork")
    forked = signed_receipt(consortium, (release_once(consortium, other, "ada"),))
    (folder / "forked.json").write_bytes(encode(forked))
    other.close()
    (folder / "evidence.json").write_bytes(encode(bound_evidence(consortium)))
    box.close()
