"""Receipts and manifests name the level that the evidence proves, not the wished one."""

from __future__ import annotations

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.attest.level import Level
from sealift.crypto.sign import SigningKey
from sealift.errors import EvidenceError, PolicyError, UsageError
from sealift.ids import Role
from sealift.release.receipt import appraise_instance, prove_instance
from sealift.session.endpoint import Endpoint
from tests.worlds.consortium import Consortium, make_consortium


def endpoint(consortium: Consortium, role: Role = Role.ACCELERATOR) -> Endpoint:
    agreement = consortium.agreement
    attester = DevelopmentAttester(
        consortium.attester, role=role, code_bundle=agreement.code.digest
    )
    return Endpoint(
        role=Role.ACCELERATOR,
        name="accelerator-0",
        agreement=agreement.digest,
        attester=attester,
    )


def test_the_proof_is_what_readers_will_find() -> None:
    consortium = make_consortium()
    ours, verified = endpoint(consortium), consortium.verified()
    proof = prove_instance(ours, verified)
    assert proof.level == "development"
    found = appraise_instance(proof.evidence, ours.instance.public_key, verified)
    assert found.standing == proof.level


def test_a_wished_level_is_not_claimed() -> None:
    """Development evidence under an agreement that prefers a TEE: refused at home."""
    consortium = make_consortium().successor(accept=(Level.GPU_TEE, Level.TEE))
    with pytest.raises(PolicyError, match="development evidence"):
        prove_instance(endpoint(consortium), consortium.verified())


def test_evidence_of_another_role_signs_no_receipts() -> None:
    consortium = make_consortium()
    with pytest.raises(PolicyError, match="another role"):
        prove_instance(endpoint(consortium, Role.HOLDER), consortium.verified())


def test_another_key_is_not_bound() -> None:
    consortium = make_consortium()
    verified = consortium.verified()
    proof = prove_instance(endpoint(consortium), verified)
    other = SigningKey.generate().public_key
    with pytest.raises(EvidenceError, match="bound"):
        appraise_instance(proof.evidence, other, verified)


def test_without_attester_there_is_no_proof() -> None:
    consortium = make_consortium()
    bare = Endpoint(
        role=Role.ACCELERATOR,
        name="accelerator-0",
        agreement=consortium.agreement.digest,
    )
    with pytest.raises(UsageError):
        prove_instance(bare, consortium.verified())
