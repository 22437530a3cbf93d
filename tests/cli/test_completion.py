"""`sealift completion`: a real shell offers what the parsers take, and files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import sealift
from sealift.cli.main import NOUNS, build_parser
from sealift.errors import UsageError

pytestmark = pytest.mark.distributed

SOURCE = str(Path(sealift.__file__).parent.parent)
SHELLS = ("bash", "zsh", "fish")
# Sources the script, completes the last of the words, prints a candidate a line.
ASK = {
    "bash": 'source "$0"; complete -p sealift | grep -q _sealift || exit 9; '
    'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _sealift; '
    '((${#COMPREPLY[@]} == 0)) || printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": "compdef() { : }; compadd() { shift; print -l -- ${(M)@:#$PREFIX*} }; "
    "_files() { print -l -- $PREFIX*(N) }; "
    'source "$0"; words=("$@") CURRENT=$# PREFIX=${@[-1]}; _sealift',
    "fish": 'source $argv[1]; complete -C (string join " " -- $argv[2..-1])',
}


@cache
def script(shell: str) -> str:
    """What the command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "sealift", "completion", shell],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


class Shell:
    """A shell in a folder with two files."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        (folder / "script").write_text(script(name))
        for each in ("job.toml", "a job.toml"):
            (folder / each).write_text("")

    def offers(self, *words: str) -> set[str]:
        """What it offers for the last word."""
        first = ["-f"] if self.name == "zsh" else []
        done = subprocess.run(
            [self.name, *first, "-c", ASK[self.name], "./script", "sealift", *words],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return {each.split("\t")[0] for each in done.stdout.splitlines() if each}


@pytest.fixture(params=filter(shutil.which, SHELLS))
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    return Shell(request.param, tmp_path)


def test_nouns_and_verbs(shell: Shell) -> None:
    nouns = {each.split()[0] for each in NOUNS}
    assert shell.offers("") >= nouns
    assert shell.offers("re") == {"receipt", "recipe", "resume"}
    assert shell.offers("agreement", "s") == {"show", "sign"}
    assert shell.offers("broker", "re") == {"restore"}
    assert shell.offers("attest", "collateral", "m") == {"make"}
    assert shell.offers("receipt", "--agreement", "job.toml", "v") == {"verify"}


def test_options_and_what_they_may_be(shell: Shell) -> None:
    assert shell.offers("train", "job.toml", "--w") == {"--watch"}
    assert shell.offers("join", "--de") == {"--decline"}
    assert shell.offers("join", "--hea") == {"--heads"}  # of the other `join`
    assert shell.offers("demo", "--plan", "o") == {"outsource"}
    assert shell.offers("agreement", "new", "--level", "tee", "g") == {"gpu-tee"}
    assert shell.offers("completion", "z") == {"zsh"}
    assert shell.offers("host", "--listen", "") == set()
    assert shell.offers("health", "--port", "") == set()  # 65536 of them
    assert not shell.offers("train", "--watch", "--nosuch")


def test_files_where_one_may_stand(shell: Shell) -> None:
    assert shell.offers("train", "j") == {"job.toml"}
    assert shell.offers("train", "a") == {"a job.toml"}
    assert shell.offers("train", "--key", "j") == {"job.toml"}
    assert shell.offers("train", "--key", "k", "j") == {"job.toml"}
    assert shell.offers("agreement", "new", "--party", "x", "j") == {"job.toml"}
    assert shell.offers("explain", "j") == set()
    assert shell.offers("key", "new", "--nosuch", "j") == set()


@pytest.mark.parametrize("name", SHELLS)
def test_every_option_of_every_noun_stands_in_it(name: str) -> None:
    text = script(name)
    for noun in NOUNS:
        parser = build_parser([noun])
        assert re.search(rf"\b{noun.split()[0]}\b", text)
        usage = parser.format_help()
        nouns = next(a.choices for a in parser._actions if isinstance(a.choices, dict))
        usage += nouns[noun].format_help()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", usage):
            assert option in text, (noun, option)
    assert not re.search("@[A-Z]+@", text)


def test_another_shell_is_refused() -> None:
    with pytest.raises(UsageError, match="tcsh"):
        build_parser(["completion"]).parse_args(["completion", "tcsh"])
