"""Devices beside a CPU in the KBS protocol: NVIDIA's, judged, and worth no level here.

The primary evidence covers the text that they come in, so none can be swapped or left
out behind the client's back. What makes a GPU count as protected is the measured binding
event (spec/evidence.md), for which this protocol has no place: a job that needs
``gpu-tee`` takes part with sealift. A device that is bad still refuses the whole.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final

from sealift.attest.check import require_passed
from sealift.attest.evidence import BOUND_BYTES, Evidence
from sealift.attest.nvidia import NvidiaBody
from sealift.attest.policy import Appraiser
from sealift.codec import parse_foreign
from sealift.errors import EvidenceError
from sealift.service.kbsforms import MAX_ATTEST_BYTES, bad_message

MAX_DEVICES: Final = 32
_PEM: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----"
)


def examine_devices(additional: str, bound: bytes, appraiser: Appraiser) -> None:
    """Refuse a device that is not genuine, not bound, or not as agreed.

    Args:
        additional: JSON text by kind of device, or empty.
        bound: What each must carry in the first 32 bytes.
        appraiser: Of the agreement.

    Raises:
        RefusedError, MalformedError: named by rule.
    """
    for evidence in parse_devices(additional):
        claims = appraiser.examine(evidence, bound[:BOUND_BYTES])
        require_passed(claims.checks)


def parse_devices(additional: str) -> tuple[Evidence, ...]:
    """Evidence of ours for each device.

    Raises:
        EvidenceError: ``kbs-evidence-form``, for devices of other makers.
        MalformedError: if it is not that form.
    """
    if not additional:
        return ()
    raw = additional.encode(errors="replace")
    by_kind = parse_foreign(raw, max_bytes=MAX_ATTEST_BYTES)
    if not isinstance(by_kind, dict):
        raise bad_message("additional_evidence is no object")
    if set(by_kind) - {"nvidia"}:
        raise EvidenceError(
            "evidence of a device that is not read here",
            why="only nvidia is",
            code="kbs-evidence-form",
        )
    listed = _listed(by_kind.get("nvidia", {"device_evidence_list": []}))
    return tuple(_device(each) for each in listed)


def _listed(nvidia: Any) -> list[Any]:
    listed = nvidia.get("device_evidence_list") if isinstance(nvidia, dict) else None
    if not isinstance(listed, list) or len(listed) > MAX_DEVICES:
        raise bad_message("device_evidence_list is no short list")
    return listed


def _device(form: Any) -> Evidence:
    if not isinstance(form, dict):
        raise bad_message("a device is no object")
    chain = _PEM.findall(_bytes(form.get("certificate")))
    certificates = tuple(_bytes(b"".join(each.split()).decode()) for each in chain)
    body = NvidiaBody(report=_bytes(form.get("evidence")), certificates=certificates)
    return body.to_evidence()


def _bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise bad_message("a device's member is no text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise bad_message("a device's member is not base64") from None
