"""Where `sealift join` takes an invitation from, and what it says of each way."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from sealift.cli.main import joined, main
from sealift.cli.meeting.place import read_invitation
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError
from sealift.meet.invitation import HOST, Invitation

LONG = f"{'long-name.' * 20}example:7420"


@pytest.fixture
def line() -> str:
    return Invitation(
        meeting=bytes(16),
        name="north",
        host=create_identity(HOST).public_key,
        secret=SecretKey.generate(),
        expires_s=2_000_000_000,
        addresses=(LONG, LONG),
    ).to_text()


def test_a_file_or_standard_input_says_nothing(
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    half = len(line) // 2
    broken = f"\n  {line[:half]}\r\n{line[half:]}\n"
    path = tmp_path / "invitation.txt"
    path.write_text(broken)
    assert read_invitation(str(path)).to_text() == line
    monkeypatch.setattr("sys.stdin", io.StringIO(broken))
    assert read_invitation("-").to_text() == line
    assert capsys.readouterr().err == ""
    for word in (str(path), "-", line):
        assert joined(["join", word, "train.csv"])[0] == "join INVITATION"


def test_an_argument_is_said_to_be_open_to_other_users(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_invitation(line).to_text() == line
    assert "list of processes" in capsys.readouterr().err


@pytest.mark.parametrize("spoil", [str.lower, lambda line: line[:-1], "{}x".format])
def test_a_long_line_that_is_none_is_malformed(
    line: str, spoil: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Longer than a file's name may be."""
    given = spoil(line)  # type: ignore[operator]
    with pytest.raises(MalformedError) as caught:
        read_invitation(given)
    assert caught.value.code == "bad-invitation"
    assert main(["join", given, "train.csv"]) == MalformedError.exit_code
    assert "[bad-invitation]" in capsys.readouterr().err
