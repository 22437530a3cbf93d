"""Names of what Sealift does not judge, so that a person knows what a file is.

Nothing is parsed in depth or verified here: a file is recognized by what only its kind
writes, and is refused in any case. Source: AWS, attestation documents of Nitro Enclaves
and NitroTPM; draft-ffm-rats-cca-token (Arm CCA); RFC 7519 (JWT); deps/verifier of
confidential-containers; google/go-tpm-tools and go-attestation; keylime.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.errors import MalformedError

MAX_TOKEN: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class OtherKind:
    """A kind of file that is no evidence for Sealift.

    Attributes:
        name: What it is, for people, with its article.
        fix: What to do; empty for the catalogue's advice.
    """

    name: str
    fix: str = ""

    def to_error(self) -> MalformedError:
        """The refusal, in one line."""
        return MalformedError(
            f"This is {self.name}; Sealift does not judge that kind",
            fix=self.fix,
            code="evidence-other-kind",
        )


def _tpm(maker: str) -> OtherKind:
    return OtherKind(
        f"a TPM's quote by {maker}, of a TPM that no party enrolled",
        "Run `sealift attest collect --kind tpm` on that host: a broker enrols its TPM first",
    )


_JWT: Final = re.compile(r"\s*eyJ[\w-]{8,}(\.[\w-]*){2,4}\s*", re.ASCII)
_TOKEN: Final = OtherKind(
    "a token (JWT), in which another verifier says what it found",
    "Give the evidence that was shown to that verifier",
)
_CCA: Final = OtherKind("an Arm CCA token")
_NITRO: Final = OtherKind("an AWS Nitro document")
SGX: Final = OtherKind("an Intel SGX quote, of an enclave and not of a guest")
OTHER_PLATFORM: Final = OtherKind("dstack's container of another platform")
_COLLATERAL: Final = OtherKind(
    "a file of certificates, a list or a reference manifest, not evidence",
    "Put it into a bundle with `sealift attest collateral make`",
)
# Bytes and text by how they begin, or by words that only such a file contains; of
# go-tpm-tools, a TPMT_PUBLIC (RSA or ECC) behind the first field of a protobuf message.
_BYTES: Final[tuple[tuple[bytes, OtherKind], ...]] = (
    (rb"(?s).{0,64}imodule_id.*pcrs|hEShATgi|8444a1013822", _NITRO),
    (rb"(?s)\xd9\x01\x8f|\xd9\x03\x8b|.*arm\.com/CCA", _CCA),
    (rb"\xffTCG", _tpm("an unnamed tool")),
    (rb"\x0a([\0-\x7f]|[\x80-\xff][\0-\x7f])\0[\x01\x23]\0", _tpm("go-tpm-tools")),
    (rb'\s*(ak_pub|key): *"', _tpm("go-tpm-tools")),
    (rb"\s*r?/1RDR[^:]+:", _tpm("Keylime")),
    (rb"(?s)\s*-----BEGIN CERT|\s*<.{0,999}SoftwareIdentity", _COLLATERAL),
)
# Objects by names of members that only theirs has together.
_OBJECTS: Final[dict[str, OtherKind]] = {
    "ak_public tpm_quote": _tpm("Trustee"),
    "AK Quote": _tpm("go-attestation"),
    "akPub quotes": _tpm("go-tpm-tools"),
    "serial_number cert_chain": OtherKind("a Hygon CSV report"),
    "attestation_reports": OtherKind("a Hygon DCU report"),
    "encr_measurement_key": OtherKind("an IBM Secure Execution response"),
    "version devices": OtherKind("evidence of an NVIDIA DPU"),
    "svn": OtherKind("Trustee's sample, which proves nothing"),
    "claims": OtherKind("a result of another verifier", _TOKEN.fix),
    **dict.fromkeys(("tcbInfo", "enclaveIdentity", "tcb_info", "rim"), _COLLATERAL),
}


def name_kind(raw: bytes) -> OtherKind | None:
    """The kind of a file, bytes or JSON, if it is known and none that is judged."""
    with suppress(ValueError, RecursionError):
        return _name_json(json.loads(raw))
    return name_bytes(raw)


def name_bytes(raw: bytes) -> OtherKind | None:
    """The kind of bytes or of text other than JSON."""
    if len(raw) < MAX_TOKEN and _JWT.fullmatch(raw.decode("latin-1")):
        return _TOKEN
    return next((kind for begin, kind in _BYTES if re.match(begin, raw)), None)


def _name_json(plain: Any) -> OtherKind | None:
    """By the names in an object, or a token that it or a list holds."""
    named = plain if isinstance(plain, Mapping) else {}
    for names, kind in _OBJECTS.items():
        if named.keys() >= set(names.split()):
            return kind
    # A token alone, in an object, or in NVIDIA's list: [["JWT", "eyJ..."], {...}].
    held = plain[:1] if isinstance(plain, list) else list(named.values()) or [plain]
    held += held[0] if held and isinstance(held[0], list) else []
    for text in (each for each in held if isinstance(each, str)):
        if (found := name_bytes(text.encode())) in (_TOKEN, _NITRO):
            return found
    return _CCA if isinstance(named.get("token"), str | list) else None
