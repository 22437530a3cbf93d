"""An owner's policy in Rego: it can only refuse, and learns nothing but its input."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.errors import MalformedError, PolicyError, SealiftError, UnavailableError
from sealift.ids import Digest
from sealift.release import regopolicy, releasedesk
from sealift.release.agreement import Resource
from sealift.release.collect import collect_release
from sealift.release.regopolicy import OwnerPolicies, OwnerPolicy, Question
from tests.sim.owners import (
    NOW_S,
    BrokerBox,
    Consortium,
    evidence_result,
    make_broker,
    make_consortium,
    session_pair,
)

CONSORTIUM = make_consortium()
# The shapes of Trustee's own resource policies: a string per rule is compared with the
# claims of every submodule, or with the summary that newer releases hand over.
AFFIRMING = b"""package policy
import rego.v1
default allow = false
allow if { not worse; count(input.submods) > 0 }
worse if { some _, each in input.submods; each["ear.status"] != "affirming" }
"""
SUMMARY = b"""package policy
default allow = false
plugin = data.plugin
allow if {
    plugin == "resource"
    input.trust_context.attestation_summary.verification_result == true
}
"""
OLDER = b"""package policy
default allow = false
allow {
    data.plugin == "resource"
    data["resource-path"][2] == "ada-train"
    input["submods"]["cpu0"]["ear.trustworthiness-vector"]["hardware"] == 97
}
"""
ALLOW = b"package policy\nallow := true\n"
DENY = b"package policy\nallow := false\n"
UNTIL = f"package policy\nallow if {{ input.iat <= {int(NOW_S)} }}\n".encode()


def question(at_s: float = NOW_S) -> Question:
    agreement = CONSORTIUM.agreement
    return Question(
        result=evidence_result(CONSORTIUM),
        line=agreement.name,
        agreement=agreement.digest,
        resource=agreement.resource("ada-train"),
        challenge=bytes(32),
        bound=Digest.of(b"session"),
        at_s=int(at_s),
    )


@pytest.mark.parametrize(
    ("source", "allows"),
    [
        (ALLOW, True),
        (DENY, False),
        (OLDER, True),  # development evidence has hardware 97
        (AFFIRMING, False),  # and is never affirming
        (SUMMARY, False),
        (UNTIL, True),
        (b"package policy\nallow := 1\n", False),  # true, not something like it
        (b'package policy\nallow := "true"\n', False),
        (b"package policy\nallow if { 1 == 2 }\n", False),  # undefined
        (b"package other\nallow := true\n", False),
        (b"package policy\nallow if { data.plugin == 1 / 0 }\n", False),
        (b'package policy\nallow := data.plugin == "resource"\n', True),
    ],
)
def test_only_true_allows(source: bytes, allows: bool) -> None:
    policy = OwnerPolicy(source)
    if allows:
        policy.require_allowed(question())
        return
    with pytest.raises(PolicyError) as caught:
        policy.require_allowed(question())
    assert caught.value.code == "owner-policy-refused"


def test_time_is_what_the_input_says() -> None:
    with pytest.raises(PolicyError):
        OwnerPolicy(UNTIL).require_allowed(question(NOW_S + 1))


def test_affirming_evidence_passes_trustees_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control: the refusals above are for development evidence, not for the shape."""
    asked = question()
    good = asked.to_input()
    good["submods"]["cpu0"]["ear.status"] = "affirming"
    good["trust_context"]["attestation_summary"]["verification_result"] = True
    monkeypatch.setattr(Question, "to_input", lambda self: good)
    OwnerPolicy(AFFIRMING).require_allowed(asked)
    OwnerPolicy(SUMMARY).require_allowed(asked)


@pytest.mark.parametrize(
    "text",
    [
        "allow := opa.runtime().env.HOME",
        'allow := opa["runtime"]()',
        "allow := opa\n.runtime()",
        "import opa.runtime as q\nallow := q()",
        "import opa as o\nallow := o.runtime()",
        "allow := time.now_ns() > 0",
        'allow := time["now\\u005fns"]() > 0',
        "import time as t\nallow := t.parse_rfc3339_ns(1)",
        'allow := rand.intn("x", 2) == 1',
        'allow := uuid.rfc4122("x") == ""',
        'allow := http.send({"url": "http://localhost"})',
        'allow := net.lookup_ip_addr("localhost")',
        "allow := io.jwt.decode_verify(1, 2)",
    ],
)
def test_what_looks_around_is_refused(text: str) -> None:
    with pytest.raises(MalformedError) as caught:
        OwnerPolicy(f"package policy\n{text}\n".encode())
    assert caught.value.code == "owner-policy-impure"


