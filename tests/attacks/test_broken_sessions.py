"""A session that breaks on the way revokes nobody: only refused evidence does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.errors import RefusedError, SealiftError
from sealift.ids import Role
from sealift.release import brokerserver
from sealift.release.agreement import ReleaseRule
from sealift.release.collect import request_head
from sealift.release.lease import give_back_lease, prove_lease
from sealift.session.session import Session
from tests.contract.test_leases_over_sessions import Host, Line, ask, revocations
from tests.sim.owners import make_broker, make_consortium
from tests.sim.watching import watching

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


def flip_last_byte(session: Session) -> None:
    """What a relay can do to the next frame."""
    send = session._transport.send

    def flipped(frame: Any) -> None:
        raw = bytes(frame)
        send(raw[:-1] + bytes([raw[-1] ^ 1]))

    session._transport.send = flipped  # type: ignore[method-assign]


def test_a_flipped_bit_costs_a_redial(line: Line, host: Host, tmp_path: Path) -> None:
    """The relay changes one frame: the session is over, and the lease goes on."""
    ours = line.endpoint(Role.ACCELERATOR, "accelerator", attester=host)
    who = ours.instance.public_key
    with line.accelerator(host, ours) as session:
        line.collect(session)
        flip_last_byte(session)
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
    ours = line.endpoint(Role.ACCELERATOR, "accelerator", attester=host)
    with line.accelerator(host, ours) as session:
        line.collect(session)
        flip_last_byte(session)
        with pytest.raises(SealiftError):
            request_head(session)
    assert ask(line, ours.instance.public_key, 5.0) == (False, "authentication")
