"""Attempts to spend more of an owner's privacy budget than there is: each at the real broker."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sealift.errors import PolicyError, SealiftError
from sealift.ids import Digest
from sealift.release import database
from sealift.release.agreement import PrivacyBudget, RunTerms
from sealift.release.agreement.training import PrivateSteps
from sealift.release.broker import keyrelease
from sealift.release.broker.messages import PassRequest
from sealift.release.client import BrokerRefusedError, collect_release, request_pass
from sealift.release.log.auditlog import AuditLog
from sealift.release.vault.ledger import Debit, DebitedRound, PrivateDebit
from sealift.release.vault.vault import Vault
from tests.sim.owners import (  # fmt: skip
    NOW_S,
    AcceleratorSide,
    BrokerBox,
    make_broker,
    session_pair,
    start_broker,
)
from tests.worlds.consortium import Consortium
from tests.worlds.private import (
    OUTPUT_KEPT,
    ROUND,
    RUN,
    STEPS,
    budget_of,
    epsilon_of,
    private_consortium,
    training,
    with_budget,
)

MOST = 4
SPENT = "privacy-budget-spent"


@dataclass
class Owner:
    """Ada's broker and vault, through restarts and other agreements."""

    folder: Path
    consortium: Consortium
    box: BrokerBox
    at_s: float = NOW_S

    def restart(self, consortium: Consortium | None = None) -> None:
        """The broker's process ends; another one opens the same files."""
        self.box.close()
        self.consortium = consortium or self.consortium
        identity = self.consortium.identities["ada"]
        vault = Vault.open(self.folder / "ada.vault", identity)
        log = AuditLog.open(self.folder / "ada.log", identity, lambda: self.at_s)
        broker = start_broker(
            self.consortium, "ada", vault, log, clock=lambda: self.at_s
        )
        self.box = BrokerBox(broker, vault, log)

    def rank(self, run: RunTerms = RUN, *, key: bool = True) -> AcceleratorSide:
        """Ada's own accelerator, in a fresh process, with the key of her training rows."""
        session = session_pair(self.consortium, self.box.broker, "ada")
        own = self.consortium.identities["ada"].public_key
        session.other.peer = replace(session.other.peer, identity=own)
        if key:
            released, _ = collect_release(
                session, self.consortium.verified(), "ada-train",
                clock=lambda: 0.0, run=run,
            )  # type: ignore[arg-type]  # fmt: skip
            released.wipe()
        return session

    @property
    def rounds(self) -> tuple[DebitedRound, ...]:
        return self.box.vault.ledger.rounds()


def made(folder: Path, consortium: Consortium) -> Owner:
    return Owner(folder, consortium, make_broker(consortium, "ada", folder))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    found = made(tmp_path, private_consortium(budget_of(MOST)))
    yield found
    found.box.close()


def ask(
    session: AcceleratorSide,
    run: RunTerms = RUN,
    *,
    visits: int = 1,
    attempt: bytes = b"",
    purpose: str = "train",
) -> str:
    """``allowed``, or the rule that refused a round."""
    attempt = attempt or secrets.token_bytes(32)
    request = PassRequest(run=run, purpose=purpose, visits=visits, attempt=attempt)  # type: ignore[arg-type]
    try:
        request_pass(session, request)  # type: ignore[arg-type]
    except BrokerRefusedError as error:
        return error.rule
    return "allowed"


def spend(owner: Owner, rounds: int) -> list[str]:
    session = owner.rank()
    return [ask(session) for _ in range(rounds)]


def test_a_budget_is_spent_round_by_round_and_no_further(owner: Owner) -> None:
    assert spend(owner, MOST + 1) == ["allowed"] * MOST + [SPENT]
    assert [each.round for each in owner.rounds] == [1, 2, 3, 4]
    assert [each.epsilon for each in owner.rounds] == [
        pytest.approx(epsilon_of(n)) for n in range(1, MOST + 1)
    ]
    (table,) = {each.content for each in owner.rounds}
    assert table == owner.consortium.agreement.resource("ada-train").content.to_text()


