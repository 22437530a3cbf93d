"""`sealift agreement` at a terminal: it asks, shows what is signed, and takes no for no."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sealift.attest.reference import (
    ReferenceSet,
    ReferenceValues,
    SetName,
    sign_set,
)
from sealift.codec import encode
from sealift.crypto.identity import (
    create_identity,
    load_card,
    load_identity,
    save_identity,
)
from sealift.crypto.keys import SecretKey
from sealift.data.schema.document import parse_schema
from sealift.data.sealing import seal_table
from sealift.release.agreement.signed import load_signed
from tests.cli.test_text import SOURCE

pytestmark = pytest.mark.distributed

PASSPHRASE = "correct horse"
QUESTION = re.compile(rb"(?:^|\n|: )[^\n:\"]+: \Z")  # without the line's end
SCHEMA = """
[[fields]]
name = "x"
dtype = "float32"
shape = [1]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two parties, one sealed table of four rows, a recipe."""
    (tmp_path / "pw").write_text(PASSPHRASE)
    for name in ("ada", "bern"):
        identity = create_identity(name)
        save_identity(identity, tmp_path / f"{name}.key", PASSPHRASE)
        (tmp_path / f"{name}.card.json").write_bytes(encode(identity.card))
    (tmp_path / "rows.csv").write_text("x_0\n1\n2\n3\n4\n")
    seal_table(
        tmp_path / "rows.csv", parse_schema(SCHEMA.encode()), name="ada-train",
        part="train", owner="ada", key=SecretKey.generate(), out_dir=tmp_path,
    )  # fmt: skip
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "recipe.py").write_text("MODEL = None\n")
    return tmp_path


def type_in(folder: Path, words: list[str], answers: list[str]) -> tuple[int, str]:
    """Run a command at a terminal of its own; exit code and what it said there.

    Args:
        folder: Where it is typed.
        words: Behind ``sealift``.
        answers: Each is typed once a question stands at the end of what was said.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sealift", *words],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": SOURCE},
    )  # fmt: skip
    os.close(theirs)
    assert process.stdout is not None
    said, left = b"", [*answers]
    while found := os.read(process.stdout.fileno(), 1 << 16):
        said += found
        if left and QUESTION.search(said):
            os.write(ours, f"{left.pop(0)}\n".encode())
    assert left == []
    process.stdout.close()
    code = process.wait(timeout=300)
    os.close(ours)
    return code, said.decode()


def test_new_asks_for_what_it_needs(folder: Path) -> None:
    answers = [
        "joint", "ada.card.json bern.card.json", "ada-train.resource.json", "code",
        "", "bern", "", "", "bern.card.json", "",
    ]  # fmt: skip
    code, said = type_in(folder, ["agreement", "new"], answers)
    assert code == 0, said
    assert "gets the model [bern]" in said
    document = (folder / "agreement.toml").read_text()
    for line in ("max_uses = 40 ", "min_owner_rows = 2 ", 'model_owner = "bern"'):
        assert f"\n{line}" in document


SIGN = ["agreement", "sign", "agreement.toml", "--key", "ada.key",
        "--passphrase-file", "pw"]  # fmt: skip
NEW = ["agreement", "new", "--name", "joint", "--party", "ada.card.json",
       "bern.card.json", "--resource", "ada-train.resource.json", "--code", "code",
       "--attester", "bern.card.json"]  # fmt: skip


def test_sign_shows_the_document_and_asks(folder: Path) -> None:
    type_in(folder, NEW, [])
    code, said = type_in(folder, SIGN, ["no"])
    assert code == 2
    assert "not-confirmed" in said
    assert not (folder / "agreement.json").exists()
    code, said = type_in(folder, SIGN, ["yes"])
    assert code == 0, said
    assert '"format": "sealift-agreement"' in said
    assert set(load_signed(folder / "agreement.json").signatures) == {"ada"}


def test_a_terminal_that_ends(folder: Path) -> None:
    code, said = type_in(folder, ["agreement", "new"], ["joint", "\x04"])
    assert code == 2
    assert "no-answer" in said


def test_identities_are_loaded_after_the_question(folder: Path) -> None:
    """Whoever says no is not asked for a passphrase."""
    type_in(folder, NEW, [])
    words = [*SIGN[:-2], "--passphrase-file", "nowhere"]
    assert "not-confirmed" in type_in(folder, words, ["no"])[1]


def write_set(folder: Path) -> Path:
    """A signed reference set of a host that nobody has."""
    made = ReferenceSet(
        name="hosts",
        number=3,
        made_at_s=1,
        values=ReferenceValues(lowest_tier="warning"),
    )
    ada = load_identity(folder / "ada.key", PASSPHRASE)
    path = folder / "hosts.json"
    path.write_bytes(encode(sign_set(made, ada)))
    return path


def test_hosts_are_named_by_their_sets(folder: Path) -> None:
    write_set(folder)
    words = [*NEW, "--rehearse", "attested-host", "--references", "hosts.json"]
    code, said = type_in(folder, words, [])
    assert code == 0, said
    assert type_in(folder, SIGN, ["yes"])[0] == 0
    references = load_signed(folder / "agreement.json").agreement.references
    ada = load_card(folder / "ada.card.json").sign
    assert references.sets == (SetName(name="hosts", signer=ada, number=3),)
    assert references.enrollers == (ada,)  # the only owner of data


def test_an_altered_set_is_not_named(folder: Path) -> None:
    path = write_set(folder)
    path.write_text(path.read_text().replace('"number":3', '"number":4'))
    code, said = type_in(folder, [*NEW, "--references", "hosts.json"], [])
    assert code == 5
    assert "references-foreign" in said
