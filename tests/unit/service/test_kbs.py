"""The KBS protocol over real HTTP: the way that works, and each way that does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from sealift.crypto.keys import TOKEN
from sealift.ids import Digest
from tests.sim.kbs_world import (
    AUTH,
    RESOURCE,
    KbsWorld,
    kbs_world,
    problem,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KbsWorld]:
    with kbs_world(tmp_path_factory.mktemp("kbs")) as made:
        yield made


def test_resource_by_cookie(world: KbsWorld) -> None:
    guest = world.client()
    guest.token()
    answer = guest.get()
    assert guest.open(answer) == world.consortium.keys["ada-train"].reveal(TOKEN)
    assert set(answer.json()) == {
        "protected",
        "encrypted_key",
        "iv",
        "ciphertext",
        "tag",
    }


def test_resource_by_bearer(world: KbsWorld) -> None:
    guest = world.client()
    token = guest.token()
    guest.http.cookies.clear()
    opened = guest.open(guest.get(token=token))
    assert opened == world.consortium.keys["ada-train"].reveal(TOKEN)


def test_release_is_logged_first(world: KbsWorld) -> None:
    guest = world.client()
    guest.token()
    guest.get()
    entry = world.last_entry()
    assert (entry.kind, entry.peer) == ("release", "kbs-sealift")
    assert entry.resource == "ada-train"
    assert (entry.use > 0, entry.level) == (True, "development")
    assert entry.instance is None
    assert len(entry.session) == 32


def test_challenge(world: KbsWorld) -> None:
    answer = world.client().auth()
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("kbs-session-id=")
    assert "httponly" in cookie.lower()
    assert answer.json()["extra-params"] == {"selected-hash-algorithm": "sha384"}
    assert world.client().auth().json()["nonce"] != answer.json()["nonce"]


def test_token_is_an_ear_bound_to_the_key(world: KbsWorld) -> None:
    guest = world.client()
    token = guest.token()
    assert jwt.get_unverified_header(token)["jwk"]["crv"] == "P-256"
    claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    cpu = claims["submods"]["cpu0"]
    runtime = cpu["ear.veraison.annotated-evidence"]["runtime_data_claims"]
    assert runtime["tee-pubkey"] == dict(guest.keys.public.jwk)
    assert cpu["ear.status"] == "contraindicated"
    assert claims["sealift.level"] == "development"
    assert claims["exp"] - claims["iat"] == 300
    assert claims["cnf"] == {"kid": guest.keys.public.thumbprint.to_text()}


AUTH_REFUSALS = {
    "another version": ({"version": "0.1.1"}, "kbs-version"),
    "no version": ({"version": None}, "kbs-version"),
    "sample": ({"tee": "sample"}, "kbs-sample-refused"),
    "unknown": ({"tee": "amiga"}, "kbs-tee-unknown"),
    "no text": ({"tee": 7}, "kbs-bad-message"),
    "no hash": (
        {"extra-params": {"supported-hash-algorithms": ["md5"]}},
        "kbs-no-hash",
    ),
}


@pytest.mark.parametrize(
    ("changes", "rule"), AUTH_REFUSALS.values(), ids=AUTH_REFUSALS.keys()
)
def test_auth_refused(world: KbsWorld, changes: dict[str, Any], rule: str) -> None:
    answer = world.client().auth(**changes)
    assert problem(answer) == (401, "AttestationError", rule)


@pytest.mark.parametrize(
    ("offered", "selected"),
    [(["SHA256"], "sha256"), (["sha512", "sha256"], "sha512"), (None, "sha384")],
)
def test_hash_negotiated(
    world: KbsWorld, offered: list[str] | None, selected: str
) -> None:
    guest = world.client()
    extra = {"supported-hash-algorithms": offered} if offered else ""
    challenge = guest.auth(**{"extra-params": extra}).json()
    assert challenge["extra-params"]["selected-hash-algorithm"] == selected
    assert guest.send(guest.attestation(challenge)).status_code == 200


def test_no_cookie(world: KbsWorld) -> None:
    guest = world.client()
    challenge = guest.auth().json()
    guest.http.cookies.clear()
    answer = guest.send(guest.attestation(challenge))
    assert problem(answer) == (401, "AttestationError", "kbs-no-session")


@pytest.mark.parametrize("cookie", ["0" * 32, "'; DROP TABLE", "x" * 4000, "../.."])
def test_bad_cookie(world: KbsWorld, cookie: str) -> None:
    guest = world.client()
    headers = {"cookie": f"kbs-session-id={cookie}"}
    attested = guest.http.post("/kbs/v0/attest", json={}, headers=headers)
    assert problem(attested) == (401, "AttestationError", "kbs-no-session")
    fetched = guest.http.get(RESOURCE, headers=headers)
    assert problem(fetched) == (401, "TokenNotFound", "kbs-no-session")


def test_challenge_is_answered_once(world: KbsWorld) -> None:
    guest = world.client()
    attestation = guest.attestation(guest.auth().json())
    assert guest.send(attestation).status_code == 200
    assert problem(guest.send(attestation))[2] == "kbs-no-session"


def test_evidence_for_another_nonce(world: KbsWorld) -> None:
    guest = world.client()
    old = guest.attestation(guest.auth().json())
    fresh = guest.auth().json()
    answer = guest.send(old)
    assert problem(answer) == (401, "AttestationError", "kbs-other-nonce")
    # The old evidence under the new nonce: what it binds is another value.
    old["runtime-data"]["nonce"] = guest.auth().json()["nonce"]
    assert problem(guest.send(old))[2] == "evidence-unbound"
    assert fresh["nonce"]


def test_evidence_for_another_key(world: KbsWorld) -> None:
    guest, thief = world.client(), world.client()
    attestation = guest.attestation(guest.auth().json())
    attestation["runtime-data"]["tee-pubkey"] = dict(thief.keys.public.jwk)
    answer = guest.send(attestation)
    assert problem(answer) == (401, "AttestationError", "evidence-unbound")


def test_additional_evidence_is_covered(world: KbsWorld) -> None:
    guest = world.client()
    attestation = guest.attestation(guest.auth().json())
    attestation["tee-evidence"]["additional_evidence"] = "{}"
    assert problem(guest.send(attestation))[2] == "evidence-unbound"


def test_other_code(world: KbsWorld) -> None:
    answer = world.client().attest(code=Digest.of(b"other"))
    assert problem(answer) == (401, "AttestationError", "code-bundle-differs")


def test_refused_attestation_is_logged(world: KbsWorld) -> None:
    world.client().attest(code=Digest.of(b"other"))
    entry = world.last_entry()
    assert (entry.kind, entry.rule) == ("refusal", "code-bundle-differs")


def test_token_is_spent(world: KbsWorld) -> None:
    guest = world.client()
    token = guest.token()
    assert guest.get(token=token).status_code == 200
    for _ in range(2):
        answer = guest.get(token=token)
        assert problem(answer) == (401, "TokenVerifierError", "kbs-no-session")
    # The cookie stands for the same token.
    assert problem(guest.get()) == (401, "TokenVerifierError", "kbs-no-session")
    assert problem(guest.get()) == (401, "TokenNotFound", "kbs-no-session")


def test_token_of_another_is_of_no_use(world: KbsWorld) -> None:
    """A thief that shows it gets what only the attested key opens."""
    guest, thief = world.client(), world.client()
    answer = thief.get(token=guest.token())
    with pytest.raises(Exception, match="authentication"):
        thief.open(answer)
    assert guest.open(answer)


def test_token_expires(world: KbsWorld) -> None:
    guest = world.client()
    token = guest.token()
    world.time_s[0] += 301
    answer = guest.get(token=token)
    world.time_s[0] -= 301
    assert problem(answer) == (401, "TokenVerifierError", "token-expired")


def test_forged_token(world: KbsWorld) -> None:
    guest = world.client()
    token = guest.token()
    head, body, _ = token.split(".")
    for forged in (f"{head}.{body}.{'A' * 86}", "x", "a.b.c", f"{head}.{body}."):
        status, kind, _ = problem(guest.get(token=forged))
        assert (status, kind) == (401, "TokenVerifierError")
    assert guest.get(token=token).status_code == 200


PATHS = {
    "unknown plugin": ("/kbs/v0/pkcs11/x", 404, "PluginNotFound", "kbs-no-plugin"),
    "no plugin": ("/kbs/v0/", 404, "PluginNotFound", "kbs-no-plugin"),
    "too short": ("/kbs/v0/resource/a/b", 404, "InvalidRequestPath", "kbs-bad-path"),
    "too long": (RESOURCE + "/x", 404, "InvalidRequestPath", "kbs-bad-path"),
    "escaped": (
        "/kbs/v0/resource/%2e%2e/%2e%2e/etc",
        404,
        "InvalidRequestPath",
        "http-target",
    ),
    "upper case": (
        "/kbs/v0/resource/A/B/C",
        404,
        "InvalidRequestPath",
        "kbs-bad-path",
    ),
    "another": ("/secrets", 404, "InvalidRequestPath", "kbs-bad-path"),
    "policy": ("/kbs/v0/resource-policy", 401, "AdminAuthAccess", "kbs-no-admin"),
    "long": ("/kbs/v0/" + "x" * 2000, 414, "LimitReached", "http-target"),
    "nobody": (RESOURCE, 401, "TokenNotFound", "kbs-no-session"),
}


@pytest.mark.parametrize(("path", "status", "kind", "rule"), PATHS.values(), ids=PATHS)
def test_path(world: KbsWorld, path: str, status: int, kind: str, rule: str) -> None:
    assert problem(world.client().get(path)) == (status, kind, rule)


@pytest.mark.parametrize(
    "path",
    [
        "no-such/train/ada-train",
        "joint-digits/train/zoe",
        "joint-digits/heldout/ada-train",
    ],
)
def test_unknown_resource(world: KbsWorld, path: str) -> None:
    guest = world.client()
    guest.token()
    answer = guest.get(f"/kbs/v0/resource/{path}")
    assert problem(answer) == (404, "InvalidRequestPath", "no-resource")


def test_writing_is_not_open(world: KbsWorld) -> None:
    answer = world.client().http.post(RESOURCE, content=b"x")
    assert problem(answer) == (401, "AdminAuthAccess", "kbs-no-admin")


def test_message_that_is_none(world: KbsWorld) -> None:
    guest = world.client()
    deep = b"[" * 10_000
    twice = b'{"version":"0.4.0","tee":"sample","tee":"tdx"}'
    for raw in (b"", b"{", b"[]", b"null", b"\xff", deep, twice, b'{"version":NaN}'):
        answer = guest.http.post("/kbs/v0/auth", content=raw)
        status, kind, _ = problem(answer)
        assert (status, kind) == (401, "AttestationError")


def test_stock_fields_do_no_harm(world: KbsWorld) -> None:
    """What a client of Trustee sends besides."""
    guest = world.client()
    challenge = guest.auth(
        **{"extra-params": {**AUTH["extra-params"], "tee-metadata": {}}}  # type: ignore[dict-item]
    ).json()
    attestation = guest.attestation(challenge)
    attestation["init-data"] = {"format": "toml", "body": "x = 1"}
    assert guest.send(attestation).status_code == 200
    assert json.loads(guest.get().content)["protected"]
