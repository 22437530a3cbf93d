"""`agreement veto --tell JOB`: running brokers obey at once, wherever their files are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.crypto.identity import save_identity
from sealift.release.agreement.signed import save_signed
from tests.sim.brokertown import Town
from tests.worlds.consortium import make_consortium

PASSPHRASE = "only for this test"


def test_a_veto_reaches_a_running_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_consortium()
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
    save_signed(world.signed(), ours / "agreement.json")
    save_identity(world.identities["bern"], ours / "bern.key", PASSPHRASE)
    (ours / "pass").write_text(PASSPHRASE)
    with closing(Town(tmp_path)) as town:
        host, port = town.address
        job = 'name = "digits"\nagreement = "agreement.json"\nbundle = "recipe"\n'
        (ours / "job.toml").write_text(f'{job}orchestrator = "{host}:{port}"\n')
        town.start(world, "ada", theirs)
        assert town.collect(world, "ada") == "released"
        words = ["--key", str(ours / "bern.key"), "--passphrase-file"]
        words += [str(ours / "pass"), "--yes", "--tell", str(ours / "job.toml")]
        assert main(["agreement", "veto", str(ours / "agreement.json"), *words]) == 0
        said = capsys.readouterr()
        assert "the broker of ada" in said.out
        assert "the broker of cleo" in said.err  # it does not run
        assert "agreement-vetoed" in town.collect(world, "ada")
        assert [path.name for path in theirs.iterdir()] == [
            "joint-digits-1-bern-veto.statement.json"
        ]
