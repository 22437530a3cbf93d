"""Words and options in any usual order mean the same."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from benchmarks.__main__ import make_parser
from sealift.cli.main import build_parser, joined, main, require_join_form
from sealift.errors import UsageError

PREDICT = (
    ("--agreement", "a.json"),
    ("--owner=lab.card.json", "--development"),
    ("-oanswer.csv",),
)


def orders(noun: str, places: list[str], options: tuple[tuple[str, ...], ...]) -> list:
    """Every order of the options and of the words, whose own order stays."""
    found = []
    words = tuple((each,) for each in places)
    for order in set(permutations((*("",) * len(words), *options))):
        left = iter(words)
        found.append([noun, *(w for part in order for w in part or next(left))])
    return found


def test_predict_takes_any_order() -> None:
    every = orders("predict", ["server:1", "rows.npz"], PREDICT)
    assert len(every) == 60
    for words in every:
        args = build_parser(words).parse_args(words)
        assert (args.address, args.input) == ("server:1", Path("rows.npz")), words
        assert (args.agreement, args.output) == (Path("a.json"), Path("answer.csv"))
        assert args.owner == "lab.card.json"
        assert args.development


def test_a_word_that_is_left_out_stays_out() -> None:
    for words in orders("predict", ["server:1"], (*PREDICT[:2], ("--describe",))):
        args = build_parser(words).parse_args(words)
        assert (args.address, args.input) == ("server:1", None), words


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["predict", "server:1", "--agreement", "a", "r.npz", "q.npz"], "q.npz"),
        (["predict", "--agreement", "a"], "HOST:PORT"),
        (["predict", "server:1", "--agreement", "a", "--nosuch", "r.npz"], "--nosuch"),
        (["predict", "server:1", "--timeout", "-1", "--agreement", "a"], "timeout"),
    ],
)
def test_what_is_wrong_is_still_said(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        build_parser(words).parse_args(words)


def test_other_nouns_with_such_words() -> None:
    words = ["try", "--bundle", "b", "agreement.json", "--seed", "3"]
    assert build_parser(words).parse_args(words).agreement == Path("agreement.json")
    words = ["--quick", "link", "channel", "--json", "r"]
    assert make_parser().parse_args(words).name == ["link", "channel"]
    words = ["link", "--quick", "channel"]
    assert make_parser().parse_args(words).name == ["link", "channel"]
    for words in ([], ["--quick"]):
        assert make_parser().parse_args(words).name == []
    assert build_parser(["explain"]).parse_args(["explain"]).name is None


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["table.csv"],
        ["host.example:4433"],
        ["table.csv", "letter.txt"],
        ["table.csv", "line.txt"],
        ["table.csv", "sealift-invitation-1-abc"],
        ["table.csv", "letter.txt", "--decline"],
    ],
)
def test_join_explains_the_invitations_form(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Alone, with one of both, or with both the other way round; nothing is read."""
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("a,b\n1,2\n")
    Path("letter.txt").write_text("sealift-invitation-1-abc\n")
    Path("line.txt").write_text("north  sealift-invitation-1-abc\n")
    assert main(["join", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sealift join INVITATION DATA" in line
    assert "invitation-1-abc" not in line
    assert line.endswith("[usage]")


@pytest.mark.parametrize(
    "words",
    [
        ["letter.txt", "table.csv"],
        ["sealift-invitation-1-abc", "table.csv"],
        ["job.toml"],
        ["job", "--key", "k"],
        ["--check", "job.toml"],
        ["letter.txt"],
        ["-", "table.csv"],
    ],
)
def test_other_words_of_join_stay_the_parsers(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("letter.txt").write_text("sealift-invitation-1-abc\n")
    require_join_form(joined(["join", *words]))