def test_who_asks_whether_a_round_would_be_allowed_spends_nothing(owner: Owner) -> None:
    session, would = owner.rank(), []
    for _ in range(MOST + 1):
        for _ in range(3):
            request = PassRequest(
                run=RUN, purpose="train", visits=1,
                attempt=secrets.token_bytes(32), begins=False,
            )  # fmt: skip
            try:
                request_pass(session, request)  # type: ignore[arg-type]
            except BrokerRefusedError as error:
                would.append(error.rule)
        ask(session)
    assert would == [SPENT] * 3
    assert [each.round for each in owner.rounds] == [1, 2, 3, 4]


def test_the_refusal_names_what_is_spent_asked_and_left(owner: Owner) -> None:
    session = owner.rank()
    for _ in range(MOST):
        ask(session)
    request = PassRequest(run=RUN, purpose="train", visits=1, attempt=bytes(32))
    with pytest.raises(BrokerRefusedError) as caught:
        request_pass(session, request)  # type: ignore[arg-type]
    for number in (epsilon_of(MOST), epsilon_of(MOST + 1), budget_of(MOST).epsilon):
        assert f"{number:.4g}" in caught.value.why
    assert "0 is left" in caught.value.why.replace("1e-09", "0")


def test_restarts_of_broker_and_rank_change_nothing(owner: Owner) -> None:
    found = []
    for _ in range(MOST + 2):
        found += spend(owner, 1)
        owner.restart()
    assert found == ["allowed"] * MOST + [SPENT] * 2


def test_another_job_and_other_settings_spend_the_same_budget(owner: Owner) -> None:
    found = [
        ask(owner.rank(each), each)
        for number in range(MOST + 1)
        for each in [replace(RUN, job=f"job-{number}", seed=number)]
    ]
    assert found == ["allowed"] * MOST + [SPENT]


def test_a_successor_spends_the_same_budget(owner: Owner) -> None:
    assert spend(owner, MOST - 1) == ["allowed"] * (MOST - 1)
    owner.restart(owner.consortium.successor())
    assert spend(owner, 2) == ["allowed", SPENT]


def test_another_line_of_agreements_spends_the_same_budget(owner: Owner) -> None:
    """What is composed is told by the vault alone."""
    assert spend(owner, MOST - 1) == ["allowed"] * (MOST - 1)
    owner.restart(owner.consortium.changed(name="another-line"))
    assert spend(owner, 2) == ["allowed", SPENT]
    assert {each.line for each in owner.rounds} == {"joint-digits", "another-line"}


def test_steps_of_other_noise_are_composed_with_those_before(owner: Owner) -> None:
    """Many small spends under agreements that differ are one large one."""
    assert spend(owner, MOST - 1) == ["allowed"] * (MOST - 1)
    louder = PrivateSteps(clip=1.0, noise=1.0, batch=8)
    owner.restart(owner.consortium.successor(training=training(louder)))
    run = replace(RUN, privacy=louder)
    assert ask(owner.rank(run), run) == SPENT  # a round of less noise costs more
    quieter = PrivateSteps(clip=1.0, noise=9.0, batch=8)
    owner.restart(owner.consortium.successor(training=training(quieter)))
    run = replace(RUN, privacy=quieter)
    assert ask(owner.rank(run), run) == "allowed"
    assert {each.cost.noise for each in owner.rounds} == {1.5, 9.0}


def test_a_table_that_is_sealed_again_spends_the_same_budget(owner: Owner) -> None:
    """A host that asks for another schema has the rows sealed under another commitment."""
    assert spend(owner, MOST - 1) == ["allowed"] * (MOST - 1)
    resources = tuple(
        replace(each, content=each.key) if each.name == "ada-train" else each
        for each in owner.consortium.agreement.resources
    )
    owner.restart(owner.consortium.successor(resources=resources))
    assert spend(owner, 2) == ["allowed", SPENT]
    assert len({each.content for each in owner.rounds}) == 2


