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
from sealift.crypto.keys import SecretKey
from sealift.data import staging
from sealift.data.ownersvault import OwnersVault
from sealift.data.schema.card import read_card
from sealift.data.schema.schema import Field, Schema
from sealift.data.sealing import seal_shards
from sealift.train.output.modelform import form_of
from tests.cli.test_predict_here import write_model
from tests.sim.servinghowto import boxes

IDENTITY = create_identity("lab")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(model, "unlock", lambda *words: IDENTITY)
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
        settle, calls = staging.Staging.settle, [0]

        def settled_once(*words: object) -> bool:
            calls[0] += 1
            return settle(*words) if calls[0] == 1 else False  # type: ignore[arg-type]

        context.setattr(staging.Staging, "settle", settled_once)
        with pytest.raises(KilledError):
            seal()


def schema_of_floats() -> Schema:
    return Schema((Field("x", "float64"),))


def left() -> set[str]:
    return {path.name for path in Path("out").iterdir()}


def test_what_the_model_was_built_with_is_sealed_with_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(home)
    (home / "model.safetensors").rename("m.safetensors")
    form = Path("form.toml").read_text()
    Path("form.toml").write_text(f"{form}\n[parameters]\nwidth = 3\n")
    assert seal() == 2
    assert "are not those that the model was trained with" in capsys.readouterr().err
    Path("form.toml").write_text(form)
    assert seal() == 0
    card = read_card(Path("out") / "m.resource.json")
    assert form_of(card.resource).parameters == {"width": 2}


def test_parameters_that_nobody_knows_are_not_sealed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(home, parameters=None)
    (home / "model.safetensors").rename("m.safetensors")
    assert seal() == 2
    assert "does not say which parameters" in capsys.readouterr().err


def test_once_the_key_is_kept_the_files_follow(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(monkeypatch, staging.Staging, "place")
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


@pytest.mark.parametrize("shards", [["m"], ["m-0", "m-1"]])
def test_a_table_of_that_name_is_no_model(
    home: Path, capsys: pytest.CaptureFixture[str], shards: list[str]
) -> None:
    """`data seal` was stopped under the same name: that is not what is asked for."""
    np.save("t.npy", np.arange(4.0))
    keys = {name: SecretKey.generate() for name in shards}
    vault = OwnersVault(Path("v.db"), IDENTITY)
    Path("apart").mkdir()
    seal_shards(
        "t.npy", schema_of_floats(), name="m", keys=keys, part="train", owner="lab",
        out_dir=Path("apart"), keep=lambda cards: vault.keep(keys),
    )  # fmt: skip
    Path("out").mkdir()
    Path("apart").rename("out/.m.sealing")
    code = seal()
    said = capsys.readouterr()
    assert "had sealed m;" in said.err
    if shards == ["m"]:
        assert (code, said.out) == (2, "")
        assert "It is sealed already, in out" in said.err
    else:  # a model may have the name that no table has
        assert code == 0
        assert "not read again" not in said.err
        assert {"m.sealed", "m-0.sealed"} < left()


def test_another_form_is_another_model(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(monkeypatch, staging.Staging, "place")
    form = Path("form.toml").read_text()
    assert "max_rows" in form
    other = "\n".join(
        "max_rows = 3" if line.startswith("max_rows") else line
        for line in form.splitlines()
    )
    Path("form.toml").write_text(other)
    assert seal() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "It is sealed already, in out" in said.err


def test_what_somebody_else_put_there_is_not_ours(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of another key, with the mark that says that its key is kept."""
    killed(monkeypatch, staging.Staging, "place")
    Path("out/.m.sealing/placing").touch()
    Path("v.db").unlink()
    assert seal() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "[output-exists]" in said.err
