"""`sealift join INVITATION DATA --check`, of each kind of table and of what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sealift.cli.main import main
from sealift.codec import encode
from sealift.crypto.identity import create_identity
from sealift.meet.declaration import invitations_for
from sealift.meet.invitation import parse_invitation
from sealift.meet.owner import MeetingProgress
from tests.sim.invited import declare
from tests.sim.ownaddress import own_address


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An owner's, with an invitation of a host that is away, and tables."""
    monkeypatch.chdir(tmp_path)
    (invited,) = invitations_for(
        create_identity("host"), ["north"], address=own_address(), days=2
    )
    (tmp_path / "invitation.txt").write_text(invited.to_text())
    for kind in ("ant", "bee"):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for row in range(5):
            Image.new("RGB", (8, 6)).save(tmp_path / "images" / kind / f"{row}.png")
    np.savez(tmp_path / "t.npz", x=np.zeros((5, 2), np.float32))
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["images", "--heldout", "20%"], "images: 2 fields, 10 rows"),
        (["t.npz"], "t.npz: 1 field, 5 rows"),
        (["t.npz", "--fields", "a=b"], "the source has no column 'b'"),
        (["empty"], "empty is an empty folder"),
        (["nothing.csv"], "nothing.csv does not exist"),
        (["images", "--image-size", "8"], "is not HEIGHTxWIDTH"),
    ],
)
def test_the_table_is_looked_at(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    main(["join", "invitation.txt", *words, "--check"])
    shown = capsys.readouterr()
    assert said in " ".join(shown.out.split())
    assert "a bug in sealift" not in shown.err


def test_a_broken_image_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "images" / "ant" / "0.png").write_bytes(b"\x89PNG")
    assert main(["join", "invitation.txt", "images", "--check"]) == 6
    assert "ant/0.png cannot be read as an image" in " ".join(
        capsys.readouterr().out.split()
    )


def test_what_numbers_mean_is_said_once_the_hosts_schema_is_known(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "t.npz", label=np.array([1, 0]))
    text = (folder / "invitation.txt").read_text()
    field = {"name": "label", "dtype": "int64", "categories": ["cat", "dog"]}
    declared = declare(
        create_identity("host"),
        parse_invitation(text).meeting,
        schema={"fields": [field | {"classes": 2}]},
    )
    kept = MeetingProgress(invitation=text.strip(), declaration=declared)
    main(["join", "invitation.txt", "t.npz", "--check"])
    assert "the schema numbers" not in capsys.readouterr().out
    (folder / "meeting.json").write_bytes(encode(kept))
    main(["join", "invitation.txt", "t.npz", "--check"])
    said = "ok  labels      label: 0 = cat, 1 = dog, as the schema numbers them"
    assert said in capsys.readouterr().out.splitlines()


def test_the_table_is_compared_once_the_hosts_schema_is_known(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the yes nobody hears of it; a draft that says nothing gives way to a better one."""
    own, words = folder / "table.toml", ["join", "invitation.txt", "t.csv", "--check"]
    rows = "\n".join(f"{row},{row % 2}" for row in range(40))
    (folder / "t.csv").write_text(f"Alter,label\n{rows}\n")
    main(words)
    assert "host has no field" not in own.read_text()
    text = (folder / "invitation.txt").read_text()
    declared = declare(
        create_identity("host"),
        parse_invitation(text).meeting,
        schema={
            "fields": [
                {"name": "age", "dtype": "float32"},
                {"name": "label", "dtype": "int64", "classes": 2},
            ]
        },
        job='name = "mnist"\nagreement = "agreement.json"\nplan = "ddp"\n'
        'bundle = "recipe"\n[slices]\ncount = 3\n',
    )
    kept = MeetingProgress(invitation=text.strip(), declaration=declared)
    (folder / "meeting.json").write_bytes(encode(kept))
    capsys.readouterr()
    assert main(words) == 6
    assert "[bad-table]" in capsys.readouterr().out
    assert "host has no field" in own.read_text()
    own.write_text('[columns]\nage = "Alter"\n')
    main(words)
    assert "40 rows, which fit" in capsys.readouterr().out
    assert own.read_text().startswith("[columns]")


def test_a_job_that_the_declared_terms_do_not_allow_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "t.csv").write_text("age,label\n1,0\n2,1\n")
    text = (folder / "invitation.txt").read_text()
    declared = declare(
        create_identity("host"),
        parse_invitation(text).meeting,
        schema={"fields": [{"name": "age", "dtype": "float32"}]},
        job="this is no job",
    )
    kept = MeetingProgress(invitation=text.strip(), declaration=declared)
    (folder / "meeting.json").write_bytes(encode(kept))
    assert main(["join", "invitation.txt", "t.csv", "--check"]) != 0
    lines = capsys.readouterr().out.splitlines()
    assert any("compared" in each and "job" in each for each in lines), lines
