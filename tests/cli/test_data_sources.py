"""`sealift data seal` from sources that say their schema: what it prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sealift.cli import data
from sealift.cli.arguments import Parser
from sealift.crypto.identity import create_identity, save_identity
from sealift.data.schema.document import load_schema
from sealift.errors import SealiftError

KEYS = ("--vault", "v.db", "--key", "north.key", "--passphrase-file", "passphrase")


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "north.key"
    save_identity(create_identity("north"), path, "correct horse")
    return path


@pytest.fixture
def home(tmp_path: Path, identity: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "north.key").write_bytes(identity.read_bytes())
    (tmp_path / "passphrase").write_text("correct horse\n")
    np.savez(tmp_path / "t.npz", x=np.eye(3, dtype=np.float32), Label=np.arange(3))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seal(source: str, *words: str) -> None:
    parser = Parser(prog="sealift")
    data.add_parser(parser.add_subparsers(required=True))
    given = ["data", "seal", source, "--name", "n", "--part", "train", *KEYS, *words]
    args = parser.parse_args(given)
    assert not args.run(args)


def refused(source: str, *words: str) -> SealiftError:
    with pytest.raises(SealiftError) as caught:
        seal(source, *words)
    assert "\n" not in str(caught.value)
    assert not list(Path().glob("n.*"))
    assert not Path("v.db").exists()
    return caught.value


def test_several_shards(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seal("t.npz", "--fields", "label=Label", "--shards", "2", "--json")
    shards = json.loads(capsys.readouterr().out)["shards"]
    assert [(each["name"], each["rows"]) for each in shards] == [("n-0", 2), ("n-1", 1)]
    assert {path.name for path in home.glob("n[.-]*")} == {
        "n-0.sealed", "n-0.resource.json", "n-1.sealed", "n-1.resource.json",
        "n.schema.toml",
    }  # fmt: skip
    with pytest.raises(SealiftError, match="n-") as caught:
        seal("t.npz", "--fields", "label=Label", "--shards", "2")
    assert caught.value.code == "key-exists"


def test_the_schema_is_shown_and_written(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seal("t.npz", "--fields", "x,label=Label", "--json")
    said = capsys.readouterr()
    assert "n.schema.toml\n" in said.err
    text = (home / "n.schema.toml").read_text()
    assert text in said.err
    assert [field.name for field in load_schema(home / "n.schema.toml").fields] == [
        "x", "label",
    ]  # fmt: skip
    assert json.loads(said.out)["rows"] == 3
    assert {path.name for path in home.glob("n.*")} == {
        "n.sealed", "n.resource.json", "n.schema.toml",
    }  # fmt: skip


def test_a_schema_given_is_not_written_again(home: Path) -> None:
    (home / "s.toml").write_text(
        '[[fields]]\nname = "label"\ndtype = "int64"\nclasses = 3\n'
    )
    seal("t.npz", "--fields", "label=Label", "--schema", "s.toml")
    assert not (home / "n.schema.toml").exists()


@pytest.mark.parametrize(
    ("source", "words", "code", "exit_code", "said"),
    [
        ("t.npz", (), "no-schema", 6, "'Label'"),
        ("t.csv", (), "no-schema", 6, "--schema"),
        ("t.npz", ("--fields", "x,x=Label"), "usage", 2, "--fields"),
        ("t.npz", ("--fields", "y"), "usage", 2, "no column 'y'"),
        ("t.npz", ("--image-size", "9"), "usage", 2, "HEIGHTxWIDTH"),
        ("t.npz", ("--image-size", "9x9", "--fields", "x"), "usage", 2, "--image-size"),
        ("none.parquet", (), "cannot-read", 3, "no such file"),
        ("nowhere", (), "cannot-read", 3, "no such file"),
        ("passphrase", (), "unknown-source", 2, "Use one of"),
        ("no_module:rows", (), "bad-dataset", 2, "cannot load no_module:rows"),
    ],
)
def test_what_is_refused(
    home: Path,
    source: str,
    words: tuple[str, ...],
    code: str,
    exit_code: int,
    said: str,
) -> None:
    (home / "t.csv").write_text("a\n1\n")
    error = refused(source, *words)
    assert (error.code, error.exit_code) == (code, exit_code)
    assert said in str(error)


def test_a_row_out_of_range_leaves_nothing(home: Path) -> None:
    (home / "s.toml").write_text(
        '[[fields]]\nname = "label"\ndtype = "int64"\nclasses = 2\n'
    )
    error = refused("t.npz", "--fields", "label=Label", "--schema", "s.toml")
    assert error.code == "bad-row"
    assert "label[2]: 2 is not at most 1" in str(error)


def test_the_owners_module_is_found_in_this_folder(home: Path) -> None:
    (home / "mine_for_a_test.py").write_text(
        "rows = [{'x': float(i), 'n': i} for i in range(5)]\n"
    )
    seal("mine_for_a_test:rows")
    assert load_schema(home / "n.schema.toml").fields[1].dtype == "int64"


def test_numbers_under_a_schema_with_categories_are_said(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        '[[fields]]\nname = "x"\ndtype = "float32"\nshape = [3]\n',
        '[[fields]]\nname = "label"\ndtype = "int64"\ncategories = ["a", "b", "c"]\n',
    ]
    (home / "s.toml").write_text("\n".join(rows))
    seal("t.npz", "--fields", "x,label=Label", "--schema", "s.toml")
    said = capsys.readouterr().err
    assert "sealift: label: 0 = a, 1 = b, 2 = c, as the schema numbers them\n" in said
