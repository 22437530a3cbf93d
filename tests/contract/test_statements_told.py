"""`agreement veto --tell JOB`: running brokers obey at once, wherever their files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.cli.judging import wall_clock
from sealift.cli.main import main
from sealift.crypto.identity import save_identity
from sealift.release.signed import save_signed
from tests.sim.shared_broker import Town, entrusting, owner_vault

PASSPHRASE = "only for this test"


def test_a_veto_reaches_a_running_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = entrusting()
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
    save_signed(world.signed(), ours / "agreement.json")
    save_identity(world.identities["bern"], ours / "bern.key", PASSPHRASE)
    (ours / "pass").write_text(PASSPHRASE)
    town = Town(world, tmp_path / "logs", statements=theirs)
    town.clock.now_s = wall_clock()
    try:
        host, port = town.relay.address
        job = 'name = "digits"\nagreement = "agreement.json"\nbundle = "recipe"\n'
        (ours / "job.toml").write_text(f'{job}orchestrator = "{host}:{port}"\n')
        vault = owner_vault(world, "ada", tmp_path / "v")
        terms = town.terms(600)
        town.entrust("ada", vault, terms)
        vault.close()
        assert town.collect("ada") == "released"
        words = [
            "--key",
            str(ours / "bern.key"),
            "--passphrase-file",
            str(ours / "pass"),
        ]
        words += ["--yes", "--tell", str(ours / "job.toml")]
        assert main(["agreement", "veto", str(ours / "agreement.json"), *words]) == 0
        said = capsys.readouterr()
        assert "told       the broker of ada" in said.out
        assert "the broker of cleo does not know it" in said.err  # it does not run
        assert "agreement-vetoed" in town.collect("ada")
        assert [path.name for path in theirs.iterdir()] == [
            "joint-digits-1-bern-veto.statement.json"
        ]
    finally:
        town.close()
