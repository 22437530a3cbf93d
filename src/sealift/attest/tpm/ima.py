"""Appraisal of what a host executed, entry by entry, against its quoted PCR 10.

``advance`` takes the entries since the last time and the value that a quote proved now.
The list may be some entries ahead of the quote: it is replayed until the register has
the quoted value, and every entry up to there must be allowed, by its digest or by a file
signature (``security.ima`` version 2, whose key id nothing covers: every accepted key is
tried). What lies behind is judged when a later quote covers it. The cost depends on the
entries given, not on the length of the whole list.
Source: spec/evidence-logs.md section 3 (rules L8 to L15); Linux
security/integrity/integrity.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sealift.attest.reference import ImaReferences
from sealift.attest.tpm.imalist import (
    BOOT_AGGREGATE,
    Entry,
    MeasurementList,
    replay_padded,
    replay_until,
)
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
        replay_padded(entries.first(end), state.register, bank=bank) == quoted
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
        "IMA entries that must be there",
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
        why = (
            "another kernel was started without a reset, and PCR 0 to 9 do not cover it"
        )
        return _refused(number, entry, "ima-second-boot", why)
    if place in proved.violations:
        return _refused(number, entry, "ima-violation", "changed while it was in use")
    if entry.buffer is not None and not _digest_fits(entry, entry.buffer):
        return _refused(number, entry, "ima-buffer-differs", "differs from its buffer")
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
