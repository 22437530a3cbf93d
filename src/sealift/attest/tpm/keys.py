"""The keys of a host's TPM, its maker's and ours, and the NV indices beside them.

The endorsement key (EK) is made from the standard templates, so it is the one that the
certificate in the TPM names. The attestation key (AK) is ours: restricted, ECDSA over
P-256, under the storage root; its wrapped blob is kept in a folder, so it is the same
one after a restart. Source: TCG EK Credential Profile 2.5, annex B (templates) and
section 2.2.1 (NV indices); TPM 2.0 Library part 2, section 13; part 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sealift.attest.tpm.client import (
    PASSWORD,
    UNKNOWN_HANDLE,
    Command,
    TpmClient,
    TpmError,
)
from sealift.attest.tpm.structures import (
    USER_WITH_AUTH,
    Public,
    TpmReader,
    parse_public,
    sized,
)
from sealift.crypto.certificate import Certificate
from sealift.crypto.tpmcredential import Credential
from sealift.errors import MalformedError, UnavailableError

_OWNER: Final = 0x40000001
_CHUNK_BYTES: Final = 512
# Written and read by the owner, and by who knows the index's (empty) password.
_OWNERS: Final = 0x00000002 | 0x00000004 | 0x00020000 | 0x00040000


def read_index(client: TpmClient, index: int, *, owner: bool = False) -> bytes | None:
    """The whole content of an NV index, or None if there is no such index.

    Args:
        client: The TPM.
        index: Which.
        owner: Whether the TPM's owner may read it; else who knows its empty password.
    """
    size = _index_bytes(client, index)
    if size is None:
        return None
    content, handles = b"", (_OWNER if owner else index, index)
    for offset in range(0, size, _CHUNK_BYTES):
        parameters = struct.pack(">HH", min(_CHUNK_BYTES, size - offset), offset)
        answer = client.run(Command.NV_READ, handles, parameters, sessions=(PASSWORD,))
        content += answer.reader("NV content").sized()
    return content


def write_index(client: TpmClient, index: int, content: bytes) -> None:
    """Write an NV index of the owner's whole; make it if it is not there.

    Raises:
        TpmError: if the owner set a password, or the index has another length.
    """
    if _index_bytes(client, index) is None:
        public = struct.pack(">IHIHH", index, 0x000B, _OWNERS, 0, len(content))
        wanted = sized(b"") + sized(public)
        client.run(Command.NV_DEFINE_SPACE, (_OWNER,), wanted, sessions=(PASSWORD,))
    for offset in range(0, len(content), _CHUNK_BYTES):
        part = content[offset : offset + _CHUNK_BYTES]
        parameters = sized(part) + struct.pack(">H", offset)
        client.run(Command.NV_WRITE, (_OWNER, index), parameters, sessions=(PASSWORD,))


def remove_index(client: TpmClient, index: int) -> None:
    """Delete an index of the owner's."""
    client.run(Command.NV_UNDEFINE_SPACE, (_OWNER, index), sessions=(PASSWORD,))


def _index_bytes(client: TpmClient, index: int) -> int | None:
    try:
        answer = client.run(Command.NV_READ_PUBLIC, (index,))
    except TpmError as error:
        if error.response == UNKNOWN_HANDLE:
            return None
        raise
    public = TpmReader(answer.reader("NV index").sized(), "NV public area")
    public.take(10)
    public.sized()
    return public.number(2)


OWNER: Final = 0x40000001
ENDORSEMENT: Final = 0x4000000B
_NULL: Final = 0x40000007
_NO_SENSITIVE: Final = bytes.fromhex("0004 0000 0000")
_NOTHING_ELSE: Final = bytes.fromhex("0000 00000000")  # outsideInfo, creationPCR
_AES_128: Final = "0006 0080 0043"
_POLICY_A: Final = "837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa"
_POLICY_B_384: Final = (
    "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419ca"
    "cb47ba09699646150f9fc000f3f80e12"
)
STORAGE_TEMPLATE: Final = bytes.fromhex(
    f"0023 000b 00030472 0000 {_AES_128} 0010 0003 0010" + "0000" * 2
)
ATTESTATION_TEMPLATE: Final = bytes.fromhex(
    "0023 000b 00050072 0000 0010 0018 000b 0003 0010" + "0000" * 2
)


