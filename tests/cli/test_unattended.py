"""`--no-terminal FILE`: what may stand in the file, and what may stand beside it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sealift.cli.meeting.place import open_folder
from sealift.cli.meeting.unattended import Unattended, attend
from sealift.crypto import identity as identities
from sealift.errors import SealiftError
from sealift.meet.question import OwnerAnswers

DIGEST = "sha256:" + "0" * 64


def given(file: Path | None, **more: object) -> argparse.Namespace:
    found = {"no_terminal": file, "passphrase": False, "compare_if": "", "sign_if": ""}
    found |= {"status": None}
    found |= {"decline": False, "allow": [], "only_graph": False, "privacy": None}
    return argparse.Namespace(**{**found, **more})


def refused(file: Path, text: str, *, owner: bool = True, **more: object) -> str:
    file.write_text(text)
    with pytest.raises(SealiftError) as caught:
        attend(given(file, **more), owner=owner)
    return f"{caught.value} [{caught.value.code}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("comparee = 1", "comparee"),
        ("compare = true", "a text"),
        ('compare = "yes"', "digest"),
        ('allow = ["everything"]', "does not exist"),
        ('allow = "rows-away"', "a list of texts"),
        ("send_texts = [1]", "a list of texts"),
        ("decline = 1", "true or false"),
        ("decline", "is not TOML"),
    ],
)
def test_an_answer_that_is_none_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    assert said in refused(tmp_path / "answers.toml", text)


@pytest.mark.parametrize(
    "beside",
    [
        {"compare_if": DIGEST},
        {"sign_if": DIGEST},
        {"decline": True},
        {"allow": ["statistics"]},
        {"passphrase": True},
    ],
    ids=str,
)
def test_answers_stand_in_one_place(tmp_path: Path, beside: dict[str, object]) -> None:
    assert "[usage]" in refused(tmp_path / "answers.toml", "", **beside)


def test_a_host_is_asked_less(tmp_path: Path) -> None:
    text = f'sign = "{DIGEST}"'
    assert "[unknown-field]" in refused(tmp_path / "answers.toml", text, owner=False)


def test_at_a_terminal_options_answer() -> None:
    desk = attend(given(None, sign_if=DIGEST), owner=True)
    assert desk == Unattended(answers=OwnerAnswers(sign_if=DIGEST, allow=[]))
    assert desk.words == ()


def test_a_key_without_its_passphrase_names_the_answer(tmp_path: Path) -> None:
    open_folder(tmp_path, "north").identity()
    (tmp_path / "north.pass").unlink()
    desk = Unattended(file=tmp_path / "answers.toml")
    with pytest.raises(SealiftError, match="passphrase_file") as caught:
        open_folder(tmp_path, "north", desk=desk).identity()
    assert caught.value.code == "unanswered"


def test_a_passphrase_that_nobody_typed_is_not_stretched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each command of a party opens its key; one of 144 random bits costs nothing."""
    monkeypatch.setattr(identities, "SCRYPT_LOG2_N", 11)
    place = open_folder(tmp_path, "north")
    place.identity()
    assert json.loads(place.key.read_bytes())["scrypt_log2_n"] == 10
    assert open_folder(tmp_path, "north").identity().name == "north"


def test_the_passphrase_of_a_file_opens_a_new_key(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    desk = Unattended(file=tmp_path / "answers.toml", passphrase_file=secret)
    place = open_folder(tmp_path, "north", desk=desk)
    with pytest.raises(SealiftError) as caught:
        place.identity()
    assert caught.value.code == "cannot-read"
    assert not any(tmp_path.iterdir())
    secret.write_text("one two three\n")
    made = place.identity().public_key
    again = open_folder(tmp_path, "north", desk=desk).identity()
    assert made == again.public_key
    assert place.passphrase == str(secret)
    assert not (tmp_path / "north.pass").exists()


def test_all_that_is_said_is_json(tmp_path: Path) -> None:
    """Lines of both streams, of children too, and what is JSON already stays as it is."""
    program = """
import os, sys
from pathlib import Path
from sealift.cli.console import say
from sealift.cli.meeting.unattended import attend
from tests.cli.test_unattended import given
attend(given(Path("answers.toml")), owner=True)
say("good morning")
print("a result", flush=True)
os.system("echo of a child >&2")
print('{"kind": "own", "t_s": 1.5}')
"""
    (tmp_path / "answers.toml").write_text("")
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True,
        text=True, check=True, env={"PYTHONPATH": f"{root}:{root / 'src'}"},
    )  # fmt: skip
    lines = ran.stdout.splitlines()
    assert [line for line in lines if not line.startswith('{"')] == []
    for said in ("good morning", "a result", "of a child"):
        assert sum(f'"line": "{said}"' in line for line in lines) == 1
    assert '{"kind": "own", "t_s": 1.5}' in lines
    assert ran.stderr == ""
