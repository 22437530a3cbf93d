"""Every error that Sealift raises on purpose, and the exit code each one ends in.

::

    SealiftError
    ├─ UsageError            the caller's mistake                               exit 2
    ├─ UnavailableError      hardware, driver, extra, disk, port, memory        exit 3
    ├─ PeerError             network, timeout, peer gone                        exit 4
    ├─ RefusedError          a rule refused the action                          exit 5
    │  ├─ AuthenticationError   a tag or signature did not verify (no detail)
    │  ├─ EvidenceError         evidence is wrong for this challenge or root
    │  ├─ PolicyError           genuine, but not acceptable (names the rule)
    │  ├─ StaleError            replay, old key epoch, expired lease, rollback
    │  └─ IntegrityError        a check of a result or of scrubbed memory failed
    ├─ MalformedError        bytes or documents that do not parse               exit 6
    └─ JobError              recipe error, NaN, divergence                      exit 7

An error is one line: what happened, why, and what to do. ``code`` is its stable name.
``errors.toml`` explains each code once, and ``sealift explain`` prints that explanation.
Sealift's own bugs are not part of this tree. Text from peers is escaped before it is
printed, because control and bidirectional characters could hide or reorder text on a
terminal (``visible``).
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
        why: The cause, if it is known and not secret; or the error that caused this one.
        fix: What the reader can do, if the caller knows more than the catalogue; None if
            the cause already says it.
        code: Stable kebab-case name; the class default when left out.
        ranks: Numbers of the ranks that the error is about.
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
        """The stable name, which a traceback shows too."""
        return self._code

    @code.setter
    def code(self, code: str) -> None:
        self._code = code
        self.__notes__ = [f"[{code}] see: sealift explain {code}"]

    @property
    def fix(self) -> str:
        """What the reader can do: the caller's text, or else the catalogue's."""
        return "" if self._fix is None else self._fix or remedy(self.code)

    @fix.setter
    def fix(self, fix: str) -> None:
        self._fix = fix

    def __str__(self) -> str:
        line = f"{self.what}: {self.why}" if self.why else self.what
        fix = self.fix
        return _one_line(f"{line}. {fix}" if fix else line)


class Stopping(BaseException):
    """This process was asked to stop. It is no error, so handlers of errors let it pass."""


class UsageError(SealiftError):
    """The call or the command line is not valid."""

    exit_code = 2
    default_code = "usage"


class UnavailableError(SealiftError):
    """This machine lacks something; the message says what, and how to get it."""

    exit_code = 3
    default_code = "unavailable"


class PeerError(SealiftError):
    """The peer is gone, silent or unreachable."""

    exit_code = 4
    default_code = "peer"


class RefusedError(SealiftError):
    """A rule refused the action."""

    exit_code = 5
    default_code = "refused"


class AuthenticationError(RefusedError):
    """A tag, signature or key did not verify. It has no detail, which could help an attacker."""

    default_code = "authentication"

    def __init__(self) -> None:
        super().__init__("authentication failed")


class EvidenceError(RefusedError):
    """The evidence does not fit this challenge, key, role or root."""

    default_code = "evidence"


class PolicyError(RefusedError):
    """Everything is genuine, but a rule does not allow it; the message names the rule."""

    default_code = "policy"


class StaleError(RefusedError):
    """A replay, a retired key epoch, an expired lease, a rolled back log."""

    default_code = "stale"


class IntegrityError(RefusedError):
    """A check of a result, a digest or scrubbed memory failed."""

    default_code = "integrity"


class MalformedError(SealiftError):
    """The bytes, file or document cannot be parsed.

    Args:
        what: What happened.
        field: Path of the offending field, if there is one.
        offset: Offset of the wrong byte, if it is known.
        why: The cause.
        fix: What to do.
        code: Stable name.
        problems: One line for each problem, if there are several.
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
    """The recipe failed, or the training produced an invalid state."""

    exit_code = 7
    default_code = "job"


def cause(error: BaseException) -> str:
    """The text of an error, without the fix: of Sealift's errors, ``what``."""
    text = error.what if isinstance(error, SealiftError) else ""
    text = text or getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """``Did you mean epochs?`` for a mistyped name; empty if no known name is similar."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]}?" if close else ""


@cache
def catalogue() -> dict[str, dict[str, str]]:
    """For each code: ``what`` it means, and ``fix`` or ``do``, which say what to do.

    The file is read once, on first need. A process that will enter a sandbox calls this
    before, because it cannot open the file afterwards.

    Raises:
        OSError: the catalogue cannot be read.
    """
    import tomllib

    return tomllib.loads(CATALOGUE.read_text("utf-8"))


def remedy(code: str) -> str:
    """The first sentence of the catalogue's ``fix``; empty if there is none."""
    try:
        entry = catalogue().get(code, {})
    except Exception:  # reporting an error must not raise a second one
        return ""
    return entry.get("fix", "").partition(". ")[0].removesuffix(".")


