"""What the door for the KBS protocol adds to the owner's decision (rule M5).

Everything else is the decision of ``release/broker.py``, the same for every door: this
one may only refuse more. Pure; the protocol itself is ``sealift.service``.
Source: spec/kbs.md section Release.
"""

from __future__ import annotations

from dataclasses import dataclass

from sealift.attest.result import AttestationResult
from sealift.errors import PolicyError
from sealift.ids import Digest, Role
from sealift.release.agreement import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class KbsAsker:
    """Who asks by the KBS protocol: whoever holds the key that its evidence bound.

    Attributes:
        name: For the log: ``kbs-`` and the kind of evidence, as it says.
        agreement: Named in the nonce that the evidence bound.
        result: What its evidence amounted to.
        binder: SHA-256 of the runtime data that the evidence bound; stands where a
            session's th2 stands.
    """

    name: str
    agreement: Digest
    result: AttestationResult
    binder: bytes

    @property
    def role(self) -> Role:
        """Resources are for accelerators; evidence of another role is refused."""
        return Role.ACCELERATOR


def require_kbs(resource: Resource) -> None:
    """Refuse a resource that its owner did not open to this protocol.

    Raises:
        PolicyError: ``kbs-not-allowed``, or ``kbs-no-lease``: there is nobody to renew
            a lease and no channel to end it on.
    """
    if not resource.rule.kbs:
        raise PolicyError(
            f"{resource.owner} does not release {resource.name} by the KBS protocol",
            why="the rule of the resource does not say kbs",
            fix="Take part in the job with sealift, or let its owner sign kbs = true",
            code="kbs-not-allowed",
        )
    if resource.rule.lease_s is not None:
        raise PolicyError(
            f"the key of {resource.name} is released under a lease only",
            why="the KBS protocol has no way to renew or to end one",
            fix="Take part in the job with sealift",
            code="kbs-no-lease",
        )
