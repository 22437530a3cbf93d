"""What is said over the guest's second serial port: one request, one reply, in turn.

The requests to an attestation agent, and what only a rehearsal asks for. The agent
begins with a preamble, because firmware and kernel may write to the port before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.attest.agent import (
    AGENT_VERBS,
    AgentRequest,
    Read,
    Vocabulary,
    read_exactly,
)
from sealift.errors import MalformedError

PREAMBLE: Final = b"\nsealift guest agent, version 1\n"
_MAX_NOISE_BYTES: Final = 1 << 20

Act = Literal["exec", "bundle", "preload", "module"]


@dataclass(frozen=True, slots=True)
class Start:
    """Open the TPM. ``issuers``: DER certificates above the endorsement key's."""

    issuers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Misbehave:
    """Do what a host must not do."""

    act: Act


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Switch the machine off in good order, which tells the TPM."""


Request = AgentRequest | Start | Misbehave | ShutDown
GUEST: Final = Vocabulary(
    {
        **AGENT_VERBS,
        "start": Start,
        "misbehave": Misbehave,
        "shut-down": ShutDown,
    }
)


def skip_to_preamble(read: Read) -> None:
    """Read past whatever was written before the agent spoke.

    Raises:
        MalformedError: if it never does.
        PeerError: if the port was closed.
    """
    seen = b""
    for _ in range(_MAX_NOISE_BYTES):
        seen = (seen + read_exactly(read, 1))[-len(PREAMBLE) :]
        if seen == PREAMBLE:
            return
    raise MalformedError("no agent speaks on the guest's port")
