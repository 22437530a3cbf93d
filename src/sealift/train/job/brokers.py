"""Sessions with owners' brokers, one for each thing that is asked of them.

A session lives for one or two requests, so a broker that was started again in between
is no different from one that was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.client.shares import Shares
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.travel.peers import meet_broker
from sealift.travel.visit.state import Clock


class BrokerSessions:
    """Reaches brokers for one job's checkpoints.

    Args:
        relay: The connection to it.
        endpoint: With the attester and the instance key.
        agreement: Verified.
        job: Name of the job.
        clock: Seconds that also count while the machine sleeps.
        wait_s: How long a broker may take to appear.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        job: str,
        clock: Clock,
        wait_s: float,
    ) -> None:
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._job = job
        self._clock = clock
        self._wait_s = wait_s

    @contextmanager
    def reach(self, owner: str) -> Iterator[Shares]:
        """A fresh session with an owner's broker.

        Raises:
            PeerError: if it is not there.
            RefusedError: if it is somebody else.
        """
        with meet_broker(
            self._relay, self._endpoint, self._agreement, owner, wait_s=self._wait_s
        ) as session:
            yield Shares(
                session, self._agreement, owner, job=self._job, clock=self._clock
            )
