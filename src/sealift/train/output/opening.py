"""A run's folder in the hands of a party: approve of its model, open it, all checked.

What is trusted is the agreement alone: the manifest's evidence binds the instance key,
the instance key signed the output's key, and the state that comes out has the digest
that the manifest names. Nothing is unpickled. An approver needs the manifest and its own
share of the model's key, not the sealed model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.codec import decode, encode
from sealift.crypto.identity import Identity
from sealift.errors import (
    IntegrityError,
    PolicyError,
    UnavailableError,
    UsageError,
    require_value,
)
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole, write_whole
from sealift.train.loop.states import parse_tensors, state_digest
from sealift.train.output.approval import (
    Approval,
    ApprovalInfo,
    ApproverShare,
    ModelName,
    RecipientShare,
    approval_name,
    join_shares,
    make_approval,
    open_approval,
    share_name,
    verify_approver_share,
    verify_recipient_share,
)
from sealift.train.output.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    RunManifest,
    SignedManifest,
    verify_manifest,
)
from sealift.train.output.sealing import MODEL_NAME, key_name, open_model, open_stream

MAX_SHARE_BYTES: Final = 1 << 20
MAX_SEALED_BYTES: Final = 1 << 34


def read_manifest(folder: Path, verified: VerifiedAgreement) -> RunManifest:
    """The verified manifest of a run's folder.

    Raises:
        UnavailableError: if it cannot be read.
        RefusedError: if it is not by an accelerator that the agreement accepts.
    """
    raw = read_whole(folder / MANIFEST_NAME, MAX_MANIFEST_BYTES)
    return verify_manifest(decode(SignedManifest, raw), verified)


def read_model_manifest(folder: Path, verified: VerifiedAgreement) -> RunManifest:
    """The verified manifest of a run that made a model.

    Raises:
        UnavailableError: ``no-model``, or if it cannot be read.
        RefusedError: if it is not by an accelerator that the agreement accepts.
    """
    manifest = read_manifest(folder, verified)
    if manifest.weights is None:
        raise UnavailableError(
            f"the run in {folder} has no model",
            why="its job computed only statistics",
            code="no-model",
        )
    return manifest


def read_share(
    folder: Path, manifest: RunManifest, approver: Identity, verified: VerifiedAgreement
) -> ApproverShare:
    """An approver's share of the model's key; everything is checked, nothing given.

    Args:
        folder: Of the run.
        manifest: Verified, of a run that made a model.
        approver: Whoever looks.
        verified: The agreement.

    Raises:
        UsageError: ``no-approvers``; ``exists``: it approved already.
        PolicyError: ``other-key``: it is nobody's who must approve; ``share-differs``.
        AuthenticationError: if the run's accelerator did not make the share.
        UnavailableError: if the share cannot be read.
    """
    names = verified.agreement.output_rule.approved_by
    if not names:
        raise UsageError(
            "this model needs no approval",
            why="the agreement names no approvers in output.approved_by",
            code="no-approvers",
        )
    fix = "Only a party that output.approved_by names can approve"
    _require_named(approver, names, verified, fix)
    place = folder / approval_name(approver.name)
    if place.exists():
        raise UsageError(
            f"{place} exists",
            why=f"{approver.name} has already approved",
            code="exists",
        )
    raw = read_whole(folder / share_name(approver.name), MAX_SHARE_BYTES)
    share = decode(ApproverShare, raw)
    model = _model_name(manifest, share.info.model.sealed)
    verify_approver_share(share, model, approver.name, verified.agreement.model_to)
    return share


def approve(
    folder: Path,
    manifest: RunManifest,
    share: ApproverShare,
    approver: Identity,
    verified: VerifiedAgreement,
) -> Path:
    """Give the share to everybody who gets the model; the file that says so.

    Raises:
        AuthenticationError: if the share does not open.
        PolicyError: ``share-differs``.
        UnavailableError: if the file cannot be written.
    """
    parties = [verified.party(name) for name in verified.agreement.model_to]
    approval = make_approval(share, Digest.of(encode(manifest)), approver, parties)
    place = folder / approval_name(approver.name)
    write_whole(place, encode(approval))
    return place


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model whose origin and weights were checked.

    Attributes:
        manifest: What the run was.
        weights: Digest of the model's state, as the manifest names it.
        content: The model's state as safetensors.
        tensors: How many tensors it has.
        parameters: How many numbers they hold.
    """

    manifest: RunManifest
    weights: Digest
    content: bytes
    tensors: int
    parameters: int


