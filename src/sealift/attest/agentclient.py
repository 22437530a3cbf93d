"""Evidence by an agent: what attests stands elsewhere, behind a socket of this machine.

The agent owns the TPM and its logs; this side knows only its requests. Whether the
evidence is worth anything is for verifiers: nothing here is believed.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Final

from sealift import codec
from sealift.attest.agent import (
    AGENT,
    MAX_REPLY_BYTES,
    AgentRequest,
    Answer,
    Collect,
    Describe,
    Description,
    Enrol,
    Keep,
    Measure,
    decode_reply,
    read_frame,
)
from sealift.attest.evidence import Evidence
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.enrolment import EnrolmentRequest, SignedEnrolment
from sealift.crypto.tpmcredential import Credential
from sealift.errors import (
    MalformedError,
    PeerError,
    SealiftError,
    UnavailableError,
)

SCHEME: Final = "unix:"
TIMEOUT_S: Final = 60.0


class AgentAttester:
    """The agent at a Unix socket; threads may share it. Close it at the end.

    Args:
        place: ``unix:PATH``.

    Raises:
        UnavailableError: ``agent-gone``: nobody answers there.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._socket = _connect(place)
        try:
            self._about = self._describe()
        except BaseException:
            self.close()
            raise

    @property
    def media_type(self) -> str:
        """Format of its evidence."""
        return self._about.media_type

    @property
    def events(self) -> tuple[RuntimeEvent, ...]:
        """The runtime log of its boot."""
        return self._describe().events

    def enrolments(self) -> tuple[SignedEnrolment, ...]:
        """Every enrolment of its present attestation key."""
        return self._describe().enrolments

    def collect(self, bound: bytes) -> Evidence:
        """See ``Attester.collect``."""
        return self._evidence(Collect(bound, None))

    def continue_from(self, earlier: Evidence, bound: bytes) -> Evidence:
        """See ``ContinuingAttester.continue_from``."""
        return self._evidence(Collect(bound, earlier.digest))

    def measure(self, event: RuntimeEvent) -> None:
        """See ``MeasuringAttester.measure``."""
        self._ask(Measure(event.kind, event.content))

    def enrolment_request(self) -> EnrolmentRequest:
        """What a broker needs to enrol the host."""
        return codec.decode(EnrolmentRequest, self._ask(Enrol()))

    def answer(self, credential: Credential) -> bytes:
        """The secret of a credential for the host."""
        return self._ask(Answer(credential.blob, credential.seed))

    def keep_enrolment(self, signed: SignedEnrolment) -> None:
        """Have it show an enrolment from now on."""
        self._ask(Keep(codec.encode(signed)))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _evidence(self, request: Collect) -> Evidence:
        about = self._about
        return Evidence(about.kind, about.media_type, self._ask(request))

    def _describe(self) -> Description:
        return codec.decode(
            Description, self._ask(Describe()), max_bytes=MAX_REPLY_BYTES
        )

    def _ask(self, request: AgentRequest) -> bytes:
        frame = AGENT.encode(request)
        try:
            with self._lock:
                self._socket.sendall(frame)
                raw = read_frame(self._socket.recv, MAX_REPLY_BYTES)
        except (OSError, PeerError) as error:
            # Out of step with it from here on: no later answer may be taken for this.
            self._socket.close()
            raise _gone(self._place, error) from None
        except MalformedError:
            self._socket.close()  # likewise: the rest of it was not read
            raise
        reply = decode_reply(raw)
        if reply.error:
            raise UnavailableError(reply.error, code=reply.code)
        return reply.content


def _connect(place: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(TIMEOUT_S)
    try:
        line.connect(str(Path(place.removeprefix(SCHEME))))
    except OSError as error:
        line.close()
        raise _gone(place, error) from None
    return line


def _gone(place: str, error: OSError | SealiftError) -> UnavailableError:
    return UnavailableError(
        f"no attestation agent answers at {place}",
        why=error,
        code="agent-gone",
    )
