"""Whether a file's bytes may be of another encoding than they were taken for.

In most encodings of one byte per letter every byte is some character, so nothing refuses a
wrong one. Words tell: in Windows-1252 (ISO 8859-1 with more characters) letters with marks
stand alone between plain ones, and no sign stands within a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sealift.data.schema.owntable import IN_FILE
from sealift.errors import visible

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