@dataclass(frozen=True, slots=True)
class EndorsementKind:
    """One standard endorsement key.

    Attributes:
        template: Its TPMT_PUBLIC with an empty unique field.
        persistent: Where it lies if somebody keeps it loaded.
        certificate: NV index of its certificate.
    """

    template: bytes
    persistent: int
    certificate: int


ENDORSEMENT_KINDS: Final = {
    "p256": EndorsementKind(
        bytes.fromhex(
            f"0023 000b 000300b2 0020 {_POLICY_A} {_AES_128} 0010 0003 0010"
            + ("0020" + "00" * 32) * 2
        ),
        0x8101000A,
        0x01C0000A,
    ),
    "p384": EndorsementKind(
        bytes.fromhex(
            f"0023 000c 000300f2 0030 {_POLICY_B_384} 0006 0100 0043 0010 0004 0010"
            + "0000" * 2
        ),
        0x81010016,
        0x01C00016,
    ),
    "rsa2048": EndorsementKind(
        bytes.fromhex(
            f"0001 000b 000300b2 0020 {_POLICY_A} {_AES_128} 0010 0800 00000000"
            + "0100"
            + "00" * 256
        ),
        0x81010001,
        0x01C00002,
    ),
}


@dataclass(frozen=True, slots=True)
class LoadedKey:
    """A key inside the TPM.

    Attributes:
        handle: Transient, or persistent (then nobody flushes it).
        public: Its public area.
    """

    handle: int
    public: Public

    @property
    def persistent(self) -> bool:
        """Whether it stays without us."""
        return self.handle >> 24 == 0x81


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A key outside, as only its TPM can load it: TPM2B_PRIVATE and TPMT_PUBLIC."""

    private: bytes
    public: bytes


def find_endorsement(
    client: TpmClient, kinds: Iterable[str] = tuple(ENDORSEMENT_KINDS)
) -> tuple[EndorsementKind, Certificate]:
    """The first of these endorsement keys that this TPM has a certificate for.

    Raises:
        UnavailableError: ``tpm-no-certificate``.
    """
    for kind in (ENDORSEMENT_KINDS[name] for name in kinds):
        raw = read_index(client, kind.certificate)
        if raw is not None:
            return kind, Certificate(trim_der(raw))
    raise UnavailableError(
        "the TPM has no endorsement key certificate",
        why="none of its standard NV indices contains one",
        code="tpm-no-certificate",
    )


def load_endorsement(
    client: TpmClient, kind: EndorsementKind, certificate: Certificate
) -> LoadedKey:
    """The endorsement key that the certificate names, loaded.

    Raises:
        UnavailableError: ``tpm-no-certificate`` if the TPM makes another one.
    """
    key = read_persistent(client, kind.persistent)
    if key is None or key.public.spki_digest != certificate.spki_digest:
        key = create_primary(client, ENDORSEMENT, kind.template)
    if key.public.spki_digest == certificate.spki_digest:
        return key
    forget(client, key)
    raise UnavailableError(
        "the TPM's endorsement key is not the key of its certificate",
        why="it was made from another template, or its seed was changed",
        code="tpm-no-certificate",
    )


def read_persistent(client: TpmClient, handle: int) -> LoadedKey | None:
    """The key that somebody keeps loaded at ``handle``, or None."""
    try:
        answer = client.run(Command.READ_PUBLIC, (handle,))
    except TpmError as error:
        if error.response == UNKNOWN_HANDLE:
            return None
        raise
    return LoadedKey(handle, parse_public(answer.reader("public area").sized()))


def create_attestation(client: TpmClient) -> WrappedKey:
    """Make a fresh attestation key under the storage root."""
    parent = create_primary(client, OWNER, STORAGE_TEMPLATE)
    try:
        return create_key(client, parent, ATTESTATION_TEMPLATE)
    finally:
        forget(client, parent)


def load_attestation(client: TpmClient, wrapped: WrappedKey) -> LoadedKey:
    """Load an attestation key that this TPM made.

    Raises:
        TpmError: if another TPM made it, or its owner was cleared since.
    """
    parent = create_primary(client, OWNER, STORAGE_TEMPLATE)
    try:
        return load_key(client, parent, wrapped)
    finally:
        forget(client, parent)


def create_primary(client: TpmClient, hierarchy: int, template: bytes) -> LoadedKey:
    """The primary key that a hierarchy's seed makes of a template."""
    parameters = _NO_SENSITIVE + sized(template) + _NOTHING_ELSE
    answer = client.run(
        Command.CREATE_PRIMARY,
        (hierarchy,),
        parameters,
        sessions=(PASSWORD,),
        returns_handle=True,
    )
    public = answer.reader("created key").sized()
    return LoadedKey(answer.handle, parse_public(public))


