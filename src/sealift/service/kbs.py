"""The KBS protocol's three steps over one owner's broker: challenge, attest, release.

No HTTP here: bytes and texts in, bytes and texts out. The appraisal is the agreement's,
the decision the owner's, both the same as in a session (rule M5). A token is signed by a
key that lives as long as this process, is bound to the key that the evidence bound, and
is good for one resource, once.
Source: spec/kbs.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sealift
from sealift.attest.ear import Binding, token_claims
from sealift.attest.result import AttestationResult
from sealift.crypto.hash import sha256
from sealift.crypto.jwe import RecipientKey
from sealift.crypto.jws import TokenSigner, verify_token
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import MalformedError, PolicyError, SealiftError, StaleError
from sealift.ids import check_name
from sealift.release.broker import ReleaseRequest
from sealift.release.brokerserver import Broker
from sealift.release.kbs import KbsAsker
from sealift.service.kbsdevices import examine_devices
from sealift.service.kbsevidence import bound_for, to_evidence
from sealift.service.kbsforms import (
    Attestation,
    agreement_of_nonce,
    make_nonce,
    nonce_bytes,
    parse_attestation,
    parse_auth,
)
from sealift.service.kbssessions import (
    CHALLENGE_S,
    TOKEN_S,
    Attested,
    Challenged,
    OnceStore,
    fresh_id,
)

ANNOTATED: Final = "ear.veraison.annotated-evidence"


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer to /auth: the session for the cookie, and the challenge."""

    session: str
    challenge: bytes


