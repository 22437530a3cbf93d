"""What a worker with a GPU has more than another, as the kernel sees it; no GPU is needed.

Each part of the sandbox is looked at alone and all together. A worker on the CPU has none of
it, and the same look without the part is its control.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import pytest

from sealift.train.sandbox import inventory
from sealift.train.worker.executor import BEST, WITHOUT_NAMESPACES
from tests.sim.cuda_calls import RECORDED
from tests.sim.inside import demand, look

pytestmark = pytest.mark.distributed

FILTERED = ("seccomp", WITHOUT_NAMESPACES, BEST)
SANDBOXES = (WITHOUT_NAMESPACES, "namespaces+seccomp", BEST)
MADE = {"make", "credentials", "bind", "listen"}


def test_landlock_opens_a_gpu_to_who_computes_on_one() -> None:
    demand("landlock")
    found = look("with_a_gpu", "landlock", GPU="yes")
    assert found["open"] == found["read a fact"] == "done"
    assert found["its command"] == "ENOTTY"  # the device's own answer
    others = look("with_a_gpu", "landlock", GPU="")
    assert others["open"] == others["read a fact"] == "EACCES"


def test_the_filter_lets_a_gpus_commands_through_to_who_computes_on_one() -> None:
    demand("seccomp")
    found = look("with_a_gpu", "seccomp", GPU="yes")
    assert found["its command"] == "ENOTTY"
    assert found["another command"] == "EPERM"
    assert found["a pipe"] == "done"
    others = look("with_a_gpu", "seccomp", GPU="")
    assert others["its command"] == others["a pipe"] == "EPERM"
    alone = look("with_a_gpu", GPU="")  # the control
    assert alone["its command"] == alone["another command"] == "ENOTTY"


def test_namespaces_show_a_gpu_where_there_is_one() -> None:
    demand("namespaces")
    shown = look("world_with_a_gpu")
    assert set(shown.values()) == {"done"}
    none = look("world_with_a_gpu", NVIDIA="/dev/nowhere")
    assert none["read a fact"] == "ENOENT"


def test_folders_of_the_drivers_library_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the linker looks in, and the one that the driver's library really lies in."""
    folders = [
        tmp_path / name for name in ("named", "linked", "real", "keys", "cached")
    ]
    for each in folders:
        each.mkdir()
    named, linked, real, keys, cached = folders
    (named / "libnvrtc.so.13").touch()
    (keys / "libown.so.1").touch()  # no library of CUDA: a folder of somebody's
    (real / "libcuda.so.1").touch()
    (linked / "libcuda.so.1").symlink_to(real / "libcuda.so.1")
    (keys / "party.key").touch()
    (cached / "libcuda.so.1").touch()
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(
        b"glibc-ld\x00libcuda.so.1\x00%s/libcuda.so.1\x00" % bytes(cached)
    )
    monkeypatch.setattr(inventory, "_LINKERS_CACHE", str(cache))
    searched = f"{named}:{linked}:{keys}:{tmp_path / 'none'}::relative"
    monkeypatch.setenv("LD_LIBRARY_PATH", searched)
    monkeypatch.setattr(inventory, "NVIDIA", os.devnull)
    shown = inventory.readable()
    assert {str(each) for each in folders} & set(shown) == {
        str(each) for each in (named, linked, real, cached)
    }
    monkeypatch.setattr(inventory, "NVIDIA", "/dev/nowhere")  # as everywhere else
    assert not {str(each) for each in folders} & set(inventory.readable())


def found_by(name: str, word: str, *, gpu: bool) -> dict[str, str]:
    parts = demand(word).split("+") if word else []
    found: dict[str, str] = look(name, *parts, GPU="yes" if gpu else "")
    return found


@pytest.mark.parametrize("word", FILTERED)
def test_a_gpus_worker_keeps_a_name_and_talks_to_nobody(word: str) -> None:
    found = found_by("sockets_with_a_gpu", word, gpu=True)
    assert {name for name, answer in found.items() if answer == "done"} == MADE
    assert {found[name] for name in found if name not in MADE} == {"EPERM"}


