"""Collects TPM evidence: quotes of a host's TPM, with the logs behind its registers.

Of the kernel's measurement list it remembers how far quotes have proved it: there the next
evidence for the same verifier may begin, so that renewing does not cost more on a host
that has been running for months.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift import codec
from sealift.attest.evidence import MAX_BODY_BYTES, Evidence, require_bound
from sealift.attest.tpm import keys
from sealift.attest.tpm.client import TpmError
from sealift.attest.tpm.enrolment import EnrolmentRequest, SignedEnrolment
from sealift.attest.tpm.evidence import IMA_PCR, MEDIA_TYPE, TpmBody
from sealift.attest.tpm.ima import parse_list, replay_until
from sealift.attest.tpm.registers import (
    Quoted,
    TpmHost,
    quote,
    require_log_register,
)
from sealift.crypto.hash import HashName, digest_bytes
from sealift.crypto.tpmcredential import Credential
from sealift.errors import MalformedError, UnavailableError
from sealift.ids import Digest

_REMEMBERED: Final = 256
_BINARY: Final = (10).to_bytes(4, "little")
_ENTRY_BYTES: Final = 4 + 20 + 4 + 4  # register, recorded hash, two lengths


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the list that a quote proved.

    Attributes:
        count: Entries before it.
        offset: Bytes before it.
        register: PCR 10 there.
    """

    count: int
    offset: int
    register: bytes


class ImaReader:
    """Reads one list, in either form; only the binary one from the middle.

    Args:
        path: The list, or None for a machine without.
        bank: The bank that is quoted.
    """

    def __init__(self, path: Path | None, bank: HashName) -> None:
        self._path = path
        self._bank = bank
        self._begin = Position(0, 0, bytes(digest_bytes(bank)))
        self._latest = self._begin
        self._shown: OrderedDict[Digest, Position] = OrderedDict()

    def place_behind(self, shown: Digest) -> Position:
        """Where the evidence of that digest ended; the beginning if nobody knows."""
        return self._shown.get(shown, self._begin)

    def read(self, place: Position | None = None) -> bytes:
        """The list from a place on, or all of it."""
        return read_log(self._path, place.offset if place else 0)

    def remember(
        self, shown: Digest, place: Position | None, raw: bytes, quoted: bytes
    ) -> None:
        """Note what a quote of PCR 10 proved of what was read.

        Args:
            shown: Digest of the evidence.
            place: Where ``raw`` begins.
            raw: What ``read`` gave.
            quoted: PCR 10; empty if it was not quoted.
        """
        begin = place or self._begin
        if self._latest.count >= begin.count:
            raw, begin = raw[self._latest.offset - begin.offset :], self._latest
        found = _advance(begin, raw, quoted, self._bank)
        if found is not None:
            self._latest = self._shown[shown] = found
            while len(self._shown) > _REMEMBERED:
                self._shown.popitem(last=False)


def read_log(path: Path | None, offset: int = 0) -> bytes:
    """A log from ``offset`` bytes on; nothing if there is no path.

    Raises:
        UnavailableError: ``measurement-log``.
    """
    if path is None:
        return b""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError as error:
        raise UnavailableError(
            "a measurement log cannot be read",
            why=error,
            code="measurement-log",
        ) from None


def _advance(
    begin: Position, raw: bytes, quoted: bytes, bank: HashName
) -> Position | None:
    """The place where the register is the quoted one, if the form lets us find it."""
    if raw and not raw.startswith(_BINARY):
        return None
    try:
        entries = parse_list(raw)
    except MalformedError:
        return None  # it is sent as it is; the verifier says what is wrong with it
    count = replay_until(entries, begin.register, quoted, bank=bank)
    if count is None or "ima" in entries.templates:
        return None
    size = sum(map(len, entries.contents[:count])) + count * _ENTRY_BYTES
    size += sum(map(len, entries.templates[:count]))
    return Position(begin.count + count, begin.offset + size, quoted)


SECURITY: Final = Path("/sys/kernel/security")
EVENT_LOG: Final = SECURITY / "tpm0/binary_bios_measurements"
IMA_LIST: Final = SECURITY / "ima/binary_runtime_measurements"


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmSources:
    """Where a host's evidence comes from.

    Attributes:
        tpm: ``/dev/tpmrm0``, ``unix:PATH`` or ``tcp:HOST:PORT``.
        state: Folder for the attestation key, enrolments and the runtime log.
        bank: The bank that is quoted.
        pcrs: The registers that are quoted.
        register: The one of the runtime log.
        event_log: The firmware's log, or None for a machine that has none.
        ima_list: The kernel's list, or None.
        issuers: DER certificates between the TPM's and its maker's root.
        endorsement: Which endorsement keys may be used, best first.
    """

    state: Path
    tpm: str = "/dev/tpmrm0"
    bank: HashName = "sha256"
    pcrs: tuple[int, ...] = tuple(range(16))
    register: int = 15
    event_log: Path | None = EVENT_LOG
    ima_list: Path | None = IMA_LIST
    issuers: tuple[bytes, ...] = ()
    endorsement: tuple[str, ...] = tuple(keys.ENDORSEMENT_KINDS)

    def __post_init__(self) -> None:
        require_log_register(self.register, self.pcrs)


