"""IMA measurement lists of Linux: what was executed, entry by entry, against quoted PCR 10.

``advance`` takes the entries since the last time and the value that a quote proved now.
The list may be some entries ahead of the quote: it is replayed until the register has
the quoted value, and every entry up to there must be allowed, by its digest or by a file
signature (``security.ima`` version 2, whose key id nothing covers: every accepted key is
tried). What lies behind is judged when a later quote covers it. The cost depends on the
entries given, not on the length of the whole list.
Source: spec/evidence-logs.md section 3 (rules L8 to L15); Linux
security/integrity/integrity.h, Documentation/security/IMA-templates.rst,
include/uapi/linux/hash_info.h; security/integrity/ima describes both forms of the list.

Both forms of the list that the kernel shows are read: ``ascii_runtime_measurements`` and
``binary_runtime_measurements`` (little-endian). Each entry is brought back to its
*template data*, the exact bytes that the kernel hashed, so that PCR 10 can be replayed
in any bank by hashing them again; the hash that the list records (SHA-1) counts for
nothing but its all-zero value, which marks a violation (a file was written while it was
measured or executed).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sealift.attest.reference import ImaReferences
from sealift.attest.verifier import AppraisalCheck, check
from sealift.crypto.hash import (
    HASHES,
    STRONG_HASHES,
    HashName,
    digest,
    digest_bytes,
)
from sealift.crypto.vendorkeys import EcdsaKey, RsaKey, read_key
from sealift.errors import AuthenticationError, MalformedError
from sealift.ids import Digest

_HEAD_BYTES: Final = 9
_KIND_AND_VERSION: Final = b"\x03\x02"
_HASHES: Final[dict[int, HashName]] = {4: "sha256", 5: "sha384", 6: "sha512"}

SignerKey = RsaKey | EcdsaKey


def verify_file(
    raw: bytes, digest: bytes, algorithm: str, signers: Sequence[SignerKey]
) -> SignerKey:
    """The signer whose signature ``raw`` over a file's digest is.

    Raises:
        MalformedError: ``ima-signature-malformed`` for another version, a hash below
            SHA-256, or a length that does not fit.
        AuthenticationError: if none of the signers made it.
    """
    name = _HASHES.get(raw[2]) if len(raw) > _HEAD_BYTES else None
    size, signature = int.from_bytes(raw[7:_HEAD_BYTES]), raw[_HEAD_BYTES:]
    if raw[:2] != _KIND_AND_VERSION or name is None:
        raise _malformed("only version 2 with SHA-256, SHA-384 or SHA-512 is supported")
    if len(signature) != size:
        raise _malformed(f"it has {len(signature)} bytes instead of {size}")
    if name != algorithm or digest_bytes(name) != len(digest):
        raise AuthenticationError
    for signer in signers:
        with suppress(AuthenticationError):
            signer.verify(digest, signature, name, hashed=True)
            return signer
    raise AuthenticationError


def _malformed(why: str) -> MalformedError:
    return MalformedError(
        "the value is not a file signature", why=why, code="ima-signature-malformed"
    )


_AGAINST: Final = "IMA list against PCR 10"
MAX_REPORTED: Final = 16
"""Entries that are refused by name; more are only counted."""

_BANKS: Final[dict[int, HashName]] = {32: "sha256", 48: "sha384", 64: "sha512"}

# A SHA-256 digest field and the length of the path behind it, as ima-ng and ima-sig
# begin; and how they end behind the path if there is no signature.
_SHA256_FIELDS: Final = struct.Struct("<12s32sI")
_SHA256_HEAD: Final = b"\x28\0\0\0sha256:\0"
_PATH_AT: Final = _SHA256_FIELDS.size
_ENDS: Final = {"ima-ng": b"\0", "ima-sig": b"\0\0\0\0\0"}


@dataclass(frozen=True, slots=True)
class ImaState:
    """How far a host's list is proved and allowed.

    Attributes:
        count: Entries so far; the host sends those from this number on.
        register: PCR 10 after them, in the bank that is quoted.
        met: Which of the paths that must be there were.
    """

    count: int
    register: bytes
    met: frozenset[str] = frozenset()

    @classmethod
    def at_boot(cls, bank: HashName) -> ImaState:
        """Nothing measured yet."""
        sizes = {name: size for size, name in _BANKS.items()}
        return cls(0, bytes(sizes[bank]))


def advance(
    state: ImaState,
    entries: MeasurementList,
    quoted: bytes,
    references: ImaReferences,
    *,
    pcrs: Mapping[int, bytes] | None = None,
) -> tuple[ImaState, tuple[AppraisalCheck, ...]]:
    """Appraise the entries behind ``state`` up to the quoted register.

    Args:
        state: Where the last appraisal of this boot of this host ended.
        entries: Every entry from number ``state.count`` on.
        quoted: PCR 10 as a quote proved it; its length names the bank.
        references: What may run.
        pcrs: PCR 0 to 9 of the same bank, proved by a quote; they must give the
            boot aggregate. Without them the allow-list must have it.

    Returns:
        The state to go on from, and every comparison. With a failed check the state is
        not to be used; where the list does not give the register it is ``state`` itself.

    Raises:
        MalformedError: if the bank is none that is replayed (SHA-1 is not), an entry
            does not parse, or a signer's key does not.
    """
    bank = _BANKS.get(len(quoted))
    if bank is None or len(state.register) != len(quoted):
        raise MalformedError(
            f"PCR 10 has {len(quoted)} bytes and cannot be replayed", code="ima-bank"
        )
    place = replay_until(entries, state.register, quoted, bank=bank)
    if place is None:
        return state, (_no_replay(state, entries, quoted, bank),)
    proved, ahead = entries.first(place), len(entries) - place
    shown, allowed = quoted.hex(), references.max_lag
    checks = [
        check(True, _AGAINST, shown, shown, "ima-replay-differs"),
        check(
            ahead <= allowed,
            "IMA entries newer than the quote",
            f"at most {allowed}",
            str(ahead),
            "ima-lag",
            refusal="stale",
        ),
    ]
    if state.count == 0:
        checks.append(_boot_aggregate(proved, references, pcrs, bank))
    checks += _entry_checks(state.count, proved, references)
    met = state.met | _met(proved, set(references.must) - state.met)
    checks.append(_must_have(met, references))
    return ImaState(state.count + place, quoted, met), tuple(checks)


def boot_aggregate(pcrs: Mapping[int, bytes], bank: HashName) -> bytes | None:
    """The digest of the first entry of a boot with these PCRs, or None if one lacks.

    Source: Linux ima_calc_boot_aggregate, since 5.8 over PCR 0 to 9.
    """
    values = [pcrs.get(number) for number in range(10)]
    present = [each for each in values if each is not None]
    return digest(bank, *present) if len(present) == len(values) else None


def _no_replay(
    state: ImaState, entries: MeasurementList, quoted: bytes, bank: HashName
) -> AppraisalCheck:
    padded = any(
        _replay_padded(entries.first(end), state.register, bank=bank) == quoted
        for end in range(max(0, len(entries) - 8), len(entries) + 1)
    )
    return check(
        False,
        _AGAINST,
        quoted.hex(),
        "SHA-1 digests padded with zeros" if padded else "another value",
        "ima-padded-sha1" if padded else "ima-replay-differs",
        refusal="evidence",
    )


def _boot_aggregate(
    proved: MeasurementList,
    references: ImaReferences,
    pcrs: Mapping[int, bytes] | None,
    bank: HashName,
) -> AppraisalCheck:
    """The first entry binds the list to the boot; a list without measures nothing."""
    first = proved.entry(0) if len(proved) and 0 not in proved.violations else None
    wanted = boot_aggregate(pcrs, bank) if pcrs is not None else None
    if wanted is None:
        holds = first is not None and _is_listed(first, references)
        expected = "a value of the allow-list"
    else:
        holds = first is not None and first.digest == wanted
        holds = holds and first is not None and first.algorithm == bank
        expected = f"{bank}:{wanted.hex()} (PCR 0 to 9)"
    named = first is not None and first.path == BOOT_AGGREGATE
    return check(
        holds and named,
        "IMA boot aggregate",
        expected,
        f"{first.algorithm}:{first.digest.hex()}" if first else "no entry",
        "ima-boot-aggregate",
    )


def _entry_checks(
    begin: int, proved: MeasurementList, references: ImaReferences
) -> list[AppraisalCheck]:
    """One check if every entry is allowed, else one for each of the first that is not."""
    signers = tuple(map(read_key, references.signers))
    judged = (
        _judge(proved, place, begin + place, references, signers)
        for place in _not_plainly_listed(proved, references)
        if place or begin  # the boot aggregate is judged by itself
    )
    failed = list(islice((each for each in judged if each), MAX_REPORTED))
    if failed:
        return failed
    subject = f"IMA entries from {begin} to {begin + len(proved) - 1}"
    return [check(True, subject, "allowed", "allowed", "ima-entry-unlisted")]


def _met(proved: MeasurementList, paths: Iterable[str]) -> frozenset[str]:
    """Which of the paths an entry is about; what else an entry says may be anybody's."""
    found = set()
    for path in set(paths) - {BOOT_AGGREGATE}:
        raw = path.encode(errors="surrogateescape")
        places = (n for n, content in enumerate(proved.contents) if raw in content)
        if any(proved.entry(place).path == path for place in places):
            found.add(path)
    return frozenset(found)


