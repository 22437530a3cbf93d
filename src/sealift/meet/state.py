"""The host's book of one meeting: who was invited, who came, and what each one said.

Everything that the host answers follows from it, and each line is on the disk before the
answer leaves: a host that is killed goes on where it was. The first key that an invitation
is used with is the party's for good. The invitations' secrets lie in it: mode 0600.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sealift.codec import decode, encode
from sealift.crypto.identity import Card
from sealift.errors import UsageError
from sealift.ids import Digest
from sealift.meet.invitation import Invitation, parse_invitation
from sealift.meet.terms import SignedCard, SignedConsent
from sealift.release.database import (
    create_database,
    database_errors,
    open_database,
    transaction,
)

APPLICATION_ID: Final = 0x53_4C_4D_54  # "SLMT"
_SCHEMA: Final = """
CREATE TABLE meeting (declaration TEXT NOT NULL) STRICT;
CREATE TABLE seats (
    name TEXT PRIMARY KEY, invitation TEXT NOT NULL, place INTEGER NOT NULL, card BLOB, contested INTEGER NOT NULL DEFAULT 0,
    brought BLOB, consent BLOB, signature BLOB, declined TEXT) STRICT
"""
_VOIDED: Final = "UPDATE seats SET consent = NULL, signature = NULL"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvitedParty:
    """One invited party.

    Attributes:
        invitation: As it was printed.
        card: Of the first key that the invitation was used with.
        contested: Whether another key came with it, too.
        brought: Its card about its table.
        declined: Why it said no.
    """

    invitation: Invitation
    card: Card | None
    contested: bool
    brought: SignedCard | None
    consent: SignedConsent | None
    signature: bytes | None
    declined: str | None

    @property
    def name(self) -> str:
        """The party's."""
        return self.invitation.name


class MeetingState:
    """An open book.

    Args:
        path: The file.
        connection: To it.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._lock = threading.Lock()  # sessions have threads

    @classmethod
    def create(cls, path: Path, invitations: Sequence[Invitation]) -> MeetingState:
        """A fresh one, with a seat for each invitation, in this order.

        Raises:
            UsageError: if the file exists.
            UnavailableError: if it cannot be written.
        """

        def fill(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO meeting VALUES ('')")
            connection.executemany(
                "INSERT INTO seats (name, invitation, place) VALUES (?, ?, ?)",
                [
                    (each.name, each.to_text(), place)
                    for place, each in enumerate(invitations)
                ],
            )

        return cls(path, create_database(path, _SCHEMA, APPLICATION_ID, fill))

    @classmethod
    def open(cls, path: Path) -> MeetingState:
        """The one that lies there.

        Raises:
            UnavailableError: if it cannot be read.
            MalformedError: if it is something else.
        """
        return cls(path, open_database(path, APPLICATION_ID))

    def declare(self, declaration: Digest) -> None:
        """What is declared now; anything else than before voids what was said about it."""
        text = declaration.to_text()
        if self._read("SELECT declaration FROM meeting")[0][0] == text:
            return
        with self._writing() as connection:
            connection.execute("UPDATE meeting SET declaration = ?", (text,))
            connection.execute(_VOIDED)
            connection.execute("UPDATE seats SET brought = NULL, declined = NULL")

    def seats(self) -> tuple[InvitedParty, ...]:
        """All of them, in the order of the invitations."""
        rows = self._read(
            "SELECT invitation, card, contested, brought, consent, signature, declined "
            "FROM seats ORDER BY place"
        )
        return tuple(map(_seat, rows))

    def seat(self, name: str) -> InvitedParty | None:
        """Of a party that was invited."""
        return next((each for each in self.seats() if each.name == name), None)

    def bind(self, name: str, card: Card) -> bool:
        """Give a seat to the first card; whether it is this one's now."""
        with self._writing() as connection:
            connection.execute(
                "UPDATE seats SET card = ? WHERE name = ? AND card IS NULL",
                (encode(card), name),
            )
            row = connection.execute(
                "SELECT card FROM seats WHERE name = ?", (name,)
            ).fetchone()
        return row is not None and bytes(row[0]) == encode(card)

    def contest(self, name: str) -> None:
        """Somebody else came with that invitation."""
        self._set(name, "contested", 1)

    def bring(self, name: str, card: SignedCard) -> None:
        """A party's card; a new one voids what everybody said to the old one."""
        self._set(name, "brought", encode(card), then=_VOIDED)

    def agree(self, name: str, consent: SignedConsent) -> None:
        """A party's yes; signatures were under what followed without it."""
        void = "UPDATE seats SET signature = NULL"
        self._set(name, "consent", encode(consent), then=void)

    def sign(self, name: str, signature: bytes) -> None:
        """A party's signature under the agreement."""
        self._set(name, "signature", signature)

    def decline(self, name: str, why: str | None) -> None:
        """A party's no; None takes it back."""
        self._set(name, "declined", why)

    def void(self) -> None:
        """Everybody's yes, where what was brought makes no agreement."""
        with self._writing() as connection:
            connection.execute(_VOIDED)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _set(self, name: str, column: str, value: Any, then: str = "") -> None:
        query = f"SELECT {column} FROM seats WHERE name = ?"  # noqa: S608 - our own names
        found = self._read(query, name)
        if not found:
            raise UsageError(f"{name} was not invited", code="not-invited")
        if found[0][0] == value:
            return
        with self._writing() as connection:
            if then:
                connection.execute(then)
            connection.execute(
                f"UPDATE seats SET {column} = ? WHERE name = ?",  # noqa: S608 - our own names
                (value, name),
            )

    def _read(self, query: str, *values: Any) -> list[Any]:
        cursors = closing(self._connection.cursor())
        with self._lock, database_errors(self._path), cursors as cursor:
            return cursor.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, transaction(self._connection, self._path):
            yield self._connection


def _seat(row: Any) -> InvitedParty:
    invitation, card, contested, brought, consent, signature, declined = row
    return InvitedParty(
        invitation=parse_invitation(invitation),
        card=_decoded(Card, card),
        contested=bool(contested),
        brought=_decoded(SignedCard, brought),
        consent=_decoded(SignedConsent, consent),
        signature=None if signature is None else bytes(signature),
        declined=declined,
    )


def _decoded(kind: type[T], raw: bytes | None) -> T | None:
    return None if raw is None else decode(kind, bytes(raw))
