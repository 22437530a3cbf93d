"""Collects Azure evidence: the paravisor's report, and quotes by its virtual TPM.

The report names the key that quotes, and stays the same until somebody writes user data;
what the host adds to it (the chip's certificates, a TD quote) is asked of its metadata
service once a report. Nothing that comes back is trusted: the verifier checks it down to
AMD's or Intel's root. Source: Microsoft, confidential guests attestation design, trusted
hardware identity management (THIM); azure-cvm-tooling (places, the quote service).
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sealift.attest.azure.evidence import (
    USER_DATA_BYTES,
    AzureBody,
    parse_claims,
    parse_hcl,
)
from sealift.attest.evidence import Evidence, require_bound
from sealift.attest.tpm.attester import EVENT_LOG, read_log
from sealift.attest.tpm.client import TpmClient
from sealift.attest.tpm.keys import LoadedKey, read_index, read_persistent, write_index
from sealift.attest.tpm.registers import (
    TpmHost,
    quote,
    require_log_register,
)
from sealift.crypto.certificate import certificates_from_pem
from sealift.errors import MalformedError, UnavailableError

_HOST: Final = "169.254.169.254"
_CERTIFICATES: Final = "/metadata/THIM/amd/certification"
_QUOTE: Final = "/acc/tdquote"
_MAX_ANSWER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MetadataService:
    """The service at the link-local address that every Azure guest has.

    Attributes:
        address: Host and port.
        timeout_s: How long an answer may take.
    """

    address: tuple[str, int] = (_HOST, 80)
    timeout_s: float = 10.0

    def certificates(self) -> tuple[bytes, ...]:
        """DER of the SNP report's key and its issuers."""
        answer = self._ask("GET", _CERTIFICATES)
        pem = _text(answer, "vcekCert") + "\n" + _text(answer, "certificateChain")
        return tuple(each.der for each in certificates_from_pem(pem.encode()))

    def td_quote(self, report: bytes) -> bytes:
        """A quote of a TD report (1024 bytes)."""
        text = base64.urlsafe_b64encode(report).rstrip(b"=").decode()
        quote = _text(self._ask("POST", _QUOTE, {"report": text}), "quote")
        try:
            return base64.urlsafe_b64decode(quote + "=" * (-len(quote) % 4))
        except ValueError:
            raise _silent("the quote is not base64url") from None

    def _ask(
        self, method: str, path: str, content: dict[str, str] | None = None
    ) -> dict[str, Any]:
        headers = {"Metadata": "true", "Content-Type": "application/json"}
        body = json.dumps(content) if content is not None else None
        connection = http.client.HTTPConnection(*self.address, timeout=self.timeout_s)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            raw = answer.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _silent(str(error)) from None
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise _silent(f"it answered with status {answer.status} for {path}")
        try:
            plain = json.loads(raw)
        except (ValueError, RecursionError):
            raise _silent("the answer is not JSON") from None
        if not isinstance(plain, dict):
            raise MalformedError("the metadata service's answer is not an object")
        return plain


def _text(answer: dict[str, Any], name: str) -> str:
    found = answer.get(name)
    if not isinstance(found, str):
        raise _silent(f"the answer has no {name}")
    return found


def _silent(why: str) -> UnavailableError:
    return UnavailableError(
        "Azure's metadata service did not return what was asked for",
        why=why,
        code="azure-metadata",
    )


HCL_REPORT: Final = 0x01400001
USER_DATA: Final = 0x01400002
ATTESTATION_KEY: Final = 0x81000003
_BANK: Final = "sha256"
_TD_REPORT_BYTES: Final = 1024
_ATTEMPTS: Final = 100
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSources:
    """Where a guest's evidence comes from.

    Attributes:
        state: Folder for the runtime log.
        tpm: ``/dev/tpmrm0``, ``unix:PATH`` or ``tcp:HOST:PORT``.
        pcrs: The registers that are quoted.
        register: The one of the runtime log; 15, unless the guest's image uses that.
        event_log: The guest firmware's log, or None.
        fresh_hardware: Whether the hardware's report carries each bound value too; that
            takes the paravisor a few seconds.
        host: The host's services.
        wait: How to wait for the paravisor, in seconds.
    """

    state: Path
    tpm: str = "/dev/tpmrm0"
    pcrs: tuple[int, ...] = tuple(range(16))
    register: int = 15
    event_log: Path | None = EVENT_LOG
    fresh_hardware: bool = False
    host: MetadataService = field(default_factory=MetadataService)
    wait: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        require_log_register(self.register, self.pcrs)