@pytest.mark.parametrize("word", FILTERED)
def test_a_worker_on_the_cpu_makes_no_socket(word: str) -> None:
    assert set(found_by("sockets_with_a_gpu", word, gpu=False).values()) == {"EPERM"}


@pytest.mark.parametrize("word", ["landlock", "namespaces"])
def test_no_other_part_keeps_a_gpus_worker_from_its_name(word: str) -> None:
    found = found_by("sockets_with_a_gpu", word, gpu=True)
    assert {name for name, answer in found.items() if answer == "done"} >= MADE


def test_without_a_filter_all_of_it_is_done() -> None:
    """The control of the tests above; a socket that nobody has accepted takes no word, and
    not every machine has every family."""
    found = found_by("sockets_with_a_gpu", "", gpu=True)
    assert {name for name, answer in found.items() if answer != "done"} <= {
        "send",
        "tcp 6",
        "packets",
    }


OF_ITSELF = ("of a thread", "maps", "status")


@pytest.mark.parametrize("word", ["seccomp", "landlock", "namespaces", *SANDBOXES])
def test_a_gpus_worker_names_its_threads(word: str) -> None:
    found = found_by("processes_with_a_gpu", word, gpu=True)
    assert {found[name] for name in (*OF_ITSELF, "by a call")} == {"done"}


@pytest.mark.parametrize("word", ["landlock", "namespaces", *SANDBOXES])
def test_a_worker_on_the_cpu_has_nothing_of_it(word: str) -> None:
    found = found_by("processes_with_a_gpu", word, gpu=False)
    assert "done" not in {found[name] for name in OF_ITSELF}
    if "seccomp" in word:
        assert found["by a call"] == "EPERM"


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("word", ["landlock", "namespaces", *SANDBOXES])
def test_no_worker_reads_or_names_the_process_that_forks_the_next(
    word: str, gpu: bool
) -> None:
    """N6: what one slice writes there the next would read."""
    assert "done" not in seen(found_by("processes_with_a_gpu", word, gpu=gpu))


def test_without_any_part_the_forker_is_read() -> None:
    """The control of the test above; a thread's name takes no word of another process."""
    found = found_by("processes_with_a_gpu", "", gpu=True)
    assert "done" in seen(found)
    assert "EINVAL" in seen(found)


# What else opens for writing where the kernel's own folder is needed, since Landlock's rules
# are about folders, and why that reaches nobody else. A worker has no capability.
BESIDE_A_NAME = {
    "attr": "a profile of its own, where a security module lets it choose",
    "clear_refs": "marks on its own pages; who reads them is refused",
    "gid_map": "takes a capability",
    "loginuid": "the audit's name of its own session",
    "make-it-fail": "faults of its own calls, in kernels built to test",
    "fail-nth": "the same",
    "mem": "its own memory",
    "oom_adj": "may rise only where the process that forks could not lower it for good",
    "oom_score_adj": "the same",
    "projid_map": "takes a capability",
    "sched": "clears its own counts",
    "setgroups": "takes a capability",
    "timens_offsets": "takes a capability",
    "timerslack_ns": "how late its own timers may be",
    "uid_map": "takes a capability",
}


@pytest.mark.parametrize("word", ["namespaces", "namespaces+seccomp", BEST])
def test_with_namespaces_nothing_of_the_kernels_is_written(word: str) -> None:
    found = look("processes_with_a_gpu", *demand(word).split("+"), GPU="yes")
    assert found["written of a thread"] == []


@pytest.mark.parametrize("word", ["landlock", WITHOUT_NAMESPACES])
def test_without_namespaces_what_is_written_is_of_the_worker_itself(word: str) -> None:
    found = look("processes_with_a_gpu", *demand(word).split("+"), GPU="yes")
    written = {name.partition("/")[0] for name in found["written of a thread"]}
    assert "comm" in written
    assert written <= {"comm", *BESIDE_A_NAME}
    assert all(BESIDE_A_NAME.values())


