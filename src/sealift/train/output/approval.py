"""The model's key in shares: nobody opens the model before every approver gave its own.

Where the output rule names approvers, the accelerator splits the key by XOR: one share
goes to everybody who gets the model, one to each approver. An approver that agrees
seals its share to each recipient and signs that; one that does not agree does nothing.
Every share is committed to, so that a false one is laid at its giver's door. Pure:
formats and decisions; ``train/output/opening.py`` has the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

from sealift.codec import encode
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.identity import Identity
from sealift.crypto.keys import Label, SecretKey, derive_bytes
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import AuthenticationError, PolicyError
from sealift.ids import Digest
from sealift.release.agreement import Party
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.checkpoint import join_key, split_key
from sealift.release.grant import open_grant, seal_grant, verify_grant
from sealift.train.output.sealing import key_name

_RECIPIENTS: Final = (
    ""  # whose share it is beside the approvers'; no party has this name
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """Which sealed model a share is for."""

    job: str
    agreement: Digest
    weights: Digest
    sealed: Digest
    instance: PublicKey


@dataclass(frozen=True, slots=True)
class Committed:
    """An approver, and the commitment to its share (32 bytes)."""

    approver: str
    commitment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientInfo:
    """HPKE's info of the share that everybody has who gets the model."""

    kind: Literal["recipient-share"]
    model: ModelName
    recipient: str
    approvers: tuple[Committed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproverInfo:
    """HPKE's info of one approver's share."""

    kind: Literal["approver-share"]
    model: ModelName
    approver: str
    recipients: tuple[str, ...]
    commitment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalInfo:
    """HPKE's info of a share that its approver gave to one recipient.

    Attributes:
        manifest: Digest of the manifest that the approver saw.
    """

    kind: Literal["approval"]
    model: ModelName
    manifest: Digest
    approver: str
    recipient: str


Info = RecipientInfo | ApproverInfo | ApprovalInfo


@dataclass(frozen=True, slots=True)
class RecipientShare:
    """``model.key*.json`` where somebody must approve; the instance key signed it."""

    info: RecipientInfo
    wrapped: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class ApproverShare:
    """``model.share.NAME.json``; the instance key signed it."""

    info: ApproverInfo
    wrapped: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class ApprovedShare:
    """An approver's share, for one recipient, signed by the approver."""

    info: ApprovalInfo
    wrapped: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Approval:
    """``model.approval.NAME.json``: one approver's share, by recipient."""

    shares: dict[str, ApprovedShare]


def share_name(approver: str) -> str:
    """The file of an approver's share, which the accelerator hands out."""
    return f"model.share.{approver}.json"


def approval_name(approver: str) -> str:
    """The file of an approval, which the approver adds to the run's folder."""
    return f"model.approval.{approver}.json"


def split_output_key(
    key: SecretKey, model: ModelName, verified: VerifiedAgreement, signer: Signer
) -> dict[str, bytes]:
    """The key of a model in shares, as files by name.

    Args:
        key: Stays as it is; the shares are wiped.
        model: What the key opens.
        verified: Names approvers and recipients, and has their keys.
        signer: The accelerator's instance key.
    """
    approvers = verified.agreement.output_rule.approved_by
    recipients = verified.agreement.model_to
    shares = split_key(key, (*approvers, _RECIPIENTS))
    committed = tuple(Committed(name, commit(shares[name], name)) for name in approvers)
    files = {}
    for name in recipients:
        for_recipient = RecipientInfo(
            kind="recipient-share", model=model, recipient=name, approvers=committed
        )
        party = verified.party(name)
        grant = _grant(shares[_RECIPIENTS], for_recipient, party, signer)
        own = RecipientShare(for_recipient, *grant)
        files[key_name(name, recipients)] = encode(own)
    for each in committed:
        for_approver = ApproverInfo(
            kind="approver-share",
            model=model,
            approver=each.approver,
            recipients=recipients,
            commitment=each.commitment,
        )
        party = verified.party(each.approver)
        grant = _grant(shares[each.approver], for_approver, party, signer)
        asked = ApproverShare(for_approver, *grant)
        files[share_name(each.approver)] = encode(asked)
    for share in shares.values():
        share.wipe()
    return files


def verify_approver_share(
    share: ApproverShare, model: ModelName, approver: str, recipients: tuple[str, ...]
) -> None:
    """Check that the accelerator made this share, for this approver and this model.

    Raises:
        AuthenticationError: if the instance key did not sign it.
        PolicyError: ``share-differs``.
    """
    expected = ApproverInfo(
        kind="approver-share",
        model=model,
        approver=approver,
        recipients=recipients,
        commitment=share.info.commitment,
    )
    _verify_share(share, expected, approver)


def verify_recipient_share(
    share: RecipientShare, model: ModelName, recipient: str, approvers: Sequence[str]
) -> None:
    """Check that the accelerator made this share, for this recipient and this model.

    Raises:
        AuthenticationError: if the instance key did not sign it.
        PolicyError: ``share-differs``.
    """
    found = {each.approver: each for each in share.info.approvers}
    expected = RecipientInfo(
        kind="recipient-share",
        model=model,
        recipient=recipient,
        approvers=tuple(found.get(n, Committed(n, b"")) for n in approvers),
    )
    _verify_share(share, expected, recipient)


def make_approval(
    share: ApproverShare,
    manifest: Digest,
    identity: Identity,
    recipients: Sequence[Party],
) -> Approval:
    """Give an approver's share to everybody who gets the model.

    Args:
        share: Verified.
        manifest: Digest of the manifest that the approver saw.
        identity: The approver's.
        recipients: Of the agreement.

    Raises:
        AuthenticationError: if the share is not for this identity.
        PolicyError: ``share-differs``: it is not the one committed to.
    """
    approver = identity.name
    key = open_grant(share.info, share.wrapped, identity.hpke)
    if commit(key, approver) != share.info.commitment:
        raise _differs(f"the share of {approver}", "commitment", "share-differs")
    given = {}
    for party in recipients:
        info = ApprovalInfo(
            kind="approval",
            model=share.info.model,
            manifest=manifest,
            approver=approver,
            recipient=party.name,
        )
        wrapped, signature = seal_grant(
            key,
            info,
            recipient=party.hpke,
            signer=identity,
            label=Label.OUTPUT_APPROVAL,
        )
        given[party.name] = ApprovedShare(info, wrapped, signature)
    key.wipe()
    return Approval(given)


def open_approval(
    approval: Approval,
    expected: ApprovalInfo,
    *,
    signer: PublicKey,
    private: HpkePrivateKey,
    commitment: bytes,
) -> SecretKey:
    """An approver's share, for the recipient that it was given to.

    Args:
        approval: As it lies in the run's folder.
        expected: What it must be for.
        signer: The approver's key in the agreement.
        private: The recipient's.
        commitment: To the share, from the accelerator.

    Raises:
        PolicyError: ``approval-unsigned``, ``approval-differs`` or ``approval-false``.
        AuthenticationError: if it does not open.
    """
    title = f"the approval of {expected.approver}"
    given = approval.shares.get(expected.recipient)
    if given is None:
        raise _differs(title, "recipient", "approval-differs")
    verify_giver(given, signer, expected.approver)
    require_same(expected, given.info, title, "approval-differs")
    share = open_grant(given.info, given.wrapped, private)
    require_committed(share, expected.approver, commitment)
    return share


def join_shares(
    own: RecipientShare, private: HpkePrivateKey, approved: Mapping[str, SecretKey]
) -> SecretKey:
    """The model's key out of a recipient's share and every approver's; they are wiped.

    Raises:
        AuthenticationError: if the recipient's share does not open.
    """
    share = open_grant(own.info, own.wrapped, private)
    return join_key((share, *approved.values()))


def commit(share: SecretKey, approver: str) -> bytes:
    """What binds an approver to its share and does not tell it (32 bytes)."""
    return derive_bytes(share, Label.OUTPUT_COMMITMENT, approver.encode())


def verify_giver(given: ApprovedShare, signer: PublicKey, approver: str) -> None:
    """Check the approver's signature.

    Raises:
        PolicyError: ``approval-unsigned``.
    """
    label = Label.OUTPUT_APPROVAL
    try:
        verify_grant(
            given.info, given.wrapped, given.signature, signer=signer, label=label
        )
    except AuthenticationError:
        raise PolicyError(
            f"{approver} did not sign this approval",
            why="the signature does not verify with the key in the agreement",
            code="approval-unsigned",
        ) from None


def require_same(expected: Info, found: Info, title: str, code: str) -> None:
    """Compare whole infos; the error names the first field that differs.

    Raises:
        PolicyError: with ``code``.
    """
    if found == expected:
        return
    names = (*_differing(expected.model, found.model), *_differing(expected, found))
    raise _differs(title, next(n for n in names if n != "model"), code)


def require_committed(share: SecretKey, approver: str, commitment: bytes) -> None:
    """Compare a share with its commitment.

    Raises:
        PolicyError: ``approval-false``.
    """
    if commit(share, approver) != commitment:
        share.wipe()
        raise PolicyError(
            f"the key share that {approver} approved with is not the share that it "
            "received",
            why="the accelerator committed to another share",
            code="approval-false",
        )


def _grant(
    share: SecretKey, info: Info, party: Party, signer: Signer
) -> tuple[bytes, bytes]:
    """A share as its accelerator hands it out."""
    return seal_grant(
        share, info, recipient=party.hpke, signer=signer, label=Label.OUTPUT_SHARE
    )


def _verify_share(
    share: RecipientShare | ApproverShare, expected: Info, owner: str
) -> None:
    verify_grant(
        share.info,
        share.wrapped,
        share.signature,
        signer=expected.model.instance,
        label=Label.OUTPUT_SHARE,
    )
    require_same(expected, share.info, f"the share of {owner}", "share-differs")


def _differing(expected: ModelName | Info, found: ModelName | Info) -> list[str]:
    names = [field.name for field in fields(expected)]
    return [n for n in names if getattr(expected, n) != getattr(found, n)]


def _differs(title: str, field: str, code: str) -> PolicyError:
    return PolicyError(
        f"{title} belongs to something else",
        why=f"it names another {field}",
        fix="Use the files of this run",
        code=code,
    )
