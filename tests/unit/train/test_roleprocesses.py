"""The demo's processes: their last words become errors, and none of them is left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sealift.errors import JobError, PeerError, SealiftError, remedy
from sealift.train.job.roleprocesses import (
    Ended,
    RoleProcesses,
    RoleResult,
    error_said,
)

pytestmark = pytest.mark.distributed


def failure(folder: Path, module: str, arguments: list[str]) -> SealiftError:
    with RoleProcesses(folder) as house:
        house.start("role", module, arguments)
        with pytest.raises(SealiftError) as caught:
            house.require_success("role")
    return caught.value


def test_a_roles_last_line_and_exit_code_are_kept(tmp_path: Path) -> None:
    error = failure(tmp_path, "sealift", ["audit", "verify", "nowhere.db"])
    assert error.exit_code == 3
    assert str(error).startswith("role: ")
    assert error.code not in ("role-ended", "unavailable")


def test_what_to_do_is_said_once(tmp_path: Path) -> None:
    words = ["demo", "--mixed", "--plan", "outsource"]
    error = failure(tmp_path, "sealift", words)
    assert error.code == "no-mixed-cargo"
    assert str(error).count(remedy(error.code)) == 1


def test_other_last_words_are_quoted(tmp_path: Path) -> None:
    error = failure(tmp_path, "no_such_module", [])
    assert isinstance(error, JobError)
    assert (error.code, error.why.count("no_such_module")) == ("role-ended", 1)


def test_a_process_that_the_system_killed_is_named_with_the_likely_reason() -> None:
    """Its last line was about something else: it could not say this."""
    error = error_said("accelerator", "visit 7 of 12", -signal.SIGKILL)
    assert error.code == "role-ended"
    assert str(error).startswith(
        "the process accelerator was killed: a user stopped it, or Linux did because the "
        "machine's memory ran out. Free memory, "
    )


def test_results_are_told_and_the_end_as_well(tmp_path: Path) -> None:
    with RoleProcesses(tmp_path) as house:
        house.start("role", "sealift", ["doctor", "--help"])
        told = list(_until_end(house))
        house.require_success("role")
    assert not any(isinstance(each, RoleResult) for each in told[:-1])


def test_silence_is_an_error(tmp_path: Path) -> None:
    with RoleProcesses(tmp_path) as house, pytest.raises(PeerError):
        next(house.listen(0.01))


def test_no_process_is_left(tmp_path: Path) -> None:
    with RoleProcesses(tmp_path) as house:
        house.start("server", "http.server", ["0", "--bind", "127.0.0.1"])
        process = house.children["server"].process
        assert process.poll() is None
    assert process.returncode is not None


def _until_end(house: RoleProcesses) -> list[object]:
    told: list[object] = []
    for each in house.listen(30):
        told.append(each)
        if isinstance(each, Ended):
            break
    return told
