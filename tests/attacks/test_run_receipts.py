"""The receipt of a run that claims what did not happen: altered, forged, dressed up."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.attest.level import Level
from sealift.codec import encode
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    IntegrityError,
    MalformedError,
    PolicyError,
    SealiftError,
)
from sealift.ids import Digest
from sealift.release.agreement.signed import Equipment, SignedAgreement, verify
from sealift.train.output import runreceipt
from sealift.train.output.accounts import Uses
from sealift.train.output.runreceipt import (
    Line,
    RunReceipt,
    demand_of,
    open_run,
    sign_run,
    verify_run,
)
from tests.sim.runreceipts import SmallRun, accounted, release, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRun]:
    with small_run(tmp_path_factory.mktemp("run")) as made:
        yield made


def check(raw: bytes) -> list[Line]:
    receipt = open_run(raw)
    clock = Equipment(clock=lambda: receipt.made_at_s + 60.0)
    return list(verify_run(receipt, verify(receipt.agreement).equipped(clock)))


def test_a_truthful_receipt_holds_line_by_line(run: SmallRun) -> None:
    lines = {
        line.name: line.said for line in check(sign_run(run.receipt, run.instance))
    }
    assert list(lines) == [
        "agreement", "parties compared", "code", "data", "evidence", "keys released",
        "use of rows", "coverage", "accounts", "run", "checkpoints", "model",
        "log heads", "time",
    ]  # fmt: skip
    assert "NOBODY" in lines["evidence"]
    assert lines["keys released"].startswith("6 keys")
    assert lines["log heads"] == "ada 3 entries; bern 3 entries; cleo 3 entries"


def test_other_tools_read_the_envelope(run: SmallRun) -> None:
    """DSSE and an in-toto statement, by their own words and with nothing of ours."""
    envelope = json.loads(sign_run(run.receipt, run.instance))
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    payload = base64.b64decode(envelope["payload"], validate=True)
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    digest = statement["subject"][0]["digest"]["sha256"]
    assert bytes.fromhex(digest) == run.receipt.subject.raw
    framed = b"DSSEv1 28 application/vnd.in-toto+json %d " % len(payload) + payload
    [signature] = envelope["signatures"]
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(run.instance.public_key.raw)
    key.verify(base64.b64decode(signature["sig"]), framed)
    assert signature["keyid"] == run.instance.public_key.to_text()


def test_a_signature_for_one_type_is_none_for_another(run: SmallRun) -> None:
    signature = run.instance.sign_dsse("a/b", b"payload")
    key: PublicKey = run.instance.public_key
    key.verify_dsse("a/b", b"payload", signature)
    with pytest.raises(AuthenticationError):
        key.verify_dsse("a/c", b"payload", signature)
    with pytest.raises(AuthenticationError):
        key.verify_dsse("a/b", b"payload ", signature)


def test_every_byte_counts(run: SmallRun) -> None:
    raw = sign_run(run.receipt, run.instance)
    for _ in range(300):
        altered = bytearray(raw)
        altered[secrets.randbelow(len(raw))] ^= 1 << secrets.randbelow(8)
        with pytest.raises(SealiftError):
            check(bytes(altered))


def restated(run: SmallRun, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The envelope with a changed statement, under the old signature."""
    envelope = json.loads(sign_run(run.receipt, run.instance))
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    envelope["payload"] = base64.b64encode(encode(statement)).decode()
    return encode(envelope)


PARTS = (
    "agreement",
    "checkpoints",
    "distinct_rows",
    "made_at_s",
    "manifest",
    "released",
    "uses",
)


@pytest.mark.parametrize("part", PARTS)
def test_the_part_that_was_altered_is_named(run: SmallRun, part: str) -> None:
    def change(statement: dict[str, Any]) -> None:
        predicate = statement["predicate"]
        predicate[part] = 1 if part in ("checkpoints", "made_at_s") else {}

    with pytest.raises(IntegrityError, match=f"^{part}: ") as caught:
        check(restated(run, change))
    assert caught.value.code == "run-receipt-altered"


