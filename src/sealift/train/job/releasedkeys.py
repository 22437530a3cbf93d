"""The data keys that owners' brokers release to this process, and what shows it.

Before all else this host is enrolled with the owners whose word the agreement asks for.
An attestation key is tied to its TPM by each owner's own broker (rule C10: nobody takes
another's word for it). It happens once for a host and an owner, and is kept.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from sealift.errors import PeerError, PolicyError, SealiftError, require_value
from sealift.events import Sink, emit
from sealift.ids import Role
from sealift.release.agreement import Purpose, RunTerms
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import LEFT
from sealift.release.broker.messages import PassRequest
from sealift.release.checkpointclient import CheckpointLedger, Shares
from sealift.release.client import (
    BrokerRefusedError,
    EnrollingHost,
    collect_release,
    enrol,
    request_head,
    request_pass,
    request_statements,
)
from sealift.release.grant import CHALLENGE_BYTES
from sealift.release.log.entries import Logged, SignedTreeHead
from sealift.release.log.heads import ShownHeads
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, connect
from sealift.train.job.rejoin import RELAY_GONE
from sealift.travel.accelerator.setup import ReleasedResource
from sealift.travel.peers import expect_broker, meet_broker, relay_name
from sealift.travel.visit.state import Clock

PAUSE_S: Final = 0.1
VISITS_OVER: Final = "too-many-visits"
BUDGET_SPENT: Final = "privacy-budget-spent"
OVER: Final = frozenset({VISITS_OVER, BUDGET_SPENT})
BROKER_WAIT_S: Final = 2.0  # for one that is being started again


def _nothing(owner: str) -> None:
    """For whoever keeps no leases."""


class ReleasedKeys:
    """Collects one key for each resource.

    Args:
        relay: The connection to it.
        endpoint: With the attester and the instance key.
        agreement: Verified.
        clock: Seconds that also count while the machine sleeps.
        sink: Where events go.
        only: The one resource whose key is wanted; empty for all.
        owners: Whose keys are wanted; empty for everybody's.

    Attributes:
        released: Released resources by name.
        owners: Whose brokers released all keys of that owner.
        heads: Signed tree heads of every log that did something for us.
        releases: What the owners' logs say of each key that came, also after it is gone.
        departed: Why no visit to an owner begins, of owners whose keys have ended.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        clock: Clock,
        sink: Sink,
        only: str = "",
        owners: Sequence[str] = (),
    ) -> None:
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._clock = clock
        self._sink = sink
        self._only = only
        self._wanted = (agreement.agreement.resource(only).owner,) if only else owners
        self._run: RunTerms | None = None
        self._asking: dict[str, Session] = {}
        self.released: dict[str, ReleasedResource] = {}
        self.owners: tuple[str, ...] = ()
        self.heads = ShownHeads()
        self.releases: tuple[Logged, ...] = ()
        self.departed: dict[str, SealiftError] = {}

    def collect(
        self,
        within_s: float,
        held: Callable[[str], None] = _nothing,
        run: RunTerms | None = None,
    ) -> None:
        """Ask each owner's broker; an owner that is away brings nothing.

        Args:
            within_s: How long all brokers together may take to appear.
            held: Called with each owner whose keys are here.
            run: What the job sets that they are for; None for a model's key.

        Raises:
            PeerError: ``relay-gone``: nobody can be asked any more.
        """
        self._run = run
        deadline = self._clock() + within_s
        for owner in self._wanted or self._agreement.agreement.holders:
            try:
                self.heads.show(self._collect_patiently(owner, deadline))
            except PeerError as error:
                if error.code == RELAY_GONE:
                    raise
                emit(self._sink, "release.missing", owner=owner, line=str(error))
            except PolicyError as error:
                if LEFT not in (error.code, getattr(error, "rule", "")):
                    raise
                self.drop(owner, error)
            else:
                self.owners += (owner,)
                held(owner)

    def drop(self, owner: str, error: SealiftError) -> None:
        """Overwrite one owner's keys: they have ended."""
        self.departed[owner] = error
        emit(self._sink, "owner.departed", owner=owner, line=str(error))
        for resource in self._agreement.agreement.resources_of(owner):
            released = self.released.pop(resource.name, None)
            if released is not None:
                released.data_key.wipe()

    def ledger(self, job: str) -> CheckpointLedger:
        """Which checkpoint counts, at the brokers of these owners."""
        return CheckpointLedger(
            self.owners, partial(self._shares, job), self.heads.show
        )

    @contextmanager
    def _shares(self, job: str, owner: str) -> Iterator[Shares]:
        """In a session for one or two requests: a broker may be started again between."""
        relay, agreement = self._relay, self._agreement
        with meet_broker(
            relay, self._endpoint, agreement, owner, wait_s=BROKER_WAIT_S
        ) as session:
            yield Shares(session, agreement, owner, job=job, clock=self._clock)

    def count_pass(
        self,
        purpose: Purpose,
        visits: Mapping[str, int],
        waits: Callable[[str, float], bool],
        *,
        begins: bool = True,
    ) -> None:
        """Have each owner's broker count a pass over its rows; then it may begin.

        Args:
            purpose: Of the pass.
            visits: How many it counts as, by owner.
            waits: Whether an owner's broker, which has been away for so many seconds,
                is asked once more.
            begins: Whether it begins then; else they only say whether they would allow it.

        Raises:
            PolicyError: ``too-many-visits``, ``privacy-budget-spent``, or
                ``release-refused``.
            PeerError: if a broker stays away.
        """
        run = require_value(self._run)
        for owner, count in visits.items():
            attempt = secrets.token_bytes(CHALLENGE_BYTES)
            request = PassRequest(
                run=run, purpose=purpose, visits=count, attempt=attempt, begins=begins
            )
            try:
                self._ask_patiently(owner, request, waits)
            except BrokerRefusedError as error:
                if error.rule not in OVER:
                    raise
                raise PolicyError(
                    f"no more passes over the rows of {owner} are allowed",
                    why=error.why,
                    fix=None,  # the broker's line says it
                    code=error.rule,
                ) from None

    def _ask_patiently(
        self, owner: str, request: PassRequest, waits: Callable[[str, float], bool]
    ) -> None:
        """In one session for all passes; begun again like a lease's, if it breaks."""
        began_s = self._clock()
        while True:
            try:
                if owner not in self._asking:
                    self._asking[owner] = meet_broker(
                        self._relay, self._endpoint, self._agreement, owner,
                        wait_s=BROKER_WAIT_S,
                    )  # fmt: skip
                request_pass(self._asking[owner], request)
            except BrokerRefusedError:
                raise
            except SealiftError as error:  # away, or altered on the way
                self._hang_up(owner)
                gone = error.code == RELAY_GONE
                if gone or not waits(owner, self._clock() - began_s):
                    raise
                time.sleep(PAUSE_S)
            else:
                return

    def _hang_up(self, owner: str) -> None:
        session = self._asking.pop(owner, None)
        if session is not None:
            with suppress(SealiftError):
                session.close()

    def forget(self) -> None:
        """Overwrite every key."""
        for each in self.released.values():
            each.data_key.wipe()
        for owner in tuple(self._asking):
            self._hang_up(owner)

    def _collect_patiently(self, owner: str, deadline: float) -> SignedTreeHead:
        """Again, if the broker goes away in the midst: it may be coming back."""
        while True:
            wait_s = max(0.0, deadline - self._clock())
            try:
                return self._collect_from(owner, wait_s)
            except (PeerError, BrokerRefusedError) as error:
                # A slow log is no refusal for good: the rest is asked for once more.
                away = isinstance(error, PeerError) and error.code != RELAY_GONE
                again = away or getattr(error, "rule", "") == "evidence-old"
                if not again or self._clock() + PAUSE_S >= deadline:
                    raise
            time.sleep(PAUSE_S)

    def _collect_from(self, owner: str, wait_s: float) -> SignedTreeHead:
        with meet_broker(
            self._relay, self._endpoint, self._agreement, owner, wait_s=wait_s
        ) as session:
            self._agreement = request_statements(session, self._agreement)
            for resource in self._agreement.agreement.resources_of(owner):
                wanted = self._only in ("", resource.name)
                if not wanted or resource.name in self.released:
                    continue
                key, logged = collect_release(
                    session, self._agreement, resource.name,
                    clock=self._clock, run=self._run,
                )  # fmt: skip
                self.releases += (logged,)
                self.released[resource.name] = ReleasedResource(resource, key)
                emit(self._sink, "release.collected", resource=resource.name)
            return request_head(session)  # covers every release of this session


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