def _must_have(met: frozenset[str], references: ImaReferences) -> AppraisalCheck:
    """A list of the boot aggregate alone, or of anything harmless, is not enough."""
    missing = sorted(set(references.must) - met)
    return check(
        bool(references.must) and not missing,
        "IMA entries that must be present",
        ", ".join(references.must) or "at least one: the references name none",
        f"these are missing: {', '.join(missing)}"
        if missing
        else "all that the references name",
        "ima-must-have",
    )


def _not_plainly_listed(
    proved: MeasurementList, references: ImaReferences
) -> list[int]:
    """Places of entries that need a closer look than path and SHA-256 in the list.

    Kept flat: it runs per entry.
    """
    found, aggregates = [], references.allow.get(BOOT_AGGREGATE)
    unpack, allowed, ends = _SHA256_FIELDS.unpack_from, references.allow.get, _ENDS.get
    columns = zip(proved.templates, proved.contents, strict=True)
    for place, (template, content) in enumerate(columns):
        if len(content) > _PATH_AT:
            head, raw, size = unpack(content)
            end = _PATH_AT - 1 + size
            if head == _SHA256_HEAD and content[end:] == ends(template):
                listed = allowed(content[_PATH_AT:end].decode(errors="surrogateescape"))
                if listed is aggregates:
                    listed = None  # a second boot, listed or not
                if listed and (listed[0].raw == raw or raw in _raws(listed)):
                    continue
        found.append(place)
    return sorted(proved.violations.union(found))


