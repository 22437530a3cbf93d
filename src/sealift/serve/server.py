"""``sealift serve``'s process put together: key, model, scheduler, admission.

The accelerator proves itself to the broker of the model's owner, who logs the release
before the key leaves; opens the model, checked against the agreement, into a sandboxed
worker; and answers clients, each in a session whose evidence the client appraised. When
it ends, for whatever reason, what waits is refused, keys and memory are overwritten, and
the worker is gone.
Source: spec/serve.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sealift import __version__
from sealift.data.schema.card import ResourceCard
from sealift.data.staging import SealedPaths
from sealift.errors import SealiftError, UnavailableError, require_value
from sealift.events import Sink, emit
from sealift.ids import Role
from sealift.release.agreement import KeyLease, Resource
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.log.entries import SignedTreeHead
from sealift.serve.admission import FirstFrame, SocketWatcher
from sealift.serve.clientsession import ClientSession
from sealift.serve.modelworker import ModelWorker
from sealift.serve.protocol import VERSION, ServerWelcome
from sealift.serve.scheduler import Scheduler, ServerMetrics, stopping
from sealift.serve.sealedmodel import ModelSource, find_model
from sealift.session.endpoint import Endpoint, PeerPolicy, VerifiedPeer
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, accept
from sealift.train.job.leasekeeping import LeaseKeeper, owners_leases
from sealift.train.job.releasedkeys import ReleasedKeys, enrol_where_missing
from sealift.train.job.settings import ServingTable
from sealift.train.output.modelform import ModelForm, choose_model, form_of
from sealift.train.sandbox.confine import Confinement
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.peers import meet_broker
from sealift.travel.visit.state import Clock

HANDSHAKE_S: Final = 10.0
FINISH_S: Final = 3.0  # for the batch under way, when the server ends
TELL_S: Final = 0.5  # for clients to take the last word; theirs is no reason to stay


@dataclass(frozen=True, slots=True)
class Subject:
    """What is served: the agreement's model, and where it lies.

    Attributes:
        resource: As the agreement binds it.
        form: What it is asked, and what it answers.
        paths: Its sealed file.
        card: With the leaves of its content.
    """

    resource: Resource
    form: ModelForm
    paths: SealedPaths
    card: ResourceCard


def find_subject(agreement: VerifiedAgreement, settings: ServingTable) -> Subject:
    """The model to serve, its files looked at before any key is asked for.

    Raises:
        PolicyError: ``no-such-model`` or ``no-resource``.
        MalformedError, IntegrityError, UnavailableError: see ``find_model``.
    """
    resource = choose_model(agreement, settings.model)
    paths, card = find_model(resource, Path(settings.sealed))
    return Subject(resource, form_of(resource), paths, card)


class Server:
    """Serves one model.

    Args:
        relay: The connection to it behind the port, under the accelerator's name.
        endpoint: With the attester.
        agreement: Verified, equipped.
        subject: The model.
        settings: Of the job.
        executor: Runs the recipe.
        clock: Seconds that also count while the machine sleeps.
        sink: Where events go.

    Attributes:
        metrics: Numbers.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        subject: Subject,
        *,
        settings: ServingTable,
        executor: RecipeExecutor,
        clock: Clock,
        sink: Sink,
    ) -> None:
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._subject = subject
        self._settings = settings
        self._executor = executor
        self._clock = clock
        self._sink = sink
        self.metrics = ServerMetrics()
        self._scheduler: Scheduler | None = None
        self._arrivals = SocketWatcher()
        self._head: SignedTreeHead | None = None
        self._sessions: set[ClientSession] = set()
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._lost: BaseException | None = None  # the first thing that went wrong

    def serve(self, ready: Callable[[], None]) -> None:
        """Collect the key, load the model, answer until ``end``.

        Args:
            ready: Called when clients can be let in.

        Raises:
            PolicyError: ``release-refused``, ``lease-lost``.
            UnavailableError: ``key-missing``: the broker did not come.
            IntegrityError, JobError: the model or its recipe does not fit.
        """
        try:
            self._serve(ready)
        except SealiftError:
            if self._lost is None:
                raise
        if self._lost is not None:  # what failed after it failed of it
            raise self._lost

    def _serve(self, ready: Callable[[], None]) -> None:
        with ExitStack() as stack:
            stack.callback(self._arrivals.close)
            keys = self._collect(stack)
            model = stack.enter_context(closing(self._load(keys)))
            self._scheduler = self._make_scheduler(model)
            worker = threading.Thread(target=self._work, name="scheduler", daemon=True)
            worker.start()
            stack.callback(self._close, worker)
            ready()
            emit(self._sink, "serve.ready", model=self._subject.resource.name)
            while not self._ended.wait(self._settings.health_s):
                emit(self._sink, "serve.health", **self.health())

    def _work(self) -> None:
        try:
            require_value(self._scheduler).run()
        except BaseException as error:  # a bug of ours: nobody would be answered
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        self._lost = self._lost or error
        self._ended.set()

    def end(self) -> None:
        """Stop serving; from another thread."""
        self._ended.set()

    def health(self) -> dict[str, int | float]:
        """Numbers, for people and programs: nothing of anybody's rows."""
        waiting, rows = self._scheduler.waiting() if self._scheduler else (0, 0)
        with self._changed:
            clients = len(self._sessions)
        found = {"clients": clients, "waiting": waiting, "waiting_rows": rows}
        return {**found, **self.metrics.numbers()}

    def meet(self, transport: FirstFrame, address: str) -> None:
        """Serve one client, from handshake to end.

        Raises:
            SealiftError: if the handshake fails.
        """
        with accept(
            transport, self._endpoint, self._expect_client(), HANDSHAKE_S
        ) as session:
            transport.lengthen()
            client = self._client_of(session.peer, session)
            known = client is not session
            self.serve_session(session, client, client if known else address)

    def serve_session(
        self, session: Session, client: object, identity: object = None
    ) -> None:
        """Answer a client in its established session; places are its identity's."""
        client_session = ClientSession(
            session,
            client,
            require_value(self._scheduler),
            self._subject.form,
            settings=self._settings,
            clock=self._clock,
            metrics=self.metrics,
            arrivals=self._arrivals,
            identity=identity,
        )
        with self._here(client_session):
            client_session.serve(self._welcome())

    @contextmanager
    def _here(self, client_session: ClientSession) -> Iterator[None]:
        self.metrics.add("sessions")
        with self._changed:
            self._sessions.add(client_session)
        try:
            yield
        finally:
            with self._changed:
                self._sessions.discard(client_session)
                self._changed.notify_all()

    def _expect_client(self) -> PeerPolicy:
        clients = self._subject.form.clients
        if not clients:
            return PeerPolicy(roles=frozenset({Role.CLIENT}), anonymous=True)
        return PeerPolicy(
            roles=frozenset({Role.CLIENT}),
            identities=clients,
            require_identity=True,
            names=frozenset(clients),
        )

    def _client_of(self, peer: VerifiedPeer, session: Session) -> object:
        """Whose limits count: a known client's over all its sessions."""
        return peer.name if self._subject.form.clients else session

    def _welcome(self) -> ServerWelcome:
        return ServerWelcome(
            version=VERSION,
            model=self._subject.resource.name,
            content=self._subject.resource.content,
            sandbox=self._executor.sandbox,
            software=f"sealift {__version__}",
            max_request_bytes=self._settings.max_request_bytes,
            max_waiting=self._settings.max_waiting,
            head=self._head,
        )

    def _collect(self, stack: ExitStack) -> ReleasedKeys:
        resource, settings = self._subject.resource, self._settings
        Confinement.parse(self._executor.sandbox).require(self._agreement.accept)
        enrol_where_missing(
            self._relay,
            self._endpoint,
            self._agreement,
            wait_s=settings.brokers_s,
            sink=self._sink,
        )
        keys = ReleasedKeys(
            self._relay,
            self._endpoint,
            self._agreement,
            clock=self._clock,
            sink=self._sink,
            only=resource.name,
        )
        stack.callback(keys.forget)
        leases = stack.enter_context(closing(self._keep_leases()))
        keys.collect(settings.brokers_s, held=leases.begin)
        if resource.name not in keys.released:
            raise UnavailableError(
                f"the key of {resource.name} was not released",
                why=f"the broker of {resource.owner} did not connect in time",
                code="key-missing",
            )
        self._head = next(iter(keys.heads()), None)
        return keys

    def _load(self, keys: ReleasedKeys) -> ModelWorker:
        subject = self._subject
        source = ModelSource(
            subject.resource,
            subject.paths.sealed,
            subject.card.leaves,
            keys.released[subject.resource.name].data_key,
        )
        model = ModelWorker(
            self._executor,
            subject.form,
            source.open,
            settings=self._settings,
            lost=self._lose,
            clock=self._clock,
            sink=self._sink,
        )
        try:
            model.start()
        except BaseException:
            model.close()
            raise
        return model

    def _make_scheduler(self, model: ModelWorker) -> Scheduler:
        return Scheduler(
            model,
            self._settings,
            mixed=self._subject.form.mixed,
            clock=self._clock,
            metrics=self.metrics,
        )

    def _close(self, worker: threading.Thread) -> None:
        """Finish what is under way, if it ends soon; refuse the rest; tell everybody."""
        require_value(self._scheduler).stop(stopping())
        worker.join(FINISH_S)
        if worker.is_alive():
            self._executor.interrupt()
            worker.join(FINISH_S)
        with self._changed:
            sessions = list(self._sessions)
        for each in sessions:
            with suppress(SealiftError):
                each.dismiss(stopping())
        with self._changed:
            self._changed.wait_for(lambda: not self._sessions, TELL_S)

    def _keep_leases(self) -> LeaseKeeper:
        def lose(error: SealiftError) -> None:
            self._lose(error)
            self._executor.interrupt()

        agreement, owner = self._agreement.agreement, self._subject.resource.owner
        return LeaseKeeper(
            self._reach_broker,
            _strict(owners_leases(agreement, (owner,))),
            clock=self._clock,
            lost=lose,
            left=lambda owner, error: lose(error),
            sink=self._sink,
        )

    @contextmanager
    def _reach_broker(self, owner: str) -> Iterator[Session]:
        with meet_broker(
            self._relay, self._endpoint, self._agreement, owner
        ) as session:
            yield session


def _strict(leases: Mapping[str, KeyLease]) -> dict[str, KeyLease]:
    """Answers cannot pause: a server ends after a heartbeat without its owner's broker."""
    return {
        owner: replace(lease, lease_s=lease.heartbeat_s)
        for owner, lease in leases.items()
    }
