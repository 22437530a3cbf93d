"""Fetch a resource from a key broker service: ours, or a Trustee.

A fresh key pair for each handshake, evidence by our own attester, one resource a
handshake, as our server demands and any other allows. What comes is bytes: a caller that
knows what it asked for compares (``fetch_key``).
Source: kbs_attestation_protocol.md of confidential-containers/trustee v0.21.0.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from sealift.attest.attester import Attester
from sealift.channel.commitment import key_commitment
from sealift.codec import parse_foreign
from sealift.crypto.hash import HashName, verify_equal
from sealift.crypto.jwe import RecipientKeyPair
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    IntegrityError,
    MalformedError,
    PeerError,
    RefusedError,
    StaleError,
    UsageError,
)
from sealift.ids import Digest
from sealift.release.agreement import Resource
from sealift.service.kbsevidence import (
    TEE_OF_MEDIA_TYPE,
    bound_for,
    to_native,
    to_trustee,
)
from sealift.service.kbsforms import (
    COOKIE,
    DEFAULT_HASH,
    HASHES,
    SEALIFT_TEE,
    VERSION,
    Attestation,
    agreement_of_nonce,
)

MAX_ANSWER_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 30.0
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SESSION: Final = re.compile(rf"{COOKIE}=([A-Za-z0-9-]{{1,128}})(?:;|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KbsClient:
    """Fetches from one server.

    Attributes:
        url: ``http://HOST:PORT`` or ``https://HOST:PORT``.
        attester: Of this process.
        agreement: Which one the server must work under; None for a Trustee, which gets
            evidence in its own forms.
        tls: How an https server is known; the system's authorities if None.
        timeout_s: Longest silence.
    """

    url: str
    attester: Attester
    agreement: Digest | None = None
    tls: ssl.SSLContext | None = None
    timeout_s: float = TIMEOUT_S

    def fetch(self, path: str) -> bytes:
        """The resource at ``path`` (three segments), after a fresh attestation.

        Raises:
            PeerError: ``kbs-unreachable``; ``kbs-answer`` for no answer of this protocol.
            RefusedError: ``kbs-refused``: the server said no, and quotes why.
            StaleError: ``kbs-other-agreement``.
            EvidenceError: ``kbs-evidence-form``.
            AuthenticationError: if the answer is not encrypted to our key.
        """
        require_path(path)
        keys = RecipientKeyPair()
        with _Exchange(self.url, self.tls, self.timeout_s) as exchange:
            challenge = exchange.post("auth", self._begin())
            attestation = self._answer(challenge, keys)
            token = exchange.post("attest", attestation).get("token")
            sealed = exchange.get(f"resource/{path}", str(token or ""))
        return keys.open(sealed)

    def fetch_key(self, line: str, resource: Resource) -> SecretKey:
        """The data key of a resource, compared with what the agreement says of it.

        Args:
            line: Name of the agreement.
            resource: In the agreement.

        Raises:
            IntegrityError: ``other-key``.
            SealiftError: like ``fetch``.
        """
        data_key = SecretKey(self.fetch(f"{line}/{resource.part}/{resource.name}"))
        try:
            computed = key_commitment(data_key, resource.name)
            verify_equal(computed.raw, resource.key.raw)
        except AuthenticationError:
            data_key.wipe()
            raise IntegrityError(
                f"the key of {resource.name} is not the one in the agreement",
                fix="Ask its owner's own broker",
                code="other-key",
            ) from None
        return data_key

    @property
    def _tee(self) -> str:
        if self.agreement is not None:
            return SEALIFT_TEE
        tee = TEE_OF_MEDIA_TYPE.get(self.attester.media_type)
        if tee is None:
            raise EvidenceError(
                "a Trustee does not read this process's evidence",
                why=self.attester.media_type,
                fix="Attest with TDX or a TPM, or ask a broker of ours",
                code="kbs-evidence-form",
            )
        return tee

    def _begin(self) -> dict[str, Any]:
        extra = {"supported-hash-algorithms": list(HASHES)}
        return {"version": VERSION, "tee": self._tee, "extra-params": extra}

    def _answer(
        self, challenge: dict[str, Any], keys: RecipientKeyPair
    ) -> dict[str, Any]:
        nonce = challenge.get("nonce")
        if not isinstance(nonce, str) or len(nonce) > 1024:
            raise bad_answer("a challenge without a nonce")
        self._require_agreement(nonce)
        unproven = Attestation(nonce, keys.public, None, "")
        bound = unproven.bound(_hash_of(challenge))
        evidence = self.attester.collect(bound_for(self._tee, bound))
        form = to_native(evidence) if self.agreement else to_trustee(evidence)
        return {
            "runtime-data": unproven.runtime_claims(),
            "tee-evidence": {"primary_evidence": form, "additional_evidence": ""},
        }

    def _require_agreement(self, nonce: str) -> None:
        if self.agreement is None:
            return
        if agreement_of_nonce(nonce) != self.agreement:
            raise StaleError(
                "the server's challenge does not name our agreement",
                fix="Start both with the agreement that everybody signed",
                code="kbs-other-agreement",
            )


def require_path(path: str) -> None:
    """Refuse what is not three plain segments; raises UsageError ``kbs-bad-path``."""
    segments = path.split("/")
    plain = all(_SEGMENT.fullmatch(each) and set(each) != {"."} for each in segments)
    if len(segments) != 3 or not plain:
        raise UsageError(
            "not the path of a resource",
            fix="Write REPOSITORY/TYPE/TAG, or LINE/PART/NAME for a broker of ours",
            code="kbs-bad-path",
        )


def bad_answer(why: str) -> PeerError:
    """The server does not speak the protocol."""
    return PeerError(
        "not an answer of the KBS protocol",
        why=why,
        fix=f"Check the address; the server must speak version {VERSION}",
        code="kbs-answer",
    )


class _Exchange:
    """One connection to a server, with the cookie that it gave."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise UsageError(
                "not the address of a key broker service",
                fix="Write http://HOST:PORT or https://HOST:PORT",
                code="bad-address",
            )
        self._prefix = f"{parts.path.rstrip('/')}/kbs/v0"
        self._cookie = ""
        self._connection = (
            http.client.HTTPSConnection(
                parts.hostname,
                parts.port,
                timeout=timeout_s,
                context=tls or ssl.create_default_context(),
            )
            if parts.scheme == "https"
            else http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=timeout_s
            )
        )

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()

    def post(self, step: str, content: dict[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/json", **self._session()}
        return self._ask("POST", step, json.dumps(content).encode(), headers)

    def get(self, step: str, token: str) -> dict[str, Any]:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,200000}", token):
            raise bad_answer("no token")
        # Trustee finds the session by its cookie; the token alone is enough for both.
        return self._ask("GET", step, None, {"authorization": f"Bearer {token}"})

    def _ask(
        self, method: str, step: str, body: bytes | None, headers: dict[str, str]
    ) -> dict[str, Any]:
        target = f"{self._prefix}/{step}"
        try:
            self._connection.request(method, target, body, headers)
            response = self._connection.getresponse()
            raw = response.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise PeerError(
                "the key broker service cannot be reached",
                why=getattr(error, "strerror", None) or type(error).__name__,
                fix="Check its address and whether it runs",
                code="kbs-unreachable",
            ) from None
        self._keep_session(response.getheader("set-cookie") or "")
        return _content(response.status, raw)

    def _session(self) -> dict[str, str]:
        return {"cookie": f"{COOKIE}={self._cookie}"} if self._cookie else {}

    def _keep_session(self, header: str) -> None:
        found = _SESSION.search(header)
        if found:
            self._cookie = found[1]


def _content(status: int, raw: bytes) -> dict[str, Any]:
    try:
        content = parse_foreign(raw, max_bytes=MAX_ANSWER_BYTES)
    except MalformedError as error:
        raise bad_answer(f"status {status}, {error.what}") from None
    if not isinstance(content, dict):
        raise bad_answer(f"status {status}, no object")
    if status != http.client.OK:
        raise RefusedError(
            "the key broker service refused",
            why=f"status {status}, {_problem_line(content)}",
            fix="Its operator knows the rule; ask the resource's owner",
            code="kbs-refused",
        )
    return content


def _problem_line(content: dict[str, Any]) -> str:
    kind = str(content.get("type", ""))[:200].rpartition("/")[2]
    return f"{kind}: {str(content.get('detail', ''))[:500]}"


def _hash_of(challenge: dict[str, Any]) -> HashName:
    extra = challenge.get("extra-params")
    named = extra.get("selected-hash-algorithm") if isinstance(extra, dict) else None
    if named is None:
        return DEFAULT_HASH
    name = str(named).lower()
    if name not in HASHES:
        raise bad_answer("it selected a hash that we did not offer")
    return name
