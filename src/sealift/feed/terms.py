"""What each end of a link demands of the other: the signed agreement says it.

The owner trusts the agreement because it signed it; the device's evidence must satisfy
it, with a level and the code that it names. The device takes a data owner of it, who
proves that with its identity key. Everything wrong at home is found before anybody is
spoken to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sealift import __version__
from sealift.attest.collateral import MAX_BUNDLE_BYTES, parse_bundle
from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Attester
from sealift.attest.level import Level
from sealift.attest.reference import (
    MAX_SET_BYTES,
    parse_set,
)
from sealift.crypto.identity import Identity, load_identity
from sealift.errors import PolicyError, UnavailableError, UsageError
from sealift.events import wall_clock
from sealift.ids import Role
from sealift.release.agreement.code import load_bundle
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.decision import decide, require_home
from sealift.release.equip import equip
from sealift.release.facts import Owner, ReleaseKind, ReleaseQuestion, ReleaseState
from sealift.release.files import read_secret_line, read_whole
from sealift.session.endpoint import Endpoint, PeerPolicy, VerifiedPeer
from sealift.travel.peers import accelerator_names, expect_data_owner

File = str | Path


def load_agreement(
    agreement: File | VerifiedAgreement,
    *,
    collateral: File | None = None,
    references: Iterable[File] = (),
) -> VerifiedAgreement:
    """The signed agreement, with what evidence is judged with.

    Args:
        agreement: Its file; or one that was verified and equipped already.
        collateral: For a file.
        references: For a file.

    Raises:
        SealiftError: if it is not signed by all who must, was ended, or is not about
            training (``other-purpose``): only then it names owners of rows.
    """
    if isinstance(agreement, VerifiedAgreement):
        agreement.agreement.require_about("train")
        if collateral is not None or tuple(references):
            raise UsageError(
                "this agreement already has its collateral and references",
                fix=(
                    "Give collateral= and references= only together with an "
                    "agreement's file"
                ),
            )
        return agreement
    sets = [parse_set(read_whole(Path(each), MAX_SET_BYTES)) for each in references]
    bundle = None
    if collateral is not None:
        bundle = parse_bundle(read_whole(Path(collateral), 2 * MAX_BUNDLE_BYTES))
    verified = load_verified(Path(agreement))
    verified.agreement.require_about("train")
    return equip(verified, clock=wall_clock, collateral=bundle, sets=sets)


def load_key(
    identity: File | Identity,
    passphrase: str | None = None,
    passphrase_file: File | None = None,
) -> Identity:
    """An identity that is unlocked already, or an identity file with its passphrase.

    Raises:
        UsageError: unless a file has exactly one of both.
        RefusedError: code ``wrong-passphrase``.
    """
    given = (passphrase is not None) + (passphrase_file is not None)
    if isinstance(identity, Identity):
        if given:
            raise UsageError("this identity is already unlocked")
        return identity
    if given != 1:
        raise UsageError("Leave out passphrase= and passphrase_file=")
    if passphrase_file is not None:
        passphrase = read_secret_line(Path(passphrase_file))
    return load_identity(Path(identity), passphrase or "")


def owner_endpoint(agreement: VerifiedAgreement, identity: Identity) -> Endpoint:
    """The owner's side, if its own rules allow that anything is fed now.

    Raises:
        PolicyError: see ``require_home``.
    """
    owner = Owner(identity.name, identity.public_key)
    require_home(owner, agreement, wall_clock())
    return Endpoint(
        role=Role.HOLDER,
        name=identity.name,
        agreement=agreement.digest,
        identity=identity,
    )


def device_endpoint(
    agreement: VerifiedAgreement,
    code: File,
    *,
    identity: Identity | None = None,
    attester: Attester | None = None,
) -> Endpoint:
    """The device's side; its code is read and compared with the agreement first.

    Raises:
        PolicyError: ``agreement-not-yet`` or ``agreement-expired``.
        IntegrityError: code ``code-bundle-differs``.
        UnavailableError: code ``no-evidence``.
        PolicyError: code ``attester-unknown``.
    """
    agreement.agreement.require_time(wall_clock())
    load_bundle(Path(code), agreement.agreement.code)
    return Endpoint(
        role=Role.ACCELERATOR,
        name=accelerator_names()[0],
        agreement=agreement.digest,
        attester=attester or _development_attester(agreement, identity),
    )


def expect_owner(agreement: VerifiedAgreement, owner: str = "") -> PeerPolicy:
    """A data owner of the agreement who signed it; the named one, if one is named.

    Raises:
        PolicyError: ``not-a-party``, ``not-a-data-owner``, ``owner-unsigned`` or
            ``owner-left``.
    """
    owners = agreement.agreement.data_owners
    if owner:
        agreement.party(owner)
        if owner not in owners:
            raise _no_data(owner)
        agreement.require_owner_signed(owner)
        owners = (owner,)
    signed = frozenset(owners) & agreement.signers - agreement.backing.left
    if not signed:
        raise _no_data("the signers")
    return replace(expect_data_owner(agreement), names=signed)


def require_possible(agreement: VerifiedAgreement, *, development: bool) -> None:
    """Refuse an agreement under which no device could be good enough for this owner.

    Raises:
        PolicyError: code ``development-refused``.
    """
    if agreement.accept == (Level.DEVELOPMENT,) and not development:
        raise PolicyError(
            "development evidence was refused",
            why=(
                "it does not protect data: whoever runs the device's process can read "
                "the batches"
            ),
            code="development-refused",
        )


class FeedDecision:
    """The owner's door to the device that it feeds: asked before each batch.

    Args:
        agreement: Verified.
        folder: Where statements about it lie; None knows of none that come.
        identity: The owner's.
        peer: The device, as the session proved it.
        judged_after_s: A time before which its evidence was not judged, by the
            monotonic clock.
    """

    def __init__(
        self,
        agreement: VerifiedAgreement,
        folder: Path | None,
        identity: Identity,
        peer: VerifiedPeer,
        judged_after_s: float,
    ) -> None:
        self._statements = StatementsInForce(agreement, folder, clock=wall_clock)
        self._owner = Owner(identity.name, identity.public_key)
        self._peer = peer
        self._judged_after_s = judged_after_s

    def require(self) -> None:
        """Return if a batch may leave now.

        Raises:
            RefusedError: see ``decide``.
        """
        verified, ended = self._statements.judged()
        state = ReleaseState(
            owner=self._owner,
            verified=verified,
            at_s=wall_clock(),
            ended=ended,
            revoked="",
            evidence_age_s=time.monotonic() - self._judged_after_s,
        )
        decide(ReleaseQuestion(kind=ReleaseKind.FED_DEVICE, peer=self._peer), state)


def _development_attester(
    agreement: VerifiedAgreement, identity: Identity | None
) -> Attester:
    document = agreement.agreement
    if identity is None or agreement.accept != (Level.DEVELOPMENT,):
        raise UnavailableError(
            "this process has no means to make evidence",
            why=f"the agreement accepts the levels {', '.join(agreement.accept)}",
            fix="Give attester=; or, for level development only, identity=",
            code="no-evidence",
        )
    if identity.public_key not in document.references.development_attesters:
        raise PolicyError(
            f"the agreement does not name {identity.name}'s attester key",
            code="attester-unknown",
        )
    return DevelopmentAttester(
        identity,
        role=Role.ACCELERATOR,
        code_bundle=document.code.digest,
        software=f"sealift {__version__}",
    )


def _no_data(name: str) -> PolicyError:
    return PolicyError(f"{name} has no data in this agreement", code="not-a-data-owner")
