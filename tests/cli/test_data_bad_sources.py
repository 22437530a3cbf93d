"""Sources that cannot be sealed, as their owner meets them: one line, nothing written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sealift.cli import data
from sealift.cli.main import main
from sealift.crypto.identity import create_identity
from tests.unit.data.sourcefiles import save_to_disk

AB = '[[fields]]\nname = "a"\ndtype = "float32"\n[[fields]]\nname = "b"\ndtype = "int64"\n'
X = np.zeros((5, 3), np.float32)


IDENTITY = create_identity("north")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A passphrase costs time, and is not what is asked here.
    monkeypatch.setattr(data, "unlock", lambda *words: IDENTITY)
    (tmp_path / "passphrase").write_text("correct horse\n")
    (tmp_path / "ab.toml").write_text(AB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sealed(source: str, *words: str) -> int:
    return main(
        ["data", "seal", source, "--name", "n", "--part", "train", "--vault", "v.db",
         "--key", "north.key", "--passphrase-file", "passphrase", "-o", "out", *words]
    )  # fmt: skip


def refused(capsys: pytest.CaptureFixture[str], source: str, *words: str) -> str:
    """Its exit code and its one line, after what it says of the schema."""
    code = sealed(source, *words)
    said = capsys.readouterr()
    talk, _, line = said.err.rstrip("\n").rpartition("\n")
    assert talk == "" or talk.startswith(("sealift: no --schema ", "sealift: t.csv, "))
    assert line.startswith("sealift: ")
    assert re.search(r"\. [A-Z].* \[[a-z-]+\]$", line), line  # what to do, and a code
    assert ".." not in line
    assert said.out == ""
    assert not list(Path("out").glob("*") if Path("out").is_dir() else ())
    assert not Path("v.db").exists()
    return f"{code} {line.removeprefix('sealift: ')}"


def npz(**arrays: object) -> Callable[[], str]:
    def write() -> str:
        np.savez("t.npz", **arrays)  # type: ignore[arg-type]
        return "t.npz"

    return write


def text(name: str, content: str | bytes) -> Callable[[], str]:
    def write() -> str:
        raw = content if isinstance(content, bytes) else content.encode()
        Path(name).write_bytes(raw)
        return name

    return write


def cut(write: Callable[[], str], keep: int) -> Callable[[], str]:
    def write_and_cut() -> str:
        name = write()
        Path(name).write_bytes(Path(name).read_bytes()[:keep])
        return name

    return write_and_cut


def parquet(**columns: object) -> Callable[[], str]:
    def write() -> str:
        pq.write_table(pa.table(columns), "t.parquet")
        return "t.parquet"

    return write


def flipped_parquet() -> str:
    table = pa.table({"a": np.arange(5000.0)})
    pq.write_table(
        table, "t.parquet", write_page_checksum=True, use_dictionary=False,
        compression="none",
    )  # fmt: skip
    raw = bytearray(Path("t.parquet").read_bytes())
    raw[20_000] ^= 1
    Path("t.parquet").write_bytes(raw)
    return "t.parquet"


ARRAYS: dict[str, tuple[Callable[[], str], str]] = {
    "a NaN": (npz(x=np.array([0, np.nan])), "6 t.npz, x[1]: nan is not finite"),
    "objects": (npz(x=np.array([1, "a", None], object)), "6 t.npz holds Python objects"),
    "ragged": (npz(x=X, label=X[:4]), "6 t.npz: x has 5 rows, and label has 4"),
    "no rows": (npz(x=X[:0]), "6 t.npz has no rows"),
    "no arrays": (npz(), "6 t.npz holds no arrays"),
    "a number": (npz(x=np.float32(1)), "6 t.npz: x is a single number"),
    "complex": (npz(x=X.astype(complex)), "6 t.npz: x has the dtype complex128"),
    "text": (npz(x=np.array(["a"])), "6 t.npz: x has the dtype <U1"),
    "cut": (cut(npz(x=X), 200), "6 t.npz is not a .npz file"),
    "empty": (text("t.npz", ""), "6 t.npz is not a .npz file"),
    "empty npy": (text("t.npy", ""), "6 t.npy is not a .npy array"),
    "empty safetensors": (text("t.safetensors", ""), "6 t.safetensors is not a"),
    "null": (parquet(a=[1.0, None]), "6 t.parquet, row 1, column a: there is no value"),
    "uneven lists": (parquet(a=[[1.0], [1.0, 2.0]]), "6 t.parquet: a holds list<"),
    "cut parquet": (cut(parquet(a=[1.0]), 40), "6 t.parquet is damaged"),
    "no name": (parquet(**{"A b": [1.0]}), "--fields 'a_b=A b'"),
    "a flipped byte": (flipped_parquet, "6 t.parquet is damaged"),
    "no rows parquet": (parquet(a=pa.array([], pa.float32())), "6 t.parquet has no rows"),
}  # fmt: skip
CSV = {
    "empty": ("", "6 t.csv is empty"),
    "header alone": ("a,b\n", "6 t.csv has no rows"),
    "a name twice": (
        "a,a,b\n1,1,2\n",
        "6 t.csv, header: two columns named 'a'. Rename one",
    ),
    "short row": ("a,b\n1,2\n3\n", "6 t.csv, line 3: it has 1 cell"),
    "long row": ("a,b\n1,2,3\n", "6 t.csv, line 2: it has 3 cells"),
    "open quote": ('a,b\n"1,2\n3,4\n', "6 t.csv, line 3: not CSV: unexpected end"),
    "a newline in a cell": ('a,b\n1,"x\ny"\n', "6 t.csv, line 3, column b: 'x\\ny' is"),
    "UTF-16 without a mark": (
        "a,b\n1,2\n".encode("utf-16-le"),
        "6 t.csv looks like UTF-16 without a byte order mark",
    ),
    "a NaN": ("a,b\nnan,2\n", "6 t.csv, line 2, column a: nan is not finite"),
    "wrong dtype": ("a,b\n1,2.5\n", "6 t.csv, line 2, column b: '2.5' is not a whole"),
    "other columns": ("a;c\n1;2\n", "6 t.csv has 2 problems"),
}


@pytest.mark.parametrize(("write", "said"), ARRAYS.values(), ids=ARRAYS)
def test_arrays(
    home: Path, capsys: pytest.CaptureFixture[str], write: Callable[[], str], said: str
) -> None:
    assert said in refused(capsys, write())


@pytest.mark.parametrize(("content", "said"), CSV.values(), ids=CSV)
def test_csv(
    home: Path, capsys: pytest.CaptureFixture[str], content: str | bytes, said: str
) -> None:
    name = text("t.csv", content)()
    assert refused(capsys, name, "--schema", "ab.toml").startswith(said)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfa,b\n1,2\n",
        b"a,b\r\n1,2\r\n",
        b'a,"b"\n"1",2\n\n',
        b"a;b\n1;2\n",
        "a\tb\n1\t2\n".encode("utf-16"),
    ],
)
def test_csv_as_programs_write_it(home: Path, content: bytes) -> None:
    """A byte order mark, other line ends, quotes, blank lines."""
    assert sealed(text("t.csv", content)(), "--schema", "ab.toml") == 0


DATASETS = """
import sys
class Rows:
    def __init__(self, row): self.row = row
    def __len__(self): return 3
    def __getitem__(self, index): return self.row(index)
