"""A guest's agent from another process's side: the same host, nothing more."""

from __future__ import annotations

import pytest

from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.agent import AgentAttester
from sealift.attest.tpm.evidence import TpmBody
from tests.guest.machine import AgentPort
from tests.sim.guest import BOUND, GuestHost

pytestmark = pytest.mark.guest


def test_it_attests_for_whoever_connects(guest_host: GuestHost) -> None:
    with AgentPort(guest_host.guest) as port:
        attester = AgentAttester(port.place)
        whole = attester.collect(BOUND)
        earlier = guest_host.examine(whole)
        continued = attester.continue_from(whole, BOUND)
        assert len(TpmBody.parse(continued.body).ima_list) == 0
        claims = guest_host.examine(continued, earlier=earlier)
        assert claims.attester == earlier.attester
        event = RuntimeEvent("module", b'"x"')
        attester.measure(event)
        assert attester.events[-1] == event
        assert {e.enroller for e in attester.enrolments()} == {
            guest_host.owner.public_key
        }
        attester.close()
        # One after another: the next process gets the same host.
        again = AgentAttester(port.place)
        assert again.events[-1] == event
        again.close()
