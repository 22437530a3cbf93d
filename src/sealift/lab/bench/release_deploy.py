"""How long an agreement takes: from the TOML that people write to one that binds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sealift.channel.record.commitment import key_commitment
from sealift.codec import decode, encode
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest
from sealift.lab.bench.report import Row
from sealift.release.agreement import Resource
from sealift.release.document import compile_document
from sealift.release.signed import SignedAgreement, add_signature, verify
from sealift.release.starter import Starter

OWNERS: Final = ("north", "east")
LAB: Final = "lab"
_NOW_S: Final = 1_795_000_000
_PARTS: Final = ("compile_ms", "sign_ms", "verify_ms")


def measure_deploy(folder: Path, repeats: int) -> list[Row]:
    """One row: medians of compiling, of three signatures, of verifying all."""
    folder.mkdir()
    parties = [create_identity(name) for name in (*OWNERS, LAB)]
    document = _write(folder, parties)
    spent = [_deploy_once(document, parties) for _ in range(max(5, repeats))]
    medians = {
        name: round(statistics.median(each[place] for each in spent), 2)
        for place, name in enumerate(_PARTS)
    }
    total = round(sum(medians.values()), 2)
    return [{"what": "deploy an agreement", "parties": 3, **medians, "all_ms": total}]


def _deploy_once(
    document: Path, parties: Sequence[Identity]
) -> tuple[float, float, float]:
    """Milliseconds by part."""
    started = time.perf_counter()
    signed = compile_document(document, _read_resource)
    compiled = time.perf_counter()
    for party in parties:
        signed = add_signature(signed, party)
    made = time.perf_counter()
    verify(decode(SignedAgreement, encode(signed)))
    done = time.perf_counter()
    return (
        (compiled - started) * 1e3, (made - compiled) * 1e3, (done - made) * 1e3
    )  # fmt: skip


def _read_resource(path: Path) -> Resource:
    return decode(Resource, path.read_bytes())


def _write(folder: Path, parties: Sequence[Identity]) -> Path:
    """Cards, code and the document, as `sealift agreement new` leaves them."""
    for party in parties:
        (folder / f"{party.name}.card.json").write_bytes(encode(party.card))
    resources = [
        _resource(name, part) for name in OWNERS for part in ("train", "heldout")
    ]
    for each in resources:
        (folder / f"{each.name}.resource.json").write_bytes(encode(each))
    (folder / "recipe").mkdir()
    (folder / "recipe" / "recipe.py").write_text("def build(): ...\n")
    starter = Starter(
        name="bench",
        now_s=_NOW_S,
        party_cards=[(f"{each.name}.card.json", each.name) for each in parties],
        resource_cards=[
            (f"{each.name}.resource.json", each.owner) for each in resources
        ],
        bundle="recipe",
        entry="recipe.py",
        model_owner=LAB,
        operator=LAB,
        attesters=[SigningKey.generate().public_key],
        train_rows=dict.fromkeys(OWNERS, 64),
    )
    document = folder / "agreement.toml"
    document.write_text(starter.to_toml())
    return document


def _resource(owner: str, part: str) -> Resource:
    name = f"{owner}-{part}"
    resource = Resource(
        name=name,
        owner=owner,
        part="train",
        rows=64,
        row_bytes=16,
        cell_rows=16,
        total_bytes=1024,
        record_bytes=256,
        schema={"fields": [{"name": "x", "dtype": "float64", "shape": [2]}]},
        content=Digest.of(name.encode()),
        key=key_commitment(SecretKey.generate(), name),
    )
    return resource if part == "train" else replace(resource, part="heldout")
