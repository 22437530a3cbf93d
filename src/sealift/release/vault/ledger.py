"""The broker's permanent counters in the vault's file: uses, key holders, budgets, revocations.

Every change is on the disk before the call returns, so a use is counted before its key is
released (rule H6), and a revoked instance stays revoked after a restart. An older copy of
the file has older counters; the audit log, and the heads that others saved, reveal that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sealift.crypto.sign import PublicKey
from sealift.errors import PolicyError
from sealift.ids import Digest
from sealift.release.accountant import PrivateRound, spent_epsilon
from sealift.release.agreement import PrivacyBudget
from sealift.release.database import GroupCommit
from sealift.release.decision import require_budget, require_run, require_use
from sealift.release.facts import Spending
from sealift.release.vault.file import VaultFile

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS uses (
    line TEXT NOT NULL, resource TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (line, resource)) STRICT;
CREATE TABLE IF NOT EXISTS holders (
    line TEXT NOT NULL, instance TEXT NOT NULL, resource TEXT NOT NULL,
    PRIMARY KEY (line, instance, resource)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revocations (
    epoch INTEGER PRIMARY KEY, instance TEXT NOT NULL UNIQUE, rule TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    line TEXT NOT NULL, run TEXT NOT NULL,
    PRIMARY KEY (line, run)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS debits (
    line TEXT NOT NULL, budget TEXT NOT NULL, attempt BLOB NOT NULL, amount INTEGER NOT NULL,
    PRIMARY KEY (line, budget, attempt)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS private_rounds (
    number INTEGER PRIMARY KEY, content TEXT NOT NULL, line TEXT NOT NULL, job TEXT NOT NULL, run TEXT NOT NULL,
    round INTEGER NOT NULL, noise REAL NOT NULL, rate REAL NOT NULL, steps INTEGER NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL, attempt BLOB NOT NULL, UNIQUE (content, run, attempt)) STRICT;
CREATE TABLE IF NOT EXISTS seen (
    name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT
"""


