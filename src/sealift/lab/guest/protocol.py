"""What is said over the guest's second serial port, and where things lie inside.

One request, one reply, in turn: those of an attestation agent, and what only a rehearsal
asks for. The agent begins with a preamble, because firmware and kernel may write to the
port before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sealift.attest.tpm.agent import (
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


PYTHON_VERSION: Final = "3.11"
PYTHON: Final = f"/usr/bin/python{PYTHON_VERSION}"
BUSYBOX: Final = "/bin/busybox"
LIBRARIES: Final = "/lib/x86_64-linux-gnu"
LOADER: Final = "/lib64/ld-linux-x86-64.so.2"
LIBRARY: Final = f"{LIBRARIES}/libm.so.6"
MODULE: Final = "/modules/crc7.ko"  # in no reference value: loading it is a bad act
CODE: Final = "/opt/sealift"
PACKED_BUNDLE: Final = "/packed/recipe.zip"  # copied to BUNDLE by init
BUNDLE: Final = "/bundle/recipe.zip"  # on a ramfs, whose every read is measured
STATE: Final = "/run/sealift"
PORT: Final = "/dev/ttyS1"
UNLISTED: Final = "/tmp/busybox-unlisted"  # noqa: S108 - the guest is ours alone
UNLISTED_LIBRARY: Final = "/tmp/libunlisted.so"  # noqa: S108
COMMAND_LINE: Final = "console=ttyS0 quiet panic=-1 lockdown=integrity"
