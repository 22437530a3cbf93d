"""Shares and approvals in a run's folder: what an approver reads and adds.

An approver needs the manifest and its own share, not the sealed model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.codec import decode, encode
from sealift.crypto.identity import Identity
from sealift.errors import PolicyError, UsageError
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole, write_whole
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
from sealift.train.output.manifest import RunManifest
from sealift.train.output.sealing import MODEL_NAME, key_name, open_stream

MAX_SHARE_BYTES: Final = 1 << 20
MAX_SEALED_BYTES: Final = 1 << 34


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What one approver is asked: a verified manifest, and its share of the key."""

    manifest: RunManifest
    share: ApproverShare


def read_request(
    folder: Path, manifest: RunManifest, approver: Identity, verified: VerifiedAgreement
) -> ApprovalRequest:
    """What a run asks of an approver; everything is checked, nothing given.

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
    _require_approver(approver, verified)
    place = folder / approval_name(approver.name)
    if place.exists():
        raise UsageError(
            f"{place} exists", why=f"{approver.name} approved already", code="exists"
        )
    raw = read_whole(folder / share_name(approver.name), MAX_SHARE_BYTES)
    share = decode(ApproverShare, raw)
    model = _model_name(manifest, share.info.model.sealed)
    verify_approver_share(share, model, approver.name, verified.agreement.model_to)
    return ApprovalRequest(manifest, share)


def approve(
    folder: Path,
    request: ApprovalRequest,
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
    seen = Digest.of(encode(request.manifest))
    approval = make_approval(request.share, seen, approver, parties)
    place = folder / approval_name(approver.name)
    write_whole(place, encode(approval))
    return place


def open_approved(
    folder: Path,
    recipient: Identity,
    manifest: RunManifest,
    verified: VerifiedAgreement,
) -> bytes:
    """The model of a run that everybody approved of, as safetensors bytes.

    Raises:
        PolicyError: ``approval-missing``, by name; ``approval-unsigned``,
            ``approval-differs``, ``approval-false``, ``share-differs``.
        AuthenticationError: if anything is not what it was sealed or signed as.
        UnavailableError: if a file cannot be read.
    """
    agreement = verified.agreement
    approvers = agreement.output_rule.approved_by
    sealed = read_whole(folder / MODEL_NAME, MAX_SEALED_BYTES)
    model = _model_name(manifest, Digest.of(sealed))
    raw = read_whole(
        folder / key_name(recipient.name, agreement.model_to), MAX_SHARE_BYTES
    )
    own = decode(RecipientShare, raw)
    verify_recipient_share(own, model, recipient.name, approvers)
    _require_approvals(folder, approvers)
    shares = {}
    for committed in own.info.approvers:
        name = committed.approver
        expected = ApprovalInfo(
            kind="approval",
            model=model,
            manifest=Digest.of(encode(manifest)),
            approver=name,
            recipient=recipient.name,
        )
        shares[name] = open_approval(
            _read_approval(folder, name),
            expected,
            signer=verified.party(name).sign,
            private=recipient.hpke,
            commitment=committed.commitment,
        )
    return open_stream(sealed, join_shares(own, recipient.hpke, shares))


def _require_approvals(folder: Path, approvers: Sequence[str]) -> None:
    """Say who has not approved yet.

    Raises:
        PolicyError: ``approval-missing``.
    """
    missing = [n for n in approvers if not (folder / approval_name(n)).exists()]
    if missing:
        raise PolicyError(
            f"the model waits for the approval of {' and '.join(missing)}",
            why=f"there is no {' and no '.join(map(approval_name, missing))}",
            code="approval-missing",
        )


def _read_approval(folder: Path, approver: str) -> Approval:
    return decode(
        Approval, read_whole(folder / approval_name(approver), MAX_SHARE_BYTES)
    )


def _require_approver(approver: Identity, verified: VerifiedAgreement) -> None:
    names = verified.agreement.output_rule.approved_by
    if not names:
        raise UsageError(
            "nobody needs to approve of this model",
            why="the agreement names nobody in output.approved_by",
            code="no-approvers",
        )
    keys = {name: verified.party(name).sign for name in names}
    if keys.get(approver.name) != approver.public_key:
        raise PolicyError(
            f"this identity is not the agreement's {' or '.join(names)}",
            why=f"it is {approver.name}",
            fix="Only who is named in output.approved_by can approve",
            code="other-key",
        )


def _model_name(manifest: RunManifest, sealed: Digest) -> ModelName:
    assert manifest.weights is not None, "the run made a model"
    return ModelName(
        job=manifest.job,
        agreement=manifest.agreement,
        weights=manifest.weights,
        sealed=sealed,
        instance=manifest.instance,
    )
