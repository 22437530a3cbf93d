"""Three share servers that a user's own process asks: who they are, and how they are reached.

``servers.toml`` is what user and servers agree on. All four have it, with the cards that it
names, and its digest stands in their sessions where a job's agreement does:

    client = "lab.card.json"            # whose process may ask
    development = false                 # true: all on one host, which then protects nobody

    [P]
    card = "cloud-a.card.json"
    address = "cloud-a.example:7440"    # for the client alone
    # and so [M] and [Z]
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from sealift.codec import encode, from_plain, parse_toml
from sealift.crypto.identity import Card, Identity, load_card
from sealift.errors import MalformedError, RefusedError, UsageError
from sealift.ids import Digest, Role
from sealift.numeric.kernels import Kernels
from sealift.outsource.connections import Connections, ServerPlace
from sealift.outsource.masked import SHARES, MaskedProducts, Share
from sealift.outsource.trace import Traces
from sealift.release.agreement.terms import servers_not_apart
from sealift.release.files import read_whole
from sealift.session.endpoint import Endpoint, PeerPolicy

ANSWER_S: Final = 120.0  # a large product of a slow server
_LEAVING_S, _PAUSE_S = 10.0, 0.05  # a server lets go of our former session
_MAX_FILE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class _Place:
    card: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    client: str
    P: _Place
    M: _Place
    Z: _Place
    development: bool = False


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the digest is of: everything but addresses."""

    client: Card
    servers: tuple[Card, ...]
    development: bool


@dataclass(frozen=True, slots=True)
class Servers:
    """P, M and Z, and who may ask them.

    Attributes:
        client: The user's card.
        cards: Of the servers.
        addresses: Host and port, as they were written.
        development: Whether they may be on one host.
    """

    client: Card
    cards: Mapping[Share, Card]
    addresses: Mapping[Share, str]
    development: bool = False

    def __post_init__(self) -> None:
        keys = {card.sign: card.name for card in (self.client, *self.cards.values())}
        if len(keys) <= len(SHARES):
            raise servers_not_apart("the client, P, M and Z need four different keys")

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read ``servers.toml`` and the cards beside it.

        Raises:
            MalformedError: the path of the field that does not fit.
            PolicyError: code ``servers-not-apart``.
        """
        path = Path(path)
        raw = read_whole(path, _MAX_FILE_BYTES)
        found: _File = from_plain(_File, parse_toml(raw, source=str(path)))
        places: dict[Share, _Place] = {"P": found.P, "M": found.M, "Z": found.Z}
        return cls(
            load_card(path.parent / found.client),
            {share: load_card(path.parent / p.card) for share, p in places.items()},
            {share: place.address for share, place in places.items()},
            found.development,
        )

    @property
    def digest(self) -> Digest:
        """Stands for an agreement."""
        cards = tuple(self.cards[share] for share in SHARES)
        return Digest.of(encode(Agreed(self.client, cards, self.development)))

    def endpoint(self, identity: Identity, share: Share | None = None) -> Endpoint:
        """The client's end of sessions, or a server's.

        Raises:
            UsageError: code ``other-key``, if the identity is not the one that is named.
        """
        card = self.cards[share] if share else self.client
        if card != identity.card:
            whose = f"server {share}" if share else "client"
            raise UsageError(
                f"this key does not belong to the {whose}",
                why=f"it belongs to {identity.name}; the {whose} is {card.name}",
                code="other-key",
            )
        role = Role.SHARE_SERVER if share else Role.ACCELERATOR
        return Endpoint(
            role=role, name=card.name, agreement=self.digest, identity=identity
        )

    def expect_client(self) -> PeerPolicy:
        """What a server demands of who asks."""
        return _policy(Role.ACCELERATOR, self.client)

    def place(self, share: Share) -> ServerPlace:
        """Where a server is, and what the client demands of it.

        Raises:
            MalformedError: code ``bad-address``.
        """
        card = self.cards[share]
        return ServerPlace(
            share=share,
            party=card.name,
            address=_address(self.addresses[share]),
            policy=_policy(Role.SHARE_SERVER, card),
        )


class ReachedServers:
    """The three, from the client's process.

    Args:
        servers: Who they are.
        identity: The client's.
        kernels: Compute.
    """

    def __init__(self, servers: Servers, identity: Identity, kernels: Kernels) -> None:
        self._endpoint = servers.endpoint(identity)
        self._places = [servers.place(share) for share in SHARES]
        self._one_host = servers.development
        self._kernels = kernels
        self._open: Connections | None = None

    def open(self, traces: Traces) -> MaskedProducts:
        """Open sessions in which these are all forms of steps; former ones end.

        Raises:
            PeerError: code ``server-gone``.
            RefusedError: if a server is not who it must be, or refuses the steps.
        """
        until = time.monotonic() + (_LEAVING_S if self._open else 0.0)
        self.close()
        while self._open is None:
            try:
                self._open = self._dialled(traces)
            except RefusedError as error:  # it may not have left the former session
                if error.code != "server-refuses" or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_S)
        return MaskedProducts(self._open, self._kernels)

    def close(self) -> None:
        """End the sessions. Idempotent."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def _dialled(self, traces: Traces) -> Connections:
        found = Connections.dial(
            self._endpoint, self._places, answer_s=ANSWER_S, one_host=self._one_host
        )
        try:
            found.announce(traces)
        except BaseException:
            found.close()
            raise
        return found


def _policy(role: Role, card: Card) -> PeerPolicy:
    return PeerPolicy(
        roles=frozenset({role}),
        identities={card.name: card.sign},
        require_identity=True,
        names=frozenset({card.name}),
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise MalformedError(
            f"{text[:80]!r} is not an address of the form host:port", code="bad-address"
        )
    return host, int(port)
