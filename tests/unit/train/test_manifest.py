"""A manifest claims what the agreement and its evidence bear out, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.codec import decode, encode
from sealift.crypto.sign import SigningKey
from sealift.errors import MalformedError, RefusedError
from sealift.ids import Digest, Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.receipt import prove_instance
from sealift.session.endpoint import Endpoint
from sealift.train.output.manifest import (
    RunManifest,
    SignedManifest,
    sign_manifest,
    verify_manifest,
)
from tests.worlds.consortium import Consortium, make_consortium

CONSORTIUM = make_consortium()


def endpoint(consortium: Consortium) -> Endpoint:
    agreement = consortium.agreement
    return Endpoint(
        role=Role.ACCELERATOR,
        name="accelerator-0",
        agreement=agreement.digest,
        attester=DevelopmentAttester(
            consortium.attester,
            role=Role.ACCELERATOR,
            code_bundle=agreement.code.digest,
        ),
    )


def draft(ours: Endpoint, agreement: VerifiedAgreement) -> RunManifest:
    proof = prove_instance(ours, agreement)
    return RunManifest(
        job="job",
        agreement=agreement.digest,
        level=proof.level,
        plan="travel",
        buffers=1,
        mixed=False,
        sandbox="none",
        device="cpu",
        software="sealift",
        instance=ours.instance.public_key,
        ranks=(ours.instance.public_key,),
        collectives="",
        traces=None,
        evidence=proof.evidence,
        weights=Digest.of(b"weights"),
        steps=1,
        rows=1,
        visits={},
        metrics={},
        statistics={},
        prepared={},
        resumed=0,
        heads=(),
    )


def verify(
    change: Callable[[RunManifest], RunManifest],
    agreement: VerifiedAgreement,
    signer: SigningKey | None = None,
) -> RunManifest:
    ours = endpoint(CONSORTIUM)
    manifest = change(draft(ours, CONSORTIUM.verified()))
    raw, signature = sign_manifest(manifest, signer or ours.instance)
    return verify_manifest(SignedManifest(raw, signature), agreement)


def test_a_manifest_as_it_is() -> None:
    assert verify(lambda m: m, CONSORTIUM.verified()).buffers == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: replace(m, buffers=2), "cargo-not-agreed"),
        (lambda m: replace(m, mixed=True), "cargo-not-agreed"),
        (lambda m: replace(m, level="tee"), "manifest-level"),
        (lambda m: replace(m, agreement=Digest.of(b"x")), "other-agreement"),
    ],
)
def test_a_manifest_that_claims_more(
    change: Callable[[RunManifest], RunManifest], code: str
) -> None:
    with pytest.raises(RefusedError) as refusal:
        verify(change, CONSORTIUM.verified())
    assert refusal.value.code == code


def test_what_the_agreement_allows_may_be_claimed() -> None:
    """The control: it is the agreement that decides."""
    agreed = CONSORTIUM.agreement
    travel = replace(agreed.travel, buffers=2, mixed=True)
    other = replace(CONSORTIUM, agreement=replace(agreed, travel=travel))
    ours = endpoint(other)
    manifest = replace(draft(ours, other.verified()), buffers=2, mixed=True)
    raw, signature = sign_manifest(manifest, ours.instance)
    verify_manifest(SignedManifest(raw, signature), other.verified())


def test_a_manifest_that_another_key_signed() -> None:
    with pytest.raises(RefusedError):
        verify(lambda m: m, CONSORTIUM.verified(), SigningKey.generate())


def test_a_plan_that_signs_no_manifest_has_none() -> None:
    raw = encode(draft(endpoint(CONSORTIUM), CONSORTIUM.verified()))
    with pytest.raises(MalformedError, match="plan local"):
        decode(RunManifest, raw.replace(b'"plan":"travel"', b'"plan":"local"'))
    assert decode(RunManifest, raw).plan == "travel"  # control