def fails(index):
    if index == 2: raise ValueError("of\\nmine")
    return {"a": 1.0}
late = Rows(fails)
stops = Rows(lambda index: {"a": 1.0} if index < 2 else sys.exit("enough"))
ragged = Rows(lambda index: {"a": [1.0] * (index + 1)})
class Endless(Rows):
    def __len__(self): sys.exit(3)
endless = Endless(fails)
def builds(): raise KeyError("x")
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("bad_for_a_test:late", "6 bad_for_a_test:late, row 2: the dataset raised an error: "
         "ValueError: of mine"),
        ("bad_for_a_test:stops", "6 bad_for_a_test:stops, row 2: the dataset raised an error: "
         "SystemExit: enough"),
        ("bad_for_a_test:ragged", "6 bad_for_a_test:ragged, row 1: a is float64 [2]"),
        ("bad_for_a_test:endless", "2 bad_for_a_test:endless cannot report its length"),
        ("bad_for_a_test:builds", "2 cannot load bad_for_a_test:builds: KeyError: 'x'"),
        ("exits_for_a_test:rows", "2 cannot load exits_for_a_test:rows: SystemExit: 3"),
        ("raises_for_a_test:rows", "2 cannot load raises_for_a_test:rows: Runtime"),
        ("not_there_for_a_test:rows", "2 cannot load not_there_for_a_test:rows: Module"),
    ],
)  # fmt: skip
def test_datasets(
    home: Path, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    Path("bad_for_a_test.py").write_text(DATASETS)
    Path("exits_for_a_test.py").write_text("raise SystemExit(3)")
    Path("raises_for_a_test.py").write_text("raise RuntimeError('no\\nway')")
    assert refused(capsys, source).startswith(said)


def saved(folder: Path) -> Path:
    features = {"a": {"dtype": "float64", "_type": "Value"}}
    save_to_disk(folder / "saved", pa.table({"a": np.arange(12.0)}), features)
    return folder / "saved"


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def as_folder(folder: Path) -> None:
    without("data-00001-of-00002.arrow")(folder)
    (folder / "data-00001-of-00002.arrow").mkdir()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (without("state.json"), "3 cannot read saved/state.json: No such file"),
        (without("data-00001-of-00002.arrow"), "3 cannot read saved/data-00001-of-0000"),
        (as_folder, "3 cannot read saved/data-00001-of-00002.arrow: "),
        (lambda f: (f / "state.json").write_text("{"), "6 state.json is not JSON"),
        (lambda f: (f / "state.json").write_text(json.dumps({"_data_files": 3})),
         "6 state.json: '_data_files' must be a list"),
        (lambda f: os.truncate(f / "data-00001-of-00002.arrow", 0), "6 data-00001-of-0"),
    ],
)  # fmt: skip
def test_a_saved_dataset_that_lacks_files(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    said: str,
) -> None:
    harm(saved(home))
    assert refused(capsys, "saved").startswith(said)