@dataclass(frozen=True, slots=True)
class _Endorsed:
    """A paravisor's report, and what the host added to it."""

    hcl_report: bytes
    certificates: tuple[bytes, ...] = ()
    td_quote: bytes = b""


class AzureAttester(TpmHost):
    """Quotes the virtual TPM.

    Raises:
        UnavailableError: ``azure-paravisor`` if this is no confidential guest of Azure.
    """

    def __init__(self, sources: AzureSources) -> None:
        self._sources = sources
        self._endorsed: _Endorsed | None = None
        super().__init__(sources.tpm, sources.state, _BANK, sources.register)

    def _find_keys(self) -> None:
        self._key = _find_key(self._client)

    def collect(self, bound: bytes) -> Evidence:
        """A quote over ``bound``, with the paravisor's report.

        Raises:
            UnavailableError: if TPM, paravisor or host do not answer.
            UsageError: if ``bound`` has not 2 to 64 bytes.
        """
        require_bound(bound)
        user_data = bound if self._sources.fresh_hardware else b""
        with self._lock:
            endorsed = self._endorse(user_data.ljust(USER_DATA_BYTES, b"\0"))
            quoted = quote(self._client, self._key, bound, _BANK, self._sources.pcrs)
            events = self._events
        return AzureBody(
            hcl_report=endorsed.hcl_report,
            td_quote=endorsed.td_quote,
            certificates=endorsed.certificates,
            quote=quoted.quote,
            signature=quoted.signature,
            pcrs={_BANK: {str(n): value for n, value in quoted.values.items()}},
            event_log=read_log(self._sources.event_log),
            events=events,
        ).to_evidence()

    def _endorse(self, user_data: bytes) -> _Endorsed:
        """The paravisor's report with that user data, and the host's part of it."""
        raw, host = self._read_report(user_data), self._sources.host
        if self._endorsed is None or self._endorsed.hcl_report != raw:
            hcl = parse_hcl(raw)
            if hcl.kind == "snp":
                self._endorsed = _Endorsed(raw, certificates=host.certificates())
            else:
                quote = host.td_quote(hcl.hardware[:_TD_REPORT_BYTES])
                self._endorsed = _Endorsed(raw, td_quote=quote)
        return self._endorsed

    def _read_report(self, user_data: bytes) -> bytes:
        raw = _read_hcl(self._client)
        if _user_data(raw) == user_data:
            return raw
        write_index(self._client, USER_DATA, user_data)
        for _ in range(_ATTEMPTS):
            raw = _read_hcl(self._client)
            if _user_data(raw) == user_data:
                return raw
            self._sources.wait(_PAUSE_S)
        raise UnavailableError(
            "the paravisor did not renew its report",
            why=f"no report contains the user data that was written to {USER_DATA:#x}",
            code="azure-paravisor",
        )


def _find_key(client: TpmClient) -> LoadedKey:
    """The paravisor's attestation key, if it is the one that its report names."""
    key = read_persistent(client, ATTESTATION_KEY)
    if key is None or key.public.scheme is None:
        raise _no_paravisor("its virtual TPM has no attestation key")
    if parse_claims(parse_hcl(_read_hcl(client)).claims).attestation_key != (
        key.public.key
    ):
        raise _no_paravisor("its report names another key than its virtual TPM has")
    return key


def _read_hcl(client: TpmClient) -> bytes:
    raw = read_index(client, HCL_REPORT, owner=True)
    if raw is None:
        raise _no_paravisor(f"its TPM has no report at {HCL_REPORT:#x}")
    return raw


def _user_data(raw: bytes) -> bytes:
    return parse_claims(parse_hcl(raw).claims).user_data


def _no_paravisor(why: str) -> UnavailableError:
    return UnavailableError(
        "this machine is not a confidential guest of Azure",
        why=why,
        code="azure-paravisor",
    )