def _raws(listed: Iterable[Digest]) -> list[bytes]:
    return [each.raw for each in listed]


def _judge(
    proved: MeasurementList,
    place: int,
    number: int,
    references: ImaReferences,
    signers: tuple[SignerKey, ...],
) -> AppraisalCheck | None:
    """The failed check of an entry, or None if it is allowed after all."""
    entry = proved.entry(place)
    if entry.path == BOOT_AGGREGATE:
        why = "another kernel was started without a reset (kexec); PCR 0 to 9 do not cover it"
        return _refused(number, entry, "ima-second-boot", why)
    if place in proved.violations:
        return _refused(
            number,
            entry,
            "ima-violation",
            "the file was written to while it was in use",
        )
    if entry.buffer is not None and not _digest_fits(entry, entry.buffer):
        return _refused(
            number, entry, "ima-buffer-differs", "the digest is not that of the buffer"
        )
    if _is_listed(entry, references):
        return None
    if not entry.signature or entry.verity:
        return _refused(number, entry, "ima-entry-unlisted", "not in the allow-list")
    try:
        verify_file(entry.signature, entry.digest, entry.algorithm, signers)
    except (AuthenticationError, MalformedError):
        return _refused(number, entry, "ima-signature", "neither listed nor signed")
    return None


def _is_listed(entry: Entry, references: ImaReferences) -> bool:
    listed = _raws(references.allow.get(entry.path, ()))
    plain = entry.algorithm == "sha256" and not entry.verity
    return plain and entry.digest in listed


def _digest_fits(entry: Entry, buffer: bytes) -> bool:
    name = HASHES[entry.algorithm] if entry.algorithm in STRONG_HASHES else None
    return name is not None and digest(name, buffer) == entry.digest