def test_a_picture_that_is_not_there(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not left out without a word."""
    Path("pictures/cat").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save("pictures/cat/0.png")
    Path("pictures/cat/1.png").symlink_to("/nowhere/1.png")
    assert refused(capsys, "pictures").startswith("6 cat/1.png cannot be read: it is a")
    Path("pictures/cat/1.png").unlink()
    Path("pictures/cat/1.png").write_bytes(b"no image")
    line = refused(capsys, "pictures")
    assert line.startswith("6 cat/1.png cannot be read as an image: its format")


def test_a_pipe_is_not_waited_for(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("t.csv")
    line = refused(capsys, "t.csv", "--schema", "ab.toml")
    assert line.startswith("2 t.csv is not a file: it is a pipe")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--name", "No"), "6 resource name 'No' is not a valid name"),
        (("--record-bytes", "1"), "2 a record must have 64 to 4,194,304 bytes"),
        (
            ("-o", "passphrase"),
            "3 cannot write passphrase: a file of that name exists",
        ),
        (("--vault", "no/v.db"), "3 cannot write no/v.db"),
        # As where nobody may look: whether it is there cannot be found out.
        (("-o", "x" * 300), "3 cannot write xxx"),
        (("--vault", "x" * 300), "3 cannot write xxx"),
        (("--shards", "6"), "2 5 rows are too few for 6 shards"),
    ],
)
def test_what_the_command_itself_says(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert refused(capsys, npz(x=X)(), *words).startswith(said)