def replay(word: str, folder: Path) -> tuple[list[str], list[str]]:
    """What the sandbox answers to each call that CUDA makes when it begins."""
    if os.geteuid() or platform.machine() != "x86_64":
        pytest.skip("this machine lacks x86-64's calls, or root for mounts")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).touch()
    driver = str(folder)
    more = {"GPU": "yes", "DRIVER": driver, "LD_LIBRARY_PATH": driver}
    answers, names = look("replay_with_a_gpu", *demand(word).split("+"), **more)
    return answers, names


ANSWERED = {"done", "ENOTTY"}  # a file that is no terminal
MOUNTS = {"stat", "lstat", "newfstatat", "access", "readlink"}


@pytest.mark.parametrize("word", [WITHOUT_NAMESPACES, BEST])
def test_each_call_of_cuda_goes_through_or_is_refused_on_purpose(
    word: str, tmp_path: Path
) -> None:
    answers, names = replay(word, tmp_path)
    told = list(zip(RECORDED, answers, strict=True))
    missing = [call for call, answer in told if answer not in ANSWERED]
    assert [call for call in missing if not call.refused] == []
    too_much = [
        call
        for call, answer in told
        if answer in ANSWERED
        and call.refused
        # Landlock refuses no question about a file; mounts hide it.
        and not (word == WITHOUT_NAMESPACES and call.name in MOUNTS)
    ]
    assert too_much == []
    assert names == ["done"]  # of a thread that begins later


def test_without_a_sandbox_all_that_was_there_is_answered(tmp_path: Path) -> None:
    """The control of the test above: its stand-ins are there, and refusals are the sandbox's."""
    answers, _names = replay("", tmp_path)
    told = zip(RECORDED, answers, strict=True)
    lacking = {
        call.path for call, answer in told if call.found and answer not in ANSWERED
    }
    assert lacking <= {
        "/dev/nvidia-caps",
        "/etc/localtime",
    }  # it exists; not everywhere


def seen(found: Mapping[str, object]) -> set[str]:
    kinds = ("of the forker", "names of the forker", "more of itself")
    answers = [found[kind] for kind in kinds]
    return {
        each
        for answer in answers
        if isinstance(answer, dict)
        for each in answer.values()
    }


def test_where_processes_cannot_be_mounted_a_worker_on_the_cpu_starts() -> None:
    """As in a container that has covered parts of ``/proc``."""
    demand("namespaces")
    for gpu in ("yes", ""):
        found = look("processes_with_a_gpu", "namespaces", GPU=gpu, REFUSED="proc")
        assert "done" not in {found[name] for name in OF_ITSELF}


def test_a_gpus_worker_has_no_path_without_a_row() -> None:
    demand("namespaces")
    for gpu in ("yes", ""):
        unexplained, with_a_row_fewer = look("paths_with_a_gpu", GPU=gpu)
        assert unexplained == []
        assert set(with_a_row_fewer) == {inventory.PROCESSES}  # control


@pytest.mark.parametrize("word", SANDBOXES)
def test_gpus_are_those_that_a_confined_process_computes_on(
    word: str, tmp_path: Path
) -> None:
    """A driver that needs a file which no row shows, and one that is content."""
    (tmp_path / "needed").touch()
    parts = demand(word).split("+")
    needed = str(tmp_path / "needed")
    found, why = look("trial_with_a_gpu", *parts, GPU="yes", NEEDED=needed)
    assert (found, "needed" in why) == ([], True)
    for kept in (
        look("trial_with_a_gpu", GPU="yes", NEEDED=needed),
        look("trial_with_a_gpu", *parts, GPU="yes", NEEDED=os.devnull),
    ):
        assert kept == [["GPU-1"], ""]
