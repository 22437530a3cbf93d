"""`sealift model seal` is stopped between key and files: the same command goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from sealift.cli import model
from sealift.cli.main import main
from sealift.crypto.identity import create_identity
from sealift.data import staging
from sealift.train.serving import sealedmodel
from tests.sim.servinghowto import boxes

IDENTITY = create_identity("lab")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(model, "load_identity", lambda path, passphrase: IDENTITY)
    monkeypatch.chdir(tmp_path)
    Path("passphrase").write_text("not asked\n")
    Path("form.toml").write_text(boxes("toml")[0])
    Path("m.safetensors").write_bytes(save({"w": np.ones(4, np.float32)}))
    return tmp_path


def seal() -> int:
    return main(
        ["model", "seal", "m.safetensors", "--form", "form.toml", "--name", "m",
         "--vault", "v.db", "--key", "lab.key", "--passphrase-file", "passphrase",
         "-o", "out", "--json"]
    )  # fmt: skip


class KilledError(BaseException):
    """In the place of a SIGKILL: nothing may run after it."""


def killed(monkeypatch: pytest.MonkeyPatch, place: object, step: str) -> None:
    def strike(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as context:
        context.setattr(place, step, strike)
        settle, calls = staging._settle, [0]

        def settled_once(*words: object) -> bool:
            calls[0] += 1
            return settle(*words) if calls[0] == 1 else False  # type: ignore[arg-type]

        context.setattr(staging, "_settle", settled_once)
        with pytest.raises(KilledError):
            seal()


def left() -> set[str]:
    return {path.name for path in Path("out").iterdir()}


def test_once_the_key_is_kept_the_files_follow(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(monkeypatch, sealedmodel, "place")
    assert left() == {".m.sealing"}
    assert seal() == 0
    said = capsys.readouterr()
    assert "m.safetensors was not read again" in said.err
    assert json.loads(said.out)["name"] == "m"
    assert left() == {"m.sealed", "m.resource.json"}
    assert seal() == 2
    assert "It is sealed already, in out" in capsys.readouterr().err


def test_before_it_is_sealed_anew(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(monkeypatch, model.OwnersVault, "keep")
    assert left() == {".m.sealing"}
    assert not Path("v.db").exists()
    assert seal() == 0
    assert "not read again" not in capsys.readouterr().err
    assert left() == {"m.sealed", "m.resource.json"}
