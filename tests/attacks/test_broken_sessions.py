"""A session that breaks on the way revokes nobody: only refused evidence does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from sealift.errors import RefusedError, SealiftError
from sealift.ids import Role
from sealift.release.agreement import ReleaseRule
from sealift.release.broker import server as brokerserver
from sealift.release.client import give_back_lease, prove_lease, request_head
from sealift.session.frames import FrameKind
from sealift.session.session import Session
from tests.contract.test_leases_over_sessions import Host, Line, ask, revocations
from tests.sim.owners import make_broker
from tests.sim.watching import watching
from tests.worlds.consortium import make_consortium

RULE = ReleaseRule(lease_s=60.0, heartbeat_s=30.0)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    plain = make_consortium()
    resources = tuple(replace(each, rule=RULE) for each in plain.agreement.resources)
    agreement = replace(plain.agreement, resources=resources)
    consortium = replace(plain, agreement=agreement)
    box = make_broker(consortium, "ada", tmp_path)
    with closing(box), watching(box.broker.leases.look):
        yield Line(consortium, box.broker)


@pytest.fixture
def host(line: Line) -> Host:
    return Host(line.consortium)


SEQUENCE: Final = slice(9, 17)  # after the kind, length and flags


def last_byte(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def header(raw: bytes) -> bytes:
    return bytes([FrameKind.HEADER]) + raw[1:]


def replay(raw: bytes) -> bytes:
    """The number of an earlier record: one bit, or a record that is sent again."""
    return raw[: SEQUENCE.start] + bytes(8) + raw[SEQUENCE.stop :]


def alter(session: Session, change: Callable[[bytes], bytes]) -> None:
    """What a relay can do to the next frame."""
    send = session._transport.send
    session._transport.send = lambda frame: send(change(bytes(frame)))  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [last_byte, header, replay])
def test_a_flipped_bit_costs_a_redial(
    line: Line, host: Host, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    """The relay changes one frame: the session is over, and the lease goes on."""
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    who = ours.instance.public_key
    with line.accelerator(host, ours) as session:
        line.collect(session)
        alter(session, change)
        with pytest.raises(SealiftError):
            request_head(session)
    assert ask(line, who, 0) == (True, "")
    with line.accelerator(host, ours) as session:
        assert prove_lease(session).good
        give_back_lease(session)
    assert revocations(tmp_path) == []


def test_where_any_broken_session_revokes_it_is_caught(
    line: Line, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the one above: whatever ends a session was a refused renewal."""
    monkeypatch.setattr(brokerserver, "PolicyError", RefusedError)
    ours = line.endpoint(Role.ACCELERATOR, "accelerator-0", attester=host)
    with line.accelerator(host, ours) as session:
        line.collect(session)
        alter(session, last_byte)
        with pytest.raises(SealiftError):
            request_head(session)
    assert ask(line, ours.instance.public_key, 5.0) == (False, "authentication")
