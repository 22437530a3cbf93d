"""What a text table looks like: its encoding, its delimiter, its header, its rows.

Told apart by looking at all of it, never guessed on: bytes are UTF-8, UTF-16 with a mark,
or Windows-1252, and a file in which some are the one and some the other is refused with
its lines. Cells are not read here (``cells``); Python's reader is the stricter one about
quotes, and knows the line of every row.

Whether a file's bytes may be of another encoding than they were taken for.

In most encodings of one byte per letter every byte is some character, so nothing refuses a
wrong one. Words tell: in Windows-1252 (ISO 8859-1 with more characters) letters with marks
stand alone between plain ones, and no sign stands within a word.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Final

from sealift.data.schema.owntable import AS_IT_LOOKS, DELIMITERS, IN_FILE, OwnTable
from sealift.data.schema.rows import bad_table
from sealift.data.sources.problems import SHOWN, Problems
from sealift.errors import MalformedError, visible

WORDS: Final = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
LOOKED_AT_ROWS: Final = 200
_UNLIKE: Final = {
    "utf-8-sig": "the line is UTF-8, unlike other lines",
    "cp1252": "the line is not UTF-8, unlike other lines",
    "unknown": "the line has a character of an unknown encoding",
}
_AS_CSV: Final = "Open it in a spreadsheet program, and save it as CSV"
_UNPACK: Final = "Unpack it first"
_NO_TEXT: Final = {
    b"PK\x03\x04": ("an Excel workbook or another ZIP archive", _AS_CSV),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook of the old kind", _AS_CSV),
    b"\x1f\x8b": ("compressed (gzip)", _UNPACK),
    b"BZh91AY&SY": ("compressed (bzip2)", _UNPACK),
    b"\xfd7zXZ": ("compressed (xz)", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("compressed (Zstandard)", _UNPACK),
    b"PAR1\x15": ("a Parquet file", "Give it a name that ends in .parquet"),
    b"SQLite format 3\0": ("an SQLite database", "Export the table as CSV"),
    b"%PDF-": ("a PDF", "Export the table as CSV"),
}
_UTF_32: Final = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_NUMBER: Final = re.compile(r"\s*[+-]?[\d.,]*\d[\d.,]*\s*")
_OTHER_BYTES = re.compile(rb"[\x80-\xff]+")
_UNDEFINED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")  # in Windows-1252
_BLOCK_BYTES: Final = 1 << 20


TAKEN: Final = "cp1252"
OTHERS: Final = (
    "cp1251", "koi8-r", "cp1250", "mac-roman", "cp1253", "cp1254", "cp437", "cp852", "cp1257",
    "cp1255",
)  # fmt: skip
_WORD: Final = re.compile(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*")
_WITHIN_WORDS: Final = "\u2018\u2019\u00b4\u00b7\u2013\u2014\u00ad\u00a0"
_RARE: Final = (
    "\u0160\u0161\u017d\u017e\u0178\u0192\u00f0\u00fe\u00fd\u00d0\u00de\u00dd"
)
_USUAL: Final = frozenset("äöüÄÖÜßéèàâêîôûçÉåÅæøØñáíóúãõëïœ")
_MOST_WORDS: Final = 1000
_SHOWN: Final = 40


def doubt(path: Path, blocks: Iterable[bytes]) -> str:
    """What to look at: a word that Windows-1252 reads; what speaks against it.

    Nothing may: most words of other Latin encodings look like words. "" if no letter is
    beyond ASCII.
    """
    words: set[bytes] = set()
    for block in blocks:
        words |= set(_WORD.findall(block))
        if len(words) > _MOST_WORDS:
            break
    odd = sorted(word for word in words if _is_odd(word.decode(TAKEN, "replace")))
    if not odd:
        return _example(word.decode(TAKEN, "replace") for word in words)
    readings = ", ".join(
        f'encoding = "{name}" reads {visible(text)!r}'
        for name, text in _other_readings(odd[0], words)
    )
    read = visible(odd[0].decode(TAKEN, "replace"))[:_SHOWN]
    return (
        f"it may be another encoding, because Windows-1252 reads {read!r}; if that is wrong, "
        f"write the right one {IN_FILE}: {readings or 'encoding = ...'}"
    )


def _example(words: Iterable[str]) -> str:
    """The word with the least usual letters."""
    letters = {word: [each for each in word if each > "\x7f"] for word in words}
    found = [word for word in letters if any(map(str.isalpha, letters[word]))]
    if not found:
        return ""
    word = min(found, key=lambda each: (set(letters[each]) <= _USUAL, each))
    return (
        f"for example {visible(word)[:_SHOWN]!r}; if that is wrong, "
        f"write encoding = ... {IN_FILE}"
    )


def _other_readings(word: bytes, words: set[bytes]) -> Iterator[tuple[str, str]]:
    """Encodings in which no word is odd, and what they make of one."""
    for name in OTHERS:
        try:
            read = [each.decode(name) for each in words]
        except UnicodeDecodeError:
            continue
        if all(map(_is_one_script, read)):
            yield name, word.decode(name)[:_SHOWN]


def _is_odd(word: str) -> bool:
    if _is_marked(word):
        return True
    for place, letter in enumerate(word):
        before, after = word[max(0, place - 1) : place], word[place + 1 : place + 2]
        if letter in _RARE:
            return True
        if letter.isalpha():
            if letter > "\x7f" and letter.isupper() and before.islower():
                return True
        elif before.isalpha() and after.isalpha() and letter not in _WITHIN_WORDS:
            return True
    return False


def _is_marked(word: str) -> bool:
    """Whether more letters with marks stand together than in words of Latin letters."""
    together = longest = 0
    for letter in word:
        together = together + 1 if letter > "\x7f" and letter.isalpha() else 0
        longest = max(longest, together)
    return longest > 2 or longest == len(word) == 2


def _is_one_script(word: str) -> bool:
    """Letters alone, of one case after the first, and not plain and foreign ones mixed."""
    small = word[1:] == word[1:].lower()  # Hebrew has no capitals
    if not word.isalpha() or not (small or word.isupper()):
        return False
    foreign = [letter > "\u036f" for letter in word]
    return all(foreign) or not (any(foreign) or _is_marked(word))


@dataclass(frozen=True, slots=True)
class Structure:
    """Of one file.

    Attributes:
        path: Where it is.
        encoding: As Python calls it.
        delimiter: One character.
        header: Names of its columns, without spaces at their ends; ``column 3`` if the
            third has none.
        rows: Rows under the header that have a cell for each column.
        ragged: Numbers of the rows that have not, from 0.
        commas: Whether a cell may have one.
        regular: Whether it can be read in blocks (``blocks``).
        doubt: What to look at in doubt about the encoding, in words.
    """

    path: Path
    encoding: str
    delimiter: str
    header: tuple[str, ...]
    rows: int
    ragged: tuple[int, ...]
    commas: bool
    regular: bool = False
    doubt: str = ""

    @property
    def words(self) -> str:
        """What it was taken for, and what speaks against it."""
        taken = f"{_say_encoding(self.encoding)}, {WORDS[self.delimiter]}"
        return f"{taken}; {self.doubt}" if self.doubt else taken

    def number(self, whole: int) -> int:
        """The number among all rows of one that has a cell for each column."""
        for ragged in self.ragged:
            if ragged > whole:
                break
            whole += 1
        return whole

    def lines(self, rows: list[int]) -> list[int]:
        """The lines in which these rows end; the file is read again up to the last."""
        found, wanted = {}, set(rows)
        with _opened(self.path, self.encoding) as stream:
            numbered = enumerate(_rows(stream, self.delimiter, self.path.name), -1)
            for number, (line, _) in islice(numbered, max(rows, default=0) + 2):
                if number in wanted:
                    found[number] = line
        if found.keys() < wanted:
            raise changed(self.path.name)
        return [found[row] for row in rows]


def _say_encoding(name: str) -> str:
    """An encoding, as people call it."""
    if name.startswith("cp125"):
        return f"Windows-{name[2:]}"
    return name.upper().removesuffix("-SIG")


def look_at(path: Path, problems: Problems, own: OwnTable = AS_IT_LOOKS) -> Structure:
    """Look at a whole file; rows of another length go to ``problems``.

    Args:
        path: Of the file.
        problems: Where problems go.
        own: What its owner says of it.

    Raises:
        MalformedError: code ``bad-table``: its encodings are mixed, a quoted cell is not
            closed, or it has no header.
    """
    from sealift.data.sources.csvfiles import blocks  # 0.2 s, of pyarrow

    _demand_text(path)
    encoding = _stated_encoding(path, own.encoding) or _encoding(path)
    delimiter = own.delimiter or _delimiter(path, encoding)
    if encoding != "utf-8-sig":
        problems.read_as = _say_encoding(encoding)
    try:
        header = _header(blocks.first_row(path, encoding, delimiter), path.name)
        rows = blocks.count_rows(path, encoding, delimiter, len(header)) - 1
        commas = _has_commas(path, delimiter, encoding)
        found = Structure(path, encoding, delimiter, header, rows, (), commas, True)
    except (blocks.IrregularError, UnicodeDecodeError):
        found = _look_at_rows(path, encoding, delimiter, problems)
    if encoding != TAKEN or own.encoding:
        return found
    with path.open("rb") as stream:
        found = replace(found, doubt=doubt(path, _blocks(stream)))
    problems.read_as += f", {found.doubt}" if found.doubt else ""
    return found


def _demand_text(path: Path) -> None:
    """Say what a file is that has the name of a text file alone.

    Raises:
        MalformedError: code ``bad-table``.
    """
    with path.open("rb") as stream:
        start = stream.read(64)
        stream.seek(max(0, path.stat().st_size - 1))
        end = stream.read(1)
    if end == b"\x1a":
        raise bad_table(
            f"{path.name} ends with the character 0x1A, which old programs write at the end of files",
            fix="Delete its last character",
        )
    for mark, (kind, fix) in _NO_TEXT.items():
        if start.startswith(mark):
            raise bad_table(f"{path.name} is {kind}, and no text", fix=fix)
    if re.match(
        rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|table|\?xml|meta)\b",
        start,
        re.IGNORECASE,
    ):
        raise bad_table(
            f"{path.name} is a web page or XML, as some programs write for spreadsheets",
            fix=_AS_CSV,
        )


def _header(cells: list[str], source: str) -> tuple[str, ...]:
    names = enumerate(cells, 1)
    # A second mark of UTF-8, and spaces of no width, are no part of a name.
    header = tuple(
        name.strip().strip("\ufeff\u200b").strip() or f"column {place}"
        for place, name in names
    )
    if not header:
        raise bad_table(f"{source} is empty", fix="Begin the file with a header row")
    if header[0].startswith("sep="):
        raise bad_table(
            f"{source} begins with a line for spreadsheet programs",
            why=f"{header[0][:9]!r} is not the name of a column",
            fix="Delete the first line",
        )
    return header


def _look_at_rows(
    path: Path, encoding: str, delimiter: str, problems: Problems
) -> Structure:
    """The same, row by row."""
    with _opened(path, encoding) as stream:
        found = _rows(stream, delimiter, path.name)
        header = _header(next(found, (0, []))[1], path.name)
        rows, ragged, sizes = 0, list[int](), Counter[int]()
        said: list[tuple[str, str]] = []
        for number, (line, cells) in enumerate(found):
            if len(cells) == len(header):
                rows += 1
                if not any(cells) and len(cells) > 1:
                    said.append(
                        (f"line {line}: every cell is empty", "Delete such rows")
                    )
                continue
            ragged.append(number)
            sizes[len(cells)] += 1
            count = f"{len(cells)} cell{'s' if len(cells) != 1 else ''}"
            what = f"line {line}: it has {count}, and the header has {len(header)}"
            said.append((what, "Give every row one cell per column"))
    cells_below, alike = (sizes.most_common(1) or [(0, 0)])[0]
    if 1 < alike == rows + len(ragged) or 3 < alike > (rows + len(ragged)) / 2:
        named, which = len(header), "most" if rows or len(sizes) > 1 else "all"
        what = f"line 1: it has {named} cell{'s' if named != 1 else ''}, and {which} lines below have {cells_below}"
        fix = "If it is a title or a note, delete what stands above the columns' names"
        if named > 1:
            fix += (
                "; if the first column has no name, as R writes names of rows, begin line 1 with one; "
                "if the rows end with a delimiter, remove it"
            )
        said = [(what, fix)]
    for what, fix in said:
        problems.add(what, fix=fix, code="bad-table")
    commas = _has_commas(path, delimiter, encoding)
    return Structure(path, encoding, delimiter, header, rows, tuple(ragged), commas)


def _has_commas(path: Path, delimiter: str, encoding: str) -> bool:
    """Whether a cell may have one."""
    character = b'"' if delimiter == "," else b","
    if not encoding.startswith("utf"):  # UTF-16 has the byte, and EBCDIC another one
        character = character.decode().encode(encoding)
    with path.open("rb") as stream:
        return any(character in block for block in _blocks(stream))


def _stated_encoding(path: Path, encoding: str) -> str:
    """The encoding that its owner states, if every byte of the file is of it.

    Raises:
        MalformedError: code ``bad-table``: it is not.
    """
    line = 0
    try:
        with path.open(encoding=encoding or "latin-1", newline="") as stream:
            while encoding and (text := stream.read(_BLOCK_BYTES)):
                line += text.count("\n")
    except UnicodeError as error:
        raise bad_table(
            f"{path.name} is not {encoding}, as table.toml says",
            why=f"after about {line:,} lines: {error.__class__.__name__}",
            fix="Correct encoding = in table.toml, or leave it out",
        ) from None
    if _is_of_bytes(encoding) and _is_utf_8(path):
        raise bad_table(
            f"{path.name} is UTF-8, and table.toml says {encoding}",
            fix='Write encoding = "utf-8" in table.toml, or leave it out',
        )
    return encoding


def _is_of_bytes(encoding: str) -> bool:
    """Whether it is ASCII and other characters of one byte."""
    if not encoding:
        return False
    every = bytes(range(256)).decode(encoding, "replace")
    return len(every) == 256 and every[:128].isascii() and every[65] == "A"


def _is_utf_8(path: Path) -> bool:
    """Whether it begins with the mark of UTF-8, or has characters beyond ASCII, all UTF-8."""
    found = False
    with path.open("rb") as stream:
        if stream.read(3) == b"\xef\xbb\xbf":
            return True
        stream.seek(0)
        for block in _blocks(stream):
            if not block.isascii():
                if _kinds(block) != {"utf-8-sig"}:
                    return False
                found = True
    return found


def _encoding(path: Path) -> str:
    """The one encoding of all lines that have any but ASCII characters."""
    with path.open("rb") as stream:
        mark = stream.read(4)
        if mark in _UTF_32:
            raise bad_table(f"{path.name} is UTF-32", fix="Save it as UTF-8")
        if mark[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return "utf-16"
        stream.seek(0)
        kinds: set[str] = set()
        for block in _blocks(stream):
            if b"\0" in block:
                raise _with_zeros(path)
            kinds |= set() if block.isascii() else _kinds(block)
    if len(kinds) > 1 or "unknown" in kinds:
        raise _mixed(path)
    return next(iter(kinds), "utf-8-sig")


def _with_zeros(path: Path) -> MalformedError:
    """What a file is in which some bytes are zero."""
    with path.open("rb") as stream:
        start = stream.read(_BLOCK_BYTES)
        for name, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[0::2])):
            if 2 * zeros.count(0) > len(zeros):
                return bad_table(
                    f"{path.name} looks like {name[:6].upper()} without a byte order mark",
                    fix=f'Save it as UTF-8, or write encoding = "{name}" {IN_FILE}',
                )
        stream.seek(0)
        line = 1
        for block in _blocks(stream):
            if (at := block.find(b"\0")) >= 0:
                line += block.count(b"\n", 0, at)
                break
            line += block.count(b"\n")
    return bad_table(
        f"{path.name}, line {line}: a character with the code 0",
        why="text files have none, so a program damaged the file, or it is no table",
        fix="Export it as CSV again, or delete the character",
    )


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """About a MiB each, to the end of a line or of a run of bytes that are not ASCII."""
    while block := stream.read(_BLOCK_BYTES) + stream.readline(_BLOCK_BYTES):
        while block[-1] >= 0x80 and (more := stream.read(1)):
            block += more
        yield block


def _kinds(text: bytes) -> set[str]:
    """Which encodings its characters are of, each run of bytes for itself."""
    with suppress(UnicodeDecodeError):
        text.decode("utf-8")
        return {"utf-8-sig"}
    found = set()
    for run in set(_OTHER_BYTES.findall(text)):
        try:
            run.decode("utf-8")
            found.add("utf-8-sig")
        except UnicodeDecodeError:
            found.add("unknown" if _UNDEFINED.search(run) else "cp1252")
    return found


def _mixed(path: Path) -> MalformedError:
    """Which lines are of the rarer encoding, or of none."""
    first: dict[str, list[int]] = {kind: [] for kind in _UNLIKE}
    total: Counter[str] = Counter()
    line = 1
    with path.open("rb") as stream:
        for block in _blocks(stream):
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            for number, text in enumerate(block.split(b"\n"), line):
                for kind in () if text.isascii() else _kinds(text):
                    total[kind] += 1
                    first[kind] += [number] if total[kind] <= SHOWN else []
            line += block.count(b"\n")
    rarer = min(total, key=lambda kind: (kind != "unknown", total[kind]))
    problems = Problems(path.name)
    for line in first[rarer]:
        problems.add(
            f"line {line}: {_UNLIKE[rarer]}",
            fix=f"Export it again in one encoding, preferably UTF-8, or name its encoding {IN_FILE}",
            code="bad-table",
        )
    problems.count(total[rarer] - len(first[rarer]))
    return problems.error()


def _delimiter(path: Path, encoding: str) -> str:
    """The one by which most rows have as many cells as the header; most are numbers; most.

    By a comma that is a decimal comma, numbers fall apart into numbers and what is none.
    """
    scores = {}
    for each in DELIMITERS:
        with _opened(path, encoding) as stream:
            rows = csv.reader(stream, delimiter=each)
            try:
                seen = [row for row in islice(rows, LOOKED_AT_ROWS) if row]
            except (csv.Error, UnicodeDecodeError):
                continue
        lengths = Counter(map(len, seen))
        if seen and (wide := len(seen[0])) > 1:
            cells = [cell for row in seen[1:] for cell in row]
            numbers = sum(1 for cell in cells if _NUMBER.fullmatch(cell))
            share = numbers / max(1, len(cells))
            scores[each] = (lengths[wide] / len(seen), share, wide)
    return max(scores, key=lambda each: scores[each], default=",")


def _opened(path: Path, encoding: str) -> IO[str]:
    return path.open(encoding=encoding, newline="")


def _rows(
    stream: IO[str], delimiter: str, source: str
) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that is not blank."""
    reader = csv.reader(stream, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise bad_table(
            f"{source}: a character that is not UTF-16", fix="Save it as UTF-8"
        ) from error
    except csv.Error as error:
        fix = "Look for a missing closing quotation mark, in this line or above, or for spaces where commas belong"
        if "field larger" in str(error):
            fix = "Shorten the cell, or take the column out of the file"
        raise bad_table(
            f"{source}, line {reader.line_num}: not CSV", why=str(error), fix=fix
        ) from error


def changed(source: str, why: str = "") -> MalformedError:
    """The error for a file that somebody writes to while it is read."""
    return bad_table(
        f"{source} changed while it was read",
        why=why,
        fix="Seal a copy that no program writes to",
    )
