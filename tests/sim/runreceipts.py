"""The receipt of a small run: real brokers, logs, evidence and signatures, no training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sealift.crypto.sign import SigningKey
from sealift.ids import Digest, VisitId
from sealift.lab.worlds.consortium import Consortium, make_consortium
from sealift.release.client import collect_release
from sealift.release.log.entries import Logged, SignedTreeHead
from sealift.release.receipt import (
    ScrubbedPart,
    ScrubSummary,
    SignedReceipt,
    sign_receipt,
)
from sealift.train.output.manifest import RunManifest
from sealift.train.output.runreceipt import RunReceipt
from sealift.train.output.uses import Uses, join_uses
from tests.sim.owners import BrokerBox, make_broker, session_pair
from tests.sim.paperwork import draft_receipt

MODEL = b"not a model, but it has a digest"
OWNERS = ("ada", "bern", "cleo")


@dataclass
class SmallRun:
    """What a run of three owners leaves."""

    consortium: Consortium
    instance: SigningKey
    receipt: RunReceipt
    visits: tuple[SignedReceipt, ...]
    boxes: dict[str, BrokerBox]


@contextmanager
def small_run(folder: Path, instance: SigningKey | None = None) -> Iterator[SmallRun]:
    """Its files lie in the folder: ada.log, bern.log, cleo.log."""
    consortium, instance = make_consortium(), instance or SigningKey.generate()
    boxes = {name: make_broker(consortium, name, folder) for name in OWNERS}
    released = tuple(
        release(consortium, boxes[name], name, part, instance)
        for name in OWNERS
        for part in ("train", "heldout")
    )
    heads = tuple(boxes[name].log.head() for name in OWNERS)
    visits = tuple(visit(consortium, name, instance, heads) for name in OWNERS)
    yield SmallRun(
        consortium,
        instance,
        run_receipt(consortium, instance, released, heads, visits),
        visits,
        boxes,
    )
    for box in boxes.values():
        box.close()


def release(
    consortium: Consortium, box: BrokerBox, owner: str, part: str, instance: SigningKey
) -> Logged:
    """What the owner's log says of one key."""
    session = session_pair(consortium, box.broker, owner)
    session.other.peer = replace(session.other.peer, instance=instance.public_key)
    name, verified = f"{owner}-{part}", consortium.verified()
    key, logged = collect_release(session, verified, name, clock=lambda: 0.0)
    key.wipe()
    return logged


def visit(
    consortium: Consortium,
    owner: str,
    instance: SigningKey,
    heads: tuple[SignedTreeHead, ...],
) -> SignedReceipt:
    """One visit to an owner's training rows."""
    resource = consortium.agreement.resource(f"{owner}-train")
    scrub = ScrubSummary((ScrubbedPart("buffer", resource.total_bytes, 0),), True, True)
    ours = replace(
        draft_receipt(consortium, instance, heads),
        visit=VisitId.generate(),
        holder=owner,
        resource=resource.name,
        content=resource.content,
        rows=resource.rows,
        cargo_bytes=resource.total_bytes,
        scrub=scrub,
    )
    return sign_receipt(ours, instance)


def run_receipt(
    consortium: Consortium,
    instance: SigningKey,
    released: tuple[Logged, ...],
    heads: tuple[SignedTreeHead, ...],
    visits: tuple[SignedReceipt, ...],
) -> RunReceipt:
    """The truth of it."""
    agreement, body = consortium.agreement, visits[0].body
    rows = {owner: agreement.resource(f"{owner}-train").rows for owner in OWNERS}
    return RunReceipt(
        made_at_s=1_800_000_000,
        agreement=consortium.signed(),
        manifest=RunManifest(
            job="job-1",
            agreement=agreement.digest,
            level=body.level,
            plan="travel",
            buffers=1,
            mixed=False,
            sandbox="none",
            device="cpu",
            software="sealift",
            instance=instance.public_key,
            ranks=(instance.public_key,),
            collectives="",
            traces=None,
            evidence=body.evidence,
            weights=Digest.of(b"weights"),
            steps=2,
            rows=sum(rows.values()),
            visits=dict.fromkeys(OWNERS, 1),
            metrics={"loss": 0.125},
            statistics={},
            prepared={},
            resumed=0,
            heads=heads,
        ),
        released=released,
        uses=join_uses(map(Uses.of, visits)),
        distinct_rows=rows,
        checkpoints=0,
        subject=Digest.of(MODEL),
    )