class KbsDoor:
    """One owner's door for clients of the KBS protocol.

    Args:
        broker: Decides, counts and logs.
        clock: Seconds since 1970, for tokens.
        monotonic: Seconds that never go back, for how long things are valid.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._monotonic = monotonic
        self._signer = TokenSigner.generate()
        self._challenged: OnceStore[Challenged] = OnceStore(CHALLENGE_S)
        self._attested: OnceStore[Attested] = OnceStore(TOKEN_S)
        self._token_of_session: OnceStore[str] = OnceStore(TOKEN_S)

    def auth(self, raw: bytes) -> Begun:
        """Begin: a challenge for a client that says what it attests with.

        Raises:
            MalformedError, PolicyError: see ``parse_auth``.
            UnavailableError: ``kbs-too-many``.
        """
        request = parse_auth(raw)
        nonce = make_nonce(self._broker.verified.digest)
        session = fresh_id()
        self._challenged.put(session, Challenged(request, nonce), self._monotonic())
        extra = {"selected-hash-algorithm": request.hash_name}
        challenge = {"nonce": nonce, "extra-params": extra}
        return Begun(session, json.dumps(challenge).encode())

    def attest(self, session: str, raw: bytes) -> str:
        """Appraise the answer to a challenge; the token.

        Raises:
            RefusedError, MalformedError: named by rule; the challenge is spent.
        """
        challenged = self._challenged.take(session, self._monotonic())
        tee = challenged.request.tee
        try:
            attestation = parse_attestation(raw)
            result = self._appraise(challenged, attestation)
        except SealiftError as error:
            self._broker.record_refused_handshake(error, name=_log_name(tee))
            raise
        attested = self._attested_by(session, challenged, attestation, result)
        return self._issue(attested, attestation, result)

    def release(self, token: str, path: tuple[str, ...]) -> bytes:
        """The resource at a path, encrypted to the key that the token is bound to.

        Args:
            token: As /attest gave it; it is spent, whatever comes of it.
            path: Line of the agreement, part and name of the resource.

        Raises:
            RefusedError: ``kbs-no-session``, ``token-expired``, or the owner's rule.
            AuthenticationError: if we did not sign the token.
        """
        attested = self._redeem(token)
        request = self._request(path, attested)

        def seal(data_key: SecretKey) -> dict[str, str]:
            return attested.tee_key.seal(data_key.reveal(TOKEN))

        sealed = self._broker.release_by_kbs(request, attested.asker, seal)
        return json.dumps(sealed).encode()

    def token_of(self, session: str) -> str:
        """The token of a session that attested, for clients that show the cookie.

        Raises:
            PolicyError: ``kbs-no-session``.
        """
        return self._token_of_session.take(session, self._monotonic())

    def _appraise(
        self, challenged: Challenged, attestation: Attestation
    ) -> AttestationResult:
        verified = self._broker.verified
        _require_nonce(challenged, attestation)
        name = challenged.request.hash_name
        tee = challenged.request.tee
        appraiser = verified.appraiser()
        evidence = to_evidence(tee, attestation.primary)
        result = appraiser.appraise(evidence, bound_for(tee, attestation.bound(name)))
        examine_devices(
            attestation.additional, attestation.device_bound(name), appraiser
        )
        return result

    def _attested_by(
        self,
        session: str,
        challenged: Challenged,
        attestation: Attestation,
        result: AttestationResult,
    ) -> Attested:
        agreement = agreement_of_nonce(challenged.nonce)
        assert agreement is not None, "we made it"
        asker = KbsAsker(
            name=_log_name(challenged.request.tee),
            agreement=agreement,
            result=result,
            binder=attestation.binder(),
        )
        challenge = sha256(nonce_bytes(challenged.nonce))
        return Attested(session, asker, attestation.tee_key, challenge)

    def _issue(
        self, attested: Attested, attestation: Attestation, result: AttestationResult
    ) -> str:
        name = fresh_id()
        claims = self._claims(attested, attestation, result)
        token = self._signer.sign({**claims, "jti": name}, shows_key=True)
        now_s = self._monotonic()
        self._attested.put(name, attested, now_s)
        self._token_of_session.put(attested.cookie, token, now_s)
        return token

    def _claims(
        self, attested: Attested, attestation: Attestation, result: AttestationResult
    ) -> dict[str, Any]:
        binding = Binding(
            nonce=nonce_bytes(attestation.nonce),
            key=attested.tee_key.thumbprint,
            agreement=attested.asker.agreement,
        )
        claims = token_claims(
            result,
            binding,
            at_s=int(self._clock()),
            software=f"sealift {sealift.__version__}",
        )
        runtime = {"runtime_data_claims": attestation.runtime_claims()}
        claims["submods"]["cpu0"][ANNOTATED] = runtime
        return claims

    def _redeem(self, token: str) -> Attested:
        key = self._signer.public_key
        claims = verify_token(token, key, at_s=int(self._clock()))
        attested = self._attested.take(str(claims.get("jti")), self._monotonic())
        _require_bound(claims, attested.tee_key)
        return attested

    def _request(self, path: tuple[str, ...], attested: Attested) -> ReleaseRequest:
        line, part, name = path
        verified = self._broker.verified
        if line != verified.agreement.name:
            raise _no_resource("/".join(path))
        if name not in {each.name for each in verified.agreement.resources}:
            raise _no_resource("/".join(path))
        resource = verified.resource(name)
        if part != resource.part:
            raise _no_resource("/".join(path))
        return ReleaseRequest(name, resource.part, attested.challenge)


def resource_path(segments: tuple[str, ...]) -> tuple[str, ...]:
    """The three names of a resource's path.

    Raises:
        MalformedError: for anything else; nothing of it reaches a file system.
    """
    if len(segments) != 3:
        raise MalformedError("a resource is LINE/PART/NAME", code="kbs-bad-path")
    try:
        return tuple(check_name(each) for each in segments)
    except MalformedError:
        raise MalformedError(
            "a resource is LINE/PART/NAME", code="kbs-bad-path"
        ) from None


def _require_nonce(challenged: Challenged, attestation: Attestation) -> None:
    if attestation.nonce != challenged.nonce:
        raise StaleError(
            "the nonce is not that of this session",
            fix="Begin again with /auth",
            code="kbs-other-nonce",
        )


def _require_bound(claims: dict[str, Any], tee_key: RecipientKey) -> None:
    if claims.get("cnf") != {"kid": tee_key.thumbprint.to_text()}:
        raise StaleError("the token is for another key", code="token-foreign")


def _no_resource(path: str) -> PolicyError:
    return PolicyError(
        f"there is no resource {path[:200]}",
        fix="Ask for LINE/PART/NAME, as the agreement names them",
        code="no-resource",
    )


def _log_name(tee: str) -> str:
    return f"kbs-{tee}"
