"""Every error that Sealift raises on purpose, and the exit code each one ends in.

::

    SealiftError
    ├─ UsageError            the caller's mistake                               exit 2
    ├─ UnavailableError      hardware, driver, extra, disk, port, memory        exit 3
    ├─ PeerError             network, timeout, peer gone                        exit 4
    ├─ RefusedError          a decision said no                                 exit 5
    │  ├─ AuthenticationError   a tag or signature did not verify (no detail)
    │  ├─ EvidenceError         evidence is wrong for this challenge or root
    │  ├─ PolicyError           genuine, but not acceptable (names the rule)
    │  ├─ StaleError            replay, old key epoch, expired lease, rollback
    │  └─ IntegrityError        a result or a scrub did not hold
    ├─ MalformedError        bytes or documents that do not parse               exit 6
    └─ JobError              recipe error, NaN, divergence                      exit 7

An error is one line: what happened, why, and what to do. ``code`` is its stable
name; what it means and what to do stands once, in ``errors.toml``, which ``sealift
explain`` shows. A bug of ours is not in this tree. What peers said is made fit for a
terminal before it stands in a line: no escape sequence may hide another, no
bidirectional character may reorder one (``visible``).
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import ClassVar, Final, TextIO, TypeVar

CATALOGUE: Final = Path(__file__).with_suffix(".toml")


_T = TypeVar("_T")


class SealiftError(Exception):
    """Root of the tree.

    Args:
        what: What happened, lower case, without a full stop.
        why: The cause, if it is known and may be told; or the error that says it.
        fix: What the reader can do about it, if this place knows more than the catalogue;
            None where the cause has said it.
        code: Stable kebab-case name; the class default when left out.
        ranks: Numbers of the ranks of a group that it is about.
    """

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "error"

    def __init__(
        self,
        what: str,
        *,
        why: str | BaseException = "",
        fix: str | None = "",
        code: str | None = None,
        ranks: tuple[int, ...] = (),
    ) -> None:
        self.what, self.ranks = what, ranks
        self.why = why if isinstance(why, str) else cause(why)
        self.code = code or self.default_code
        self._fix = fix
        super().__init__(what)

    @property
    def code(self) -> str:
        """Its stable name, which a traceback shows, too."""
        return self._code

    @code.setter
    def code(self, code: str) -> None:
        self._code = code
        self.__notes__ = [f"[{code}] see: sealift explain {code}"]

    @property
    def fix(self) -> str:
        """What the reader can do about it: said at the place, or by the catalogue."""
        return "" if self._fix is None else self._fix or remedy(self.code)

    @fix.setter
    def fix(self, fix: str) -> None:
        self._fix = fix

    def __str__(self) -> str:
        line = f"{self.what}: {self.why}" if self.why else self.what
        fix = self.fix
        return _one_line(f"{line}. {fix}" if fix else line)


class Stopping(BaseException):
    """This process was asked to stop. No error; what contains errors lets it pass."""


class UsageError(SealiftError):
    """A call or a command line that cannot mean anything."""

    exit_code = 2
    default_code = "usage"


class UnavailableError(SealiftError):
    """Something that this machine lacks: says what, and how to get it."""

    exit_code = 3
    default_code = "unavailable"


class PeerError(SealiftError):
    """The other end is gone, silent or unreachable."""

    exit_code = 4
    default_code = "peer"


class RefusedError(SealiftError):
    """A decision said no."""

    exit_code = 5
    default_code = "refused"


class AuthenticationError(RefusedError):
    """A tag, signature or key did not verify. Carries no detail, by intent."""

    default_code = "authentication"

    def __init__(self) -> None:
        super().__init__("authentication failed")


class EvidenceError(RefusedError):
    """Evidence that does not fit this challenge, key, role or root."""

    default_code = "evidence"


class PolicyError(RefusedError):
    """Genuine, but not acceptable; the message names the rule that failed."""

    default_code = "policy"


class StaleError(RefusedError):
    """A replay, a retired key epoch, an expired lease, a rolled back log."""

    default_code = "stale"


class IntegrityError(RefusedError):
    """A result, a digest or a scrub that did not hold."""

    default_code = "integrity"


class MalformedError(SealiftError):
    """Bytes, files or documents that do not parse.

    Args:
        what: What happened.
        field: Path of the offending field, if there is one.
        offset: Offset in bytes of the offence, if it is known.
        why: The cause.
        fix: What to do.
        code: Stable name.
        problems: Each of several offences, a line each.
    """

    exit_code = 6
    default_code = "malformed"

    def __init__(
        self,
        what: str,
        *,
        field: str = "",
        offset: int | None = None,
        why: str | BaseException = "",
        fix: str | None = "",
        code: str | None = None,
        problems: tuple[str, ...] = (),
    ) -> None:
        self.field = field
        self.offset = offset
        self.problems = tuple(map(_one_line, problems))
        super().__init__(what, why=why, fix=fix, code=code)
        self.__notes__ += self.problems

    def __str__(self) -> str:
        place = [f"field {self.field}"] if self.field else []
        if self.offset is not None:
            place.append(f"offset {self.offset}")
        line = super().__str__()
        return _one_line(f"{line} (at {', '.join(place)})") if place else line


class JobError(SealiftError):
    """The recipe failed, or training went where it must not go."""

    exit_code = 7
    default_code = "job"


def cause(error: BaseException) -> str:
    """What an error says: what happened, of one of ours; of the system's, its words."""
    said = error.what if isinstance(error, SealiftError) else ""
    said = said or getattr(error, "strerror", None) or str(error)
    return said or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """``Did you mean epochs?``, for whoever mistyped a name; empty if nothing is near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]}?" if close else ""


@cache
def catalogue() -> dict[str, dict[str, str]]:
    """By code: ``what`` it means, and ``fix`` or ``do``, what to do about it.

    Read once, on first need. A process that is to lose its files reads it before.

    Raises:
        OSError: this package's own file cannot be read.
    """
    import tomllib

    return tomllib.loads(CATALOGUE.read_text("utf-8"))


def remedy(code: str) -> str:
    """The first sentence of the catalogue's ``fix``, if there is one and it can be read."""
    try:
        entry = catalogue().get(code, {})
    except Exception:  # no descriptor is left, say: never a second error
        return ""
    return entry.get("fix", "").partition(". ")[0].removesuffix(".")


