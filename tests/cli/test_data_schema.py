"""Three hospitals' own exports: drafted, sealed and agreed on without a converter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sealift.cli.main import main
from sealift.codec import encode
from sealift.crypto.identity import create_identity, save_identity
from sealift.errors import MalformedError
from tests.cli.test_data_noun import sealift

COLUMNS = ("Patient", "Geschlecht", "Größe", "Aufnahme", "Raucher", "Ergebnis")
EXPORTS = {
    "north": ("cp1252", ";", ","),
    "east": ("utf-8-sig", ",", "."),
    "south": ("utf-16", "\t", ","),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in EXPORTS:
        identity = create_identity(name)
        save_identity(identity, tmp_path / f"{name}.key", "correct horse")
        (tmp_path / f"{name}.card.json").write_bytes(encode(identity.card))
    (tmp_path / "passphrase").write_text("correct horse\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def export(
    name: str, *, rows: int = 60, sexes: tuple[str, ...] = ("männlich", "weiblich")
) -> bytes:
    encoding, delimiter, decimal = EXPORTS[name]
    lines = [delimiter.join(COLUMNS)]
    for row in range(rows):
        height = f"{150 + row * 0.5:.1f}".replace(".", decimal)
        cells = (
            f"{name[0]}{row:05d}",
            sexes[row % len(sexes)],
            "" if row % 9 == 4 else height,
            f"{1 + row % 28:02d}.{1 + row % 12:02d}.2024",
            ("ja", "nein", "")[row % 3],
            str(row % 2),
        )
        lines.append(delimiter.join(cells))
    return ("\n".join(lines) + "\n").encode(encoding)


def seal(owner: str, schema: str, source: str = "", name: str = "") -> None:
    words = [
        "--vault",
        "v.db",
        "--key",
        f"{owner}.key",
        "--passphrase-file",
        "passphrase",
    ]
    words += ["--name", name or f"{owner}-train", "--part", "train", "-o", "sealed"]
    sealift("data", "seal", f"{source or owner}.csv", "--schema", schema, *words)


def test_one_draft_seals_all_three(
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drafts = []
    for owner in EXPORTS:
        (home / f"{owner}.csv").write_bytes(export(owner))
        sealift("data", "schema", f"{owner}.csv", "-o", f"{owner}.toml")
        text = (home / f"{owner}.toml").read_text("utf-8")
        drafts.append(text[text.index("leave_out") :])
        assert "left out: Patient" in capsys.readouterr().err
    assert drafts == drafts[:1] * 3
    cards = []
    for owner in EXPORTS:
        seal(owner, "north.toml")
        card = json.loads((home / f"sealed/{owner}-train.resource.json").read_text())
        cards.append(card["resource"])
    assert all(each["rows"] == 60 for each in cards)
    assert all(each["schema"] == cards[0]["schema"] for each in cards)
    said = json.dumps(cards, ensure_ascii=False)
    assert "Patient" not in said  # columns are the owners' own
    assert "Aufnahme" not in said
    assert "weiblich" in said  # categories are for all to read


def test_a_draft_is_printed_and_what_is_unlike_it_told(
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw = export("east").replace(b"150.0", b"klein")
    (home / "east.csv").write_bytes(raw)
    with pytest.raises(MalformedError, match=r"line 2, column Gr.*'klein'"):
        sealift("data", "schema", "east.csv")
    printed = capsys.readouterr().out
    (home / "east.toml").write_text(printed)
    with pytest.raises(MalformedError, match=r"line 2, column Gr.*'klein'"):
        seal("east", "east.toml")
    assert not (home / "sealed").exists() or not list((home / "sealed").iterdir())
    (home / "east.csv").write_bytes(export("east"))
    seal("east", "east.toml")


def test_tables_that_are_unlike_are_refused_before_anybody_signs(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "code").mkdir()
    (home / "code" / "recipe.py").write_text(
        "def prepare(batch):\n    return {'rows': len(batch['ergebnis'])}\n"
    )
    others = {"south": ("männlich", "weiblich", "divers")}
    for owner in EXPORTS:
        raw = export(owner, sexes=others.get(owner, ("männlich", "weiblich")))
        (home / f"{owner}.csv").write_bytes(raw)
        sealift("data", "schema", f"{owner}.csv", "-o", f"{owner}.toml")
        seal(owner, f"{owner}.toml")
    words = ["agreement", "new", "--name", "joint", "--code", "code", "-o", "a.toml"]
    words += ["--party", *(f"{owner}.card.json" for owner in EXPORTS)]
    words += ["--attester", "north.card.json", "--resource"]
    cards = [f"sealed/{owner}-train.resource.json" for owner in EXPORTS]
    assert main([*words, *cards]) == 6
    said = capsys.readouterr().err
    assert 'south-train: geschlecht: categories is ["divers", "männlich", "wei' in said
    assert "[mixed-schemas]" in said
    assert not Path("a.toml").exists()
    assert main([*words, *cards[:2]]) == 0
    capsys.readouterr()
    assert main(["try", "a.toml", "--bundle", "code"]) == 0  # nobody signed it yet
    assert "rows: 1 whole" in capsys.readouterr().out
    seal("east", "south.toml", source="south", name="east-other")
    other = "sealed/east-other.resource.json"
    text = Path("a.toml").read_text("utf-8").replace(cards[1], other)
    assert other in text
    Path("a.toml").write_text(text, "utf-8")
    capsys.readouterr()
    key = ["--key", "north.key", "--passphrase-file", "passphrase", "--yes"]
    signing = ["agreement", "sign", "a.toml", *key]
    trying = ["try", "a.toml", "--bundle", "code"]
    for command in (["agreement", "check", "a.toml"], signing, trying):
        assert main(command) == 6
        assert "[mixed-schemas]" in capsys.readouterr().err


def test_sources_that_say_their_schema_have_it_printed(
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez(home / "t.npz", label=np.arange(9) % 3)
    sealift("data", "schema", "t.npz")
    assert 'name = "label"' in capsys.readouterr().out


def test_files_that_are_written_differently_are_not_drafted_as_one(home: Path) -> None:
    for name, mark in (("a", ","), ("b", ".")):
        (home / name).mkdir()
        (home / name / "t.csv").write_text("x;y\n1;2\n2;3\n")
        (home / name / "table.toml").write_text(f'decimal = "{mark}"\n')
    assert main(["data", "schema", "a/t.csv", "b/t.csv"]) == 2
    assert (
        main(["data", "schema", "a/t.csv", "b/t.csv", "--table", "a/table.toml"]) == 0
    )


def test_a_doubtful_mark_names_the_file_that_is_to_be_made(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has no table.toml reads where it goes, and that the draft is there."""
    (home / "sample.csv").write_text("age;dose\n1;13.860\n2;14.125\n")
    words = ["data", "schema", "sample.csv", "-o", "s.toml"]
    assert main(words) == 6
    said = capsys.readouterr().err
    assert "a draft is in s.toml" in said
    assert (
        'Make a file table.toml beside sample.csv with the line `decimal = "."` if it is a '
        'decimal mark, or `thousands = "."` if it separates thousands, then type the command again'
    ) in said
    (home / "s.toml").unlink()
    (home / "table.toml").write_text('[columns]\nage = "age"\n')
    assert main(words) == 6
    assert 'Write the line `decimal = "."`' in capsys.readouterr().err
    (home / "s.toml").unlink()
    (home / "table.toml").write_text('decimal = "."\n')
    assert main(words) == 0