@pytest.mark.parametrize("turned", [False, True])
def test_a_round_over_two_tables_keeps_to_the_smaller_of_their_budgets(
    owner: Owner, *, turned: bool
) -> None:
    """What a table adds is compared with every table's budget, whichever is first."""
    ledger = owner.box.vault.ledger
    tables = [
        PrivateDebit(
            content=Digest.of(name.encode()), resource=name, budget=budget_of(most),
            job="job", run=Digest.of(b"run"), cost=ROUND,
        )
        for name, most in (("small", 1), ("large", MOST))
    ]  # fmt: skip
    debit = Debit("joint-digits", "train", 1, bytes(32))
    with pytest.raises(PolicyError) as caught:
        ledger.spend(debit, lambda spent: None, tables[::-1] if turned else tables)
    assert caught.value.code == SPENT
    assert owner.rounds == ()
    assert ledger.spend(debit, lambda spent: None, tables[1:]) == 1  # control
    assert len(owner.rounds) == 1


def test_a_smaller_budget_counts_at_once_and_a_larger_one_is_the_owners(
    owner: Owner,
) -> None:
    assert spend(owner, 2) == ["allowed"] * 2
    for most, expected in ((2, SPENT), (3, "allowed")):
        resources = with_budget(owner.consortium, budget_of(most), "ada")
        owner.restart(owner.consortium.successor(resources=resources))
        assert spend(owner, 1) == [expected]


def test_a_smaller_delta_is_composed_anew(owner: Owner) -> None:
    assert spend(owner, MOST - 1) == ["allowed"] * (MOST - 1)
    budget = PrivacyBudget(epsilon=budget_of(MOST).epsilon, delta=1e-12)
    resources = with_budget(owner.consortium, budget, "ada")
    owner.restart(owner.consortium.successor(resources=resources))
    assert spend(owner, 1) == [SPENT]


def test_a_clock_that_is_set_back_brings_nothing_back(owner: Owner) -> None:
    assert spend(owner, MOST) == ["allowed"] * MOST
    owner.at_s -= 365 * 86_400
    owner.restart()
    assert spend(owner, 1) == [SPENT]


def test_two_jobs_at_the_same_moment_get_what_one_would(owner: Owner) -> None:
    """Each was decided before the other was debited: the ledger decides again."""
    sessions = [owner.rank(replace(RUN, job=f"job-{n}")) for n in range(2 * MOST)]
    found: list[str] = []

    def work(number: int) -> None:
        found.append(ask(sessions[number], replace(RUN, job=f"job-{number}")))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2 * MOST)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == ["allowed"] * MOST + [SPENT] * MOST
    assert len(owner.rounds) == MOST


