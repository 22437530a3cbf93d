"""IMA measurement lists of Linux: what was executed, mapped and loaded, in order.

Both forms that the kernel shows are read: ``ascii_runtime_measurements`` and
``binary_runtime_measurements`` (little-endian). Each entry is brought back to its
*template data*, the exact bytes that the kernel hashed, so that PCR 10 can be replayed
in any bank by hashing them again; the hash that the list records (SHA-1) counts for
nothing but its all-zero value, which marks a violation (a file was written while it was
measured or executed).

Source: Linux Documentation/security/IMA-templates.rst, include/uapi/linux/hash_info.h;
security/integrity/ima describes both forms of the list.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Final

from sealift.crypto.hash import HashName, digest, digest_bytes
from sealift.errors import MalformedError

REGISTER: Final = 10
MAX_LIST_BYTES: Final = 64 << 20
MAX_ENTRIES: Final = 1 << 20
BOOT_AGGREGATE: Final = "boot_aggregate"

TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "ima": ("d", "n"),
    "ima-ng": ("d-ng", "n-ng"),
    "ima-sig": ("d-ng", "n-ng", "sig"),
    "ima-buf": ("d-ng", "n-ng", "buf"),
    "ima-modsig": ("d-ng", "n-ng", "sig", "d-modsig", "modsig"),
    "ima-ngv2": ("d-ngv2", "n-ng"),
    "ima-sigv2": ("d-ngv2", "n-ng", "sig"),
}
"""Field names by template; any other template is refused."""

DIGEST_SIZES: Final[dict[str, int]] = {
    "md5": 16, "sha1": 20, "sha224": 28, "sha256": 32, "sha384": 48, "sha512": 64,
}  # fmt: skip
_DIGESTS: Final = frozenset({"d-ng", "d-ngv2", "d-modsig"})
_RECORDED: Final[dict[int, HashName]] = {
    20: "sha1", 32: "sha256", 48: "sha384", 64: "sha512",
}  # fmt: skip
_LEGACY_NAME_BYTES: Final = 256
_MAX_NAME_BYTES: Final = 32
_LENGTH: Final = struct.Struct("<I")
_NAMES: Final = {name.encode(): name for name in TEMPLATES}


@dataclass(slots=True)
class MeasurementList:
    """Entries in order, as columns of equal length (a list may have a million).

    Attributes:
        templates: Template names.
        contents: The template data: the exact bytes that were hashed.
        violations: Places whose recorded hash is all zero: a file that was written
            while it was measured or executed.
    """

    templates: list[str] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    violations: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.contents)

    def first(self, count: int) -> MeasurementList:
        """The first ``count`` entries; the list itself if those are all."""
        if count == len(self):
            return self
        marked = {place for place in self.violations if place < count}
        return MeasurementList(self.templates[:count], self.contents[:count], marked)

    def behind(self, count: int) -> MeasurementList:
        """The entries behind the first ``count``; the list itself behind none."""
        if not count:
            return self
        marked = {place - count for place in self.violations if place >= count}
        return MeasurementList(self.templates[count:], self.contents[count:], marked)

    def add(self, template: str, content: bytes, *, violation: bool) -> None:
        """Append an entry."""
        if violation:
            self.violations.add(len(self))
        self.templates.append(template)
        self.contents.append(content)

    def entry(self, place: int) -> Entry:
        """The entry's fields.

        Raises:
            MalformedError: if its template data does not parse.
        """
        return _parse_fields(self.templates[place], self.contents[place])


@dataclass(frozen=True, slots=True)
class Entry:
    """What one entry says.

    Attributes:
        template: Template name.
        algorithm: Hash of ``digest``: ``sha256``.
        digest: Of the file, or of ``buffer``.
        path: File path, or the name of what was measured; not UTF-8 is kept by
            surrogate escapes.
        signature: File signature (security.ima), empty if there is none.
        buffer: What was measured instead of a file (``ima-buf``), or None.
        verity: Whether ``digest`` is the root of an fs-verity tree.
    """

    template: str
    algorithm: str
    digest: bytes
    path: str
    signature: bytes = b""
    buffer: bytes | None = None
    verity: bool = False


def parse_list(raw: bytes, *, recorded_bytes: int = 20) -> MeasurementList:
    """A list in either form; an empty one has no entries.

    Args:
        raw: The file, whole or from some entry on.
        recorded_bytes: Length of the recorded hashes of a binary list (20; newer
            kernels also offer lists with others).

    Raises:
        MalformedError: ``ima-malformed`` for anything else, too much of it, unknown
            templates, or entries of another register than PCR 10.
    """
    if len(raw) > MAX_LIST_BYTES:
        raise _malformed(f"it has {len(raw)} bytes", MAX_LIST_BYTES)
    if raw.startswith(REGISTER.to_bytes(4, "little")) or not raw:
        return parse_binary(raw, recorded_bytes=recorded_bytes)
    return parse_ascii(raw)


def parse_binary(raw: bytes, *, recorded_bytes: int = 20) -> MeasurementList:
    """``binary_runtime_measurements``: see ``parse_list``."""
    if recorded_bytes not in _RECORDED:
        raise _malformed(f"its recorded hashes have {recorded_bytes} bytes", 0)
    found = MeasurementList()
    try:
        at = _read_binary(raw, recorded_bytes, found)
    except struct.error:
        raise _malformed("an entry is incomplete", len(raw)) from None
    if at != len(raw) or len(found) > MAX_ENTRIES:
        raise _malformed(
            "the last entry is incomplete, or there are too many", len(raw)
        )
    return found


def _read_binary(raw: bytes, recorded_bytes: int, found: MeasurementList) -> int:
    """Add every entry; where the last one ends. Kept flat: it runs per entry.

    Most entries have the template of the one before, so its layout is tried first.
    """
    add_template, add_content = found.templates.append, found.contents.append
    template, head, layout = _layout(b"ima-sig", recorded_bytes)
    unpack, size, zeros = layout.unpack_from, layout.size, bytes(recorded_bytes)
    at: int = 0
    end = len(raw)
    while at < end:
        register, recorded, name, body_size = unpack(raw, at)
        if name != head or register != REGISTER:
            named = _template_at(raw, at, recorded_bytes)
            if named == b"ima":
                at = _read_legacy(raw, at, recorded_bytes, found)
            else:
                template, head, layout = _layout(named, recorded_bytes)
                unpack, size = layout.unpack_from, layout.size
            continue
        if recorded == zeros:
            found.violations.add(len(found))
        begin = at + size
        at = begin + body_size
        add_template(template)
        add_content(raw[begin:at])
    return at


def _layout(name: bytes, recorded_bytes: int) -> tuple[str, bytes, struct.Struct]:
    """Of entries of one template: register, recorded hash, name with length, length."""
    head = _LENGTH.pack(len(name)) + name
    return _NAMES[name], head, struct.Struct(f"<I{recorded_bytes}s{len(head)}sI")


def _template_at(raw: bytes, at: int, recorded_bytes: int) -> bytes:
    register, size = struct.unpack_from(f"<I{recorded_bytes}xI", raw, at)
    begin = at + recorded_bytes + 8
    name = raw[begin : begin + min(size, _MAX_NAME_BYTES)]
    if register != REGISTER or len(name) != size or name not in _NAMES:
        raise _foreign(name, register, at)
    return name


def _read_legacy(
    raw: bytes, at: int, recorded_bytes: int, found: MeasurementList
) -> int:
    """Add one entry of the legacy template, whose binary form has no length of all."""
    begin = at + recorded_bytes + 11
    recorded = raw[at + 4 : at + 4 + recorded_bytes]
    (size,) = _LENGTH.unpack_from(raw, begin + 20)
    end = int(begin + 24 + size)
    if size >= _LEGACY_NAME_BYTES or end > len(raw):
        raise _malformed("a legacy entry is not consistent", at)
    content = template_data("ima", raw[begin : begin + 20], raw[begin + 24 : end])
    found.add("ima", content, violation=not any(recorded))
    return end


def parse_ascii(raw: bytes) -> MeasurementList:
    """``ascii_runtime_measurements``: see ``parse_list``.

    The kernel writes ``_`` for spaces in paths, which cannot be undone; such an entry is
    refused here, and read well in the binary form.
    """
    found = MeasurementList()
    for number, line in enumerate(raw.split(b"\n")):
        if line:
            _add_ascii(line, number, found)
    return found


def _parse_fields(template: str, content: bytes) -> Entry:
    """What template data says.

    Raises:
        MalformedError: ``ima-malformed`` if it does not fit its template.
    """
    if template == "ima":
        digest, name = content[:20], content[20:]
        path = name.rstrip(b"\0")
        if len(name) != _LEGACY_NAME_BYTES or b"\0" in path:
            raise _malformed("a legacy entry is not consistent", 0)
        return Entry("ima", "sha1", digest, path.decode(errors="surrogateescape"))
    names = TEMPLATES[template]
    parts = dict(zip(names, _fields(content, len(names)), strict=True))
    algorithm, digest, verity = _digest_field(parts[names[0]])
    path = parts["n-ng"]
    if path[-1:] != b"\0" or b"\0" in path[:-1]:
        raise _malformed("a path does not end with one zero", 0)
    return Entry(
        template=template,
        algorithm=algorithm,
        digest=digest,
        path=path[:-1].decode(errors="surrogateescape"),
        signature=parts.get("sig", b""),
        buffer=parts.get("buf"),
        verity=verity,
    )


def template_data(template: str, *fields: bytes) -> bytes:
    """The bytes that the kernel hashes for these fields.

    Digests are ``sha256:`` || 0 || digest, paths end in a zero; for the legacy template
    both are bare.
    """
    if template == "ima":
        return fields[0] + fields[1].ljust(_LEGACY_NAME_BYTES, b"\0")
    return b"".join(_LENGTH.pack(len(each)) + each for each in fields)


def replay_until(
    entries: MeasurementList, start: bytes, wanted: bytes, *, bank: HashName
) -> int | None:
    """After how many entries the register, from ``start``, is ``wanted``; None if never.

    A violation extends all ones, as the kernel does. Kept flat: it runs per entry.
    """
    hasher, violations = getattr(hashlib, bank), entries.violations
    register, ones = start, b"\xff" * digest_bytes(bank)
    if register == wanted:
        return 0
    for place, content in enumerate(entries.contents):
        if violations and place in violations:
            register = hasher(register + ones).digest()
        else:
            register = hasher(register + hasher(content).digest()).digest()
        if register == wanted:
            return place + 1
    return None


def replay(entries: MeasurementList, start: bytes, *, bank: HashName) -> bytes:
    """The register after every entry, from its value ``start``."""
    register, ones = start, b"\xff" * digest_bytes(bank)
    for place, content in enumerate(entries.contents):
        measured = ones if place in entries.violations else digest(bank, content)
        register = digest(bank, register, measured)
    return register


def replay_padded(entries: MeasurementList, start: bytes, *, bank: HashName) -> bytes:
    """What a kernel before 5.8 made of the register: SHA-1 with zeros behind.

    Only to tell a reader why nothing fits; such a register proves no more than SHA-1.
    """
    register, size = start, digest_bytes(bank)
    for place, content in enumerate(entries.contents):
        ones = place in entries.violations
        measured = b"\xff" * 20 if ones else digest("sha1", content)
        register = digest(bank, register, measured.ljust(size, b"\0"))
    return register


def _add_ascii(line: bytes, number: int, found: MeasurementList) -> None:
    words = line.split(b" ", 3)
    if len(words) != 4:
        raise _malformed("a line has fewer than four words", number)
    register, recorded_hex, name, rest = words
    template = _NAMES.get(name)
    if register != b"10" or template is None:
        plain = register.isdigit() and len(register) < 10
        raise _foreign(name[:_MAX_NAME_BYTES], int(register) if plain else -1, number)
    recorded, content = _hex(recorded_hex, number), _ascii_content(template, rest)
    if len(recorded) not in _RECORDED:
        raise _malformed("a recorded hash has an unknown length", number)
    if any(recorded) and digest(_RECORDED[len(recorded)], content) != recorded:
        raise _malformed("the recorded hash of an entry differs from its data", number)
    found.add(template, content, violation=not any(recorded))


def _ascii_content(template: str, rest: bytes) -> bytes:
    """The template data of the words behind a template's name."""
    digest, _, behind = rest.partition(b" ")
    if template == "ima":
        return template_data("ima", _hex(digest, 0), behind)
    optional = len(TEMPLATES[template]) - 2
    path, *words = behind.rsplit(b" ", optional) if optional else [behind]
    words += [b""] * (optional - len(words))
    fields = [
        _ascii_digest(word) if name in _DIGESTS else _hex(word, 0)
        for name, word in zip(TEMPLATES[template][2:], words, strict=True)
    ]
    return template_data(template, _ascii_digest(digest), path + b"\0", *fields)


