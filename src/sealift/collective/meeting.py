"""How the ranks of a group find each other: a session for every pair, one view, pipes.

Everybody dials the relay; of a pair the later rank opens the circuit. Each pair proves
itself by the policy of the other's name (evidence, in a plan), then tells the other its
view of the whole group, and only if both have the same does a pipe begin, bound to it:
through private memory on one machine, TCP where the later rank may dial the earlier, else
the relay. Every rank goes through its pairs in the same order, so nobody waits for who
waits for it.
Source: spec/collective.md section 1.

Who is in a group, and the one view of it that every pair confirms before it sums.

The charter is fixed before anybody meets: the agreement, the job, the shape of the run,
and who has which rank. The view adds what is fresh: each rank's instance key, as its
sessions proved it, and the epoch, which rank 0 draws anew whenever the ranks start. Every
pair compares digests of its views inside its own session (rule C8: nothing of a former
start fits), so a relay that splits a group, or a rank that is two, is found by whoever
meets it.
Source: spec/collective.md section 1.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from sealift.channel.transport.transport import SlotTransport
from sealift.codec import encode, encode_named, from_plain, parse_named
from sealift.collective.group import MAX_RANKS, SealedGroup
from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PeerError,
    PolicyError,
    UsageError,
    require_kind,
)
from sealift.ids import Digest
from sealift.session.devicepipe import DevicePipe
from sealift.session.direct import DirectOffer, PathDialler, PathName
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.pipe import RECORD_BYTES
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, accept, connect

MAX_WORDS: Final = 4096
PIPES_S: Final = 60.0  # for pipes between ranks that are all there
FRAME_BYTES: Final = RECORD_BYTES + (64 << 10)
_Word = TypeVar("_Word")


EPOCH_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """What every rank knows before it meets another.

    Attributes:
        agreement: Digest of the agreement that all work under.
        job: Name of the job.
        shape: Digest of what decides the result's bits.
        names: The ranks' names, in the order of ranks.
    """

    agreement: Digest
    job: str
    shape: Digest
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= MAX_RANKS:
            raise UsageError(
                f"a group must have 1 to {MAX_RANKS} ranks; this one has "
                f"{len(self.names)}",
                code="bad-world",
            )
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise UsageError(
                f"the name {twice[0]} is used for two ranks", code="bad-world"
            )

    def view(self, instances: Sequence[PublicKey], epoch: bytes) -> Digest:
        """The group as this rank sees it; both ends of every pair must have this digest.

        Args:
            instances: Proven instance keys, in the order of ranks.
            epoch: ``EPOCH_BYTES`` that rank 0 drew.

        Raises:
            IntegrityError: code ``one-key-two-ranks``.
        """
        for rank, key in enumerate(instances):
            if key in instances[:rank]:
                raise IntegrityError(
                    f"{self.names[rank]} is the same process as another rank",
                    why="two ranks have one instance key",
                    code="one-key-two-ranks",
                )
        keys = [key.raw for key in instances]
        return Digest(labelled(Label.GROUP_VIEW.value, encode(self), *keys, epoch))


def _demand_same_versions(
    ours: Mapping[str, str], theirs: Mapping[str, str], name: str
) -> None:
    """Compare the libraries that both have; what one has alone is its own affair.

    Raises:
        PolicyError: code ``mixed-versions``.
    """
    both = sorted(ours.keys() & theirs.keys())
    other = [
        f"{each} {theirs[each]} there and {ours[each]} here"
        for each in both
        if theirs[each] != ours[each]
    ]
    if other:
        raise PolicyError(
            f"{name} runs other versions than this rank",
            why=", ".join(other),
            code="mixed-versions",
        )


def _demand_same_view(ours: Digest, theirs: Digest, name: str) -> None:
    """Compare with what ``name`` sees.

    Raises:
        IntegrityError: code ``two-views``.
    """
    if theirs != ours:
        raise IntegrityError(
            f"{name} has joined another group than this rank",
            why="its charter, instance keys or epoch differ",
            code="two-views",
        )


@dataclass(frozen=True, slots=True)
class Began:
    """Rank 0's, to each: this start of the group.

    Attributes:
        epoch: ``charter.EPOCH_BYTES``.
    """

    epoch: bytes


@dataclass(frozen=True, slots=True)
class Sees:
    """The group, as this rank sees it.

    Attributes:
        view: Digest of it.
        versions: Of this rank's libraries, by their names.
    """

    view: Digest
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Offers:
    """The earlier rank's: where it can be reached."""

    offers: tuple[DirectOffer, ...]


@dataclass(frozen=True, slots=True)
class Takes:
    """The later rank's: how the pipe goes."""

    path: PathName


