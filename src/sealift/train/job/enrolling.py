"""Enrol this host with the owners whose word the agreement asks for, before all else.

An attestation key is tied to its TPM by each owner's own broker (rule C10: nobody takes
another's word for it). It happens once for a host and an owner, and is kept.
"""

from __future__ import annotations

from dataclasses import replace

from sealift.events import Sink, emit
from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.client.enrolment import EnrollingHost, enrol
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.session import connect
from sealift.travel.peers import expect_broker, relay_name


def enrol_where_missing(
    relay: RelayClient,
    endpoint: Endpoint,
    agreement: VerifiedAgreement,
    *,
    wait_s: float,
    sink: Sink,
) -> None:
    """Ask every enroller that this host has no enrolment of.

    Args:
        relay: The connection to it.
        endpoint: With the attester, or with one that needs no enrolment.
        agreement: Verified; its references name the enrollers.
        wait_s: How long each broker may take to appear.
        sink: Where events go.

    Raises:
        PeerError: if a broker is not there.
        PolicyError: if one refuses this host.
    """
    host: object = endpoint.attester
    if not isinstance(host, EnrollingHost):
        return
    known = {each.enroller for each in host.enrolments()}
    enrollers = agreement.agreement.references.enrollers
    for party in agreement.agreement.parties:
        if party.sign in enrollers and party.sign not in known:
            circuit = relay.open(relay_name(Role.BROKER, party.name), wait_s=wait_s)
            policy = expect_broker(agreement, party.name)
            stranger = replace(endpoint, attester=None)
            with connect(circuit, stranger, policy) as session:
                enrol(session, host, party.sign)
            emit(sink, "host.enrolled", owner=party.name)
