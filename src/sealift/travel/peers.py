"""Who may talk to whom: peer policies from the agreement, and names on the relay.

Names on the relay only route; who is there is settled by the handshake. Those of
parties are registered with their keys, so that nobody else takes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sealift.crypto.sign import PublicKey
from sealift.errors import PeerError
from sealift.ids import Role
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.client import DIAL_TIMEOUT_S, RelayClient
from sealift.session.relay.envelope import CIRCUITS, Registry
from sealift.session.session import HANDSHAKE_TIMEOUT_S, Session, connect
from sealift.travel.visit.lease import Lease

ORCHESTRATOR = "orchestrator"
_NAMED: Final = 4
# No part of a path or of a longer name.
_PROCESS: Final = re.compile(r"(?<![\w/-])accelerator-[0-9]+(?![\w/-])")
TELLER = "tell-"  # and the name of the party that comes to say something


def relay_name(role: Role, party: str = "") -> str:
    """The name of a process on the relay: ``holder-north``, ``accelerator-0``."""
    return f"{role.value}-{party}" if party else role.value


def accelerator_names(count: int = 1) -> tuple[str, ...]:
    """The names of a job's accelerators, in sessions and on the relay."""
    return tuple(relay_name(Role.ACCELERATOR, str(n)) for n in range(count))


def say_ranks(agreement: Agreement) -> tuple[str, ...]:
    """The ranks of a group for people, with the owner where rows stay at home: ``rank 1 (east)``."""
    if agreement.rows_at_home:
        return tuple(f"rank {n} ({o})" for n, o in enumerate(agreement.data_owners))
    return tuple(f"rank {number}" for number in range(agreement.ranks))


def rank_names(agreement: Agreement) -> dict[str, str]:
    """What people call a job's accelerators, by their names on the relay."""
    names = accelerator_names(agreement.ranks)
    if len(names) == 1:
        return {names[0]: "the accelerator"}
    return dict(zip(names, say_ranks(agreement), strict=True))


def call_by_person(text: str, people: Mapping[str, str]) -> str:
    """A text with accelerators as people call them (``rank_names``)."""
    return _PROCESS.sub(lambda found: people.get(found[0], found[0]), text)


def _say_several(people: Sequence[str]) -> str:
    """Names for one line, however many there are: ``a, b, c and 57 more``."""
    few = ", ".join(people[:_NAMED])
    more = len(people) - _NAMED
    return f"{few} and {more:,} more" if more > 0 else few


def peer_missing(people: Sequence[str], fix: str = "") -> PeerError:
    """Parties that a job waited for, by name."""
    what = f"{_say_several(people)} did not connect in time"
    return PeerError(what, fix=fix, code="peer-missing")


def teller_name(party: str) -> str:
    """The name of a party's process that brings a statement to brokers and accelerator."""
    return f"{TELLER}{party}"


def registry_of(agreement: VerifiedAgreement) -> Registry:
    """Whose names are whose at the relay of a job under this agreement."""
    keys: dict[str, PublicKey] = {}
    for party in agreement.agreement.parties:
        names = (
            relay_name(Role.HOLDER, party.name),
            relay_name(Role.BROKER, party.name),
            teller_name(party.name),
        )
        keys |= dict.fromkeys(names, party.sign)
    keys |= _signs_at_home(agreement)
    # An accelerator opens two circuits to each owner: for its keys, and for their lease.
    circuits = max(CIRCUITS, 4 * len(agreement.agreement.parties))
    return Registry(agreement.digest, keys, circuits=circuits)


def say_role(role: str, name: str) -> str:
    """A role for people: ``holder north``, ``the accelerator``."""
    return f"the {role}" if name in (role, f"{role}-0") else f"{role} {name}".lstrip()


def expect_orchestrator(agreement: VerifiedAgreement) -> PeerPolicy:
    """The orchestrator signs with the operator's identity."""
    operator = agreement.agreement.operator
    return _party(agreement, Role.ORCHESTRATOR, operator)


def expect_broker(agreement: VerifiedAgreement, owner: str) -> PeerPolicy:
    """An owner's broker signs with the owner's identity."""
    return _party(agreement, Role.BROKER, owner)


def expect_holder(agreement: VerifiedAgreement, lease: Lease) -> PeerPolicy:
    """The holder that a lease names."""
    return _party(agreement, Role.HOLDER, lease.holder)


def expect_share_server(agreement: VerifiedAgreement, party: str) -> PeerPolicy:
    """A server of shares signs with the identity of the agreement's party."""
    return _party(agreement, Role.SHARE_SERVER, party)


def expect_accelerator(
    agreement: VerifiedAgreement, name: str, instance: PublicKey | None = None
) -> PeerPolicy:
    """The accelerator of that name, with evidence that the agreement accepts.

    Where rows stay at home, it also signs as the data owner whose accelerator it is.

    Args:
        agreement: Verified and equipped.
        name: Also of its place at the relay: nobody takes another's by a handshake.
        instance: The instance key that it must have, if it is known.
    """
    signs = _signs_at_home(agreement)
    return PeerPolicy(
        roles=frozenset({Role.ACCELERATOR}),
        identities=signs or None,
        require_identity=bool(signs),
        require_evidence=True,
        appraiser=agreement.appraiser(),
        names=frozenset({name}),
        instance=instance,
    )


def _signs_at_home(agreement: VerifiedAgreement) -> dict[str, PublicKey]:
    """Whose identity an accelerator has, by its name; none where rows do not stay home."""
    body = agreement.agreement
    owners = body.data_owners if body.rows_at_home else ()
    pairs = zip(accelerator_names(len(owners)), owners, strict=True)
    return {name: agreement.party(owner).sign for name, owner in pairs}


def expect_at_broker(agreement: VerifiedAgreement, name: str) -> PeerPolicy:
    """An accelerator at a broker: a host with a TPM comes to be enrolled first."""
    policy = expect_accelerator(agreement, name)
    if policy.appraiser is None or policy.appraiser.references.tpm is None:
        return policy
    return replace(policy, require_evidence=False, enrolling=True)


def expect_data_owner(agreement: VerifiedAgreement) -> PeerPolicy:
    """A holder of any data owner."""
    owners = agreement.agreement.holders
    return PeerPolicy(
        roles=frozenset({Role.HOLDER}),
        identities={name: agreement.party(name).sign for name in owners},
        require_identity=True,
        names=frozenset(owners),
    )


def _party(agreement: VerifiedAgreement, role: Role, name: str) -> PeerPolicy:
    return PeerPolicy(
        roles=frozenset({role}),
        identities={name: agreement.party(name).sign},
        require_identity=True,
        names=frozenset({name}),
    )


def meet_broker(
    relay: RelayClient,
    endpoint: Endpoint,
    agreement: VerifiedAgreement,
    owner: str,
    *,
    open_s: float = DIAL_TIMEOUT_S,
    wait_s: float = 0.0,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Session:
    """Open one; the caller closes it.

    Args:
        relay: The connection to it.
        endpoint: Ours.
        agreement: Verified and equipped.
        owner: Whose broker.
        open_s: How long the relay may take.
        wait_s: How long the broker may take to appear.
        timeout_s: For the handshake.

    Raises:
        PeerError: if it is not there.
        RefusedError: if it is somebody else.
    """
    circuit = relay.open(relay_name(Role.BROKER, owner), open_s, wait_s=wait_s)
    return connect(circuit, endpoint, expect_broker(agreement, owner), timeout_s)
