"""Handshakes of the KBS protocol between their requests: few, short-lived, single use.

A challenge is answered once and a token is shown once; then they are gone, whatever came
of it. Time is monotonic and an argument. Nothing here is on disk: a restart forgets all
of it, and clients attest again.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from sealift.crypto.jwe import RecipientKey
from sealift.errors import PolicyError, UnavailableError
from sealift.release.kbs import KbsAsker
from sealift.service.kbsforms import AuthRequest

T = TypeVar("T")
CHALLENGE_S: Final = 60.0
TOKEN_S: Final = 300.0
MAX_OPEN: Final = 4096
ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Challenged:
    """A client that began, and the nonce that it got."""

    request: AuthRequest
    nonce: str


@dataclass(frozen=True, slots=True)
class Attested:
    """A client whose evidence was accepted; what its token stands for.

    Attributes:
        cookie: The session that it attested in; its token is found by it, too.
        asker: For the owner's decision.
        tee_key: Where resources are encrypted to.
        challenge: 32 bytes, used once, for the owner's decision.
    """

    cookie: str
    asker: KbsAsker
    tee_key: RecipientKey
    challenge: bytes


class OnceStore(Generic[T]):
    """Values that are put under an id, and taken out once, in time.

    Args:
        valid_s: How long.
        limit: Most at a time.
    """

    def __init__(self, valid_s: float, limit: int = MAX_OPEN) -> None:
        self._valid_s = valid_s
        self._limit = limit
        self._values: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, name: str, value: T, now_s: float) -> None:
        """Keep a value.

        Raises:
            UnavailableError: ``kbs-too-many``; older ones are never pushed out, or
                strangers could end everybody's handshakes.
        """
        with self._lock:
            self._forget(now_s)
            if len(self._values) >= self._limit:
                raise UnavailableError(
                    "too many handshakes are open", fix="Try later", code="kbs-too-many"
                )
            self._values[name] = (now_s + self._valid_s, value)

    def take(self, name: str, now_s: float) -> T:
        """The value, which is gone from here on.

        Raises:
            PolicyError: ``kbs-no-session``: never there, used before, or too old.
        """
        with self._lock:
            self._forget(now_s)
            found = self._values.pop(name, None)
        if found is None:
            raise PolicyError(
                "no such handshake is open",
                why="it was never begun, was used before, or is too old",
                fix="Begin again with /auth",
                code="kbs-no-session",
            )
        return found[1]

    def __len__(self) -> int:
        return len(self._values)

    def _forget(self, now_s: float) -> None:
        while self._values:
            ends_s, _ = next(iter(self._values.values()))
            if ends_s > now_s:
                return
            self._values.popitem(last=False)


def fresh_id() -> str:
    """A session's or a token's id: 32 hex digits that nobody can guess."""
    return secrets.token_hex(ID_BYTES)