def _refused(number: int, entry: Entry, code: str, why: str) -> AppraisalCheck:
    return check(
        False,
        f"IMA entry {number}",
        "a file that the references allow",
        f"{ascii(entry.path)[1:-1]} {entry.algorithm}:{entry.digest.hex()}, {why}",
        code,
    )


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
        raise _malformed_list(f"it has {len(raw)} bytes", MAX_LIST_BYTES)
    if raw.startswith(REGISTER.to_bytes(4, "little")) or not raw:
        return parse_binary(raw, recorded_bytes=recorded_bytes)
    return parse_ascii(raw)


def parse_binary(raw: bytes, *, recorded_bytes: int = 20) -> MeasurementList:
    """``binary_runtime_measurements``: see ``parse_list``."""
    if recorded_bytes not in _RECORDED:
        raise _malformed_list(f"its recorded hashes have {recorded_bytes} bytes", 0)
    found = MeasurementList()
    try:
        at = _read_binary(raw, recorded_bytes, found)
    except struct.error:
        raise _malformed_list("an entry is incomplete", len(raw)) from None
    if at != len(raw) or len(found) > MAX_ENTRIES:
        raise _malformed_list(
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
        raise _malformed_list("a legacy entry is not consistent", at)
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
            raise _malformed_list("a legacy entry is not consistent", 0)
        return Entry("ima", "sha1", digest, path.decode(errors="surrogateescape"))
    names = TEMPLATES[template]
    parts = dict(zip(names, _fields(content, len(names)), strict=True))
    algorithm, digest, verity = _digest_field(parts[names[0]])
    path = parts["n-ng"]
    if path[-1:] != b"\0" or b"\0" in path[:-1]:
        raise _malformed_list("a path does not end with one zero", 0)
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


def _replay_padded(entries: MeasurementList, start: bytes, *, bank: HashName) -> bytes:
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
        raise _malformed_list("a line has fewer than four words", number)
    register, recorded_hex, name, rest = words
    template = _NAMES.get(name)
    if register != b"10" or template is None:
        plain = register.isdigit() and len(register) < 10
        raise _foreign(name[:_MAX_NAME_BYTES], int(register) if plain else -1, number)
    recorded, content = _hex(recorded_hex, number), _ascii_content(template, rest)
    if len(recorded) not in _RECORDED:
        raise _malformed_list("a recorded hash has an unknown length", number)
    if any(recorded) and digest(_RECORDED[len(recorded)], content) != recorded:
        raise _malformed_list(
            "the recorded hash of an entry differs from its data", number
        )
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
            raise _malformed_list("template data is incomplete", at)
        begin = at + 4
        at = begin + int.from_bytes(content[at:begin], "little")
        found.append(content[begin:at])
    if at != len(content):
        raise _malformed_list("the lengths in template data are not consistent", at)
    return found


def _digest_field(raw: bytes) -> tuple[str, bytes, bool]:
    """Algorithm, digest and whether it is of an fs-verity tree."""
    prefix, zero, digest = raw.partition(b":\0")
    kind, _, name = prefix.rpartition(b":")
    algorithm = name.decode("ascii", errors="replace")
    if not zero or kind not in (b"", b"ima", b"verity"):
        raise _malformed_list("a digest has no algorithm", 0)
    if DIGEST_SIZES.get(algorithm) != len(digest):
        raise _malformed_list(f"a {algorithm[:20]!r} digest has {len(digest)} bytes", 0)
    return algorithm, digest, kind == b"verity"


def _hex(word: bytes, number: int) -> bytes:
    try:
        return bytes.fromhex(word.decode("ascii"))
    except ValueError:
        raise _malformed_list("a value is not hex", number) from None


def _foreign(name: bytes, register: int, offset: int) -> MalformedError:
    what = f"template {name.decode(errors='replace')!r} in PCR {register}"
    return MalformedError(
        "the IMA list cannot be replayed",
        why=what,
        fix="Boot with a standard ima_template and without pcr= in the policy",
        offset=offset,
        code="ima-malformed",
    )


def _malformed_list(what: str, offset: int) -> MalformedError:
    return MalformedError(
        "the file is not an IMA measurement list",
        why=what,
        offset=offset,
        code="ima-malformed",
    )
