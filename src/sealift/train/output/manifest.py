"""The result manifest: what a run was, signed by the accelerator that ran it.

It names the level that was proved (never a better one), the plan, what kept one owner's
rows from the next, and which sandbox the recipe ran in. The orchestrator passes it on
and signs nothing. It carries the evidence that binds the signing key, so that the
model's owner can check it without having met the accelerator.

Afterwards an owner's log shows what its broker released to that instance, on which
evidence and at which level: it must say the same as the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

from sealift.attest.evidence import Evidence
from sealift.codec import decode, encode
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import IntegrityError, MalformedError, PolicyError
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.log.entries import Entry, LogEntry, SignedTreeHead
from sealift.release.receipt import appraise_instance, require_agreed_cargo
from sealift.train.loop.statistics import Statistic
from sealift.train.plans import PLANS, PlanName

MANIFEST_NAME: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """One finished run.

    Attributes:
        level: Assurance level of the accelerator's evidence.
        plan: How the work was laid out.
        buffers: As the run had it; ``release.agreement.phrases.cargo_promise`` says more.
        mixed: Whether batches were drawn across several owners' rows.
        sandbox: What kept the recipe in.
        device: Where it computed, with the name of a GPU: ``cpu``, ``cuda:0 NVIDIA H200``.
        statistics: Totals of ``prepare`` over all owners, by the output rule.
        prepared: Rows that they are made of, by data owner.
        resumed: How often the run went on from a checkpoint.
        instance: The accelerator's instance key, which signs this.
        ranks: Instance keys of all accelerators that the job had, the first is ``instance``.
        traces: Digest of the products that servers were asked for; None without any.
        collectives: What the ranks measured of each other and chose; empty for one.
        evidence: Binds ``instance`` by ``instance_bound``, as in a receipt.
        weights: Digest of the model's state; None where statistics alone were made.
        steps: Optimizer steps.
        rows: Rows trained on, with repetition.
        visits: Training visits by data owner.
        metrics: Means over all held-out rows, by the output rule.
        heads: Heads of every log that released a key to this accelerator, for the
            parties that held no visit.
    """

    job: str
    agreement: Digest
    level: str
    plan: PlanName
    buffers: Literal[1, 2]
    mixed: bool
    sandbox: str
    device: str
    software: str
    instance: PublicKey
    ranks: tuple[PublicKey, ...]
    collectives: str
    traces: Digest | None
    evidence: Evidence
    weights: Digest | None
    steps: int
    rows: int
    visits: dict[str, int]
    metrics: dict[str, float]
    statistics: dict[str, Statistic]
    prepared: dict[str, int]
    resumed: int
    heads: tuple[SignedTreeHead, ...]

    def __post_init__(self) -> None:
        if not PLANS[self.plan].manifest:
            raise MalformedError(
                f"a run of plan {self.plan} cannot have a manifest", field="plan"
            )
        if (self.traces is None) is (self.plan == "outsource"):
            raise MalformedError(
                "only runs of plan outsource have outsourced products", field="traces"
            )
        if self.ranks[:1] != (self.instance,):
            raise MalformedError(
                "the first rank did not sign this manifest", field="ranks"
            )


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """Canonical bytes of a manifest and the instance key's signature, not verified."""

    manifest: bytes
    signature: bytes


def sign_manifest(manifest: RunManifest, signer: Signer) -> tuple[bytes, bytes]:
    """(canonical bytes, signature by the instance key)."""
    raw = encode(manifest)
    return raw, signer.sign(Label.MANIFEST, raw)


def verify_manifest(signed: SignedManifest, verified: VerifiedAgreement) -> RunManifest:
    """Return the manifest if an accelerator that the agreement accepts signed it.

    Raises:
        AuthenticationError: if its instance key did not sign it.
        RefusedError: if the evidence does not bind that key, or proves another level.
        MalformedError: if it does not parse.
    """
    manifest = decode(RunManifest, signed.manifest)
    manifest.instance.verify(Label.MANIFEST, signed.manifest, signed.signature)
    return judge_manifest(manifest, verified)


def judge_manifest(manifest: RunManifest, verified: VerifiedAgreement) -> RunManifest:
    """Return a manifest that its instance key signed, if the agreement accepts that key.

    Raises:
        RefusedError: if the evidence does not bind that key, or proves another level.
    """
    if manifest.agreement != verified.digest:
        raise PolicyError("the run used another agreement", code="other-agreement")
    travel = verified.agreement.travel_rule
    ranks = verified.agreement.ranks if manifest.plan == "ddp" else 1
    if len(manifest.ranks) != ranks:
        raise PolicyError(
            f"the run used {len(manifest.ranks)} accelerators",
            why=f"the agreement names {ranks}",
            code="group-not-agreed",
        )
    require_agreed_cargo(manifest.buffers, manifest.mixed, travel)
    result = appraise_instance(manifest.evidence, manifest.instance, verified)
    if result.standing != manifest.level:
        raise PolicyError(
            "the manifest claims another level than its evidence proves",
            why=f"it claims {manifest.level}; the evidence proves {result.standing}",
            code="manifest-level",
        )
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRelease:
    """What one owner's log says of a run.

    Attributes:
        resources: What its broker released to the instance.
        evidence: Digests of the evidence that it was released on.
    """

    resources: tuple[str, ...]
    evidence: tuple[Digest, ...]


def head_of(manifest: RunManifest, log: PublicKey) -> SignedTreeHead:
    """The head of a log that the accelerator was shown, from a verified manifest.

    Raises:
        IntegrityError: ``other-log``: that log released nothing to this run.
    """
    for head in manifest.heads:
        if head.body.log == log:
            return head
    raise IntegrityError(
        "the manifest contains no head of this log",
        why="the log's broker released no key to this run",
        fix="Give the log of an owner whose rows the run used",
        code="other-log",
    )


def prove_releases(manifest: RunManifest, entries: Iterable[Entry]) -> ShownRelease:
    """Compare a verified log with a verified manifest: what any of its accelerators got.

    Args:
        manifest: Verified.
        entries: All of a log's entries, the log verified against ``head_of``.

    Raises:
        PolicyError: ``other-level``: a key went to this instance at another level.
        IntegrityError: ``no-release``: none went to it at all.
    """
    releases = [each for each in entries if _went_to(each, manifest)]
    if not releases:
        raise IntegrityError(
            "the log contains no release to the instance that signed the manifest",
            code="no-release",
        )
    for each in releases:
        if each.level != manifest.level:
            raise PolicyError(
                f"the log has a release of {each.subject} at another level than the "
                "manifest",
                why=f"the log says {each.level}; the manifest says {manifest.level}",
                code="other-level",
            )
    return ShownRelease(
        resources=tuple(each.resource for each in releases),
        evidence=tuple(dict.fromkeys(e.evidence for e in releases if e.evidence)),
    )


def _went_to(entry: Entry, manifest: RunManifest) -> TypeGuard[LogEntry]:
    return (
        isinstance(entry, LogEntry)
        and entry.kind == "release"
        and entry.instance in manifest.ranks
        and entry.agreement == manifest.agreement
    )
