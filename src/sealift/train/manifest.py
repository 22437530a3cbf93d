"""The result manifest: what a run was, signed by the accelerator that ran it.

It names the level that was proved (never a better one), the plan, what kept one owner's
rows from the next, and that the recipe ran without a sandbox. The orchestrator passes
it on and signs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sealift.codec import decode, encode
from sealift.crypto.kdf import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.ids import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """One finished run.

    Attributes:
        level: Assurance level of the accelerator's evidence.
        plan: How the work was laid out.
        buffers: 1: one holder's rows were gone before the next holder was met.
        sandbox: What kept the recipe in; ``none`` until there is one.
        instance: The accelerator's instance key, which signs this.
        weights: Digest of the model's state.
        steps: Optimizer steps.
        rows: Rows trained on, with repetition.
        visits: Training visits by data owner.
        metrics: Means over all held-out rows, by the output rule.
        model_released: Whether the model left, sealed for its owner.
    """

    job: str
    agreement: Digest
    level: str
    plan: Literal["travel"]
    buffers: Literal[1]
    sandbox: Literal["none"]
    software: str
    instance: PublicKey
    weights: Digest
    steps: int
    rows: int
    visits: dict[str, int]
    metrics: dict[str, float]
    model_released: bool


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """Canonical bytes of a manifest and the instance key's signature, not verified."""

    manifest: bytes
    signature: bytes


def sign_manifest(manifest: RunManifest, signer: Signer) -> tuple[bytes, bytes]:
    """(canonical bytes, signature by the instance key)."""
    raw = encode(manifest)
    return raw, signer.sign(Label.MANIFEST, raw)


def verify_manifest(raw: bytes, signature: bytes, instance: PublicKey) -> RunManifest:
    """Return the manifest if this instance signed it.

    Raises:
        AuthenticationError: if it did not.
        MalformedError: if it does not parse.
    """
    instance.verify(Label.MANIFEST, raw, signature)
    return decode(RunManifest, raw)
