"""What people see and type around a shared broker, without starting one."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.cli import brokershared
from sealift.cli.brokershared import require_agreed_code
from sealift.cli.main import main
from sealift.cli.owncode import own_code
from sealift.errors import IntegrityError
from sealift.ids import Digest
from sealift.release.agreement import SharedBroker
from sealift.release.signed import save_signed
from sealift.release.starter import Starter
from tests.sim.owners import make_consortium
from tests.sim.shared_broker import SHARED, entrusting


def test_check_says_who_can_read_the_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, world in (("plain", make_consortium()), ("shared", entrusting())):
        path = tmp_path / f"{name}.json"
        save_signed(world.signed(), path)
        assert main(["agreement", "check", str(path)]) == 0
    plain, _, shared = capsys.readouterr().out.rpartition("agreement  joint-digits")
    assert "broker-readable" not in plain
    assert "can read every key that is entrusted to it, of ada, bern" in shared
    assert "[one-broker]" in shared
    assert "keys of cleo: their owner's own broker alone" in shared


def test_another_version_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = SharedBroker("cleo", own_code(), ("ada",))
    assert require_agreed_code(ours) == ours.code
    with pytest.raises(IntegrityError) as caught:
        require_agreed_code(replace(ours, code=Digest.of(b"another")))
    assert caught.value.code == "code-bundle-differs"
    monkeypatch.setattr(brokershared, "own_code", lambda: Digest.of(b"changed"))
    with pytest.raises(IntegrityError):
        require_agreed_code(ours)


def test_the_starter_names_it() -> None:
    plain = Starter(
        name="line",
        now_s=0.0,
        party_cards=[("a.card.json", "ada"), ("c.card.json", "cleo")],
        resource_cards=[("a.resource.json", "ada")],
        bundle="code",
        entry="recipe.py",
        model_owner="cleo",
        operator="cleo",
        attesters=[],
    )
    assert "shared_broker" not in tomllib.loads(plain.to_toml())
    written = tomllib.loads(replace(plain, shared_broker=SHARED).to_toml())
    assert written["shared_broker"] == {
        "operator": "cleo",
        "code": SHARED.code.to_text(),
        "owners": ["ada", "bern"],
    }
