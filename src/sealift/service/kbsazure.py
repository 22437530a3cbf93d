"""Evidence of Azure's guests in Trustee's form: ``az-snp-vtpm`` and ``az-tdx-vtpm``.

Its quote's signature is the bare RSA number; a TPM writes its scheme before it, and our
form has it as the TPM wrote it. The scheme is signed over by nobody: another one does not
verify.
Source: deps/verifier/src/az_snp_vtpm of confidential-containers/trustee; TPM 2.0 Library
part 2, section 11.3.4 (TPMT_SIGNATURE).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from sealift.attest.azure import AzureBody
from sealift.attest.evidence import MAX_BODY_BYTES, Evidence
from sealift.attest.runtimelog import RuntimeEvent
from sealift.service.kbsforms import bad_message

PCRS: Final = 24
_RSASSA: Final = (0x0014).to_bytes(2, "big")
_SHA256: Final = (0x000B).to_bytes(2, "big")


def read_azure(form: Mapping[str, Any], events: tuple[RuntimeEvent, ...]) -> Evidence:
    """Our evidence from Trustee's form, of either kind of hardware.

    Raises:
        MalformedError: if it is not that form.
    """
    quote = form.get("tpm_quote")
    if not isinstance(quote, dict):
        raise bad_message("tpm_quote is no object")
    signature = _hex(quote, "signature")
    scheme = _RSASSA + _SHA256 + len(signature).to_bytes(2, "big")
    chip = _urlsafe(form, "vcek") if "vcek" in form else b""
    body = AzureBody(
        hcl_report=_urlsafe(form, "hcl_report"),
        td_quote=_urlsafe(form, "td_quote") if "td_quote" in form else b"",
        certificates=(chip,) if chip else (),
        quote=_hex(quote, "message"),
        signature=scheme + signature,
        pcrs={"sha256": _registers(quote.get("pcrs"))},
        events=events,
    )
    return body.to_evidence()


def _registers(pcrs: object) -> dict[str, bytes]:
    if not isinstance(pcrs, list) or len(pcrs) != PCRS:
        raise bad_message("pcrs is no list of one for each register")
    return {str(n): _hex({"pcrs": each}, "pcrs") for n, each in enumerate(pcrs)}


def _hex(form: Mapping[str, Any], name: str) -> bytes:
    text = _text(form, name)
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise bad_message(f"{name} is not hex") from None
    if len(raw) >= 1 << 16:  # its length stands in two bytes
        raise bad_message(f"{name} is too long")
    return raw


def _urlsafe(form: Mapping[str, Any], name: str) -> bytes:
    text = _text(form, name)
    try:
        padded = text + "=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise bad_message(f"{name} is not base64url") from None


def _text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name)
    if not isinstance(value, str) or len(value) > 2 * MAX_BODY_BYTES:
        raise bad_message(f"{name} is no text, or too long")
    return value
