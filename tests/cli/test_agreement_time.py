"""An agreement whose time is over: said where it is read, refused where a role starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.events import wall_clock
from sealift.release.agreement.signed import save_signed
from tests.worlds.consortium import make_consortium

NOW_S = int(wall_clock())
OVER = "it expired"


def written(folder: Path, not_after: int) -> Path:
    first = make_consortium()
    agreement = replace(first.agreement, not_after=not_after)
    path = folder / "agreement.json"
    save_signed(replace(first, agreement=agreement).signed(), path)
    job = 'name = "digits"\nagreement = "agreement.json"\nbundle = "recipe"\n'
    (folder / "job.toml").write_text(job)
    return path


def join(folder: Path) -> int:
    words = "--vault v --log l --heads h --receipts r --sealed s --passphrase-file p"
    return main(["join", str(folder / "job.toml"), "--key", "none", *words.split()])


@pytest.mark.parametrize("verb", ["check", "verify"])
def test_whoever_reads_it_is_told(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agreement", verb, str(written(tmp_path, NOW_S - 9))]) == 0
    assert f"{OVER} " in capsys.readouterr().out
    assert main(["agreement", verb, str(written(tmp_path, NOW_S + 9999))]) == 0
    assert OVER not in capsys.readouterr().out  # control


def test_no_role_starts_under_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else its broker would bring it into force, and could serve no other any more."""
    written(tmp_path, NOW_S - 9)
    assert join(tmp_path) == 5
    assert "[agreement-expired]" in capsys.readouterr().err
    written(tmp_path, NOW_S + 9999)
    join(tmp_path)
    assert "[agreement-expired]" not in capsys.readouterr().err  # control


def test_nobody_signs_what_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the key is even opened: a date was mistyped, or the file is an old one."""
    words = ["--key", str(tmp_path / "none"), "--yes"]
    over = written(tmp_path, NOW_S - 9)
    assert main(["agreement", "sign", str(over), *words]) == 5
    assert "[agreement-expired]" in capsys.readouterr().err
    main(["agreement", "sign", str(written(tmp_path, NOW_S + 9999)), *words])
    assert "[agreement-expired]" not in capsys.readouterr().err  # control