def test_a_part_with_a_new_digest_fails_at_the_signature(run: SmallRun) -> None:
    def change(statement: dict[str, Any]) -> None:
        predicate = statement["predicate"]
        predicate["checkpoints"] = 7
        predicate["digests"]["checkpoints"] = Digest.of(b"7").to_text()

    with pytest.raises(IntegrityError, match=r"^signature: "):
        check(restated(run, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(_type="other"),
        lambda s: s.update(predicateType="other"),
        lambda s: s.update(more=1),
        lambda s: s["subject"][0]["digest"].update(sha256="xy"),
        lambda s: s["subject"][0]["digest"].update(sha256="00" * 31),
        lambda s: s["subject"].append(s["subject"][0]),
        lambda s: s["predicate"].pop("digests"),
        lambda s: s["predicate"].update(more=1),
    ],
)
def test_what_is_no_statement_of_a_run(
    run: SmallRun, change: Callable[[dict[str, Any]], None]
) -> None:
    with pytest.raises((MalformedError, IntegrityError)):
        check(restated(run, change))


def signed_by(run: SmallRun, **changes: Any) -> bytes:
    """A lie of the one accelerator, whose own account says the same."""
    receipt = accounted(replace(run.receipt, **changes), [run.instance])
    return sign_run(receipt, run.instance)


def uses(run: SmallRun, **changes: Any) -> bytes:
    first, *others = run.receipt.uses.tables
    tables = (replace(first, **changes), *others)
    return signed_by(run, uses=replace(run.receipt.uses, tables=tables))


def manifest(run: SmallRun, **changes: Any) -> bytes:
    return signed_by(run, manifest=replace(run.receipt.manifest, **changes))


def only_ada(run: SmallRun) -> Uses:
    return Uses.of(run.visits[0])


def doubled(run: SmallRun) -> Uses:
    uses = run.receipt.uses
    return replace(uses, tables=uses.tables * 2)


LIES: dict[str, tuple[Callable[[SmallRun], bytes], str, str]] = {
    "level": (lambda r: manifest(r, level=Level.TEE), "evidence", "manifest-level"),
    "no-release": (lambda r: signed_by(r, released=()), "keys released", "no-release"),
    "one-release": (
        lambda r: signed_by(r, released=r.receipt.released[1:]),
        "keys released",
        "no-release",
    ),
    "dirty": (lambda r: uses(r, nonzero_bytes=1), "use of rows", "scrub"),
    "unscrubbed": (lambda r: uses(r, scrubbed_bytes=0), "use of rows", "scrub"),
    "bytes": (lambda r: uses(r, rows=1), "use of rows", "bad-rows"),
    "visits": (lambda r: uses(r, visits=9), "use of rows", "bad-rows"),
    "purpose": (lambda r: uses(r, purpose="heldout"), "use of rows", "bad-rows"),
    "rows": (
        lambda r: signed_by(r, distinct_rows={"ada": 10**6, "bern": 40, "cleo": 40}),
        "coverage",
        "bad-rows",
    ),
    "owners": (lambda r: signed_by(r, distinct_rows={}), "coverage", "bad-rows"),
    "too-few": (
        lambda r: signed_by(r, distinct_rows={"ada": 0, "bern": 0, "cleo": 0}),
        "coverage",
        "output-withheld",
    ),
    "nothing": (
        lambda r: signed_by(r, uses=Uses(), released=()),
        "coverage",
        "bad-rows",
    ),
    "less": (lambda r: signed_by(r, uses=only_ada(r)), "coverage", "bad-rows"),
    "no-heads": (lambda r: manifest(r, heads=()), "keys released", "head-missing"),
    "negative": (lambda r: uses(r, sealed_bytes=-1), "use of rows", "bad-rows"),
    "twice": (lambda r: signed_by(r, uses=doubled(r)), "use of rows", "bad-rows"),
    "checkpoints": (
        lambda r: signed_by(r, checkpoints=-1),
        "checkpoints",
        "bad-run-receipt",
    ),
}