@dataclass(frozen=True, slots=True)
class Debit:
    """Something that is used up, and counted before it is.

    Attributes:
        line: Name of the line of agreements; successors go on counting.
        budget: What is counted: of visits, their purpose.
        amount: How much of it.
        attempt: Random bytes, so that a repeated question counts once.
    """

    line: str
    budget: str
    amount: int
    attempt: bytes

    @classmethod
    def of_visits(cls, line: str, purpose: str, count: int, attempt: bytes) -> Debit:
        """Of so many visits for a purpose."""
        return cls(line, f"visits {purpose}", count, attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateDebit:
    """A round of private steps over one table, before it begins.

    Attributes:
        content: The table's commitment: whatever job or agreement uses it.
        resource: Its name in the agreement.
        budget: Its owner's.
        job: Name of the job.
        run: Digest of the run.
        cost: What the round is made of.
    """

    content: Digest
    resource: str
    budget: PrivacyBudget
    job: str
    run: Digest
    cost: PrivateRound


@dataclass(frozen=True, slots=True, kw_only=True)
class DebitedRound:
    """One row of the ledger.

    Attributes:
        content: The table's commitment, as text.
        line: Name of the line of agreements.
        job: Name of the job.
        run: Digest of the run, as text.
        round: Which round of the run over this table it was, from 1.
        cost: What it was made of.
        epsilon: Of everything that was debited of this table until then.
        delta: For which.
    """

    content: str
    line: str
    job: str
    run: str
    round: int
    cost: PrivateRound
    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class _Use:
    line: str
    resource: str
    limit: int
    instance: PublicKey


class Ledger:
    """The ledger in one vault; ``Vault.ledger`` makes it."""

    def __init__(self, file: VaultFile) -> None:
        self._file = file
        self._debiting = GroupCommit(self._debit)

    def debit(self, line: str, resource: str, limit: int, instance: PublicKey) -> int:
        """Count one more use of a resource's key; its number, from 1.

        Uses that come together are counted in one transaction.

        Args:
            line: Name of the line of agreements; successors go on counting.
            resource: Its name.
            limit: Most uses; 0 for any number.
            instance: Who gets it.

        Raises:
            PolicyError: ``uses-exhausted``; nothing was counted.
        """
        return self._debiting.run(_Use(line, resource, limit, instance))

    def count_run(self, line: str, run: Digest, limit: int) -> None:
        """Count a run once, however often it goes on.

        Args:
            line: Name of the line of agreements; successors go on counting.
            run: Its digest.
            limit: Most runs; 0 for any number.

        Raises:
            PolicyError: ``too-many-runs``; nothing was counted.
        """
        with self._file.writing() as connection:
            known = _runs(connection, line) | {run}
            require_run(len(known), limit)
            connection.execute(
                "INSERT OR IGNORE INTO runs VALUES (?, ?)", (line, run.to_text())
            )

    def runs(self, line: str) -> frozenset[Digest]:
        """Every run that was counted."""
        with self._file.reading() as connection:
            return _runs(connection, line)

    def spend(
        self,
        debit: Debit,
        require: Callable[[int], None],
        private: Sequence[PrivateDebit] = (),
    ) -> int:
        """Count what is about to be done; the sum so far, with it.

        The same attempt is counted once, by the largest amount that it ever had.

        Args:
            debit: What it is.
            require: Refuses a sum that is too large; then nothing was counted.
            private: What it costs of privacy budgets, table by table.

        Raises:
            PolicyError: ``privacy-budget-spent``; then nothing was counted.
        """
        with self._file.writing() as connection:
            spent = _spent(connection, debit) + debit.amount
            require(spent)
            for each in private:  # one by one: each finds what the ones before cost
                _debit_round(connection, debit, each)
            for each in private[:-1]:  # what the ones after it cost counts as well
                spending = _spending(connection, each, debit.attempt)
                require_budget(each.budget, spending, each.resource)
            connection.execute(
                "INSERT INTO debits VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET amount = max(amount, excluded.amount)",
                (debit.line, debit.budget, debit.attempt, debit.amount),
            )
            return spent

    def spent(self, debit: Debit) -> int:
        """The sum of its budget so far, without it."""
        with self._file.reading() as connection:
            return _spent(connection, debit)

    def spending(self, private: PrivateDebit, attempt: bytes) -> Spending:
        """What all rounds of this vault cost, without a round and with it."""
        with self._file.reading() as connection:
            return _spending(connection, private, attempt)

    def rounds(self) -> tuple[DebitedRound, ...]:
        """Every round of private steps that was debited, in order."""
        query = (
            "SELECT content, line, job, run, round, noise, rate, steps, epsilon, delta"
            " FROM private_rounds ORDER BY number"
        )
        with self._file.reading() as connection:
            rows = connection.execute(query).fetchall()
        return tuple(
            DebitedRound(
                content=content, line=line, job=job, run=run, round=number,
                cost=PrivateRound(*cost), epsilon=epsilon, delta=delta,
            )
            for content, line, job, run, number, *cost, epsilon, delta in rows
        )  # fmt: skip

    def uses(self, line: str, resource: str) -> int:
        """How often it was counted."""
        with self._file.reading() as connection:
            return _count(connection, line, resource)

    def held(self, line: str, instance: PublicKey) -> frozenset[str]:
        """Resources whose keys were counted for an instance."""
        query = "SELECT resource FROM holders WHERE line = ? AND instance = ?"
        with self._file.reading() as connection:
            rows = connection.execute(query, (line, instance.to_text())).fetchall()
        return frozenset(row[0] for row in rows)

    def revoke(self, instance: PublicKey, rule: str) -> int:
        """An instance gets nothing any more; the key epoch that begins with it.

        Revoking it again changes nothing.
        """
        with self._file.writing() as connection:
            connection.execute(
                "INSERT INTO revocations (instance, rule) VALUES (?, ?) ON CONFLICT (instance) DO NOTHING",
                (instance.to_text(), rule),
            )
            return _epoch(connection)

    def revoked(self, instance: PublicKey) -> str:
        """The rule that an instance was revoked for; empty if it was not."""
        query = "SELECT rule FROM revocations WHERE instance = ?"
        with self._file.reading() as connection:
            row = connection.execute(query, (instance.to_text(),)).fetchone()
        return str(row[0]) if row else ""

    def epoch(self) -> int:
        """The key epoch: how many instances were revoked."""
        with self._file.reading() as connection:
            return _epoch(connection)

    def remember(self, name: str, number: int) -> None:
        """A numbered thing was used; the number remembered never falls."""
        with self._file.writing() as connection:
            connection.execute(
                "INSERT INTO seen VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
                "SET number = max(number, excluded.number)",
                (name, number),
            )

    def remembered(self, name: str) -> int:
        """The highest number remembered, or 0."""
        query = "SELECT number FROM seen WHERE name = ?"
        with self._file.reading() as connection:
            row = connection.execute(query, (name,)).fetchone()
        return int(row[0]) if row else 0

    def _debit(self, uses: Sequence[_Use]) -> list[int | Exception]:
        with self._file.writing() as connection:
            return [_debit_one(connection, use) for use in uses]


def _debit_one(connection: sqlite3.Connection, use: _Use) -> int | Exception:
    """The number of the last use, or why it may not be: then nothing was counted."""
    last = _count(connection, use.line, use.resource) + 1
    try:
        require_use(last, use.limit, use.resource)
    except PolicyError as error:
        return error
    connection.execute(
        "INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", (use.line, use.resource, last)
    )
    connection.execute(
        "INSERT OR IGNORE INTO holders VALUES (?, ?, ?)",
        (use.line, use.instance.to_text(), use.resource),
    )
    return last


def _spending(
    connection: sqlite3.Connection, private: PrivateDebit, attempt: bytes
) -> Spending:
    """By all rounds of this vault: of every table, job, run and line of agreements.

    Tables are not told apart. The same people may stand in two of them, and a host that
    asks for another schema has a table sealed again, under another commitment.
    """
    rows = connection.execute(
        "SELECT noise, rate, sum(steps) FROM private_rounds"
        " WHERE NOT (content = ? AND run = ? AND attempt = ?) GROUP BY noise, rate",
        (private.content.to_text(), private.run.to_text(), attempt),
    )
    known, delta = [PrivateRound(*row) for row in rows], private.budget.delta
    return Spending(
        spent_epsilon(known, delta), spent_epsilon([*known, private.cost], delta)
    )


def _debit_round(
    connection: sqlite3.Connection, debit: Debit, private: PrivateDebit
) -> None:
    """Write a round down, unless it costs too much; one that was written is not changed."""
    spent = _spending(connection, private, debit.attempt)
    require_budget(private.budget, spent, private.resource)
    content, run = private.content.to_text(), private.run.to_text()
    (before,) = connection.execute(
        "SELECT count(*) FROM private_rounds WHERE content = ? AND run = ?",
        (content, run),
    ).fetchone()
    cost = (private.cost.noise, private.cost.rate, private.cost.steps)
    connection.execute(
        "INSERT OR IGNORE INTO private_rounds (content, line, job, run, round, noise, rate, steps, epsilon, delta, attempt)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            content,
            debit.line,
            private.job,
            run,
            before + 1,
            *cost,
            spent.after,
            private.budget.delta,
            debit.attempt,
        ),
    )


def _runs(connection: sqlite3.Connection, line: str) -> frozenset[Digest]:
    rows = connection.execute("SELECT run FROM runs WHERE line = ?", (line,))
    return frozenset(Digest.from_text(run) for (run,) in rows)


def _spent(connection: sqlite3.Connection, debit: Debit) -> int:
    row = connection.execute(
        "SELECT coalesce(sum(amount), 0) FROM debits WHERE line = ? AND budget = ? AND attempt <> ?",
        (debit.line, debit.budget, debit.attempt),
    ).fetchone()
    return int(row[0])


def _count(connection: sqlite3.Connection, line: str, resource: str) -> int:
    row = connection.execute(
        "SELECT count FROM uses WHERE line = ? AND resource = ?", (line, resource)
    ).fetchone()
    return int(row[0]) if row else 0


def _epoch(connection: sqlite3.Connection) -> int:
    query = "SELECT count(*) FROM revocations"
    return int(connection.execute(query).fetchone()[0])