def create_key(client: TpmClient, parent: LoadedKey, template: bytes) -> WrappedKey:
    """Make a key under ``parent``; it comes back wrapped."""
    parameters = _NO_SENSITIVE + sized(template) + _NOTHING_ELSE
    reader = client.run(
        Command.CREATE, (parent.handle,), parameters, sessions=(PASSWORD,)
    ).reader("created key")
    private, public = reader.sized(), reader.sized()
    return WrappedKey(private, public)


def load_key(client: TpmClient, parent: LoadedKey, wrapped: WrappedKey) -> LoadedKey:
    """Load a wrapped key."""
    answer = client.run(
        Command.LOAD,
        (parent.handle,),
        sized(wrapped.private) + sized(wrapped.public),
        sessions=(PASSWORD,),
        returns_handle=True,
    )
    return LoadedKey(answer.handle, parse_public(wrapped.public))


def forget(client: TpmClient, key: LoadedKey) -> None:
    """Flush a transient key; leave a persistent one."""
    if not key.persistent:
        client.flush(key.handle)


def activate(
    client: TpmClient, ak: LoadedKey, ek: LoadedKey, credential: Credential
) -> bytes:
    """The secret of a credential that was made for this pair of keys.

    Raises:
        TpmError: if it was made for another pair.
    """
    session = PASSWORD
    if not ek.public.attributes & USER_WITH_AUTH:
        session = _endorsement_session(client)
    parameters = sized(credential.blob) + sized(credential.seed)
    try:
        answer = client.run(
            Command.ACTIVATE_CREDENTIAL,
            (ak.handle, ek.handle),
            parameters,
            sessions=(PASSWORD, session),
        )
    except TpmError:
        if session != PASSWORD:
            client.flush(session)
        raise
    return answer.reader("activated credential").sized()


def trim_der(raw: bytes) -> bytes:
    """The DER value at the start of an NV index, which may be larger than it.

    Raises:
        MalformedError: if there is none.
    """
    if len(raw) < 4 or raw[:2] != b"\x30\x82":
        raise MalformedError("the TPM's NV index contains no certificate")
    return raw[: 4 + int.from_bytes(raw[2:4], "big")]


def _endorsement_session(client: TpmClient) -> int:
    """A session that satisfies policy A: knowing the endorsement authorization."""
    start = sized(bytes(16)) + sized(b"") + struct.pack(">BHH", 1, 0x0010, 0x000B)
    session = client.run(
        Command.START_AUTH_SESSION, (_NULL, _NULL), start, returns_handle=True
    ).handle
    client.run(
        Command.POLICY_SECRET,
        (ENDORSEMENT, session),
        bytes(6) + bytes(4),
        sessions=(PASSWORD,),
    )
    return session
