"""Rule M5: the KBS door is no way around agreement, appraisal, owner, or count.

Each refusal has its mutant: the check taken away, and the key comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.attest import check as attest_check
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.crypto.keys import TOKEN
from sealift.ids import Digest
from sealift.release import broker as decision
from sealift.release import brokerserver, ledger, releasedesk
from sealift.release.auditlog import AuditLog
from sealift.service import kbs, kbsforms, kbssessions
from tests.sim.kbs_world import KbsGuest, KbsWorld, kbs_world, open_to_kbs, problem
from tests.sim.mutants import Patch, without
from tests.sim.owners import NOW_S, Consortium, make_consortium


def fetch(world: KbsWorld) -> str:
    """``released``, or the rule that kept the key in."""
    guest = world.client()
    attested = guest.attest()
    if attested.status_code != 200:
        return problem(attested)[2]
    return fetched(guest)


def fetched(guest: KbsGuest, **how: Any) -> str:
    answer = guest.get(**how)
    if answer.status_code != 200:
        return problem(answer)[2]
    key = guest.world.consortium.keys["ada-train"].reveal(TOKEN)
    return "released" if guest.open(answer) == key else "another key"


def test_released_where_the_owner_says_so(tmp_path: Path) -> None:
    with kbs_world(tmp_path) as world:
        assert fetch(world) == "released"


def closed(consortium: Consortium) -> Consortium:
    """Rules of sessions only."""
    return consortium


RULES: dict[str, tuple[Callable[[Consortium], Consortium], str, Patch]] = {
    "the rule does not say kbs": (
        closed,
        "kbs-not-allowed",
        without(brokerserver, "require_kbs"),
    ),
    "under a lease": (
        lambda c: open_to_kbs(c, lease_s=60.0, heartbeat_s=10.0),
        "kbs-no-lease",
        without(brokerserver, "require_kbs"),
    ),
    "not yet": (
        lambda c: open_to_kbs(c, not_before=int(NOW_S) + 10),
        "resource-not-yet",
        without(decision, "_require_rule"),
    ),
    "over": (
        lambda c: open_to_kbs(c, not_after=int(NOW_S) - 10),
        "resource-expired",
        without(decision, "_require_rule"),
    ),
}


@pytest.mark.parametrize(("change", "rule", "mutant"), RULES.values(), ids=RULES)
def test_owner_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Consortium], Consortium],
    rule: str,
    mutant: Patch,
) -> None:
    with kbs_world(tmp_path, consortium=change(make_consortium())) as world:
        assert fetch(world) == rule
        assert world.last_entry().rule == rule
        mutant(monkeypatch)
        assert fetch(world) == "released"


def test_uses_are_counted_with_those_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kbs_world(tmp_path, max_uses=2) as world:
        assert [fetch(world) for _ in range(3)] == [
            "released",
            "released",
            "uses-exhausted",
        ]
        without(ledger, "require_use")(monkeypatch)
        assert fetch(world) == "released"


def test_development_evidence_is_not_enough_for_a_tee(tmp_path: Path) -> None:
    consortium = open_to_kbs(make_consortium())
    agreement = replace(consortium.agreement, accept=(Level.TEE,))
    with kbs_world(
        tmp_path, consortium=replace(consortium, agreement=agreement)
    ) as world:
        assert fetch(world) == "development-refused"


def test_code_is_that_of_the_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kbs_world(tmp_path) as world:
        other = Digest.of(b"other")
        assert problem(world.client().attest(code=other))[2] == "code-bundle-differs"
        without(attest_check, "require_passed")(monkeypatch)
        monkeypatch.setattr("sealift.attest.policy.require_passed", lambda checks: None)
        guest = world.client()
        assert guest.attest(code=other).status_code == 200
        # The owner's decision looks again.
        assert fetched(guest) == "code-bundle-differs"


def test_nonce_carries_the_agreement(tmp_path: Path) -> None:
    """Evidence made for one agreement is of no use under another."""
    with kbs_world(tmp_path) as world:
        nonce = world.client().auth().json()["nonce"]
        found = kbsforms.agreement_of_nonce(nonce)
        assert found == world.consortium.agreement.digest


def test_evidence_of_another_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kbs_world(tmp_path) as world:
        honest = kbsforms.make_nonce
        monkeypatch.setattr(
            kbs, "make_nonce", lambda agreement: honest(Digest.of(b"another"))
        )
        assert fetch(world) == "other-agreement"
        without(decision, "_require_same_agreement")(monkeypatch)
        assert fetch(world) == "released"


def test_superseded_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kbs_world(tmp_path) as world:
        after = world.consortium.successor()
        world.box.vault.activate(after.verified())
        assert fetch(world) == "agreement-superseded"
        monkeypatch.setattr(
            world.box.broker._admission, "require_in_force", lambda: None
        )
        assert fetch(world) == "released"


def test_sample_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kbs_world(tmp_path) as world:
        guest = world.client()
        assert problem(guest.auth(tee="sample"))[2] == "kbs-sample-refused"
        without(kbsforms, "_require_tee")(monkeypatch)
        assert guest.auth(tee="sample").status_code == 200
        # And nothing reads it.
        form = {"svn": "1", "report_data": ""}
        challenge = guest.auth(tee="sample").json()
        attestation = guest.attestation(challenge)
        attestation["tee-evidence"]["primary_evidence"] = form
        assert problem(guest.send(attestation))[2] == "kbs-evidence-form"


def test_token_is_single_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kbs_world(tmp_path) as world:
        guest = world.client()
        token = guest.token()
        assert fetched(guest, token=token) == "released"
        assert fetched(guest, token=token) == "kbs-no-session"
        take = kbssessions.OnceStore.take

        def keep(store: Any, name: str, now_s: float) -> Any:
            value = take(store, name, now_s)
            store.put(name, value, now_s)
            return value

        monkeypatch.setattr(kbssessions.OnceStore, "take", keep)
        token = guest.token()
        assert fetched(guest, token=token) == "released"
        # The owner's decision spends the challenge as well.
        assert fetched(guest, token=token) == "challenge-replayed"


def test_evidence_is_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thief with somebody's evidence and a key of its own."""
    with kbs_world(tmp_path) as world:
        guest, thief = world.client(), world.client()
        attestation = guest.attestation(guest.auth().json())
        attestation["runtime-data"]["tee-pubkey"] = dict(thief.keys.public.jwk)
        assert problem(guest.send(attestation))[2] == "evidence-unbound"
        monkeypatch.setattr(Appraiser, "judge", lambda self, claims: None)
        attestation = guest.attestation(guest.auth().json())
        attestation["runtime-data"]["tee-pubkey"] = dict(thief.keys.public.jwk)
        thief.http.cookies.update(guest.http.cookies)
        token = guest.send(attestation).json()["token"]
        assert fetched(thief, token=token) == "released"


def test_log_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that cannot be written: no key, and nothing told of why."""
    from sealift.errors import UnavailableError

    with kbs_world(tmp_path) as world:
        guest = world.client()
        guest.token()

        def full(self: AuditLog, entry: object) -> None:
            raise UnavailableError("cannot write /secret/place", code="disk-full")

        monkeypatch.setattr(AuditLog, "append", full)
        answer = guest.get()
        assert problem(answer) == (503, "PluginInternalError", "disk-full")
        assert b"secret" not in answer.content
        desk = releasedesk.ReleaseDesk
        monkeypatch.setattr(desk, "_log", lambda self, asked, **how: None)
        guest.token()
        assert fetched(guest) == "released"