def test_even_a_policy_that_looks_around_would_see_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: without the search the worker's own emptiness still holds."""
    monkeypatch.setattr(regopolicy, "_require_pure", lambda text: None)
    monkeypatch.setenv("SECRET", "1")
    for name in ("SECRET", "HOME", "PATH"):
        text = f"package policy\nallow if {{ opa.runtime().env.{name} }}\n"
        with pytest.raises(PolicyError):
            OwnerPolicy(text.encode()).require_allowed(question())
    control = b"package policy\nallow if { opa.runtime().version }\n"
    OwnerPolicy(control).require_allowed(question())


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"package policy\nallow if {",
        b"\xff",
        b"package policy\n" + b"#" * (1 << 17),
    ],
)
def test_what_is_no_policy(source: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        OwnerPolicy(source)
    assert caught.value.code == "owner-policy-malformed"


def test_a_policy_that_takes_everything_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = b"""package policy
allow if { data.plugin; count(numbers.range(1, 1000000000)) > 0 }
"""
    with pytest.raises((PolicyError, MalformedError)) as caught:
        OwnerPolicy(endless).require_allowed(question())
    assert caught.value.code in {"owner-policy-refused", "owner-policy-malformed"}


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="sealift") as caught:
        OwnerPolicy(ALLOW)
    assert caught.value.code == "extra-missing"


# ------------------------------------------------------------------- in the broker


def with_policy(source: bytes, **rule: Any) -> Consortium:
    """A consortium whose owner ada names a policy."""
    consortium = make_consortium()
    digest = Digest.of(source)

    def named(each: Resource) -> Resource:
        if each.owner != "ada":
            return each
        return replace(each, rule=replace(each.rule, policy=digest, **rule))

    agreement = consortium.agreement
    changed = replace(agreement, resources=tuple(map(named, agreement.resources)))
    return replace(consortium, agreement=changed)


def release(source: bytes, folder: Path, **rule: Any) -> str:
    """``released``, or the name of the refusal."""
    consortium = with_policy(source, **rule)
    try:
        with closing(make_broker_with(consortium, folder, (source,))) as box:
            session = session_pair(consortium, box.broker, "ada")
            key, _ = collect_release(
                session, consortium.verified(), "ada-train", clock=lambda: 0.0
            )
    except SealiftError as error:
        return error.why.rpartition("[")[2].rstrip("]")
    key.wipe()
    return "released"


def make_folder(above: Path, given: tuple[bytes, ...]) -> Path:
    folder = above / str(len(given))
    folder.mkdir()
    return folder


def make_broker_with(
    consortium: Consortium, folder: Path, sources: tuple[bytes, ...]
) -> BrokerBox:
    policies = OwnerPolicies(OwnerPolicy(each) for each in sources)
    return make_broker(consortium, "ada", folder, policies=policies)


def test_the_broker_asks_the_owners_policy(tmp_path: Path) -> None:
    for name, source, outcome in (
        ("a", ALLOW, "released"),
        ("b", DENY, "owner-policy-refused"),
        ("c", AFFIRMING, "owner-policy-refused"),
    ):
        (tmp_path / name).mkdir()
        assert release(source, tmp_path / name) == outcome


def test_a_policy_does_not_replace_the_native_rules(tmp_path: Path) -> None:
    assert release(ALLOW, tmp_path, not_after=1) == "resource-expired"


def test_without_the_question_a_refusing_policy_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what the desk's question keeps in."""
    monkeypatch.setattr(
        releasedesk.ReleaseDesk, "_consult", lambda self, asked, resource: None
    )
    assert release(DENY, tmp_path) == "released"


def test_a_broker_does_not_start_without_the_agreed_policy(tmp_path: Path) -> None:
    consortium = with_policy(DENY)
    for given in ((), (ALLOW,)):  # another one, however generous, is not the agreed one
        with pytest.raises(UnavailableError) as caught:
            make_broker_with(consortium, make_folder(tmp_path, given), given)
        assert caught.value.code == "owner-policy-absent"
