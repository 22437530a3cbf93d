"""Evidence: what an attester says about itself, as typed bytes, and who collects it.

``bound`` is the 32-byte value that evidence must carry in the field its kind signs
(report_data, qualifyingData, the SPDM nonce, the statement of development evidence).
It is made from the session's transcript (spec/handshake.md), so evidence fits one
handshake, one side and one role. An attester may open devices and talk to a platform; it
decides nothing. Nothing here parses what is inside of a body but its kind's own class.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, Self, runtime_checkable

from sealift import codec
from sealift.attest.runtimelog import RuntimeEvent
from sealift.errors import MalformedError, UsageError
from sealift.ids import Digest

CHALLENGE_BYTES: Final = 32
BOUND_BYTES: Final = 32  # of a session; other protocols bind less or more
MIN_BOUND_BYTES: Final = 2
MAX_BOUND_BYTES: Final = 64
MAX_BODY_BYTES: Final = 4 << 20
_MEDIA_TYPE: Final = re.compile(r"application/[a-z0-9][a-z0-9.+-]{0,100}")


@dataclass(frozen=True, slots=True)
class Challenge:
    """32 fresh random bytes that make evidence fresh."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != CHALLENGE_BYTES:
            raise MalformedError(f"a challenge must have {CHALLENGE_BYTES} bytes")

    @classmethod
    def generate(cls) -> Challenge:
        """A challenge from the system's generator."""
        return cls(secrets.token_bytes(CHALLENGE_BYTES))


@dataclass(frozen=True, slots=True)
class Evidence:
    """One attester's statement.

    Attributes:
        kind: Short name of the evidence kind, for people and logs.
        media_type: Selects the verifier.
        body: Bytes in the format of ``media_type``.
    """

    kind: str
    media_type: str
    body: bytes

    def __post_init__(self) -> None:
        if not _MEDIA_TYPE.fullmatch(self.media_type):
            raise MalformedError("the text is not a media type", field="media_type")
        if not re.fullmatch(r"[a-z0-9-]{1,32}", self.kind):
            raise MalformedError("the text is not a kind of evidence", field="kind")
        if len(self.body) > MAX_BODY_BYTES:
            raise MalformedError("the evidence is too large", field="body")

    @property
    def digest(self) -> Digest:
        """SHA-256 of the body, for logs and receipts."""
        return Digest.of(self.body)


class Body:
    """Base of what one kind's evidence says: canonical JSON of a dataclass."""

    __slots__ = ()
    kind: ClassVar[str]
    max_bytes: ClassVar[int] = MAX_BODY_BYTES

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Parse; trusts nothing.

        Raises:
            MalformedError: if it is not this format.
        """
        return codec.decode(cls, raw, max_bytes=cls.max_bytes)

    def to_evidence(self) -> Evidence:
        """Evidence with this body."""
        media_type = f"application/vnd.sealift.{self.kind}-evidence+json"
        return Evidence(self.kind, media_type, codec.encode(self))


def require_bound(bound: bytes, most: int = MAX_BOUND_BYTES) -> None:
    """Refuse to bind what the kind's signed field (of ``most`` bytes) cannot carry.

    Raises:
        UsageError: ``usage``.
    """
    if not MIN_BOUND_BYTES <= len(bound) <= most:
        raise UsageError(
            f"this evidence must bind {MIN_BOUND_BYTES} to {most} bytes",
            why=f"{len(bound)} bytes were given",
            code="usage",
        )


Measure = Callable[[RuntimeEvent], None]
"""Extends the register of the runtime log; returns once that is done."""


class Attester(Protocol):
    """Makes evidence about the process and machine that it runs in."""

    def collect(self, bound: bytes) -> Evidence:
        """Evidence that carries ``bound`` (2 to 64 bytes) in its signed field.

        Raises:
            UnavailableError: if the platform cannot make it now.
        """
        ...


@runtime_checkable
class ContinuingAttester(Attester, Protocol):
    """One whose evidence grows, and that can send only what is new.

    Within one session each renewal continues the evidence before, so that its cost does
    not depend on how long the machine has been running.
    """

    def continue_from(self, earlier: Evidence, bound: bytes) -> Evidence:
        """Evidence over ``bound`` that leaves out what ``earlier`` showed.

        Raises:
            UnavailableError: if the platform cannot make it now.
        """
        ...


@runtime_checkable
class MeasuringAttester(Attester, Protocol):
    """One with a register for what the process measures about itself."""

    def measure(self, event: RuntimeEvent) -> None:
        """Extend the runtime log's register with ``event``.

        Raises:
            UnavailableError: if the platform cannot now.
        """
        ...


def unmeasured(event: RuntimeEvent) -> None:
    """For a machine without such a register: development evidence has none."""


def measuring(attester: Attester) -> Measure:
    """What extends the register of this attester, or does nothing if it has none."""
    return attester.measure if isinstance(attester, MeasuringAttester) else unmeasured
