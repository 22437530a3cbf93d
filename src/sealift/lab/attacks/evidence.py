"""Attacks on evidence (T5, development evidence): each fails for a rule of its own."""

from __future__ import annotations

import secrets
from dataclasses import replace

from sealift.attest.development.attester import DevelopmentAttester
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.crypto.hash import labelled
from sealift.crypto.kdf import Label
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.ids import Role
from sealift.lab.attacks.stage import Stage
from sealift.release.receipt import instance_bound


def other_challenge(stage: Stage) -> str:
    """Evidence of an earlier session, for one that has another challenge."""
    return _refusal(stage, _collect(stage, secrets.token_bytes(32)))


def unbound_key(stage: Stage) -> str:
    """Genuine evidence that binds the instance key of another process."""
    other = SigningKey.generate().public_key
    bound = instance_bound(other, stage.agreement.digest)
    return _refusal(stage, _collect(stage, bound))


def other_role(stage: Stage) -> str:
    """Evidence that the same process would show as a holder."""
    digest = stage.agreement.digest
    bound = labelled(
        Label.EVIDENCE, b"receipt", Role.HOLDER.encode(), stage.instance.raw, digest.raw
    )
    return _refusal(stage, _collect(stage, bound))


def other_attester(stage: Stage) -> str:
    """Evidence of a host that the agreement does not name."""
    stranger = SigningKey.generate()
    return _refusal(stage, _collect(stage, _bound(stage), stranger))


def not_asked_for(stage: Stage) -> str:
    """Development evidence where the agreement accepts a real level only."""
    return _refusal(stage, _collect(stage, _bound(stage)), (Level.TEE,))


def genuine(stage: Stage) -> bool:
    """Evidence of the agreed host, bound to what it must be bound to, is accepted."""
    return not _refusal(stage, _collect(stage, _bound(stage)))


def _bound(stage: Stage) -> bytes:
    return instance_bound(stage.instance, stage.agreement.digest)


def _collect(stage: Stage, bound: bytes, signer: SigningKey | None = None) -> Evidence:
    attester = DevelopmentAttester(
        signer or stage.attester_key,
        role=Role.ACCELERATOR,
        code_bundle=stage.agreement.agreement.code.digest,
    )
    return attester.collect(bound)


def _refusal(
    stage: Stage,
    evidence: Evidence,
    accept: tuple[Level, ...] = (Level.DEVELOPMENT,),
) -> str:
    try:
        ours = stage.agreement.appraiser()
        replace(ours, accept=accept).appraise(evidence, _bound(stage))
    except SealiftError as error:
        return error.code
    return ""
