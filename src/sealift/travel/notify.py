"""Send a statement to all parties of a job, so that they obey it now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealift.crypto.identity import Identity
from sealift.errors import PolicyError, SealiftError
from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import SignedStatement
from sealift.release.client import tell_statement
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import prover
from sealift.session.session import connect
from sealift.travel.peers import (
    ORCHESTRATOR,
    accelerator_names,
    expect_accelerator,
    expect_orchestrator,
    meet_broker,
    teller_name,
)
from sealift.travel.visit.messages import Said, receive_message, send_message

DIAL_S: Final = 10.0
OBEY_S: Final = 40.0  # the accelerator first overwrites the rows that it is using


def require_teller(agreement: VerifiedAgreement, identity: Identity) -> None:
    """Brokers take sessions of data owners.

    Raises:
        PolicyError: ``not-a-data-owner``.
    """
    if identity.name not in agreement.agreement.holders:
        raise PolicyError(
            f"{identity.name} brings no data, so brokers do not accept its connection",
            fix="Give the statement's file to the owners, who put it beside their agreement",
            code="not-a-data-owner",
        )


def tell_running(
    address: tuple[str, int],
    agreement: VerifiedAgreement,
    identity: Identity,
    statement: SignedStatement,
    *,
    dial_s: float = DIAL_S,
) -> Iterator[tuple[str, str]]:
    """Each one that was told; with why not, or nothing.

    They are the owners' brokers; the accelerator, unless there are several, which ask their
    own owner's broker; and last the orchestrator, which may end the job.

    Args:
        address: Of the orchestrator.
        agreement: As it was before the statement, equipped to judge an accelerator.
        identity: Of a data owner; its own statement or another's.
        statement: What they are told.
        dial_s: How long the orchestrator may take to listen.

    Raises:
        PeerError: if the orchestrator is not there.
    """
    endpoint = Endpoint(
        role=Role.HOLDER,
        name=identity.name,
        agreement=agreement.digest,
        identity=identity,
    )
    name = teller_name(identity.name)
    prove = prover(identity, agreement.digest, name)
    with RelayClient.dial(address, name, dial_s, prove) as relay:
        for owner in agreement.agreement.holders:
            problem = ""
            try:
                with meet_broker(relay, endpoint, agreement, owner) as session:
                    tell_statement(session, statement)
            except SealiftError as error:
                problem = str(error)
            yield f"the broker of {owner}", problem
        if agreement.agreement.ranks == 1:
            (name,) = accelerator_names()
            policy = expect_accelerator(agreement, name)
            problem = _tell(relay, name, endpoint, policy, statement)
            yield "the accelerator", problem
        policy = expect_orchestrator(agreement)
        yield (
            "the orchestrator",
            _tell(relay, ORCHESTRATOR, endpoint, policy, statement),
        )


def _tell(
    relay: RelayClient,
    name: str,
    endpoint: Endpoint,
    policy: PeerPolicy,
    statement: SignedStatement,
) -> str:
    """Have it obey the statement now; why not, or nothing."""
    try:
        with connect(relay.open(name), endpoint, policy) as session:
            send_message(session, Said(statement))
            receive_message(session, Said, timeout_s=OBEY_S)
    except SealiftError as error:
        return str(error)
    return ""
