"""Make spec/vectors/release.json: python spec/vectors/generate_release.py [--check].

Seeds are counted, so that the file can be made again bit by bit. HPKE is random and has
vectors of its own; here stands what it is bound to.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from sealift.attest.level import Level
from sealift.codec import encode
from sealift.crypto.hash import sha256
from sealift.crypto.hpke import PUBLIC_BYTES, HpkePublicKey
from sealift.crypto.keys import Label, SecretKey
from sealift.crypto.merkle import leaf_hash, root
from sealift.crypto.sign import SigningKey, sign_document
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    Between,
    OutputRule,
    Party,
    References,
    Resource,
    TrainingRule,
    TravelRule,
)
from sealift.release.agreement.code import measure_bundle
from sealift.release.grant import ReleaseInfo, info_digest
from sealift.release.log.entries import LogEntry, TreeHead
from sealift.release.receipt import instance_bound
from sealift.train.output.accounts import RunAccount

TARGET = Path(__file__).with_name("release.json")
OWNER, OTHER, INSTANCE = (
    SigningKey(SecretKey(bytes(range(start, start + 32)))) for start in (0, 32, 64)
)


def agreement() -> Agreement:
    """Two parties, one resource, two files."""
    files = {"recipe.py": b"import layers\n", "layers.py": b"WIDTH = 8\n"}
    return Agreement(
        about="train",
        name="vectors",
        number=1,
        predecessor=None,
        parties=(
            Party("ada", ("data_owner",), OWNER.public_key, hpke(1)),
            Party("bern", ("model_owner", "operator"), OTHER.public_key, hpke(2)),
        ),
        code=measure_bundle(files, "recipe.py"),
        accept=(Level.DEVELOPMENT,),
        references=References((INSTANCE.public_key,)),
        resources=(resource(),),
        model_owner="bern",
        operator="bern",
        output=OutputRule(
            metrics=("loss",), digits=3, values_per_visit=4, metric_rows=1,
            audience="owner", min_visits=1, max_visits=9, min_holders=1, min_rows=1,
            baseline_alone=False, recipe_text=False,
        ),
        travel=TravelRule(1, 120.0),
        training=TrainingRule(
            plans=("travel",), runs=2, epochs=Between(1, 9), batch_rows=Between(4, 4),
            max_norm=Between(0.5, 1.5),
        ),
    )  # fmt: skip


def group() -> Agreement:
    """The same parties about to compute together: no resource, and what goes with it."""
    ada, bern = agreement().parties
    return replace(
        agreement(), about="group", resources=(), model_owner=None, output=None,
        travel=None, training=None, parties=(replace(ada, roles=()), bern),
    )  # fmt: skip


def hpke(byte: int) -> HpkePublicKey:
    """Bytes of the right length."""
    return HpkePublicKey(bytes([byte]) * PUBLIC_BYTES)


def resource() -> Resource:
    """Ten rows."""
    return Resource(
        name="ada-train", owner="ada", part="train", rows=10, row_bytes=16,
        cell_rows=4, total_bytes=160, record_bytes=64,
        schema={"fields": [{"name": "x", "dtype": "float64", "shape": [2]}]},
        content=Digest(bytes(32)), key=Digest(bytes([1]) * 32),
    )  # fmt: skip


def document(agreed: Agreement) -> dict[str, Any]:
    """The document, its digest, its bundle and a signature."""
    raw = encode(agreed)
    return {
        "document": raw.decode(),
        "digest": agreed.digest.to_text(),
        "bundle": agreed.code.digest.to_text(),
        "signer": OWNER.public_key.raw.hex(),
        "signature": OWNER.sign(Label.AGREEMENT, raw).hex(),
    }


def release(info: ReleaseInfo) -> dict[str, Any]:
    """What a sealed key is bound to, and its owner's signature."""
    sealed = bytes(range(64))
    signed = sealed + sha256(encode(info))
    return {
        "info": encode(info).decode(),
        "sealed": sealed.hex(),
        "signature": OWNER.sign(Label.RELEASE, signed).hex(),
    }


def log(agreed: Agreement, info: ReleaseInfo) -> dict[str, Any]:
    """Three entries and the head over them."""
    entries = [
        LogEntry(kind="agreement", at_s=1, agreement=agreed.digest),
        LogEntry(kind="refusal", at_s=2, agreement=agreed.digest, rule="role-refused"),
        LogEntry(
            kind="release", at_s=3, agreement=agreed.digest, resource=info.resource,
            purpose=info.purpose, role="accelerator", peer="accelerator",
            instance=INSTANCE.public_key, session=info.recipient, level="development",
            evidence=Digest(bytes(32)), info=info_digest(info),
        ),
    ]  # fmt: skip
    raws = [encode(entry) for entry in entries]
    head = TreeHead(
        OWNER.public_key, 3, Digest(root([leaf_hash(raw) for raw in raws])), 4
    )
    return {
        "entries": [raw.decode() for raw in raws],
        "head": encode(sign_document(head, OWNER)).decode(),
    }


def account(agreed: Agreement) -> dict[str, Any]:
    """What an owner's accelerator signs of a run, by the owner's key."""
    steps = Digest.of(encode(2))
    signed = RunAccount(
        party="ada", instance=INSTANCE.public_key, passes_before=0, rows=10,
        result={"agreement": Digest.of(encode(agreed.digest)), "steps": steps},
        tables=(), receipts=Digest.of(encode(())), released=(), head=None, at_s=5,
    )  # fmt: skip
    return {
        "account": encode(signed).decode(),
        "signature": sign_document(signed, OWNER).signature.hex(),
    }


def generate() -> str:
    """The whole file."""
    agreed = agreement()
    info = ReleaseInfo(
        agreement=agreed.digest, resource="ada-train", purpose="train", owner="ada",
        recipient=bytes(range(32)), challenge=bytes(range(32, 64)), expiry_s=60,
    )  # fmt: skip
    bound = instance_bound(INSTANCE.public_key, agreed.digest)
    vectors = {
        "spec": "spec/release.md, version 3",
        "agreement": document(agreed),
        "group": document(group()),
        "release": release(info),
        "log": log(agreed, info),
        "account": account(agreed),
        "receipt": {"instance": INSTANCE.public_key.raw.hex(), "bound": bound.hex()},
    }
    return json.dumps(vectors, indent=1) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        raise SystemExit(
            0 if TARGET.read_text() == generate() else "release.json differs"
        )
    TARGET.write_text(generate())