def open_output(
    folder: Path, owner: Identity, verified: VerifiedAgreement
) -> OpenedModel:
    """Open ``model.sealed`` of a run with the identity of a party that gets it.

    Raises:
        PolicyError: ``other-key``, if this is nobody's who gets the model;
            ``approval-missing``, by name; ``approval-unsigned``, ``approval-differs``,
            ``approval-false``, ``share-differs``.
        RefusedError: if anything of the output does not fit the agreement.
        MalformedError: if the model is not safetensors.
        UnavailableError: ``no-model``, or if a file cannot be read.
    """
    agreement = verified.agreement
    recipients = agreement.model_to
    _require_named(
        owner,
        recipients,
        verified,
        "Only a party that the agreement gives the model to can open it",
    )
    manifest = read_model_manifest(folder, verified)
    if agreement.output_rule.approved_by:
        content = _open_approved(folder, owner, manifest, verified)
    else:
        key_file = key_name(owner.name, recipients)
        content = open_model(folder, owner.hpke, manifest.instance, key_file)
    state = parse_tensors(content)
    weights = state_digest(state)
    if weights != manifest.weights:
        raise IntegrityError(
            "the model's weights differ from those that the manifest names",
            code="weights-differ",
        )
    parameters = sum(tensor.elements for tensor in state.values())
    return OpenedModel(manifest, weights, content, len(state), parameters)


def _open_approved(
    folder: Path,
    recipient: Identity,
    manifest: RunManifest,
    verified: VerifiedAgreement,
) -> bytes:
    """The model of a run that everybody approved of, as safetensors bytes."""
    agreement = verified.agreement
    approvers = agreement.output_rule.approved_by
    sealed = read_whole(folder / MODEL_NAME, MAX_SEALED_BYTES)
    model = _model_name(manifest, Digest.of(sealed))
    key_file = folder / key_name(recipient.name, agreement.model_to)
    own = decode(RecipientShare, read_whole(key_file, MAX_SHARE_BYTES))
    verify_recipient_share(own, model, recipient.name, approvers)
    missing = [n for n in approvers if not (folder / approval_name(n)).exists()]
    if missing:
        raise PolicyError(
            f"{' and '.join(missing)} must approve the model before it can be opened",
            why=f"the folder has no {' and no '.join(map(approval_name, missing))}",
            code="approval-missing",
        )
    shares = {}
    for committed in own.info.approvers:
        name = committed.approver
        raw = read_whole(folder / approval_name(name), MAX_SHARE_BYTES)
        expected = ApprovalInfo(
            kind="approval",
            model=model,
            manifest=Digest.of(encode(manifest)),
            approver=name,
            recipient=recipient.name,
        )
        shares[name] = open_approval(
            decode(Approval, raw),
            expected,
            signer=verified.party(name).sign,
            private=recipient.hpke,
            commitment=committed.commitment,
        )
    return open_stream(sealed, join_shares(own, recipient.hpke, shares))


def _require_named(
    identity: Identity, names: Sequence[str], verified: VerifiedAgreement, fix: str
) -> None:
    """It is one of these parties of the agreement, by name and key; else ``other-key``."""
    keys = {name: verified.party(name).sign for name in names}
    if keys.get(identity.name) != identity.public_key:
        raise PolicyError(
            f"this identity does not belong to {' or '.join(names)} in the agreement",
            why=f"it belongs to {identity.name}, or has another key",
            fix=fix,
            code="other-key",
        )


def _model_name(manifest: RunManifest, sealed: Digest) -> ModelName:
    return ModelName(
        job=manifest.job,
        agreement=manifest.agreement,
        weights=require_value(manifest.weights, "the run made a model"),
        sealed=sealed,
        instance=manifest.instance,
    )
