"""Inside the guest: answers for its TPM, its logs and its bad acts, one at a time."""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path
from typing import Final

from sealift import codec
from sealift.attest.agent import (
    MAX_REQUEST_BYTES,
    AgentRequest,
    Answer,
    Collect,
    Describe,
    Description,
    Enrol,
    Keep,
    Measure,
    Reply,
    encode_reply,
    error_reply,
    read_frame,
)
from sealift.attest.evidence import Evidence
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.attester import TpmAttester, TpmSources
from sealift.attest.tpm.enrolment import SignedEnrolment
from sealift.attest.tpm.evidence import KIND, MEDIA_TYPE
from sealift.crypto.tpmcredential import Credential
from sealift.errors import PeerError, SealiftError, UsageError
from sealift.ids import Digest
from sealift.lab.guest.acts import misbehave, shut_down
from sealift.lab.guest.layout import PORT, STATE
from sealift.lab.guest.protocol import (
    GUEST,
    PREAMBLE,
    Misbehave,
    Request,
    ShutDown,
    Start,
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
        case Answer(blob, seed):
            return tpm.answer(Credential(blob, seed))
        case Keep(signed):
            tpm.keep_enrolment(codec.decode(SignedEnrolment, signed))
        case Measure(kind, content):
            tpm.measure(RuntimeEvent(kind, content))
    return b""


def _description(tpm: TpmAttester) -> Description:
    return Description(
        kind=KIND,
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
            reply = Reply(agent.carry_out(GUEST.decode(raw)))
        except PeerError:
            return
        except SealiftError as error:
            reply = error_reply(error)
        except Exception as error:  # the first process must not end: say it instead
            reply = Reply(error=repr(error)[:1000], code="guest-agent")
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
