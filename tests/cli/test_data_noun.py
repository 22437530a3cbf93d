"""`sealift data`, as an owner uses it: what it prints, writes and refuses."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sealift.cli import data
from sealift.cli.arguments import Parser
from sealift.crypto.identity import create_identity, save_identity
from sealift.errors import SealiftError

SCHEMA = """
[[fields]]
name = "x"
dtype = "float32"
shape = [4]
min = 0
max = 1
[[fields]]
name = "label"
dtype = "int64"
classes = 3
"""

Run = Callable[..., None]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("north", "east"):
        save_identity(create_identity(name), folder / f"{name}.key", "correct horse")
    (folder / "passphrase").write_text("correct horse\n")
    (folder / "passphrase").chmod(0o600)
    return folder


@pytest.fixture
def home(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in keys.iterdir():
        shutil.copy(path, tmp_path)  # with its permissions
    (tmp_path / "schema.toml").write_text(SCHEMA)
    x = np.linspace(0, 1, 400, dtype=np.float32).reshape(100, 4)
    np.savez(tmp_path / "t.npz", x=x, label=np.arange(100) % 3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sealift(*words: str) -> None:
    parser = Parser(prog="sealift")
    data.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(words)
    assert not args.run(args)


def seal(*words: str) -> None:
    sealift(
        "data", "seal", "t.npz", "--schema", "schema.toml", "--name", "north-train",
        "--part", "train", "--vault", "vault.db", "--key", "north.key",
        "--passphrase-file", "passphrase", "--record-bytes", "256", *words,
    )  # fmt: skip


def inspect(*words: str) -> None:
    sealift("data", "inspect", "north-train.sealed", *words)


WITH_KEY = (
    "--vault", "vault.db", "--key", "north.key", "--passphrase-file", "passphrase",
)  # fmt: skip


def refused(run: Run, *words: str) -> SealiftError:
    with pytest.raises(SealiftError) as caught:
        run(*words)
    assert "\n" not in str(caught.value)
    return caught.value


def written(home: Path) -> set[str]:
    """What stands in the folder beside what was there before."""
    given = {"north.key", "east.key", "passphrase", "schema.toml", "t.npz", "bad.csv"}
    return {path.name for path in home.iterdir()} - given


def test_seal_then_inspect(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seal()
    said = capsys.readouterr()
    assert "owner         north\n" in said.out
    assert "rows          100\n" in said.out
    assert "records       13\n" in said.out
    assert "vault.db" in said.err
    assert "north-train.resource.json" in said.err
    assert written(home) == {
        "north-train.sealed",
        "north-train.resource.json",
        "vault.db",
    }
    inspect()
    said = capsys.readouterr()
    assert "verified           no\n" in said.out
    assert "rows               100\n" in said.out
    assert "not authenticated" in said.err
    inspect(*WITH_KEY)
    said = capsys.readouterr()
    assert "verified           records and content commitment\n" in said.out
    assert said.err == ""


def test_json_is_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seal("--json")
    sealed = json.loads(capsys.readouterr().out)
    assert (sealed["rows"], sealed["owner"]) == (100, "north")
    assert sealed["sealed"] == "north-train.sealed"
    inspect("--json", *WITH_KEY)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["suite"] == "aes-256-gcm"


def test_a_second_resource_goes_to_the_same_vault(home: Path) -> None:
    seal()
    sealift(
        "data", "seal", "t.npz", "--schema", "schema.toml", "--name", "north-heldout",
        "--part", "heldout", *WITH_KEY,
    )  # fmt: skip
    inspect(*WITH_KEY)
    sealift("data", "inspect", "north-heldout.sealed", *WITH_KEY)


def test_without_a_card_records_alone_are_verified(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seal()
    (home / "north-train.resource.json").unlink()
    inspect("--json", *WITH_KEY)
    assert '"verified": "records"' in capsys.readouterr().out


def test_wrong_passphrase_writes_nothing(home: Path) -> None:
    (home / "passphrase").write_text("wrong horse\n")
    error = refused(seal)
    assert (error.exit_code, error.code) == (5, "wrong-passphrase")
    assert written(home) == set()


def test_no_terminal_and_no_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    words = ["data", "inspect", "x.sealed", "--vault", "vault.db", "--key", "north.key"]
    seal()
    words[2] = "north-train.sealed"
    error = refused(sealift, *words)
    assert (error.exit_code, error.code) == (2, "no-terminal")


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("nan", "column x_1"),
        ("", "column x_1"),
        ("2", "column x_1"),
        ("?", "column x_1"),
    ],
)
def test_a_bad_row_is_named_and_writes_nothing(
    home: Path, cell: str, place: str
) -> None:
    (home / "bad.csv").write_text(f"x_0,x_1,x_2,x_3,label\n0,0,0,0,1\n0,{cell},0,0,1\n")
    error = refused(
        sealift, "data", "seal", "bad.csv", "--schema", "schema.toml", "--name", "n",
        "--part", "train", *WITH_KEY,
    )  # fmt: skip
    assert error.exit_code == 6
    assert "bad.csv, line 3, " + place in str(error)
    assert written(home) == set()


@pytest.mark.parametrize(
    ("change", "exit_code", "words"),
    [
        ("[[fields]]\nname = 'x'\ndtype = 'int7'", 6, "dtype"),
        ("fields = [", 6, "is not TOML"),
        ("[[fields]]\nname = 'x'\ndtype = 'int8'\nmni = 3", 6, "fields[0].mni"),
    ],
)
def test_a_bad_schema(home: Path, change: str, exit_code: int, words: str) -> None:
    (home / "schema.toml").write_text(change)
    error = refused(seal)
    assert error.exit_code == exit_code
    assert words in str(error)
    assert written(home) == set()


def test_a_name_twice_is_refused_before_the_work(home: Path) -> None:
    seal()
    for path in home.glob("north-train.*"):
        path.unlink()
    error = refused(seal)
    assert (error.exit_code, error.code) == (2, "key-exists")
    assert written(home) == {"vault.db"}


def test_an_existing_file_is_never_replaced(home: Path) -> None:
    (home / "north-train.sealed").write_bytes(b"precious")
    assert refused(seal).exit_code == 2
    assert (home / "north-train.sealed").read_bytes() == b"precious"
    assert written(home) == {"north-train.sealed"}


def test_a_truncated_file(home: Path) -> None:
    seal()
    path = home / "north-train.sealed"
    path.write_bytes(path.read_bytes()[:-1])
    for words in ((), WITH_KEY):
        assert refused(inspect, *words).exit_code == 6


def test_a_swapped_file(home: Path) -> None:
    seal()
    first = (home / "north-train.sealed").read_bytes()
    sealift(
        "data", "seal", "t.npz", "--schema", "schema.toml", "--name", "other",
        "--part", "train", "--record-bytes", "256", *WITH_KEY,
    )  # fmt: skip
    (home / "north-train.sealed").write_bytes((home / "other.sealed").read_bytes())
    assert refused(inspect, *WITH_KEY).exit_code == 5
    (home / "north-train.sealed").write_bytes(first)
    inspect(*WITH_KEY)


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        (30, "wrong-data-key", "the key does not open north-train.sealed: the file"),
        (300, "record-changed", "north-train.sealed was changed: one of its records"),
        (-1, "record-changed", "north-train.sealed was changed: one of its records"),
    ],
)
def test_a_flipped_byte_is_told_with_the_file(
    home: Path, place: int, code: str, said: str
) -> None:
    seal()
    path = home / "north-train.sealed"
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    error = refused(inspect, *WITH_KEY)
    assert (error.exit_code, error.code) == (5, code)
    assert said in str(error)


def test_another_partys_identity_opens_nothing(home: Path) -> None:
    seal()
    words = [word.replace("north.key", "east.key") for word in WITH_KEY]
    error = refused(inspect, *words)
    assert (error.exit_code, error.code) == (5, "vault-locked")


def test_vault_and_key_belong_together(home: Path) -> None:
    seal()
    assert refused(inspect, "--vault", "vault.db").exit_code == 2


@pytest.mark.distributed
def test_a_full_disk(home: Path) -> None:
    """The kernel refuses at a file size limit, as it would on a full disk."""
    program = (
        "import resource, sys\n"
        "from tests.cli.test_data_noun import seal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "from sealift.errors import SealiftError\n"
        "try:\n    seal()\n"
        "except SealiftError as error:\n    print(error); sys.exit(error.exit_code)\n"
    )
    root = str(Path(__file__).parents[2])
    source = str(Path(data.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=False, cwd=home,
        # Python cuts its own byte code at the limit, too, and would leave it broken.
        env={"PYTHONPATH": f"{root}:{source}", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert run.returncode == 3, run.stderr
    assert "the disk is full" in run.stdout
    assert written(home) == set()


def test_the_limit_of_that_test_is_low_enough(home: Path) -> None:
    """Control: without the limit the file is larger than what the limit allows."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    seal()
    assert (home / "north-train.sealed").stat().st_size > 2000


def test_the_folder_is_made(home: Path) -> None:
    seal("-o", "sealed/north")
    assert (home / "sealed" / "north" / "north-train.sealed").exists()


def test_the_grid_is_fixed_when_it_is_sealed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seal()
    assert "cell rows     64\n" in capsys.readouterr().out
    seal("-o", "finer", "--name", "finer", "--cell-rows", "5")
    card = json.loads((home / "finer" / "finer.resource.json").read_text())
    assert card["resource"]["cell_rows"] == 5
    for wrong in ("0", "-1"):
        error = refused(seal, "-o", "none", "--name", "none", "--cell-rows", wrong)
        assert error.exit_code == 2
    assert not (home / "none").exists()
