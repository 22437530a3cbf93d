"""Bring a statement to the brokers of a job that is running, so that they obey it now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sealift.cli.judging import wall_clock
from sealift.crypto.identity import Identity
from sealift.errors import PolicyError, SealiftError
from sealift.ids import Role
from sealift.release.hearing import tell_statement
from sealift.release.signed import Equipment, VerifiedAgreement
from sealift.release.statement import SignedStatement
from sealift.session.endpoint import Endpoint
from sealift.session.link import Link
from sealift.session.registry import prover
from sealift.train.settings import read_job
from sealift.travel.meetbroker import meet_broker
from sealift.travel.peers import teller_name

DIAL_S: Final = 10.0


def require_teller(agreement: VerifiedAgreement, identity: Identity) -> None:
    """Brokers take sessions of data owners.

    Raises:
        PolicyError: ``not-a-data-owner``.
    """
    if identity.name not in agreement.agreement.holders:
        raise PolicyError(
            f"{identity.name} brings no data, so brokers do not meet it",
            fix="Give the statement's file to the owners: their brokers read it there",
            code="not-a-data-owner",
        )


def tell_brokers(
    job: Path,
    agreement: VerifiedAgreement,
    identity: Identity,
    statement: SignedStatement,
) -> Iterator[tuple[str, str]]:
    """Each owner whose broker was told, with why not, or nothing.

    Args:
        job: Says where the orchestrator listens.
        agreement: As it was before the statement.
        identity: Of a data owner; its own statement or another's.
        statement: What they are told.

    Raises:
        PeerError: if the orchestrator is not there.
    """
    endpoint = Endpoint(
        role=Role.HOLDER,
        name=identity.name,
        agreement=agreement.digest,
        identity=identity,
    )
    equipped = agreement.equipped(Equipment(clock=wall_clock))
    name = teller_name(identity.name)
    prove = prover(identity, agreement.digest, name)
    with Link.dial(read_job(job).address, name, DIAL_S, prove) as link:
        for owner in agreement.agreement.holders:
            try:
                with meet_broker(link, endpoint, equipped, owner) as session:
                    tell_statement(session, statement)
            except SealiftError as error:
                yield owner, str(error)
            else:
                yield owner, ""
