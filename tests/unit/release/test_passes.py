"""Runs and passes, counted by their owner's broker: whoever begins anew, the count goes on."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sealift.errors import MalformedError, PolicyError
from sealift.release.agreement import RunTerms
from sealift.release.broker import keyrelease
from sealift.release.broker.messages import PassRequest
from sealift.release.client import BrokerRefusedError, collect_release, request_pass
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.heads import read_entries
from sealift.release.vault.ledger import Debit
from sealift.release.vault.vault import Vault
from tests.sim.owners import (
    NOW_S,
    AcceleratorSide,
    BrokerBox,
    make_broker,
    session_pair,
    start_broker,
)
from tests.worlds.consortium import OUTPUT, RUN, TRAINING, Consortium
from tests.worlds.consortium import make_consortium as consort

MOST = 4
RUNS = 2


@dataclass
class Owner:
    """Ada's broker, and accelerators that come to it."""

    folder: Path
    consortium: Consortium
    box: BrokerBox

    def restart(self) -> None:
        """The broker's process ends; another one opens the same files."""
        self.box.close()
        identity = self.consortium.identities["ada"]
        vault = Vault.open(self.folder / "ada.vault", identity)
        log = AuditLog.open(self.folder / "ada.log", identity, lambda: NOW_S)
        broker = start_broker(self.consortium, "ada", vault, log)
        self.box = BrokerBox(broker, vault, log)

    def session(self) -> AcceleratorSide:
        """Of a fresh accelerator."""
        return session_pair(self.consortium, self.box.broker, "ada")

    def released(self, run: RunTerms = RUN) -> AcceleratorSide:
        """An accelerator that got the key of ada's training rows for this run."""
        session, verified = self.session(), self.consortium.verified()
        key, _ = collect_release(
            session, verified, "ada-train", clock=lambda: 0.0, run=run
        )
        key.wipe()
        return session

    def rules(self) -> list[str]:
        """What the log says of refusals."""
        return [e.rule for e in read_entries(self.folder / "ada.log") if e.rule]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    output = replace(OUTPUT, max_visits=MOST)
    training = replace(TRAINING, runs=RUNS)
    consortium = consort(output=output, training=training)
    made = Owner(tmp_path, consortium, make_broker(consortium, "ada", tmp_path))
    yield made
    made.box.close()


def a_pass(
    run: RunTerms = RUN,
    visits: int = 1,
    purpose: str = "train",
    attempt: bytes | None = None,
) -> PassRequest:
    attempt = attempt or secrets.token_bytes(32)
    return PassRequest(run=run, purpose=purpose, visits=visits, attempt=attempt)  # type: ignore[arg-type]


def refused(session: AcceleratorSide, request: PassRequest) -> str:
    with pytest.raises(BrokerRefusedError) as caught:
        request_pass(session, request)  # type: ignore[arg-type]
    return caught.value.rule


def passes(session: AcceleratorSide, request: PassRequest) -> None:
    request_pass(session, request)  # type: ignore[arg-type]


def test_passes_are_counted_until_there_are_no_more(owner: Owner) -> None:
    session = owner.released()
    passes(session, a_pass(visits=MOST - 1))
    assert refused(session, a_pass(visits=2)) == "too-many-visits"
    passes(session, a_pass())  # what was refused was not counted
    assert refused(session, a_pass()) == "too-many-visits"
    assert owner.rules() == ["too-many-visits"] * 2
    passes(session, a_pass(purpose="prepare"))  # each purpose has its own count


def test_no_attempt_is_made_smaller_afterwards(owner: Owner) -> None:
    session, attempt = owner.released(), secrets.token_bytes(32)
    passes(session, a_pass(visits=MOST, attempt=attempt))
    passes(session, a_pass(visits=1, attempt=attempt))
    assert refused(session, a_pass()) == "too-many-visits"


def test_the_count_goes_on_whoever_begins_anew(owner: Owner) -> None:
    """Another accelerator, another job, another seed; the broker's own restart."""
    again = replace(RUN, job="another", seed=7)
    for number in range(MOST):
        passes(owner.released(again if number % 2 else RUN), a_pass())
        owner.restart()
    for run in (RUN, again):
        assert refused(owner.released(run), a_pass(run)) == "too-many-visits"