def _ascii_digest(word: bytes) -> bytes:
    """``sha256:<hex>`` as the kernel hashes it; empty for an absent digest."""
    algorithm, colon, digits = word.rpartition(b":")
    return algorithm + b":\0" + _hex(digits, 0) if colon else b""


def _fields(content: bytes, count: int) -> list[bytes]:
    found, at = [], 0
    for _ in range(count):
        if at + 4 > len(content):
            raise _malformed("template data is incomplete", at)
        begin = at + 4
        at = begin + int.from_bytes(content[at:begin], "little")
        found.append(content[begin:at])
    if at != len(content):
        raise _malformed("the lengths in template data are not consistent", at)
    return found


def _digest_field(raw: bytes) -> tuple[str, bytes, bool]:
    """Algorithm, digest and whether it is of an fs-verity tree."""
    prefix, zero, digest = raw.partition(b":\0")
    kind, _, name = prefix.rpartition(b":")
    algorithm = name.decode("ascii", errors="replace")
    if not zero or kind not in (b"", b"ima", b"verity"):
        raise _malformed("a digest has no algorithm", 0)
    if DIGEST_SIZES.get(algorithm) != len(digest):
        raise _malformed(f"a {algorithm[:20]!r} digest has {len(digest)} bytes", 0)
    return algorithm, digest, kind == b"verity"


def _hex(word: bytes, number: int) -> bytes:
    try:
        return bytes.fromhex(word.decode("ascii"))
    except ValueError:
        raise _malformed("a value is not hex", number) from None


def _foreign(name: bytes, register: int, offset: int) -> MalformedError:
    what = f"template {name.decode(errors='replace')!r} in PCR {register}"
    return MalformedError(
        "the IMA list cannot be replayed",
        why=what,
        fix="Boot with a standard ima_template and without pcr= in the policy",
        offset=offset,
        code="ima-malformed",
    )


def _malformed(what: str, offset: int) -> MalformedError:
    return MalformedError(
        "the file is not an IMA measurement list",
        why=what,
        offset=offset,
        code="ima-malformed",
    )
