"""The trusted process's connections to P, M and Z: dialled, proven, sealed.

Each server proves that it has the identity key that the agreement names for its share; the
trusted process shows each its evidence. Of a step everything that is sent and received has
lengths from its trace, and answers come into memory of this process alone (rule N10). A
server that is gone, or silent for too long, ends the job by its name.
Source: spec/shares.md section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Self

from sealift.channel.transport.tcp import TcpTransport
from sealift.crypto.sign import SIGNATURE_BYTES, PublicKey, SignedDocument
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PeerError,
    RefusedError,
    SealiftError,
    quote_foreign,
    require_value,
)
from sealift.ids import Buffer, Digest
from sealift.numeric.kernels import PART
from sealift.numeric.keystream import StepSeeds
from sealift.numeric.residues import U32, Answers
from sealift.outsource.exchange import AnswerTally, Arrived, MaskedShares
from sealift.outsource.masked import SHARES, Share
from sealift.outsource.messages import (
    PIPE_CONTEXT,
    Accepts,
    Announces,
    Begin,
    Message,
    Planned,
    Refuses,
    StepAnswers,
    answer_hasher,
    answered_together,
    encode_word,
    packed,
    parse_word,
    plan_step,
    room_for,
)
from sealift.outsource.terms import Exchange
from sealift.outsource.trace import StepKind, Traces, other_operations
from sealift.release.agreement.terms import servers_not_apart
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.pipe import Pipe
from sealift.session.session import connect

DIAL_S: Final = 10.0
_WAYS: Final = 5  # to P and M, and from each
MAX_REFUSAL: Final = 300  # columns of a server's own words
_GONE: Final = (
    "peer-closed", "peer-timeout", "peer-unreachable", "session-closed",
    "session-truncated",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """One of the three servers.

    Attributes:
        party: Whose it is, by the agreement.
        address: Host and port.
        policy: What it must show.
    """

    share: Share
    party: str
    address: tuple[str, int]
    policy: PeerPolicy

    def __str__(self) -> str:
        return f"{self.share} ({self.party})"


class ServerConnection:
    """One server's session, and from the announcement on its pipe.

    Args:
        place: Where it is, and who.
        endpoint: Ours.
        answer_s: How long it may be silent, or take nothing.
    """

    def __init__(self, place: ServerPlace, endpoint: Endpoint, answer_s: float) -> None:
        self.place, self._answer_s = place, answer_s
        self._agreement = endpoint.agreement
        with self.naming():
            self._carrier = TcpTransport.dial(*place.address, timeout_s=DIAL_S)
            self._session = connect(self._carrier, endpoint, place.policy)
        self._pipe: Pipe | None = None

    @property
    def host(self) -> str:
        """The address that it answered at."""
        return self._carrier.peer_host

    def announce(self, traces: Traces) -> None:
        """Tell the job's steps; what it answers to."""
        word = Announces.of(self.place.share, traces)
        with self.naming():
            self._session.send(encode_word(word))
            raw = self._session.receive(self._answer_s)
            answer = parse_word(raw, Accepts, Refuses)
            if isinstance(answer, Refuses):
                raise RefusedError(
                    "the server refused the job",
                    why=quote_foreign(answer.why, MAX_REFUSAL),
                    code="server-refuses",
                )
            self._pipe = Pipe(
                self._session, self._carrier, PIPE_CONTEXT, timeout_s=self._answer_s
            )
        self._traces, self._begun = traces.digest(), 0

    def begin(self, number: int, step: int, *more: Buffer) -> None:
        """Say which step comes, and send what belongs to all of it."""
        with self.naming():
            for message in (Begin(number, step).encode(), *more):
                self._wire.send(message)
            self._hasher = answer_hasher(self._session, self._begun)
        self._step = step

    def send(self, messages: Iterable[Message]) -> None:
        """Operands of an exchange."""
        with self.naming():
            for message in messages:
                self._wire.send(message.bytes)

    def receive(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Fill the next messages, which are answers; each as it is there."""
        for message in messages:
            with self.naming():
                self._take(message.bytes)
            self._hasher.update(message.bytes)
            yield message

    def signed(self) -> SignedDocument[StepAnswers]:
        """What it signs at the end of a step, verified."""
        signature = bytearray(SIGNATURE_BYTES)
        with self.naming():
            try:
                self._take(signature)
            except MalformedError:  # no answer: the step is not made again
                raise AuthenticationError from None
            found = SignedDocument(self._answered(), bytes(signature))
            found.verify(self._identity)
        self._begun += 1
        return found

    def close(self) -> None:
        """Say that nothing more comes, if there is somebody to say it to. Idempotent."""
        with suppress(SealiftError):
            if self._pipe is not None:
                self._pipe.close()
        self.abort()

    def abort(self) -> None:
        """End it without a word. Idempotent."""
        if self._pipe is not None:
            self._pipe.abort()
        self._session.close()

    def _take(self, room: bytearray | memoryview) -> None:
        """Receive a message; what has another length is no share (rule S3)."""
        try:
            self._wire.receive_into(room)
        except MalformedError as error:
            raise MalformedError(
                "the server sent no answer to this step", why=error, code="bad-share"
            ) from None

    def _answered(self) -> StepAnswers:
        return StepAnswers(
            agreement=self._agreement,
            share=self.place.share,
            traces=self._traces,
            pipe=Digest(self._wire.id),
            begun=self._begun,
            step=self._step,
            answers=Digest(self._hasher.digest()),
        )

    @property
    def _wire(self) -> Pipe:
        return require_value(self._pipe)

    @property
    def _identity(self) -> PublicKey:
        return require_value(self._session.peer.identity)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Say of which server it is."""
        try:
            yield
        except PeerError as error:
            if error.code not in _GONE:
                error.what = f"{self.place}: {error.what}"
                raise
            raise PeerError(
                f"{self.place} cannot be reached, or does not answer",
                why=error,
                fix="See its log; start the server and the job again",
                code="server-gone",
            ) from None
        except SealiftError as error:
            error.what = f"{self.place}: {error.what}"
            raise


class Connections:
    """All three; what ``masked.MaskedProducts`` asks.

    Attributes:
        signed: What each signed at the end of the last step.
    """

    def __init__(self, servers: Mapping[Share, ServerConnection]) -> None:
        self._servers = [servers[share] for share in SHARES]
        self._threads = ThreadPoolExecutor(_WAYS, "share servers")
        self.signed: dict[Share, SignedDocument[StepAnswers]] = {}

    @classmethod
    def dial(
        cls,
        endpoint: Endpoint,
        places: Sequence[ServerPlace],
        *,
        answer_s: float,
        one_host: bool,
    ) -> Self:
        """Open a session with each.

        Args:
            endpoint: Ours; its evidence is what the servers judge.
            places: Of P, M and Z.
            answer_s: How long a server may be silent.
            one_host: Whether two may be on one host: at level ``development``.

        Raises:
            PeerError: code ``server-gone``, which names it.
            RefusedError: if one is not who it must be; ``servers-not-apart``.
        """
        with ExitStack() as undone:
            servers: dict[Share, ServerConnection] = {}
            for place in places:
                servers[place.share] = ServerConnection(place, endpoint, answer_s)
                undone.callback(servers[place.share].abort)
            if not one_host:
                _require_hosts_apart(servers.values())
            undone.pop_all()
            return cls(servers)

    def announce(self, traces: Traces) -> None:
        """Tell all of them the job's steps.

        Raises:
            RefusedError: code ``server-refuses``, which names it.
        """
        self._traces = traces
        self._plans = {
            StepKind(known.phase, known.rows): (number, plan_step(known.trace))
            for number, known in enumerate(traces.known)
        }
        for server in self._servers:
            server.announce(traces)

    def begin(self, kind: StepKind, step: int, seeds: StepSeeds) -> None:
        """Say which step comes; Z gets all of its seeds, and goes ahead.

        Raises:
            JobError: ``other-operations``, if no such step was announced.
        """
        self._traces.of(kind)
        number, plan = self._plans[kind]
        drawn = [seeds.draw(sent.basis) for each in plan for sent in each.sent]
        p, m, z = self._servers
        z.begin(number, step, b"".join(drawn))
        p.begin(number, step)
        m.begin(number, step)
        self._coming = iter(plan)
        self._of_z = _whole_step(z, plan) if answered_together(plan) else None

    def ask(
        self,
        exchange: Exchange,
        sent: Sequence[MaskedShares],
        take: Callable[[int], U32],
        arrived: Arrived,
    ) -> list[Answers]:
        """See ``AnsweringServers``. Z has its seeds since the step began.

        Raises:
            PeerError: code ``server-gone``, which names it.
            RefusedError, MalformedError: if what it sends is no answer to this.
        """
        planned = next(self._coming, None)
        if planned is None or planned.exchange != exchange:
            raise other_operations("another product than the next one")
        if planned.is_small:
            return self._ask_at_once(planned, sent, arrived)
        return self._ask_in_parts(planned, sent, take, arrived)

    def _ask_at_once(
        self, planned: Planned, sent: Sequence[MaskedShares], arrived: Arrived
    ) -> list[Answers]:
        """By one thread: a message to P and M, and one from each."""
        p, m, z = self._servers
        p.send(packed([each.plus for each in sent]))
        m.send(packed([each.minus for each in sent]))
        found = [_received(server, planned.answered) for server in (p, m)]
        found.append(
            _received(z, planned.answered)
            if self._of_z is None
            else list(islice(self._of_z, len(planned.answered)))
        )
        answers: list[Answers] = list(zip(*found, strict=True))
        for product, size in enumerate(planned.answered):
            arrived(product, slice(0, size), answers[product])
        return answers

    def _ask_in_parts(
        self,
        planned: Planned,
        sent: Sequence[MaskedShares],
        take: Callable[[int], U32],
        arrived: Arrived,
    ) -> list[Answers]:
        """By a thread for each way of each server: all of them work at once."""
        p, m, _ = self._servers
        rooms = [room_for(planned.answered, take) for _ in SHARES]
        answers: list[Answers] = list(
            zip(*(arrays for arrays, _ in rooms), strict=True)
        )
        tally = AnswerTally(len(SHARES), answers, arrived)

        def receive(server: ServerConnection, messages: Sequence[Message]) -> None:
            for message in server.receive(messages):
                for product, here in message.covers:
                    tally.count(product, here)

        def take_of_step(products: Iterator[U32]) -> None:
            for product, array in enumerate(rooms[-1][0]):
                array[:] = next(products)
                tally.count(product, slice(0, len(array)))

        works: list[Callable[[], None]] = [
            partial(p.send, _as_masked(sent, [each.plus for each in sent])),
            partial(m.send, _as_masked(sent, [each.minus for each in sent])),
        ]
        for server, (_, messages) in zip(self._servers, rooms, strict=True):
            works.append(partial(receive, server, messages))
        if self._of_z is not None:
            works[-1] = partial(take_of_step, self._of_z)
        ways = list(map(self._threads.submit, works))
        done, _ = wait(ways, return_when=FIRST_EXCEPTION)
        for each in done:
            each.result()
        return answers

    def finish(self) -> None:
        """Take each server's signature of its answers of this step.

        Raises:
            AuthenticationError: if it does not verify; names the server.
        """
        for server in self._servers:
            self.signed[server.place.share] = server.signed()

    def name(self, share: Share) -> str:
        """As errors say it: ``P (cloud-a)``."""
        return str(self._servers[SHARES.index(share)].place)

    def close(self) -> None:
        """End all. Idempotent."""
        for server in self._servers:
            server.close()
        self._threads.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        for server in self._servers:
            server.close() if kind is None else server.abort()
        self._threads.shutdown(wait=False)


def _whole_step(server: ServerConnection, plan: Sequence[Planned]) -> Iterator[U32]:
    """What it answers to all of a small step, product by product; received when looked at."""
    yield from _received(server, [size for each in plan for size in each.answered])


def _received(server: ServerConnection, sizes: Sequence[int]) -> list[U32]:
    arrays, messages = room_for(sizes)
    for _ in server.receive(messages):
        pass
    return arrays


def _as_masked(
    sent: Sequence[MaskedShares], shares: Sequence[U32]
) -> Iterator[Message]:
    """The messages with one server's shares, each as soon as all of it is masked."""
    for message in packed(shares):
        for tensor, here in message.covers:
            if parts := sent[tensor].parts:
                parts[here.start // PART].result()
        yield message


def _require_hosts_apart(servers: Iterable[ServerConnection]) -> None:
    """Two shares in one machine's memory are a secret in it (rule H10)."""
    seen: dict[str, ServerPlace] = {}
    for server in servers:
        other = seen.setdefault(server.host, server.place)
        if other is not server.place:
            raise servers_not_apart(
                f"the servers {other} and {server.place} run on one host"
            )
