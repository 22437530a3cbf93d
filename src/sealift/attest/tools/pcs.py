"""Collateral as Intel's service and its caches hand it out, made into items of ours.

Tools around DCAP keep one JSON object: lists as text beside their signatures, chains as
PEM, revocation lists as hex or base64 of DER (or PEM). Nothing here is verified; verifiers do.
"""

from __future__ import annotations

import re
from typing import Any

from sealift.attest.tools.written import decode_text, read_object
from sealift.errors import MalformedError


def import_collateral(raw: bytes) -> dict[str, bytes]:
    """Items by name (``tdx/...`` or ``sgx/...``, as its TCB levels say).

    Raises:
        MalformedError: if it is not such an object.
    """
    plain = read_object(raw)
    tcb = _text(plain, "tcb_info")
    kind = "tdx" if re.search(r'"id"\s*:\s*"TDX"', tcb) else "sgx"
    items = {
        "tcb-info": _signed(plain, "tcbInfo", "tcb_info"),
        "tcb-info-chain": _text(plain, "tcb_info_issuer_chain").encode(),
        "qe-identity": _signed(plain, "enclaveIdentity", "qe_identity"),
        "qe-identity-chain": _text(plain, "qe_identity_issuer_chain").encode(),
        "root-crl": _revocation_list(plain, "root_ca_crl"),
        "pck-crl": _revocation_list(plain, "pck_crl"),
        "pck-crl-chain": _text(plain, "pck_crl_issuer_chain").encode(),
    }
    return {f"{kind}/{name}": item for name, item in items.items()}


def _signed(plain: dict[str, Any], name: str, field: str) -> bytes:
    inner, signature = _text(plain, field), _text(plain, f"{field}_signature")
    return f'{{"{name}":{inner},"signature":"{signature}"}}'.encode()


def _revocation_list(plain: dict[str, Any], field: str) -> bytes:
    text = _text(plain, field)
    return text.encode() if text.startswith("-----") else decode_text(text)


def _text(plain: dict[str, Any], field: str) -> str:
    found = plain.get(field)
    if not isinstance(found, str) or not found.isascii():
        raise MalformedError("a field is missing or no text", field=field)
    return found
