"""Statements that reach a broker while it runs: it saves, obeys and passes them on.

They arrive as files beside the agreement, which are read before each release, or in a
message from a party. A statement from a message is on the disk before it has any effect,
so a restarted broker knows it (spec/release.md, rule S5). Without a folder statements are
only in memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sealift.errors import MalformedError, SealiftError, unreadable
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import (
    MAX_STATEMENTS,
    SUFFIX,
    SignedStatement,
    load_statements,
    require_timely,
    save_statement,
)
from sealift.release.agreement.successors import current, find_speaker

MAX_RIVALS: Final = 8  # of one number, that one party says one kind of thing about
_Seen = tuple[tuple[str, int, int], ...]
_Key = tuple[str, Digest]


class StatementsInForce:
    """What is said of one agreement, as of now. Threads may share it.

    What was known once stays known, whatever becomes of its file.

    Args:
        verified: The agreement, with what was known when it was loaded.
        folder: Beside the agreement; None keeps nothing on the disk.
        clock: Seconds since 1970: what is said is not from the future.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        folder: Path | None = None,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {_key(each): each for each in verified.statements}
        self._seen: _Seen | None = None
        self._verified = verified
        self._error: SealiftError | None = None

    def verified(self) -> VerifiedAgreement:
        """The agreement, with everything that is known of it now.

        Raises:
            PolicyError: ``agreement-vetoed`` or ``agreement-cancelled``.
            IntegrityError, MalformedError: a file beside it that is no statement.
        """
        with self._lock:
            self._look()
            if self._error is not None:
                raise self._error
            return self._verified

    def judged(self) -> tuple[VerifiedAgreement, SealiftError | None]:
        """The agreement with everything that is known of it, and what that ended it by."""
        with self._lock:
            self._look()
            return self._verified, self._error

    def known(self) -> tuple[SignedStatement, ...]:
        """Every statement that is known here, to show to others (rule S4)."""
        with self._lock:
            self._look()
            keys = sorted(self._known, key=lambda key: (key[0], key[1].raw))
            return tuple(self._known[key] for key in keys)

    def admit(self, signed: SignedStatement) -> None:
        """Keep a statement that a peer brought; from then on it is obeyed.

        An older one of the same party and kind changes nothing.

        Raises:
            MalformedError: ``bad-statement``: of no agreement of this line, or too many.
            IntegrityError: ``statement-altered``.
            UnavailableError: if it cannot be kept: then nothing changes.
        """
        self._check(signed)
        with self._lock:
            self._look()
            if not self._is_news(signed):
                return
            self._require_room(signed)
            if self._folder is not None:
                save_statement(signed, self._folder)
            self._known[_key(signed)] = signed
            self._judge()

    def _check(self, signed: SignedStatement) -> None:
        """One about this line or what may follow it: so many can be kept at most."""
        said = signed.body
        links = [each.agreement for each in self._verified.line]
        about = [(each.name, each.number, each.digest) for each in links]
        last = links[-1]
        is_next = (said.line, said.number) == (last.name, last.number + 1)
        if not is_next and (said.line, said.number, said.digest) not in about:
            raise MalformedError(
                "the statement is about no agreement of this line", code="bad-statement"
            )
        require_timely(signed.body, self._clock())
        find_speaker(signed, self._verified.line)

    def _require_room(self, signed: SignedStatement) -> None:
        """No party fills the place of the others' words."""
        name, digest = _key(signed)
        rivals = sum(key[0] == name and key[1] != digest for key in self._known)
        if len(self._known) >= MAX_STATEMENTS or rivals >= MAX_RIVALS:
            raise MalformedError(
                "too many statements are kept here", code="bad-statement"
            )

    def _is_news(self, signed: SignedStatement) -> bool:
        known = self._known.get(_key(signed))
        return known is None or known.body.at_s < signed.body.at_s

    def _look(self) -> None:
        """Read the folder again if a file in it changed."""
        if self._folder is None:
            return
        try:
            seen = _fingerprint(self._folder)
            if seen == self._seen:
                return
            found = self._load(self._folder)
        except SealiftError as error:
            self._seen, self._error = None, error  # looked at again, whatever changes
            return
        self._seen = seen
        self._known |= {_key(each): each for each in found if self._is_news(each)}
        self._judge()

    def _load(self, folder: Path) -> list[SignedStatement]:
        line = self._verified.line
        found = [
            each
            for each, _ in current(
                load_statements(folder, line[0].agreement.name), line
            )
        ]
        for each in found:
            require_timely(each.body, self._clock())
        return found

    def _judge(self) -> None:
        try:
            self._verified = self._verified.under(self._known.values())
        except SealiftError as error:
            self._error = error
        else:
            self._error = None


MISSING: Final = -1


def _key(signed: SignedStatement) -> _Key:
    """One party's word of one kind about one agreement."""
    return signed.body.file_name, signed.body.digest


def _fingerprint(folder: Path) -> _Seen:
    found = []
    try:
        with os.scandir(folder) as files:
            for each in files:
                if each.name.endswith(SUFFIX):
                    found.append((each.name, *_seen(each)))
    except OSError as error:
        raise unreadable(folder, error) from None
    return tuple(sorted(found))


def _seen(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except FileNotFoundError:
        return MISSING, MISSING
    return status.st_mtime_ns, status.st_size
