"""Eight words to compare by telephone: whether all parties were shown the same terms.

88 bits of scrypt over the digest of the terms, in which all keys stand. A word stands for
eleven bits: one of 32 beginnings and one of 64 endings. A host that shows two parties two
worlds would have to find two terms with the same words, at 128 MiB and a third of a second
a try. Source: spec/meeting.md section 7.
"""

from __future__ import annotations

from typing import Final

from sealift.crypto.hash import stretch
from sealift.crypto.keys import Label
from sealift.ids import Digest

WORDS: Final = 8
LOG2_N: Final = 17
_BITS: Final = 11
BEGINNINGS: Final = (
    "apple", "bread", "brick", "candle", "clay", "cloud", "copper", "dust",
    "ember", "field", "frost", "garden", "glass", "grain", "harbor", "honey",
    "island", "lamp", "maple", "meadow", "moon", "orange", "paper", "pebble",
    "river", "salt", "silver", "snow", "summer", "thunder", "velvet", "winter",
)  # fmt: skip
ENDINGS: Final = (
    "arrow", "basket", "bear", "bell", "bird", "boat", "bottle", "bowl",
    "bridge", "broom", "camel", "cap", "castle", "chair", "clock", "coat",
    "crab", "cup", "door", "dragon", "drum", "duck", "feather", "fence",
    "finger", "fish", "flag", "flute", "fox", "gate", "glove", "goat",
    "hammer", "hat", "horse", "house", "jacket", "key", "kite", "ladder",
    "lion", "mirror", "mouse", "needle", "owl", "pencil", "pillow", "pocket",
    "rabbit", "ring", "road", "rope", "saddle", "shoe", "spoon", "stairs",
    "table", "tiger", "tower", "train", "tree", "wagon", "wheel", "window",
)  # fmt: skip


def words_of(terms: Digest) -> tuple[str, ...]:
    """The words of these terms; everybody who was shown the same has the same."""
    bits = WORDS * _BITS
    salt = Label.MEETING_WORDS.encode()
    raw = stretch(terms.raw, salt, log2_n=LOG2_N, length=bits // 8)
    number = int.from_bytes(raw, "big")
    places = (number >> shift for shift in range(bits - _BITS, -1, -_BITS))
    words = (divmod(place & (1 << _BITS) - 1, len(ENDINGS)) for place in places)
    return tuple(BEGINNINGS[first] + ENDINGS[second] for first, second in words)
