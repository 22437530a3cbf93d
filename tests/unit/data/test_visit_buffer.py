"""How long buffers are made, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.data.schedule.visits import choose_buffer, say_bytes
from sealift.errors import UnavailableError
from sealift.travel.settings import JobSettings, TravelSettings
from tests.worlds.consortium import make_consortium

MIB = 1 << 20


def resources(rows: int, row_bytes: int = 1024) -> list[object]:
    agreement = make_consortium(("ada", "bern", "cleo")).agreement
    return [
        replace(each, rows=rows, row_bytes=row_bytes, total_bytes=rows * row_bytes)
        for each in agreement.resources
    ]


def choose(free: int, *, rows: int = 1024, **settings: object) -> tuple[int, str]:
    found = choose_buffer(
        resources(rows), JobSettings(travel=TravelSettings(**settings)).visits, free
    )  # type: ignore[arg-type]
    return found.buffer_bytes, found.why


def test_the_largest_resource_if_there_is_room() -> None:
    assert choose(64 * MIB) == (MIB, "the largest resource; 64.0 MiB are free")


def test_half_of_the_memory_if_there_is_not() -> None:
    size, why = choose(MIB)
    assert size == MIB // 2
    assert why == "half of the memory; 1.0 MiB are free"


@pytest.mark.parametrize(
    ("settings", "visits"),
    [({"buffers": 2}, 2), ({"mixed": True}, 3), ({"buffers": 2, "mixed": True}, 6)],
)
def test_all_visits_at_one_time_share_it(
    settings: dict[str, object], visits: int
) -> None:
    size, why = choose(MIB, **settings)
    assert size == MIB // 2 // visits
    assert f"divided among {visits} visits" in why


def test_what_the_job_says() -> None:
    assert choose(64 * MIB, buffer_bytes=MIB) == (
        MIB,
        "set by the job; 64.0 MiB are free",
    )
    assert choose(4 * MIB, buffer_bytes=2 * MIB, buffers=2)[0] == 2 * MIB


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"buffer_bytes": 5 * MIB}, "5.0 MiB are needed, 4.0 MiB are free"),
        (
            {"buffer_bytes": 3 * MIB, "buffers": 2},
            "2 times 3.0 MiB are needed, 4.0 MiB are free",
        ),
    ],
)
def test_too_large_is_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(UnavailableError, match=why) as refusal:
        choose(4 * MIB, **settings)
    assert refusal.value.code == "buffer-too-large"
    assert refusal.value.exit_code == 3


def test_a_machine_without_room_for_one_row() -> None:
    with pytest.raises(UnavailableError):
        choose(1500)


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 50, "1024.0 TiB")],
)
def test_bytes_in_words(count: int, said: str) -> None:
    assert say_bytes(count) == said
