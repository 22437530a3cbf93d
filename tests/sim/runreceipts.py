"""The receipt of a small run: real brokers, logs, evidence and signatures, no training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sealift.codec import encode
from sealift.crypto.sign import Signer, SigningKey, sign_document
from sealift.ids import Digest, VisitId
from sealift.release.agreement import GroupRule
from sealift.release.agreement.signed import Equipment, VerifiedAgreement, verify
from sealift.release.client import collect_release
from sealift.release.log.entries import Logged, SignedTreeHead
from sealift.release.receipt import (
    ScrubbedPart,
    ScrubSummary,
    SignedReceipt,
    sign_receipt,
)
from sealift.train.output.accounts import RunAccount, Uses, account_signers, join_uses
from sealift.train.output.manifest import RunManifest
from sealift.train.output.runreceipt import RunReceipt, sign_run
from sealift.travel.peers import accelerator_names
from sealift.travel.settings import JobSettings
from tests.sim.owners import NOW_S, BrokerBox, make_broker, session_pair
from tests.sim.paperwork import draft_receipt
from tests.worlds.consortium import RUN, TRAINING, Consortium, make_consortium

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
    signers: tuple[Signer, ...]
    instances: dict[str, SigningKey]

    def verified(self) -> VerifiedAgreement:
        """Its agreement, judged a minute after the run."""
        clock = Equipment(clock=lambda: NOW_S + 120)
        return self.consortium.verified().equipped(clock)

    def lie(self, **changes: Any) -> bytes:
        """A receipt with other parts, and accounts as they were."""
        return sign_run(replace(self.receipt, **changes), self.instance)

    def lie_of(self, **changes: Any) -> bytes:
        """A receipt whose manifest says something else, and accounts as they were."""
        return self.lie(manifest=replace(self.receipt.manifest, **changes))


@contextmanager
def small_run(
    folder: Path,
    instance: SigningKey | None = None,
    *,
    group: bool = False,
    of: Consortium | None = None,
    instances: Mapping[str, SigningKey] | None = None,
) -> Iterator[SmallRun]:
    """Its files lie in the folder: ada.log, bern.log, cleo.log.

    Args:
        folder: Of the logs.
        instance: Of the first accelerator.
        group: Whether each owner has an accelerator of its own.
        of: Whose run it is; new parties, if nobody is named.
        instances: Keys of each owner's accelerator; new ones, if there are none.
    """
    rule: dict[str, Any] = {}
    if group:
        rule["group"] = GroupRule(len(OWNERS), "owner")
        rule["training"] = replace(TRAINING, plans=("ddp",))
    folder.mkdir(parents=True, exist_ok=True)
    consortium, instance = (
        of or make_consortium(**rule),
        instance or SigningKey.generate(),
    )
    group = consortium.agreement.rows_at_home
    own = dict.fromkeys(OWNERS, instance)
    if group:
        own |= instances or {name: SigningKey.generate() for name in OWNERS[1:]}
    boxes = {name: make_broker(consortium, name, folder) for name in OWNERS}
    released = tuple(
        release(consortium, boxes[name], name, part, own[name])
        for name in OWNERS
        for part in ("train", "heldout")
    )
    heads = tuple(boxes[name].log.head() for name in OWNERS)
    visits = tuple(visit(consortium, name, own[name], heads) for name in OWNERS)
    signers: tuple[Signer, ...] = (instance,)
    if group:
        signers = tuple(consortium.identities[name] for name in OWNERS)
    receipt = run_receipt(consortium, tuple(own.values()), released, heads, visits)
    yield SmallRun(
        consortium=consortium,
        instance=instance,
        receipt=accounted(receipt, signers),
        visits=visits,
        boxes=boxes,
        signers=signers,
        instances=own,
    )
    for box in boxes.values():
        box.close()


def release(
    consortium: Consortium, box: BrokerBox, owner: str, part: str, instance: SigningKey
) -> Logged:
    """What the owner's log says of one key."""
    session = session_pair(consortium, box.broker, owner)
    home = consortium.agreement.rows_at_home
    rank = OWNERS.index(owner) if home else 0
    session.other.peer = replace(
        session.other.peer,
        name=accelerator_names(rank + 1)[rank],
        instance=instance.public_key,
        identity=consortium.identities[owner].public_key if home else None,
    )
    name, verified = f"{owner}-{part}", consortium.verified()
    private = consortium.agreement.training_rule.privacy
    terms = replace(RUN, plan="ddp" if home else "travel", privacy=private)
    key, logged = collect_release(session, verified, name, clock=lambda: 0.0, run=terms)
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
    instances: tuple[SigningKey, ...],
    released: tuple[Logged, ...],
    heads: tuple[SignedTreeHead, ...],
    visits: tuple[SignedReceipt, ...],
) -> RunReceipt:
    """The truth of it, without accounts."""
    group = consortium.agreement.rows_at_home
    ranks = tuple(each.public_key for each in instances[: None if group else 1])
    agreement, body = consortium.agreement, visits[0].body
    uses = join_uses(map(Uses.of, visits))
    rows = {owner: agreement.resource(f"{owner}-train").rows for owner in OWNERS}
    return RunReceipt(
        made_at_s=int(NOW_S) + 60,
        agreement=consortium.signed(),
        settings=JobSettings(privacy=agreement.training_rule.privacy),
        accounts=(),
        manifest=RunManifest(
            job="job-1",
            agreement=agreement.digest,
            level=body.level,
            plan="ddp" if group else "travel",
            buffers=1,
            mixed=False,
            sandbox="none",
            device="cpu",
            software="sealift",
            instance=ranks[0],
            ranks=ranks,
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
        uses=uses,
        distinct_rows=rows,
        checkpoints=0,
        subject=Digest.of(MODEL),
    )


def accounted(
    receipt: RunReceipt, signers: Sequence[Signer], **changes: Any
) -> RunReceipt:
    """The receipt with the account of each of its accelerators, by these keys.

    Args:
        receipt: Of a run, with the uses of all of them.
        signers: One for each accelerator.
        changes: To what the last one of them finds.
    """
    consortium = verify(receipt.agreement)
    manifest = receipt.manifest
    expected = account_signers(manifest.plan, manifest.ranks, consortium)
    receipts, accounts = list(receipt.uses.receipts), []
    for number, (signer, who) in enumerate(zip(signers, expected, strict=True)):
        alone = who.key == who.instance
        tables = tuple(
            each
            for each in receipt.uses.tables
            if alone or consortium.resource(each.resource).owner == who.party
        )
        count = sum(each.visits for each in tables)
        own, receipts = receipts[:count], receipts[count:]
        last = number == len(signers) - 1
        account = RunAccount(
            party=who.party,
            instance=who.instance,
            result=receipt.result | (changes if last else {}),
            passes_before=0,
            rows=manifest.rows if alone else sum(u.rows for u in tables),
            tables=tables,
            receipts=Digest.of(encode(tuple(own))),
            released=tuple(Digest.of(encode(each)) for each in receipt.released),
            head=next((h for h in manifest.heads if h.body.log == who.key), None),
            at_s=receipt.made_at_s,
        )
        accounts.append(sign_document(account, signer))
    return replace(receipt, accounts=tuple(accounts))
