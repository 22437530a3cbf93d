"""Inside the guest: answers for its TPM, its logs and its bad acts, one at a time.

What is said over the guest's second serial port: one request, one reply, in turn, those of
an attestation agent, and what only a rehearsal asks for. The agent begins with a preamble,
because firmware and kernel may write to the port before it.
What a host must not do is done for real, and measured. Every act is one that the
reference values do not allow, by content: the files differ from allowed ones by a byte
at the end, which neither kernel nor loader minds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.agent import (
    AGENT_VERBS,
    MAX_REQUEST_BYTES,
    AgentReply,
    AgentRequest,
    AnswerChallenge,
    Collect,
    Describe,
    Description,
    Enrol,
    Keep,
    Measure,
    Read,
    Vocabulary,
    encode_reply,
    error_reply,
    read_exactly,
    read_frame,
)
from sealift.attest.tpm.attester import TpmAttester, TpmSources
from sealift.attest.tpm.enrolment import SignedEnrolment
from sealift.attest.tpm.evidence import MEDIA_TYPE, TpmBody
from sealift.crypto.tpmcredential import Credential
from sealift.errors import (
    MalformedError,
    PeerError,
    SealiftError,
    UnavailableError,
    UsageError,
)
from sealift.ids import Digest

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
UNLISTED: Final = "/tmp/busybox-unlisted"
UNLISTED_LIBRARY: Final = "/tmp/libunlisted.so"
COMMAND_LINE: Final = "console=ttyS0 quiet panic=-1 lockdown=integrity"


_TIMEOUT_S: Final = 30


def misbehave(act: Act) -> str:
    """Do it, and return the path that the measurement list must show.

    Raises:
        UnavailableError: ``guest-act`` if the kernel did not let it.
    """
    return _ACTS[act]()


def shut_down() -> None:
    """Switch the guest off; its kernel tells the TPM."""
    _run(BUSYBOX, "poweroff", "-f")


def _run_unlisted() -> str:
    _alter(BUSYBOX, UNLISTED)
    _run(UNLISTED, "true")
    return UNLISTED


def _change_bundle() -> str:
    path = Path(BUNDLE)
    with path.open("ab") as file:
        file.write(b"\n")
    path.read_bytes()
    return BUNDLE


def _preload() -> str:
    _alter(LIBRARY, UNLISTED_LIBRARY)
    _run(PYTHON, "-I", "-S", "-c", "", preload=UNLISTED_LIBRARY)
    return UNLISTED_LIBRARY


def _insert_module() -> str:
    _run(BUSYBOX, "insmod", MODULE)
    return MODULE


_ACTS: Final[dict[Act, Callable[[], str]]] = {
    "exec": _run_unlisted,
    "bundle": _change_bundle,
    "preload": _preload,
    "module": _insert_module,
}


def _alter(source: str, target: str) -> None:
    Path(target).write_bytes(Path(source).read_bytes() + b"\n")
    Path(target).chmod(0o755)


def _run(*command: str, preload: str = "") -> None:
    environment = {**os.environ, "LD_PRELOAD": preload} if preload else None
    done = subprocess.run(
        command, env=environment, timeout=_TIMEOUT_S, capture_output=True, check=False
    )
    if done.returncode:
        raise UnavailableError(
            "the guest could not misbehave",
            why=done.stderr.decode(errors="replace")[-300:],
            code="guest-act",
        )


_REMEMBERED: Final = 16


class Agent:
    """Carries out requests; the TPM is opened by the first one."""

    def __init__(self) -> None:
        self._attester: TpmAttester | None = None
        self._shown: deque[Evidence] = deque(maxlen=_REMEMBERED)

    def carry_out(self, request: Request) -> bytes:
        """Carry out one request and return its answer.

        Raises:
            SealiftError: whatever stood in its way.
        """
        match request:
            case Start(issuers):
                self._attester = _open_tpm(issuers)
            case Misbehave(act):
                return misbehave(act).encode()
            case ShutDown():
                shut_down()
            case Collect(bound, earlier):
                return self._collect(bound, earlier).body
            case _:
                return _ask(self._tpm(), request)
        return b""

    def _collect(self, bound: bytes, earlier: Digest | None) -> Evidence:
        known = next((each for each in self._shown if each.digest == earlier), None)
        tpm = self._tpm()
        evidence = tpm.continue_from(known, bound) if known else tpm.collect(bound)
        self._shown.append(evidence)
        return evidence

    def _tpm(self) -> TpmAttester:
        if self._attester is None:
            raise UsageError("the guest's TPM was not opened yet")
        return self._attester


def _open_tpm(issuers: tuple[bytes, ...]) -> TpmAttester:
    return TpmAttester(TpmSources(state=Path(STATE), issuers=issuers))


def _ask(tpm: TpmAttester, request: AgentRequest) -> bytes:
    match request:
        case Enrol():
            return codec.encode(tpm.enrolment_request())
        case Describe():
            return codec.encode(_description(tpm))
        case AnswerChallenge(blob, seed):
            return tpm.answer(Credential(blob, seed))
        case Keep(signed):
            tpm.keep_enrolment(codec.decode(SignedEnrolment, signed))
        case Measure(kind, content):
            tpm.measure(RuntimeEvent(kind, content))
    return b""


def _description(tpm: TpmAttester) -> Description:
    return Description(
        kind=TpmBody.kind,
        media_type=MEDIA_TYPE,
        events=tpm.events,
        enrolments=tpm.enrolments(),
    )


def serve(port: int) -> None:
    """Answer requests on an open port until it is closed."""
    agent = Agent()
    _write(port, PREAMBLE)
    while True:
        try:
            raw = read_frame(lambda size: os.read(port, size), MAX_REQUEST_BYTES)
            reply = AgentReply(agent.carry_out(GUEST.decode(raw)))
        except PeerError:
            return
        except SealiftError as error:
            reply = error_reply(error)
        except Exception as error:  # the first process must not end: say it instead
            reply = AgentReply(error=repr(error)[:1000], code="guest-agent")
        _write(port, encode_reply(reply))


def _write(port: int, raw: bytes) -> None:
    view = memoryview(raw)
    while view:
        view = view[os.write(port, view) :]


def main() -> int:
    """Serve the guest's port."""
    serve(os.open(PORT, os.O_RDWR | os.O_NOCTTY))
    return 0


if __name__ == "__main__":
    sys.exit(main())
