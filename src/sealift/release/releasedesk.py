"""The one way out for a key: decide, seal, count, log and sync; then it may leave.

Every door of a broker goes through it, so that none can be laxer than another. What a
door adds can only refuse.
Source: spec/release.md section Release, rules R1 and R3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey
from sealift.errors import SealiftError
from sealift.ids import Digest
from sealift.release.agreement import Resource
from sealift.release.auditlog import Appended
from sealift.release.broker import (
    Asker,
    Owner,
    ReleaseInfo,
    ReleaseRequest,
    authorize,
)
from sealift.release.grant import info_digest
from sealift.release.refusals import RefusalCount
from sealift.release.signed import VerifiedAgreement
from sealift.release.vault import Vault

S = TypeVar("S")


def nothing_more(resource: Resource) -> None:
    """What a door adds that adds nothing."""


class Tell(Protocol):
    """Emits an event of this owner's broker."""

    def __call__(self, kind: str, **fields: str) -> None:
        """One event with its fields."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what its door proved about who asks.

    Attributes:
        th2: Names the session, or what stands for it at that door.
        instance: The asking process's key, if the door knows one.
        opens: What the door adds; raises to refuse.
    """

    request: ReleaseRequest
    peer: Asker
    th2: bytes
    instance: PublicKey | None = None
    opens: Callable[[Resource], None] = nothing_more


class ReleaseDesk:
    """Releases the keys of one owner.

    Args:
        verified: The agreement that everybody signed.
        owner: For whom it decides.
        vault: The owner's keys.
        admit: Refuses a challenge that was used, and an agreement not in force.
        append: Writes an entry into the log and syncs it.
        tell: Emits an event.
        refusals: Says which refusals are logged.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        owner: Owner,
        vault: Vault,
        *,
        admit: Callable[[bytes], None],
        append: Callable[..., Appended],
        tell: Tell,
        refusals: RefusalCount,
        clock: Callable[[], float],
    ) -> None:
        self._verified = verified
        self._owner = owner
        self._vault = vault
        self._ledger = vault.ledger
        self._admit = admit
        self._append = append
        self._tell = tell
        self._refusals = refusals
        self._clock = clock

    def release(
        self,
        asked: Asked,
        seal: Callable[[SecretKey, ReleaseInfo], S],
        grant: Callable[[Resource], None] = nothing_more,
    ) -> tuple[S, Appended, ReleaseInfo]:
        """Release the key that is asked for; what is returned may leave.

        Args:
            asked: The request.
            seal: Encrypts the key to whoever asks.
            grant: Opens a lease, if the door has leases.

        Raises:
            RefusedError: its ``code`` names the rule that failed; it was logged, unless
                too many without evidence were.
            UnavailableError: if the entry cannot be written: then nothing leaves.
        """
        name = asked.peer.name
        try:
            info = self._authorize(asked)
            resource = self._verified.resource(info.resource)
            sealed = self._seal(info, seal)
            use = self._debit(resource)
            grant(resource)
        except SealiftError as error:
            if self._refusals.admit(asked.peer.result):
                self._log(asked, rule=error.code)
            self._tell("release.refused", rule=error.code, peer=name)
            raise
        logged = self._log(asked, info=info_digest(info), use=use)
        self._tell("release.granted", resource=info.resource, peer=name)
        return sealed, logged, info

    def _authorize(self, asked: Asked) -> ReleaseInfo:
        info = authorize(
            asked.request,
            asked.peer,
            asked.th2,
            verified=self._verified,
            owner=self._owner,
            at_s=self._clock(),
        )
        resource = self._verified.resource(info.resource)
        asked.opens(resource)
        self._admit(info.challenge)
        return info

    def _seal(
        self, info: ReleaseInfo, seal: Callable[[SecretKey, ReleaseInfo], S]
    ) -> S:
        data_key = self._vault.fetch(info.resource)
        try:
            return seal(data_key, info)
        finally:
            data_key.wipe()

    def _debit(self, resource: Resource) -> int:
        """(8) One more use of the key, counted before it leaves."""
        line, limit = self._verified.agreement.name, resource.rule.max_uses
        return self._ledger.debit(line, resource.name, limit)

    def _log(
        self, asked: Asked, *, rule: str = "", info: Digest | None = None, use: int = 0
    ) -> Appended:
        request, peer, result = asked.request, asked.peer, asked.peer.result
        return self._append(
            "refusal" if rule else "release",
            resource=request.resource[:63],
            purpose=request.purpose,
            role=peer.role.value,
            peer=peer.name,
            instance=asked.instance,
            session=asked.th2,
            level=result.standing if result else "",
            evidence=result.evidence if result else None,
            rule=rule,
            info=info,
            use=use,
            epoch=self._ledger.epoch(),
        )