class TpmAttester(TpmHost):
    """Quotes a host's TPM.

    Args:
        sources: Where everything comes from.

    Raises:
        UnavailableError: if there is no TPM, or it has no certificate or no such bank.
    """

    def __init__(self, sources: TpmSources) -> None:
        self._sources = sources
        self._ima = ImaReader(sources.ima_list, sources.bank)
        super().__init__(sources.tpm, sources.state, sources.bank, sources.register)

    def _find_keys(self) -> None:
        kinds = self._sources.endorsement
        self._kind, self._certificate = keys.find_endorsement(self._client, kinds)
        self._key = self._load_key()

    def collect(self, bound: bytes) -> Evidence:
        """A quote over ``bound``, with all logs.

        Raises:
            UnavailableError: if the TPM or a log cannot be read.
            UsageError: if ``bound`` has not 2 to 64 bytes.
        """
        return self._collect(bound, None)

    def continue_from(self, earlier: Evidence, bound: bytes) -> Evidence:
        """The same, without entries of the list that ``earlier`` proved."""
        return self._collect(bound, self._ima.place_behind(earlier.digest))

    def enrolment_request(self) -> EnrolmentRequest:
        """What a broker needs to enrol this host."""
        with self._lock:
            ek = keys.load_endorsement(self._client, self._kind, self._certificate)
            keys.forget(self._client, ek)
        return EnrolmentRequest(
            attestation_key=self._key.public.raw,
            endorsement_key=ek.public.raw,
            certificates=self._certificates(),
        )

    def answer(self, credential: Credential) -> bytes:
        """The secret of a credential for this host.

        Raises:
            UnavailableError: ``tpm-refused`` if it was made for another pair of keys.
        """
        with self._lock:
            ek = keys.load_endorsement(self._client, self._kind, self._certificate)
            try:
                secret = keys.activate(self._client, self._key, ek, credential)
            finally:
                keys.forget(self._client, ek)
        return secret

    def enrolments(self) -> tuple[SignedEnrolment, ...]:
        """Every enrolment of the attestation key in use."""
        name = self._key.public.name
        kept = self._folder.enrolments()
        return tuple(e for e in kept if e.enrolment.attestation_key == name)

    def keep_enrolment(self, signed: SignedEnrolment) -> None:
        """Keep an enrolment, to show it in evidence from now on."""
        self._folder.keep_enrolment(signed)

    def _collect(self, bound: bytes, place: Position | None) -> Evidence:
        require_bound(bound)
        sources = self._sources
        with self._lock:
            quoted = quote(self._client, self._key, bound, sources.bank, sources.pcrs)
            ima_list = self._ima.read(place)
            body = self._body(quoted, ima_list, place.count if place else 0)
            evidence = Evidence(TpmBody.kind, MEDIA_TYPE, _encode(body))
            register = quoted.values.get(IMA_PCR, b"")
            self._ima.remember(evidence.digest, place, ima_list, register)
        return evidence

    def _body(self, quoted: Quoted, ima_list: bytes, ima_from: int) -> TpmBody:
        values = {str(number): raw for number, raw in quoted.values.items()}
        return TpmBody(
            quote=quoted.quote,
            signature=quoted.signature,
            attestation_key=self._key.public.raw,
            certificates=self._certificates(),
            enrolments=self._folder.enrolments(),
            pcrs={self._sources.bank: values},
            event_log=read_log(self._sources.event_log),
            ima_list=ima_list,
            ima_from=ima_from,
            events=self._events,
        )

    def _certificates(self) -> tuple[bytes, ...]:
        return (self._certificate.der, *self._sources.issuers)

    def _load_key(self) -> keys.LoadedKey:
        kept = self._folder.key()
        if kept is not None:
            try:
                return keys.load_attestation(self._client, kept)
            except TpmError:
                pass  # made by another TPM, or the owner was cleared: make a new one
        fresh = keys.create_attestation(self._client)
        self._folder.keep_key(fresh)
        return keys.load_attestation(self._client, fresh)


def _encode(body: TpmBody) -> bytes:
    raw = codec.encode(body)
    if len(raw) > MAX_BODY_BYTES:
        raise UnavailableError(
            "the host's logs are too long for one piece of evidence",
            why=f"they have {len(raw)} bytes; the limit is {MAX_BODY_BYTES}",
            fix="Restart the host, or use an IMA policy that measures less",
            code="measurement-log",
        )
    return raw
