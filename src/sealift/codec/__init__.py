"""The one strict, canonical encoding of everything that crosses a boundary.

Values are frozen dataclasses; bytes are JSON in the canonical form of RFC 8785 (JCS),
so one value has one encoding and a hash of it means something. Decoding refuses what
encoding would not have produced: other whitespace or key order, duplicate or unknown
or missing fields, wrong types, integers beyond 2^53 - 1, anything too large or deep.
``bytes`` are base64url text without padding; classes with ``to_text`` and
``from_text`` (digests, public keys) are text. Nothing here touches files or sockets.
"""

from sealift.codec.parsing import MAX_BYTES, MAX_DEPTH, parse, parse_foreign, parse_toml
from sealift.codec.reading import decode, from_plain, parse_named
from sealift.codec.writing import MAX_INTEGER, encode, encode_named, to_plain

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_INTEGER",
    "decode",
    "encode",
    "encode_named",
    "from_plain",
    "parse",
    "parse_foreign",
    "parse_named",
    "parse_toml",
    "to_plain",
]