def meaning(code: str) -> str:
    """The first sentence of what the catalogue says a code means; empty of no code of ours.

    It stands for an error's own line wherever a peer says only the code.
    """
    what = catalogue().get(code, {}).get("what", "")
    return what.partition(". ")[0].removesuffix(".")


def _one_line(text: str) -> str:
    """Errors quote what others sent: no line breaks, no terminal control codes."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in line)


def no_room(what: str, error: Exception, fix: str = "") -> UnavailableError:
    """No memory for ``what``; or no descriptor, which shared memory takes as well."""
    if is_out_of_descriptors(error):
        return no_descriptors(error)
    return UnavailableError(
        f"no memory for {what}", why=error, fix=fix, code="no-memory"
    )


def unreadable(path: Path, error: OSError) -> UnavailableError:
    """The error for a file that cannot be read."""
    if is_out_of_descriptors(error):
        return no_descriptors(error)
    return UnavailableError(f"cannot read {path}", why=error, code="cannot-read")


def no_descriptors(why: str | BaseException) -> UnavailableError:
    """This process, or this machine, has as many files open as it may."""
    return UnavailableError(
        "too many files are open",
        why=why,  # and the catalogue may be one too many
        fix="Raise the limit (ulimit -n), or close what holds files open",
        code="no-descriptors",
    )


def is_out_of_descriptors(error: Exception) -> bool:
    """Whether that is why a file could not be opened."""
    return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)


def ascii_only(text: str) -> str:
    """Like ``visible``, and every character that could look like another one escaped."""
    return "".join(
        char if char.isascii() else ascii(char)[1:-1] for char in visible(text)
    )


def visible(text: str) -> str:
    """``text`` with control and bidirectional characters written as escapes."""
    return "".join(
        char if char.isprintable() or char == "\t" else ascii(char)[1:-1]
        for char in text
    )


# Letters that are drawn as blanks: Hangul fillers.
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u3164\uffa0")
_IN_WORDS: Final = str.maketrans("", "", "_.-")
QUOTED_COLUMNS: Final = 60
SCREEN_COLUMNS: Final = 80  # of a terminal that says nothing of its size
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}[,;]?(?= |$)")


def quote_foreign(text: str, limit: int = QUOTED_COLUMNS) -> str:
    """Text from another party as one short piece of a line on a terminal.

    The piece has no control, bidirectional, invisible or combining character (they are
    written as escapes), no two spaces in a row, and so few columns that it cannot wrap
    into a line of its own. One word of letters, digits, ``_``, ``.`` and ``-`` stands as it is; other
    text stands in quotation marks, so that readers see where it begins and ends.

    Args:
        text: As the other party sent it.
        limit: The most columns of it that are shown; ``...`` behind the quotation marks
            says that there is more.
    """
    start = text[: limit * 8]  # what follows is not shown in any case
    words = " ".join(unicodedata.normalize("NFC", start).split())
    shown, left = "", limit
    for char in words:
        piece = char if _is_harmless(char) else ascii(char)[1:-1]
        piece = f"\\{char}" if char in '"\\' else piece
        left -= len(piece) + (unicodedata.east_asian_width(char) in "WF")
        if left < 0:
            break
        shown += piece
    cut = left < 0 or len(start) < len(text)
    if shown and not cut and shown.translate(_IN_WORDS).isalnum():
        return shown
    return f'"{shown}"{"..." if cut else ""}'


def fold(text: str, columns: int = SCREEN_COLUMNS, indent: int = 4) -> list[str]:
    """Part a line into lines that a terminal does not break; all but the first are indented.

    Where a terminal breaks a line itself, text of others in it could begin a line of its own. A
    digest stays whole, to be copied: what sticks out of it draws nothing.

    Args:
        text: One line without control characters.
        columns: Of the terminal.
        indent: Spaces before each further line.
    """
    lines: list[str] = []
    before = ""
    while text or not lines:
        end = _fitting(text, columns - len(before))
        if end == len(text):
            pass
        elif (space := text.rfind(" ", 1, end + 1)) > 0:
            end = space
        elif found := _DIGEST.match(text):
            end = found.end()
        lines.append(before + text[:end])
        text, before = text[end:].lstrip(" "), " " * indent
    return lines


def _fitting(text: str, columns: int) -> int:
    """How many characters of it fit on a line; one at least."""
    for place, char in enumerate(text):
        columns -= 1 + (unicodedata.east_asian_width(char) in "WF")
        if columns < 0:
            return max(1, place)
    return len(text)


def for_screen(line: str, stream: TextIO) -> str:
    """A line as a stream takes it: folded where the stream is a terminal."""
    if not stream.isatty():
        return line
    columns = 0
    with suppress(OSError):  # nobody is there any more
        columns = os.get_terminal_size(stream.fileno()).columns
    columns = columns or SCREEN_COLUMNS
    return "\n".join(fold(line, columns))


def _is_harmless(char: str) -> bool:
    """Whether it is drawn where it stands, as itself: ASCII, and letters from left to right."""
    if char.isascii():
        return char.isprintable()
    letter = char.isalnum() and unicodedata.bidirectional(char) == "L"
    return letter and char not in _BLANK_LETTERS


# Errors about files of this machine, whose lines name places on it.
_OWN_FILES: Final = frozenset(
    {"bad-database", "log-damaged", "vault-damaged", "vault-locked"}
)


def is_about_peer(error: SealiftError) -> bool:
    """Whether an error's line may be told to a peer: it is about what the peer did."""
    told = isinstance(error, (RefusedError, MalformedError))
    return told and error.code not in _OWN_FILES


def require_value(value: _T | None, why: str = "it is there by now") -> _T:
    """The value. That it is missing would be a bug of ours, at any level of optimization."""
    if value is None:
        raise AssertionError(why)
    return value


def require_kind(value: object, kind: type[_T]) -> _T:
    """The value. That it is of another class would be a bug of ours."""
    if not isinstance(value, kind):
        raise AssertionError(f"{type(value).__name__} is not {kind.__name__}")
    return value