def test_a_successor_goes_on_counting(owner: Owner) -> None:
    passes(owner.released(), a_pass(visits=MOST))
    owner.consortium = owner.consortium.successor()
    owner.restart()
    assert refused(owner.released(), a_pass()) == "too-many-visits"


def test_an_answer_that_was_lost_counts_once(owner: Owner) -> None:
    session, asked = owner.released(), a_pass(visits=MOST)
    for _ in range(3):
        passes(session, asked)
    assert refused(session, a_pass()) == "too-many-visits"
    assert refused(session, replace(asked, visits=MOST + 1)) == "too-many-visits"
    other = replace(asked, purpose="prepare")  # the same bytes are no pass for another
    passes(session, other)
    assert refused(session, a_pass(purpose="prepare")) == "too-many-visits"


def test_only_who_got_the_key_may_work(owner: Owner) -> None:
    assert refused(owner.session(), a_pass()) == "share-before-keys"
    session = owner.released()
    assert refused(session, a_pass(purpose="heldout")) == "share-before-keys"
    passes(session, a_pass())  # control


def test_other_settings_get_no_key_and_no_pass(owner: Owner) -> None:
    other = replace(RUN, batch_rows=4097)
    with pytest.raises(BrokerRefusedError) as caught:
        owner.released(other)
    assert caught.value.rule == "settings-differ"
    assert "training.batch_rows" in str(caught.value)
    assert owner.box.vault.ledger.uses("joint-digits", "ada-train") == 0
    assert owner.box.vault.ledger.runs("joint-digits") == frozenset()
    session = owner.released()
    assert refused(session, a_pass(other)) == "settings-differ"
    assert owner.rules() == ["settings-differ"] * 2


def test_a_key_of_rows_goes_for_a_run_alone(owner: Owner) -> None:
    with pytest.raises(BrokerRefusedError) as caught:
        collect_release(
            owner.session(), owner.consortium.verified(), "ada-train", clock=lambda: 0.0
        )  # type: ignore[arg-type]
    assert caught.value.rule == "settings-differ"


def test_runs_are_counted_once_each(owner: Owner) -> None:
    """One that was cut off goes on; a third one is refused, also after a restart."""
    second = replace(RUN, seed=2)
    for _ in range(3):
        owner.released(RUN)
        owner.released(second)
        owner.restart()
    third = replace(RUN, seed=3)
    with pytest.raises(PolicyError) as caught:
        owner.released(third)
    assert isinstance(caught.value, BrokerRefusedError)
    assert caught.value.rule == "too-many-runs"
    assert len(owner.box.vault.ledger.runs("joint-digits")) == RUNS
    owner.released(second)


def test_the_ledger_itself_counts_no_run_too_many(owner: Owner) -> None:
    """Two that come at the same moment: each was decided before the other was counted."""
    ledger, digests = owner.box.vault.ledger, [
        replace(RUN, seed=each).digest(owner.consortium.agreement.digest)
        for each in range(3)
    ]  # fmt: skip
    for digest in digests[:RUNS]:
        ledger.count_run("line", digest, RUNS)
    with pytest.raises(PolicyError) as caught:
        ledger.count_run("line", digests[-1], RUNS)
    assert caught.value.code == "too-many-runs"
    ledger.count_run("line", digests[0], RUNS)
    ledger.count_run("other", digests[-1], RUNS)
    for digest in digests:
        ledger.count_run("unbounded", digest, 0)


def test_the_ledger_itself_counts_no_pass_too_many(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that come at the same moment: each was decided before the other was counted."""
    session = owner.released()
    monkeypatch.setattr(keyrelease, "decide", lambda _asked, _state: None)
    passes(session, a_pass(visits=MOST))
    assert refused(session, a_pass()) == "too-many-visits"
    debit = Debit.of_visits("joint-digits", "train", 1, bytes(32))
    assert owner.box.vault.ledger.spent(debit) == MOST


@pytest.mark.parametrize(
    ("visits", "attempt"), [(0, 32), (-1, 32), (1, 31), (1 << 60, 32)]
)
def test_a_question_that_counts_nothing_is_none(visits: int, attempt: int) -> None:
    with pytest.raises(MalformedError):
        a_pass(visits=visits, attempt=bytes(range(attempt)))