def test_the_ledger_itself_debits_no_round_too_many(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = owner.rank()
    monkeypatch.setattr(keyrelease, "decide", lambda _asked, _state: None)
    assert [ask(session) for _ in range(MOST + 1)] == ["allowed"] * MOST + [SPENT]


def test_the_decision_itself_refuses_before_the_ledger_does(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = owner.rank()
    for _ in range(MOST):
        ask(session)
    ledger = type(owner.box.vault.ledger)
    monkeypatch.setattr(ledger, "spend", lambda *_args: 1)
    assert ask(session) == SPENT


def test_a_repeated_step_is_debited_again(owner: Owner) -> None:
    """The same question once more, from the same rank or another one."""
    session, attempt = owner.rank(), secrets.token_bytes(32)
    found = [ask(session, attempt=attempt) for _ in range(2)]
    found += [ask(owner.rank(), attempt=attempt) for _ in range(3)]
    assert found == ["allowed"] * MOST + [SPENT]


def test_a_broker_that_is_killed_before_it_answers_has_debited_once(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is used that was not debited; and the question, asked again, costs nothing."""
    session, attempt = owner.rank(), secrets.token_bytes(32)

    class Killed(BaseException):
        pass

    def killed(*_args: object, **_fields: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(keyrelease.KeyReleases, "tell", killed)
        with pytest.raises(Killed):
            ask(session, attempt=attempt)
    assert len(owner.rounds) == 1
    owner.restart()
    assert len(owner.rounds) == 1
    assert ask(owner.rank(), attempt=attempt) == "allowed"
    assert len(owner.rounds) == 1
    assert spend(owner, MOST) == ["allowed"] * (MOST - 1) + [SPENT]


def test_no_answer_goes_out_before_the_debit_is_on_the_disk(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails at the end of the transaction: refused, and nothing was debited."""
    session, real = owner.rank(), database.transaction

    def failing(connection: sqlite3.Connection, path: Path):  # type: ignore[no-untyped-def]
        class Refusing:
            in_transaction = property(lambda _self: connection.in_transaction)

            def execute(self, statement: str) -> object:
                if statement == "COMMIT":
                    raise sqlite3.OperationalError("disk I/O error")
                return connection.execute(statement)

        return real(Refusing(), path)  # type: ignore[arg-type]

    from sealift.release.vault import file

    with monkeypatch.context() as patch:
        patch.setattr(file, "transaction", failing)
        assert ask(session) != "allowed"
    assert owner.rounds == ()
    assert ask(session) == "allowed"


@pytest.mark.usefixtures("commits_wait_for_the_disk")
def test_each_commit_of_the_ledger_waits_for_the_disk(owner: Owner) -> None:
    (synchronous,) = owner.box.vault._file.connection.execute(
        "PRAGMA synchronous"
    ).fetchone()
    assert synchronous == 2  # FULL


@pytest.mark.parametrize(
    "steps",
    [
        replace(STEPS, noise=100.0),
        replace(STEPS, batch=1),
        replace(STEPS, clip=9.0),
        replace(STEPS, honest_ranks=2),
        None,
    ],
)
def test_a_rank_that_says_it_draws_fewer_rows_or_adds_more_noise_is_refused(
    owner: Owner, steps: PrivateSteps | None
) -> None:
    """The cost follows from what was signed and the table's rows: it is not asked for."""
    said = replace(RUN, privacy=steps)
    assert ask(owner.rank(), said) == "settings-differ"
    with pytest.raises(BrokerRefusedError) as caught:
        owner.rank(said)
    assert caught.value.rule == "settings-differ"
    assert owner.rounds == ()


@pytest.mark.parametrize("visits", [2, 7])
def test_a_table_that_is_visited_in_parts_is_refused(owner: Owner, visits: int) -> None:
    """Rows of a part are drawn more often than the accountant is told."""
    assert ask(owner.rank(), visits=visits) == "privacy-not-enforced"
    assert owner.rounds == ()


def test_no_key_no_round(owner: Owner) -> None:
    assert ask(owner.rank(key=False)) == "share-before-keys"
    assert owner.rounds == ()


def test_a_round_that_another_rule_refuses_costs_nothing(tmp_path: Path) -> None:
    output = replace(OUTPUT_KEPT, max_visits=1)
    owner = made(tmp_path, private_consortium(budget_of(MOST), output=output))
    session = owner.rank()
    assert [ask(session) for _ in range(2)] == ["allowed", "too-many-visits"]
    assert len(owner.rounds) == 1
    owner.box.close()


def test_an_owner_without_budget_goes_on_beside_one_that_has_one(
    tmp_path: Path,
) -> None:
    consortium = private_consortium(budget_of(1))
    box = make_broker(consortium, "bern", tmp_path)
    session = session_pair(consortium, box.broker, "bern")
    own = consortium.identities["bern"].public_key
    session.other.peer = replace(session.other.peer, identity=own)
    key, _ = collect_release(
        session, consortium.verified(), "bern-train", clock=lambda: 0.0, run=RUN
    )  # type: ignore[arg-type]
    key.wipe()
    assert [ask(session) for _ in range(3)] == ["allowed"] * 3
    assert box.vault.ledger.rounds() == ()
    box.close()


def test_passes_over_held_out_rows_cost_nothing(owner: Owner) -> None:
    session = owner.rank()
    released, _ = collect_release(
        session, owner.consortium.verified(), "ada-heldout",
        clock=lambda: 0.0, run=RUN,
    )  # type: ignore[arg-type]  # fmt: skip
    released.wipe()
    assert [ask(session, purpose="heldout") for _ in range(3)] == ["allowed"] * 3
    assert owner.rounds == ()


def test_sums_before_training_are_not_allowed_at_all(owner: Owner) -> None:
    assert ask(owner.rank(), replace(RUN, prepare=True)) == "settings-differ"


def test_without_the_accountant_a_broker_with_a_budget_does_not_start(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(SealiftError) as caught:
        owner.restart()
    assert caught.value.code == "extra-missing"
    monkeypatch.undo()
    owner.restart()
    assert not isinstance(caught.value, PolicyError)
