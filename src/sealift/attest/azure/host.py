"""What an Azure guest asks of its host: certificates of the chip, quotes of TD reports.

Nothing that comes back is trusted: the verifier checks it down to AMD's or Intel's root.
Source: Microsoft, trusted hardware identity management (THIM) in confidential guests;
azure-cvm-tooling (the quote service).
"""

from __future__ import annotations

import base64
import http.client
import json
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sealift.crypto.certificate import certificates_from_pem
from sealift.errors import MalformedError, UnavailableError

_HOST: Final = "169.254.169.254"
_CERTIFICATES: Final = "/metadata/THIM/amd/certification"
_QUOTE: Final = "/acc/tdquote"
_MAX_ANSWER_BYTES: Final = 1 << 20


class AzureHost(Protocol):
    """The host's services; every method raises ``UnavailableError``."""

    def certificates(self) -> tuple[bytes, ...]:
        """DER of the SNP report's key and its issuers."""
        ...

    def td_quote(self, report: bytes) -> bytes:
        """A quote of a TD report (1024 bytes)."""
        ...


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
        """See ``AzureHost``."""
        answer = self._ask("GET", _CERTIFICATES)
        pem = _text(answer, "vcekCert") + "\n" + _text(answer, "certificateChain")
        return tuple(each.der for each in certificates_from_pem(pem.encode()))

    def td_quote(self, report: bytes) -> bytes:
        """See ``AzureHost``."""
        text = base64.urlsafe_b64encode(report).rstrip(b"=").decode()
        quote = _text(self._ask("POST", _QUOTE, {"report": text}), "quote")
        try:
            return base64.urlsafe_b64decode(quote + "=" * (-len(quote) % 4))
        except ValueError:
            raise _silent("its quote is not base64url") from None

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
            raise _silent(f"status {answer.status} for {path}")
        return _parse(raw)


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError):
        raise _silent("its answer is no JSON") from None
    if not isinstance(plain, dict):
        raise MalformedError("the metadata service's answer is no object")
    return plain


def _text(answer: dict[str, Any], name: str) -> str:
    found = answer.get(name)
    if not isinstance(found, str):
        raise _silent(f"its answer has no {name}")
    return found


def _silent(why: str) -> UnavailableError:
    return UnavailableError(
        "Azure's metadata service gives no answer", why=why, code="azure-metadata"
    )
