"""What a meeting's job has where the host's job.toml says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sealift.codec import parse_toml
from sealift.errors import SealiftError
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


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        ("", {"count": 3, "rows": "owner", "sums": "only"}),
        (
            '[slices]\nsums = "open"\n',
            {"count": 3, "rows": "owner", "sums": "open"},
        ),
        (
            '[slices]\nsums = "only"\nsum_bound = 0.5\n',
            {"count": 3, "rows": "owner", "sums": "only", "sum_bound": 0.5},
        ),
    ],
)
def test_a_host_says_whether_ranks_learn_sums_alone(
    tmp_path: Path, text: str, slices: dict[str, Any]
) -> None:
    (tmp_path / "job.toml").write_text(text)
    found = job_text(tmp_path, "wards", 3, "127.0.0.1:1")
    assert parse_toml(found.encode(), source="job")["slices"] == slices


def test_of_two_owners_no_sum_hides_anything(tmp_path: Path) -> None:
    found = job_text(tmp_path, "wards", 2, "127.0.0.1:1")
    slices = parse_toml(found.encode(), source="job")["slices"]
    assert slices == {"count": 2, "rows": "owner"}


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("[slices]\ncount = 3\n", "bad-field", "sets slices.count"),
        ('[slices]\nsync = "step"\n', "bad-field", "sets slices.sync"),
        ('slices = { sums = "only" }\n', "bad-field", "in one line"),
        ('[slices]\nsums = "some"\n', "bad-field", "sums"),
        ('[slices]\nsums = "only"\nsum_bits = 48\n', "bad-field", "sum_bits"),
        (
            '[slices]\nsums = "only"\nsum_bound = 1000.0\n',
            "sums-overflow",
            "do not fit 32 bits",
        ),
        ("slices = 3\n", "bad-field", "slices"),
    ],
)
def test_what_a_host_cannot_set_is_refused_before_anybody_is_invited(
    tmp_path: Path, text: str, code: str, words: str
) -> None:
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(SealiftError, match=words) as caught:
        job_text(tmp_path, "wards", 3, "127.0.0.1:1")
    assert caught.value.code == code


def test_ranks_that_share_noise_come_together_in_every_step(tmp_path: Path) -> None:
    """`[privacy]` alone says so: of a round no part of the noise can be shared."""
    steps = "[privacy]\nclip = 1.0\nnoise = 1.0\nbatch = 16\n"
    (tmp_path / "job.toml").write_text(steps)
    assert "sync" not in job_text(tmp_path, "wards", 3, "127.0.0.1:1")
    (tmp_path / "job.toml").write_text(f"{steps}honest_ranks = 2\n")
    found = job_text(tmp_path, "wards", 3, "127.0.0.1:1")
    assert 'sync = "step"' in found
    assert 'sums = "only"' in found