def meaning(code: str) -> str:
    """The first sentence of the catalogue's ``what``; empty if the code is unknown.

    It replaces an error's own text where a peer sends only the code.
    """
    what = catalogue().get(code, {}).get("what", "")
    return what.partition(". ")[0].removesuffix(".")


def _one_line(text: str) -> str:
    """One line without control codes, because errors quote text from peers."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in line)


def no_room(what: str, error: Exception, fix: str = "") -> UnavailableError:
    """The error for missing memory; shared memory needs a descriptor as well."""
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
    """The error for a reached limit of open files."""
    return UnavailableError(
        "too many files are open",
        why=why,
        # The catalogue may be unreadable, because it needs one more open file.
        fix="Raise the limit (ulimit -n), or end programs with many open files",
        code="no-descriptors",
    )


def is_out_of_descriptors(error: Exception) -> bool:
    """Whether a file could not be opened because of the limit of open files."""
    return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)


def ascii_only(text: str) -> str:
    """Like ``visible``, but every character outside ASCII is escaped too."""
    return "".join(
        char if char.isascii() else ascii(char)[1:-1] for char in visible(text)
    )


def visible(text: str) -> str:
    """``text`` with control and bidirectional characters written as escapes."""
    return "".join(
        char if char.isprintable() or char == "\t" else ascii(char)[1:-1]
        for char in text
    )


# Hangul fillers: letters that terminals draw as blanks.
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u3164\uffa0")
_IN_WORDS: Final = str.maketrans("", "", "_.-")
QUOTED_COLUMNS: Final = 60
SCREEN_COLUMNS: Final = 80  # of a terminal that does not report its size
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}[,;]?(?= |$)")


def quote_foreign(text: str, limit: int = QUOTED_COLUMNS) -> str:
    """Text from another party as one short piece of a line on a terminal.

    Control, bidirectional, invisible and combining characters are written as escapes,
    repeated spaces are merged, and the piece is too short to wrap into a separate line.
    One word of letters, digits, ``_``, ``.`` and ``-`` is shown without quotation marks.
    Other text is quoted, so that readers see where it begins and ends.

    Args:
        text: As the other party sent it.
        limit: The most columns to show; ``...`` after the quotation marks says that there
            is more.
    """
    start = text[: limit * 8]  # the rest cannot fit into the limit
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
    """Split a line so that the terminal does not wrap it; all but the first are indented.

    If the terminal wrapped the line, a peer's text in it could begin a new line and pass
    for Sealift's own. A digest is never split, so that it can be copied.

    Args:
        text: One line without control characters.
        columns: Width of the terminal.
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
        elif digest := _DIGEST.match(text):
            end = digest.end()
        lines.append(before + text[:end])
        text, before = text[end:].lstrip(" "), " " * indent
    return lines


def _fitting(text: str, columns: int) -> int:
    """How many characters of the text fit on a line, at least one."""
    for place, char in enumerate(text):
        columns -= 1 + (unicodedata.east_asian_width(char) in "WF")
        if columns < 0:
            return max(1, place)
    return len(text)


def for_screen(line: str, stream: TextIO) -> str:
    """The line to write to a stream: folded if the stream is a terminal."""
    if not stream.isatty():
        return line
    columns = 0
    with suppress(OSError):  # the terminal was closed
        columns = os.get_terminal_size(stream.fileno()).columns
    columns = columns or SCREEN_COLUMNS
    return "\n".join(fold(line, columns))


def _is_harmless(char: str) -> bool:
    """Whether a terminal draws it in place, unchanged: ASCII, and left-to-right letters."""
    if char.isascii():
        return char.isprintable()
    letter = char.isalnum() and unicodedata.bidirectional(char) == "L"
    return letter and char not in _BLANK_LETTERS


# Errors about files of this machine: their text contains paths.
_OWN_FILES: Final = frozenset(
    {"bad-database", "log-damaged", "vault-damaged", "vault-locked"}
)


def is_about_peer(error: SealiftError) -> bool:
    """Whether a peer may read the error's text, because it is about what the peer did."""
    by_peer = isinstance(error, (RefusedError, MalformedError))
    return by_peer and error.code not in _OWN_FILES


def require_value(value: _T | None, why: str = "it is there by now") -> _T:
    """The value, which only a bug can leave None. Unlike assert, -O does not remove it."""
    if value is None:
        raise AssertionError(why)
    return value


def require_kind(value: object, kind: type[_T]) -> _T:
    """The value, which only a bug can make another class."""
    if not isinstance(value, kind):
        raise AssertionError(f"{type(value).__name__} is not {kind.__name__}")
    return value
