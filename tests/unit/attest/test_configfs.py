"""Reports by configfs-tsm, over a stand-in of the kernel's folder: no platform here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sealift.attest.configfs import (
    ATTEMPTS,
    TsmFolder,
    TsmReader,
)
from sealift.errors import MalformedError, UnavailableError
from tests.sim.tsm_folder import Entry, StandInTsmFolder, refusal

INBLOB = bytes(range(64))


def echo(inblob: bytes, privlevel: int) -> tuple[bytes, bytes]:
    return b"report over " + inblob + bytes([privlevel]), b"certificates"


def reader(folder: StandInTsmFolder) -> TsmReader:
    return TsmReader(folder, wait=lambda seconds: None)


def refused(folder: StandInTsmFolder, code: str, privlevel: int | None = None) -> None:
    with pytest.raises(UnavailableError) as caught:
        reader(folder).report(INBLOB, privlevel=privlevel)
    assert caught.value.code == code
    assert not folder.entries, "what was begun is removed"


def test_a_tdx_report_is_made_and_its_folder_removed() -> None:
    folder = StandInTsmFolder(echo)
    report = reader(folder).report(INBLOB)
    assert report.provider == "tdx_guest"
    assert report.outblob == b"report over " + INBLOB + b"\0"
    assert report.auxblob == b""
    assert (folder.made, folder.entries) == (1, {})


def test_an_snp_report_has_a_level_and_certificates() -> None:
    folder = StandInTsmFolder(echo, provider="sev_guest")
    report = reader(folder).report(INBLOB, privlevel=2)
    assert report.outblob.endswith(b"\2")
    assert report.auxblob == b"certificates"


def test_a_level_below_the_floor_is_refused() -> None:
    folder = StandInTsmFolder(echo, provider="sev_guest", privlevel_floor=1)
    refused(folder, "tsm-failed", privlevel=0)


def test_tdx_has_no_levels() -> None:
    refused(StandInTsmFolder(echo), "tsm-failed", privlevel=0)


def test_a_machine_without_platform_says_so() -> None:
    refused(StandInTsmFolder(echo, provider=None), "tsm-unavailable")


def test_the_kernel_folder_is_absent_here(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        TsmReader(TsmFolder(tmp_path / "absent")).report(INBLOB)
    assert caught.value.code == "tsm-unavailable"


def meddler(at: str, times: int) -> Callable[[Entry, str], None]:
    """Another process: writes its own challenge just before ``at`` is read."""
    left = [times]

    def meddle(entry: Entry, attribute: str) -> None:
        if attribute == at and entry.inblob and left[0]:
            left[0] -= 1
            entry.inblob = b"\xee" * 64
            entry.advance()

    return meddle


@pytest.mark.parametrize("at", ["generation", "outblob", "provider", "auxblob"])
def test_a_report_that_somebody_else_wrote_to_is_not_taken(at: str) -> None:
    folder = StandInTsmFolder(echo, meddle=meddler(at, times=99))
    refused(folder, "tsm-interfered")
    assert folder.made == ATTEMPTS


@pytest.mark.parametrize("at", ["generation", "outblob", "provider", "auxblob"])
def test_a_fresh_report_is_tried_and_carries_our_challenge(at: str) -> None:
    folder = StandInTsmFolder(echo, meddle=meddler(at, times=1))
    assert INBLOB in reader(folder).report(INBLOB).outblob
    assert folder.made == 2


def test_the_control_without_the_check_takes_the_other_challenge() -> None:
    """What the generation check is for: the stand-in does hand out the other's."""
    folder = StandInTsmFolder(echo, meddle=meddler("outblob", times=1))
    folder.make("x")
    folder.write("x", "inblob", INBLOB)
    assert b"\xee" * 64 in folder.read("x", "outblob")


def test_a_lost_write_is_noticed() -> None:
    """The kernel drops the error of a binary write; only the generation tells."""

    class Deaf(StandInTsmFolder):
        def write(self, entry: str, attribute: str, content: bytes) -> None:
            super().write(entry, attribute, content + b"too long")

    refused(Deaf(echo), "tsm-interfered")


def test_a_busy_platform_is_asked_again() -> None:
    answers = [refusal(errno.EBUSY), refusal(errno.EINTR)]

    def busy(inblob: bytes, privlevel: int) -> tuple[bytes, bytes]:
        if answers:
            raise answers.pop()
        return echo(inblob, privlevel)

    waits: list[float] = []
    folder = StandInTsmFolder(busy)
    assert TsmReader(folder, wait=waits.append).report(INBLOB).outblob
    assert waits == sorted(waits)
    assert len(waits) == 2


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.EINVAL])
def test_a_platform_that_fails_says_so(number: int) -> None:
    def failing(inblob: bytes, privlevel: int) -> tuple[bytes, bytes]:
        raise refusal(number)

    refused(StandInTsmFolder(failing), "tsm-failed")


@pytest.mark.parametrize("outblob", [b"", b"x" * ((1 << 20) + 1)])
def test_no_report_or_one_without_end_is_refused(outblob: bytes) -> None:
    refused(StandInTsmFolder(lambda inblob, level: (outblob, b"")), "tsm-failed")


def test_a_generation_that_is_no_number_is_refused() -> None:
    class Odd(StandInTsmFolder):
        def read(self, entry: str, attribute: str) -> bytes:
            odd = attribute == "generation"
            return b"many" if odd else super().read(entry, attribute)

    refused(Odd(echo), "tsm-failed")


def test_only_64_bytes_are_carried() -> None:
    with pytest.raises(MalformedError):
        reader(StandInTsmFolder(echo)).report(b"short")


def test_the_kernel_folder_writes_and_reads_files_whole(tmp_path: Path) -> None:
    """Plain files in place of attributes: paths and modes, none of the kernel's rules."""
    folder = TsmFolder(tmp_path)
    folder.make("entry")
    (tmp_path / "entry" / "inblob").touch()
    folder.write("entry", "inblob", INBLOB)
    assert folder.read("entry", "inblob") == INBLOB
    os.unlink(tmp_path / "entry" / "inblob")
    folder.remove("entry")
    assert not any(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        folder.write("entry", "inblob", INBLOB)