class GroupMeeting:
    """Brings one rank into its group.

    Args:
        charter: The group's.
        endpoint: Ours; its name is one of the charter's.
        relay: Our connection to it; circuits that others open come in here.
        expect: What a rank of that name must show.
        host: Where later ranks may connect; None is the relay only.
        dialler: Which places of earlier ranks may be dialled.
        vouch: Told the circuit of each later rank that was judged by its evidence.
        versions: Of libraries on which results depend, by their names; ranks that have
            different ones do not work together.
        timeout_s: How long all of it may take, and a peer for one record afterwards.

    Attributes:
        rank: Our number.
        paths: How the pipe to each other rank goes, by its name.
        instances: Keys of all ranks, in their order.
        levels: That the others' evidence proves; empty text of one that showed none.
    """

    def __init__(
        self,
        charter: Charter,
        endpoint: Endpoint,
        relay: RelayClient,
        expect: Callable[[str], PeerPolicy],
        *,
        host: DirectHost | None = None,
        dialler: PathDialler | None = None,
        vouch: Callable[[bytes], None] | None = None,
        versions: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._charter, self._endpoint, self._relay = charter, endpoint, relay
        self._expect, self._host = expect, host
        self._dialler = dialler or PathDialler(local=False)
        self._vouch = vouch or (lambda circuit: None)
        self._versions = versions or {}
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._parked: dict[str, Circuit] = {}
        self.rank = charter.names.index(endpoint.name)
        self.paths: dict[str, PathName] = {}
        self.instances: tuple[PublicKey, ...] = ()
        self.levels: tuple[str, ...] = ()

    def meet(self) -> SealedGroup:
        """Meet all others; the group outlives the sessions.

        Raises:
            PeerError: if a rank does not come in time, or leaves.
            RefusedError: if one is not who it must be, or sees another group.
        """
        others = [n for n in range(len(self._charter.names)) if n != self.rank]
        with ExitStack() as sessions, ExitStack() as undone:
            sessions.callback(self._close_parked)
            met: dict[int, Session] = {}
            for peer in others:
                with self._naming(peer):
                    met[peer] = sessions.enter_context(self._session(peer))
            view = self._agree_on_view(met)
            # All are here, and nobody works before there are pipes.
            self._deadline = min(self._deadline, time.monotonic() + PIPES_S)
            results = [session.peer.result for session in met.values()]
            self.levels = tuple(each.standing if each else "" for each in results)
            pipes: dict[int, DevicePipe] = {}
            for peer, session in met.items():
                with self._naming(peer):
                    pipes[peer] = self._pipe(peer, session, view)
                undone.callback(pipes[peer].abort)
            group = SealedGroup(self.rank, pipes)
            undone.pop_all()
            return group

    def _session(self, peer: int) -> Session:
        name = self._charter.names[peer]
        policy = self._expect(name)
        if peer < self.rank:
            circuit = self._relay.open(name, wait_s=self._left_s())
            return connect(circuit, self._endpoint, policy, self._left_s())
        circuit = self._await(name)
        session = accept(circuit, self._endpoint, policy, self._left_s())
        self._vouch(circuit.id)
        return session

    def _await(self, name: str) -> Circuit:
        """The circuit that a later rank opens; others are kept for their turn."""
        while name not in self._parked:
            circuit = self._relay.accept(self._left_s())
            if circuit.peer_name not in self._charter.names[self.rank + 1 :]:
                circuit.close()
                continue
            former = self._parked.pop(circuit.peer_name, None)
            if former is not None:
                former.close()
            self._parked[circuit.peer_name] = circuit
        return self._parked.pop(name)

    def _close_parked(self) -> None:
        while self._parked:
            self._parked.popitem()[1].close()

    def _agree_on_view(self, met: dict[int, Session]) -> Digest:
        keys = {peer: session.peer.instance for peer, session in met.items()}
        keys[self.rank] = self._endpoint.instance.public_key
        self.instances = tuple(keys[rank] for rank in sorted(keys))
        if self.rank == 0:
            epoch = secrets.token_bytes(EPOCH_BYTES)
            view = self._charter.view(self.instances, epoch)
            for session in met.values():
                _say(session, Began(epoch))
        else:
            epoch = self._hear(met[0], Began).epoch
            view = self._charter.view(self.instances, epoch)
        for session in met.values():
            _say(session, Sees(view, self._versions))
        for peer, session in met.items():
            with self._naming(peer):
                theirs = self._hear(session, Sees)
            name = self._charter.names[peer]
            _demand_same_versions(self._versions, theirs.versions, name)
            _demand_same_view(view, theirs.view, name)
        return view

    def _pipe(self, peer: int, session: Session, view: Digest) -> DevicePipe:
        carry = self._dial if peer < self.rank else self._host_one
        carrier, path = carry(self._charter.names[peer], session, view)
        self.paths[self._charter.names[peer]] = path
        return DevicePipe(
            session,
            carrier,
            view.raw,
            timeout_s=self._timeout_s,
            hello_s=self._left_s(),
        )

    def _dial(
        self, name: str, session: Session, view: Digest
    ) -> tuple[SlotTransport, PathName]:
        offers = self._hear(session, Offers).offers
        key = session.export(Label.DIRECT_PATH, view.raw)
        try:
            taken = self._dialler.take(offers, key, FRAME_BYTES)
        finally:
            key.wipe()
        _say(session, Takes(taken.name))
        return taken.transport or self._relay.open(name, self._left_s()), taken.name

    def _host_one(
        self, name: str, session: Session, view: Digest
    ) -> tuple[SlotTransport, PathName]:
        if self._host is None:
            _say(session, Offers(()))
            return self._await(name), self._hear(session, Takes).path
        key = session.export(Label.DIRECT_PATH, view.raw)
        place = self._host.offer(key, FRAME_BYTES, both_ways=True)
        try:
            _say(session, Offers(place.offers))
            path = self._hear(session, Takes).path
            if path == "relay":
                return self._await(name), path
            return place.hand_over(self._left_s()), path
        finally:
            self._host.withdraw(place)

    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    @contextmanager
    def _naming(self, peer: int) -> Iterator[None]:
        """Say which rank it was, if one is not there."""
        try:
            yield
        except PeerError as error:
            name = self._charter.names[peer]
            raise PeerError(
                f"{name} did not join the group", why=error, code=error.code
            ) from None

    def _hear(self, session: Session, kind: type[_Word]) -> _Word:
        raw = session.receive(self._left_s())
        name, plain = parse_named(raw, max_bytes=MAX_WORDS)
        if name != kind.__name__:
            raise MalformedError(
                f"a rank sent {name[:40]!r}; {kind.__name__!r} was expected",
                code="bad-message",
            )
        return require_kind(from_plain(kind, plain), kind)


def _say(session: Session, word: object) -> None:
    session.send(encode_named(type(word).__name__, word))
