"""The receipt behind an orchestrator's last word: whole, as long as announced, or nothing."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.cli.roles.join import _job_ended
from sealift.codec import encode_named
from sealift.errors import JobError, MalformedError, PeerError
from sealift.ids import Digest, Role
from sealift.travel.orchestrator.job import dismiss_roles
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.visit.messages import (
    MAX_RUN_RECEIPT_BYTES,
    PART_BYTES,
    Failed,
    FailedError,
    Finished,
    Output,
    message_name,
    receive_message,
    receive_receipt,
    send_finished,
)
from tests.worlds.consortium import make_consortium

FINISHED = Finished("finished", Digest.of(b"agreement"))


class Wire:
    """Both ends of a session."""

    def __init__(self) -> None:
        self.sent: deque[bytes] = deque()

    def send(self, raw: bytes) -> None:
        self.sent.append(raw)

    def receive(self, timeout_s: float | None) -> bytes:
        return self.sent.popleft()


@pytest.mark.parametrize("length", [0, 1, PART_BYTES, 2 * PART_BYTES + 7])
def test_it_comes_as_it_was(length: int) -> None:
    wire: Any = Wire()
    send_finished(wire, FINISHED, b"r" * length)
    told = receive_message(wire, Finished, timeout_s=1.0)
    assert (told.outcome, told.receipt_bytes) == ("finished", length)
    assert receive_receipt(wire, told, 1.0) == b"r" * length
    assert not wire.sent


@pytest.mark.parametrize(
    "piece",
    [
        Output("receipt.json", b"too long", False),
        Output("model.sealed", b"four", False),
        Output("receipt.json", b"", False),
    ],
)
def test_anything_else_is_refused(piece: Output) -> None:
    wire: Any = Wire()
    wire.send(encode_named(message_name(Output), piece))
    told = Finished("finished", FINISHED.agreement, 4)
    with pytest.raises(MalformedError):
        receive_receipt(wire, told, 1.0)


@pytest.mark.parametrize("length", [-1, MAX_RUN_RECEIPT_BYTES + 1])
def test_no_receipt_is_that_long(length: int) -> None:
    with pytest.raises(MalformedError, match="this length"):
        Finished("finished", FINISHED.agreement, length)


def test_an_owner_hears_why_a_job_failed_elsewhere_and_who_was_missing() -> None:
    agreement = make_consortium().verified().agreement
    ended = Finished(
        "failed", Digest.of(b"a"), code="peer-missing", missing=("ada", "mallory")
    )
    error = _job_ended(ended, agreement)
    assert error.code == "peer-missing"
    assert (
        f"{agreement.operator} ended the job for all parties and says that ada did"
        in str(error)
    )
    assert "mallory" not in str(error)
    unknown = _job_ended(replace(ended, code="no-such\x1b", missing=()), agreement)
    assert (unknown.code, "\x1b" in str(unknown)) == ("job", False)


class Holder(Wire):
    """A holder's session, as the orchestrator has it."""

    peer = SimpleNamespace(role=Role.HOLDER, name="ada")

    def receive(self, timeout_s: float | None) -> bytes:
        raise PeerError("it is closed", code="session-closed")


@pytest.mark.parametrize(
    ("cause", "code", "missing"),
    [
        (FailedError(Failed("no-memory", "")), "no-memory", ()),
        (FailedError(Failed("output-withheld", "")), "output-withheld", ("cleo",)),
        (PeerError("gone", code="peer-missing"), "peer-missing", ("cleo",)),
        (JobError("bad", code="bad-row"), "bad-row", ()),
    ],
)
def test_holders_hear_what_ended_a_job_and_who_was_missing_if_that_did(
    cause: Exception, code: str, missing: tuple[str, ...]
) -> None:
    holder = Holder()
    sessions = LiveSessions(clock=time.monotonic)
    sessions.enter(cast(Any, holder))
    agreement = make_consortium().verified()
    dismiss_roles(sessions, agreement, "failed", cause=cause, missing=("cleo",))
    wire: Any = Wire()
    wire.sent = holder.sent
    told = receive_message(wire, Finished, timeout_s=1.0)
    assert (told.code, told.missing) == (code, missing)
