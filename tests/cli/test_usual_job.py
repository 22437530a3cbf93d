"""What a meeting's job has where the host's job.toml says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sealift.codec import parse_toml
from sealift.meet.declaration import AWAY_S, job_text

AWAY = {"gather_s": AWAY_S, "rejoin_s": AWAY_S}


@pytest.mark.parametrize(
    ("text", "run", "training"),
    [
        ("", AWAY, {"epochs": 10}),
        ("[training]\nseed = 3\n", AWAY, {"epochs": 10, "seed": 3}),
        (
            '# x\n[ run ]  # y\ndevice = "cpu"\n',
            AWAY | {"device": "cpu"},
            {"epochs": 10},
        ),
        ("[run]\nrejoin_s = 60", AWAY | {"rejoin_s": 60}, {"epochs": 10}),
        ("[training]\nepochs = 2\n[run]", AWAY, {"epochs": 2}),
    ],
)
def test_a_device_does_not_shorten_the_wait(
    tmp_path: Path, text: str, run: dict[str, Any], training: dict[str, Any]
) -> None:
    (tmp_path / "job.toml").write_text(text)
    found = parse_toml(
        job_text(tmp_path, "wards", 2, "127.0.0.1:1").encode(), source="job"
    )
    assert found["run"] == run
    assert found["training"] == training