@pytest.mark.parametrize(("lie", "line", "code"), LIES.values(), ids=LIES.keys())
def test_a_lie_that_is_signed_is_found_in_its_line(
    run: SmallRun, lie: Callable[[SmallRun], bytes], line: str, code: str
) -> None:
    with pytest.raises(SealiftError) as caught:
        check(lie(run))
    assert caught.value.code == code
    assert str(caught.value).startswith(f"{line}: ")


def test_a_receipt_of_another_job_is_not_kept(run: SmallRun) -> None:
    raw, verified = sign_run(run.receipt, run.instance), run.verified()
    assert demand_of(raw, verified, job="job-1") == raw
    with pytest.raises(PolicyError, match="its job") as refused:
        demand_of(raw, verified, job="job-2")
    assert "accelerator-0 wrote a receipt" in str(refused.value)


@pytest.mark.parametrize("at_s", [-1, 10**12, 2**53 - 1])
def test_a_time_that_nobody_can_say(run: SmallRun, at_s: int) -> None:
    with pytest.raises(MalformedError, match="not the receipt of a run"):
        check(signed_by(run, made_at_s=at_s))


def test_a_release_to_another_instance_counts_for_nothing(run: SmallRun) -> None:
    """The same owners' own logs, their own words: about somebody else."""
    other = SigningKey.generate()
    box = run.boxes["ada"]
    foreign = release(run.consortium, box, "ada", "train", other)
    with pytest.raises(
        PolicyError, match=r"^keys released: a key was released to another"
    ):
        check(signed_by(run, released=(foreign, *run.receipt.released[1:])))


def test_releases_of_other_owners_are_nobodys(run: SmallRun, tmp_path: Path) -> None:
    with small_run(tmp_path) as other:
        raw = signed_by(run, released=other.receipt.released)
        with pytest.raises(SealiftError, match=r"^keys released: "):
            check(raw)


def test_another_instance_cannot_sign_it(run: SmallRun) -> None:
    """Evidence binds one key; a forger's own one fails in the line of the evidence."""
    forger = SigningKey.generate()
    forged = replace(
        run.receipt,
        manifest=replace(
            run.receipt.manifest,
            instance=forger.public_key,
            ranks=(forger.public_key,),
        ),
    )
    with pytest.raises(EvidenceError, match=r"^evidence: "):
        check(sign_run(forged, forger))
    with pytest.raises(IntegrityError, match=r"^signature: "):
        check(sign_run(run.receipt, forger))


def test_an_agreement_that_not_all_signed_is_none(run: SmallRun) -> None:
    signed = run.receipt.agreement
    unsigned = SignedAgreement(
        signed.agreement,
        {k: v for k, v in signed.signatures.items() if k != "bern"},
        signed.former,
    )
    with pytest.raises(SealiftError) as caught:
        check(signed_by(run, agreement=unsigned))
    assert caught.value.code in ("agreement-unsigned", "unsigned")


def test_mutant_without_the_scrub_check_believes_it(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = dict(runreceipt._CHECKS) | {"use of rows": lambda *_: "whatever"}
    monkeypatch.setattr(runreceipt, "_CHECKS", checks)
    assert check(uses(run, nonzero_bytes=1))


def test_mutant_without_digests_does_not_name_the_part(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature still refuses; only the name of the part is lost."""

    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["checkpoints"] = 1

    class Blind(Digest):
        @classmethod
        def of(cls, raw: bytes) -> Digest:  # type: ignore[override]
            return next(digests)

    envelope = json.loads(sign_run(run.receipt, run.instance))
    kept = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["digests"]
    digests = iter(Digest.from_text(kept[name]) for name in sorted(kept))
    raw = restated(run, change)
    monkeypatch.setattr(runreceipt, "Digest", Blind)
    with pytest.raises(SealiftError) as caught:
        open_run(raw)
    assert str(caught.value).startswith("signature: ")


def test_a_receipt_without_a_model_names_the_totals(run: SmallRun) -> None:
    bare = replace(run.receipt.manifest, weights=None)
    raw = signed_by(run, manifest=bare)
    receipt: RunReceipt = open_run(raw)
    assert receipt.subject_name == "statistics.json"
