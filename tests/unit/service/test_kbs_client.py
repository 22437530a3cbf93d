"""Our client: against our server, against recorded forms of a Trustee, against liars."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from sealift.attest.attester import Attester
from sealift.attest.attesters.configfs import TsmReader
from sealift.attest.attesters.tdx import TdxAttester
from sealift.attest.tdx import parse_body
from sealift.codec import encode
from sealift.crypto.hash import digest
from sealift.crypto.jwe import RecipientKey, RecipientKeyPair
from sealift.crypto.keys import TOKEN
from sealift.errors import SealiftError
from sealift.ids import Digest
from sealift.service.kbsclient import KbsClient
from sealift.service.kbsevidence import to_evidence
from tests.sim.intel_world import IntelWorld
from tests.sim.kbs_world import KbsWorld, development, kbs_world
from tests.sim.tdx_vectors import td_report
from tests.sim.tsm_folder import StandInTsmFolder

PATH = "joint-digits/train/ada-train"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KbsWorld]:
    with kbs_world(tmp_path_factory.mktemp("kbs")) as made:
        yield made


def client(world: KbsWorld, **changes: Any) -> KbsClient:
    settings: dict[str, Any] = {
        "url": world.url,
        "attester": development(world),
        "agreement": world.consortium.agreement.digest,
    }
    return KbsClient(**{**settings, **changes})


def refusal(run: Callable[[], object]) -> str:
    with pytest.raises(SealiftError) as caught:
        run()
    return caught.value.code


def test_key_from_our_server(world: KbsWorld) -> None:
    resource = world.consortium.agreement.resource("ada-train")
    found = client(world).fetch_key("joint-digits", resource)
    assert found.reveal(TOKEN) == world.consortium.keys["ada-train"].reveal(TOKEN)


def test_refusals(world: KbsWorld) -> None:
    other = client(world, attester=development(world, Digest.of(b"other")))
    assert refusal(lambda: other.fetch(PATH)) == "kbs-refused"
    agreement = client(world, agreement=Digest.of(b"other"))
    assert refusal(lambda: agreement.fetch(PATH)) == "kbs-other-agreement"
    ours = client(world)
    assert refusal(lambda: ours.fetch("joint-digits/train/bern-train")) == "kbs-refused"
    for path in ("a/b", "a/b/c/d", "../../x", "a/b/..", "a/b/c?x", "a/b/%2e"):
        assert refusal(lambda path=path: ours.fetch(path)) == "kbs-bad-path"  # type: ignore[misc]
    for url in ("ftp://x", "http://", "nothing", "http://h/?q"):
        bad = client(world, url=url)
        assert refusal(lambda bad=bad: bad.fetch(PATH)) == "bad-address"  # type: ignore[misc]
    gone = client(world, url="http://127.0.0.1:1")
    assert refusal(lambda: gone.fetch(PATH)) == "kbs-unreachable"


def test_a_trustee_reads_no_development_evidence(world: KbsWorld) -> None:
    trustee = client(world, agreement=None)
    assert refusal(lambda: trustee.fetch(PATH)) == "kbs-evidence-form"


def test_key_of_another_resource(world: KbsWorld) -> None:
    """A server that hands out another key than the one that was agreed on."""
    agreement = world.consortium.agreement
    resource = agreement.resource("ada-train")
    other = RecipientKeyPair()

    def lie(script: Script, step: str, content: Any) -> tuple[int, Any]:
        if step == "auth":
            raw = bytes(32) + agreement.digest.raw
            return 200, {"nonce": base64.b64encode(raw).decode(), "extra-params": ""}
        if step == "attest":
            script.key = RecipientKey.from_jwk(content["runtime-data"]["tee-pubkey"])
            return 200, {"token": "a.b.c"}
        return 200, (script.key or other.public).seal(bytes(32))

    with scripted(lie) as script:
        liar = client(world, url=script.url)
        assert refusal(lambda: liar.fetch_key("joint-digits", resource)) == "other-key"
        assert script.seen[-1][1]["authorization"] == "Bearer a.b.c"


# a Trustee, as its source says it speaks


class Script:
    """A server that answers by a function of (step, content)."""

    def __init__(self, answer: Callable[[Script, str, Any], tuple[int, Any]]) -> None:
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.key: RecipientKey | None = None
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", 0))
                content = json.loads(self.rfile.read(size)) if size else None
                step = self.path.removeprefix("/kbs/v0/")
                headers = {k.lower(): v for k, v in self.headers.items()}
                script.seen.append((step, headers, content))
                status, body = answer(script, step, content)
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                if step == "auth":
                    session = (
                        "kbs-session-id=0123456789abcdef; Expires=Wed, 21 Oct 2026"
                    )
                    self.send_header("set-cookie", session)
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST  # noqa: N815 - http.server names it

            def log_message(self, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def scripted(
    answer: Callable[[Script, str, Any], tuple[int, Any]],
) -> Iterator[Script]:
    script = Script(answer)
    thread = threading.Thread(target=script.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield script
    finally:
        script.server.shutdown()
        thread.join()
        script.server.server_close()


def trustee(script: Script, step: str, content: Any) -> tuple[int, Any]:
    """Version 0.21: the nonce of its built-in attestation service, sha384 unsaid."""
    if step == "auth":
        nonce = base64.b64encode(bytes(range(32))).decode()
        return 200, {"nonce": nonce, "extra-params": ""}
    if step == "attest":
        script.key = RecipientKey.from_jwk(content["runtime-data"]["tee-pubkey"])
        return 200, {"token": "eyJ.eyJ.c2ln"}
    assert script.key is not None
    return 200, script.key.seal(b"a secret")


def tdx_attester(world: IntelWorld) -> TdxAttester:
    folder = StandInTsmFolder(lambda inblob, level: (world.quote(inblob), b""))
    return TdxAttester(TsmReader(folder), world.guest, Path("/absent"))


def test_tdx_guest_and_a_trustee() -> None:
    """The messages are those of the protocol, and the quote binds what Trustee hashes."""
    intel = IntelWorld()
    with scripted(trustee) as script:
        found = KbsClient(url=script.url, attester=tdx_attester(intel)).fetch(
            "default/key/1"
        )
    assert found == b"a secret"
    steps = [step for step, _, _ in script.seen]
    assert steps == ["auth", "attest", "resource/default/key/1"]
    begun, attested = script.seen[0][2], script.seen[1][2]
    assert (begun["version"], begun["tee"]) == ("0.4.0", "tdx")
    assert script.seen[1][1]["cookie"] == "kbs-session-id=0123456789abcdef"
    runtime, evidence = attested["runtime-data"], attested["tee-evidence"]
    assert set(runtime) == {"nonce", "tee-pubkey"}
    assert set(runtime["tee-pubkey"]) == {"kty", "crv", "alg", "x", "y"}
    assert set(evidence) == {"primary_evidence", "additional_evidence"}
    covered = {**runtime, "additional-evidence": evidence["additional_evidence"]}
    expected = digest("sha384", encode(covered)).ljust(64, b"\0")
    form = evidence["primary_evidence"]
    assert base64.b64decode(form["quote"])  # Trustee: standard base64
    body = parse_body(to_evidence("tdx", form).body)
    assert td_report(body.quote).report_data == expected


ANSWERS: dict[str, tuple[str, tuple[int, Any], str]] = {
    "no JSON": ("auth", (200, b"<html>"), "kbs-answer"),
    "no object": ("auth", (200, []), "kbs-answer"),
    "no nonce": ("auth", (200, {}), "kbs-answer"),
    "another hash": (
        "auth",
        (
            200,
            {"nonce": "x", "extra-params": {"selected-hash-algorithm": "md5"}},
        ),
        "kbs-answer",
    ),
    "no token": ("attest", (200, {}), "kbs-answer"),
    "a token that is a header": ("attest", (200, {"token": "a\r\nb: c"}), "kbs-answer"),
    "refused": (
        "attest",
        (401, {"type": "x/PolicyDeny", "detail": "no"}),
        "kbs-refused",
    ),
    "too large": ("auth", (200, b" " * (2 << 20)), "kbs-answer"),
    "no JWE": ("resource/a/b/c", (200, {}), "malformed"),
    "a text of points": (
        "resource/a/b/c",
        (
            200,
            dict.fromkeys(
                ("protected", "encrypted_key", "iv", "ciphertext", "tag"), "a.b"
            ),
        ),
        "malformed",
    ),
}


@pytest.mark.parametrize(("step", "answer", "rule"), ANSWERS.values(), ids=ANSWERS)
def test_bad_answers(step: str, answer: tuple[int, Any], rule: str) -> None:
    def mostly(script: Script, asked: str, content: Any) -> tuple[int, Any]:
        return answer if asked == step else trustee(script, asked, content)

    attester: Attester = tdx_attester(IntelWorld())
    with scripted(mostly) as script:
        asked = KbsClient(url=script.url, attester=attester, timeout_s=5)
        assert refusal(lambda: asked.fetch("a/b/c")) == rule


def test_encrypted_to_somebody_else() -> None:
    def other(script: Script, asked: str, content: Any) -> tuple[int, Any]:
        if asked.startswith("resource"):
            return 200, RecipientKeyPair().public.seal(b"a secret")
        return trustee(script, asked, content)

    with scripted(other) as script:
        asked = KbsClient(url=script.url, attester=tdx_attester(IntelWorld()))
        assert refusal(lambda: asked.fetch("a/b/c")) == "authentication"
