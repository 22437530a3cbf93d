"""Who meets in a measurement: an owner of one resource, and an operator who runs the rest.

The owner is a process of its own that makes its identity and its data key itself; the
operator is the measurement.
"""

from __future__ import annotations

from secrets import token_bytes
from typing import Any, Final

from sealift.codec import decode, encode
from sealift.crypto.identity import Card, Identity, create_identity
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.ids import Role
from sealift.lab.bench.harness import Answer, End, Peer, pack, unpack
from sealift.lab.worlds.consortium import (
    MAIN_ROLES,
    ONE_HOLDER,
    OWNER_ROLES,
    draft,
)
from sealift.release.agreement import Resource
from sealift.release.agreement.signed import (
    SignedAgreement,
    VerifiedAgreement,
    add_signature,
    verify,
)
from sealift.session.endpoint import Endpoint

OWNER: Final = "owner"
RESOURCE: Final = "owner-train"


class OwnerEnd(End):
    """The owner's process; what it does is said by who extends it.

    Attributes:
        identity: Its own.
        material: Of its data key, which an accelerator of the bench is handed unasked.
        agreement: What everybody signed, once ``join`` came.
    """

    agreement: VerifiedAgreement

    def __init__(self) -> None:
        self.identity = create_identity(OWNER)
        self.material = token_bytes(KEY_BYTES)
        self.key = SecretKey(self.material)

    def sign(self, signed: str) -> Answer:
        """Sign the agreement as its owner."""
        found = decode(SignedAgreement, unpack(signed))
        return {"signed": pack(encode(add_signature(found, self.identity)))}

    def introduced(self, resource: Resource) -> Answer:
        """The owner's card, and what it brings."""
        card, content = encode(self.identity.card), encode(resource)
        return {"card": pack(card), "resource": pack(content)}

    def endpoint(self, role: Role) -> Endpoint:
        """This process in a role."""
        return Endpoint(
            role=role,
            name=OWNER,
            agreement=self.agreement.digest,
            identity=self.identity,
        )


def agree(owner: Peer, operator: Identity, made: Answer, **changes: Any) -> str:
    """The agreement that owner and operator signed, as it crosses to a process.

    Args:
        owner: Signs.
        operator: Brings and runs all the rest.
        made: How the owner introduced itself.
        changes: ``references``, and fields that are wanted otherwise.
    """
    card = decode(Card, unpack(made["card"]))
    resource = decode(Resource, unpack(made["resource"]))
    parties = {card: OWNER_ROLES, operator.card: MAIN_ROLES}
    terms = {"name": "bench", "output": ONE_HOLDER, **changes}
    signed = SignedAgreement(draft(parties, [resource], **terms))
    told = pack(encode(add_signature(signed, operator)))
    return str(owner.ask("sign", signed=told)["signed"])


def agreed(signed: str) -> VerifiedAgreement:
    """At the other end."""
    return verify(decode(SignedAgreement, unpack(signed)))
