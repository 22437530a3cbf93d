"""Collecting a key: it is the right one, logged first, and refusals say why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.crypto.keys import TOKEN
from sealift.errors import PolicyError, StaleError
from sealift.release.client import (
    collect_release,
    request_consistency,
    request_head,
)
from sealift.release.log.entries import LogEntry
from sealift.release.log.heads import read_entries, verify_log
from tests.sim.owners import BrokerBox, make_broker, session_pair
from tests.worlds.consortium import RUN, Consortium, make_consortium


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


@pytest.fixture
def box(consortium: Consortium, tmp_path: Path) -> Iterator[BrokerBox]:
    box = make_broker(consortium, "ada", tmp_path)
    yield box
    box.close()


def entries(tmp_path: Path) -> list[LogEntry]:
    return list(read_entries(tmp_path / "ada.log"))


def test_collects_the_key_and_a_head_that_covers_it(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    session = session_pair(consortium, box.broker, "ada")
    key, logged = collect_release(
        session, consortium.verified(), "ada-train", clock=lambda: 0.0, run=RUN
    )
    assert key.reveal(TOKEN) == consortium.keys["ada-train"].reveal(TOKEN)
    assert logged.head == box.log.head()
    assert [entry.kind for entry in entries(tmp_path)] == ["agreement", "release"]
    assert verify_log(tmp_path / "ada.log", logged.head).continues == 2


def test_refusal_is_logged_with_its_rule(
    consortium: Consortium, box: BrokerBox, tmp_path: Path
) -> None:
    session = session_pair(consortium, box.broker, "ada")
    session.other.peer = replace(session.other.peer, result=None)
    with pytest.raises(PolicyError, match="evidence-missing") as caught:
        collect_release(
            session, consortium.verified(), "ada-train", clock=lambda: 0.0, run=RUN
        )
    assert caught.value.code == "release-refused"
    last = entries(tmp_path)[-1]
    assert (last.kind, last.rule) == ("refusal", "evidence-missing")


def test_late_answer_is_refused(consortium: Consortium, box: BrokerBox) -> None:
    session = session_pair(consortium, box.broker, "ada")
    times = iter([0.0, 61.0])
    with pytest.raises(StaleError):
        collect_release(
            session,
            consortium.verified(),
            "ada-train",
            clock=lambda: next(times),
            run=RUN,
        )


def test_heads_and_proofs_for_the_accelerator(
    consortium: Consortium, box: BrokerBox
) -> None:
    session = session_pair(consortium, box.broker, "ada")
    collect_release(
        session, consortium.verified(), "ada-train", clock=lambda: 0.0, run=RUN
    )
    head = request_head(session)
    assert head.body.size == 2
    assert len(request_consistency(session, 1, 2)) == 1
