"""`sealift doctor`: everything is a finding, nothing an error unless it is required."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import tomllib
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from sealift.channel.cuda.staging import GpuProtection
from sealift.cli import doctor
from sealift.cli.doctor import cipher as probecipher
from sealift.cli.doctor import gpu as probegpu
from sealift.cli.doctor import host as probehost
from sealift.cli.doctor import probe, roles
from sealift.cli.doctor import setup as probesetup
from sealift.cli.doctor.probe import Finding, Probe
from sealift.cli.main import main
from sealift.errors import UnavailableError
from sealift.train.worker import devices
from sealift.train.worker.devices import other_processes
from tests.sim.cuda_engines import model_gpu
from tests.sim.cuda_standin import StandInDriver

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Timing is not the point here."""
    monkeypatch.setattr(probe, "WINDOW_S", 0.001)
    monkeypatch.setattr(probecipher, "_RECORDS", 2)
    monkeypatch.setattr(probecipher, "_PAIRS", 2)
    monkeypatch.setattr(probegpu, "_NBYTES", 1 << 16)
    monkeypatch.setattr(probegpu, "_CROSSINGS", 3)


def by_name(findings):
    return {each.name: each for each in findings}


def gpu_findings(**faults):
    gpu = model_gpu(copy_s=0.001, **faults)
    found = by_name(probegpu.look_at_gpu(lambda: StandInDriver(gpu)))
    assert not gpu.blocks
    assert not gpu.pinned_blocks
    assert gpu.contexts == 0
    return found


@pytest.mark.distributed
def test_the_whole_document_has_every_topic_and_its_figures(capsys):
    assert main(["doctor", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    findings = json.loads(printed.out)["findings"]
    names = {each["name"]: each for each in findings}
    wanted = {
        "cores", "memory", "memcpy", "memory file", "fsync", "sandbox", "TPM 2.0",
        "Intel TDX", "AMD SEV-SNP", "AES instructions", "AES-256-GCM",
        "ChaCha20-Poly1305", "two threads", "sealed link", "GPU", "GPU protection", "kernel compiler",
        "others on the GPU", "Sealift on a GPU",
    }  # fmt: skip
    assert wanted <= set(names)
    assert names["AES-256-GCM"]["figures"]["bytes_per_s"] > 0
    link = names["sealed link"]
    assert set(link["figures"]) == {"share_at_16_mib", "share_at_64_mib"}
    assert all(share > 0 for share in link["figures"].values())
    assert f"{link['figures']['share_at_64_mib']:.2f} at 64 MiB" in link["found"]
    assert {each["topic"] for each in findings} == {
        "Machine", "Copies", "Protection", "Ciphers", "GPU", "Installed",
    }  # fmt: skip
    for each in findings:
        assert each["state"] in ("good", "limits", "missing", "fact")
        assert each["found"]


def nvml(*counts: int) -> SimpleNamespace:
    """What NVIDIA's library says of two GPUs, on the first of which another one computes."""
    running = [(os.getpid(), 4321), (os.getpid(),)]
    return SimpleNamespace(
        NVMLError=LookupError,
        nvmlDeviceGetCount=iter(counts).__next__,
        nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetUUID=lambda number: f"GPU-{number}",
        nvmlDeviceGetComputeRunningProcesses=lambda number: [
            SimpleNamespace(pid=pid) for pid in running[number]
        ],
        nvmlDeviceGetMPSComputeRunningProcesses=lambda number: [],
        nvmlDeviceGetGraphicsRunningProcesses=lambda number: [],
    )


def test_who_else_computes_on_a_gpu_is_told(monkeypatch):
    here = os.readlink("/proc/self/ns/pid")
    monkeypatch.setattr(devices, "_FIRST_NAMESPACE", here)  # also in a container
    first, second, ran = probegpu.look_at_company(
        partial(other_processes, lambda: nvml(2))
    )
    assert (first.found, first.state) == ("GPU-0: processes 4321", "limits")
    assert (second.found, second.state) == ("GPU-1: no other process", "good")
    assert ran.found == probegpu.RAN
    failing = SimpleNamespace(**vars(nvml()) | {"nvmlDeviceGetCount": {}.popitem})
    unknown, _ran = probegpu.look_at_company(partial(other_processes, lambda: failing))
    assert unknown.state == "missing"
    assert "dictionary is empty" in unknown.found


def test_what_has_run_on_a_gpu_is_said_everywhere_alike():
    root = Path(__file__).parents[2]
    for name in ("docs/explanation/what-ran-where.md", "SECURITY.md"):
        said = " ".join((root / name).read_text().split())
        assert said.count(probegpu.RAN) == 1, name


def test_a_gpu_is_described_by_what_was_measured():
    found = gpu_findings()
    assert found["GPU"].meaning, "a simulated GPU is called one"
    assert found["pinned memory"].figures["proven"] is True
    assert found["to and from the GPU"].figures["h2d_bytes_per_s"] > 0
    assert found["cost of one transfer"].figures["toll_s"] > 0


@pytest.mark.parametrize("lie", ["refused", "ordinary", "synchronous", "stale"])
def test_pinned_memory_that_lies_is_told(lie):
    found = gpu_findings(pinned=lie)
    assert found["pinned memory"].state == "limits"
    assert found["pinned memory"].found.startswith("not proven: ")
    assert found["to and from the GPU"].figures["pinned"] is False


def test_a_gpu_that_fails_is_a_finding():
    gpu = model_gpu(lose_after=5)
    [found] = probegpu.look_at_gpu(lambda: StandInDriver(gpu))
    assert found.state == "limits"
    assert found.figures["error"] == "device-lost"
    found = gpu_findings_of_error(
        UnavailableError("none", why="no card", code="no-gpu")
    )
    assert found.state == "missing"
    assert "no card" in found.found


def test_a_device_file_that_a_recipe_would_miss_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(probegpu, "NVIDIA", "/dev/null")
    monkeypatch.setattr(probegpu, "UVM", str(tmp_path / "uvm"))
    found = gpu_findings()["GPU files"]
    assert found.found == f"{tmp_path / 'uvm'} is missing"
    assert "nvidia-modprobe -u -c=0" in found.advice
    (tmp_path / "uvm").touch()
    assert "GPU files" not in gpu_findings()
    monkeypatch.setattr(probegpu, "NVIDIA", "/dev/nowhere")
    (tmp_path / "uvm").unlink()
    assert "GPU files" not in gpu_findings()


def test_a_device_file_that_this_user_may_not_open_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(probegpu, "GPU_FILES", {str(tmp_path / "gpu"): ""})
    monkeypatch.setattr(probegpu.os, "access", lambda path, mode: False)
    assert "GPU files" not in gpu_findings()
    (tmp_path / "gpu").touch()
    found = gpu_findings()["GPU files"]
    assert found.found == f"this user may not open {tmp_path / 'gpu'}"
    assert found.state == "limits"


USES = [f"GPU for {use}" for use in probegpu.USES]


@pytest.mark.parametrize(
    ("engine", "confined", "alone", "without"),
    [
        ("", "", "never asked", []),
        ("no compiler", "", "never asked", [0, 1, 3]),
        ("", "CUDA error 304", "", [2, 3]),
        ("", "an old driver", "an old driver", [1, 2, 3, 4]),
        ("no GPU", "no driver", "no driver", [0, 1, 2, 3, 4]),
    ],
    ids=["all", "no engine", "not in the sandbox", "no torch", "nothing"],
)
def test_each_use_of_a_gpu_says_what_it_lacks(engine, confined, alone, without):
    found = list(
        probegpu.look_at_uses(
            lambda: True, lambda: engine, lambda sandbox: confined if sandbox else alone
        )
    )
    assert [each.name for each in found] == USES
    assert [n for n, each in enumerate(found) if each.state == "limits"] == without
    for number, each in enumerate(found):
        reasons = [each for each in (engine, confined, alone) if each]
        assert (each.found == "yes") is (number not in without)
        assert each.found == "yes" or any(why in each.found for why in reasons)


def test_without_a_gpu_no_use_is_tried():
    [none] = probegpu.look_at_uses(lambda: False, None, None)
    assert (none.name, none.state) == ("uses of a GPU", "missing")


def gpu_findings_of_error(error):
    def opens():
        raise error

    [found] = probegpu.look_at_gpu(opens)
    return found


@pytest.mark.parametrize(
    ("state", "said", "how"),
    [
        (
            GpuProtection(True, False, "ppcie", True),
            "multi-GPU mode ppcie",
            "good",
        ),
        (GpuProtection(True, True, "none", True), "debug tools", "limits"),
        (GpuProtection(True, False, "none", False), "not accept work", "limits"),
        (GpuProtection(False, False, "none", True), "is off", "fact"),
        (GpuProtection(None, why="no driver"), "unknown: no driver", "missing"),
    ],
)
def test_the_state_of_confidential_computing(state, said, how):
    [found] = probegpu.look_at_protection(lambda: state)
    assert said in found.found
    assert found.state == how
    good = how == "good"
    named = [("GPU", found)]
    if good:
        doctor.require(named, ["cc"])
    else:
        with pytest.raises(UnavailableError):
            doctor.require(named, ["cc"])


def test_what_is_missing_is_said():
    [none] = probecipher.look_at_system_library(("libnothing.so",))
    assert none.found == "none"
    [none] = probegpu.look_at_compilers(list)
    assert (none.state, none.found) == ("missing", "none")
    [none] = probehost.look_at_sandbox(lambda part: part == "seccomp")
    assert (none.state, none.found) == ("limits", "seccomp")


def test_a_processor_without_wide_aes_and_a_folder_that_is_not_there(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu aes pclmulqdq\n")
    [found] = probecipher.look_at_flags(cpuinfo)
    assert (found.state, found.found) == ("limits", "aes, pclmulqdq")
    [found] = probecipher.look_at_flags(tmp_path / "nothing")
    assert found.found == "none"
    [found] = probehost.look_at_disk(tmp_path / "nothing")
    assert found.state == "missing"


FOUND = [
    ("One", Finding("a", "x" * 100, "means", "do it", "limits")),
    ("One", Finding("b", "fine\x1b[31m", state="good")),
    ("Two", Finding("GPU", "none", state="missing")),
]


def test_the_verdict_says_what_each_level_lacks():
    names = ("TPM 2.0", "sandbox", "AMD SEV-SNP", "TSM reports")
    found = [("Protection", Finding(name, "here", state="good")) for name in names]
    found.append(("GPU", Finding("GPU protection", "off", state="limits")))
    assert [line.partition(": ")[::2] for line in doctor.verdict(found)[1:]] == [
        ("level attested-host", doctor.HERE),
        ("level tee", doctor.HERE),
        ("level gpu-tee", "missing: GPU protection"),
        ("level untrusted-gpu", doctor.HERE),
    ]
    *_, last, azure = doctor.verdict(found[:2])
    assert last.endswith("missing: Intel TDX or AMD SEV-SNP, TSM reports")
    assert azure == doctor.AZURE
    assert doctor.AZURE not in doctor.verdict(found) + doctor.verdict(found[1:2])


def test_text_is_plain_without_a_terminal_and_fits():
    text = doctor.to_text(FOUND, colours=False)
    assert "\x1b" not in text
    assert all(len(line) <= doctor.WIDTH or "xxx" in line for line in text.splitlines())
    assert "  limits a: " in text
    assert "           -> do it" in text
    ending = [
        "limited on this machine: a\nmissing on this machine: GPU",
        "\n".join(doctor.verdict(FOUND)),
    ]
    assert text.endswith("\n\n".join(ending))
    coloured = doctor.to_text(FOUND, colours=True)
    assert "\x1b[1mOne\x1b[0m" in coloured
    assert "\x1b[31m" not in coloured  # what others said stays text


def test_progress_is_for_terminals_alone():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    probes = [Probe("One", "a thing", lambda: [FOUND[0][1]])]
    talk = Terminal()
    assert doctor.look(probes, talk) == FOUND[:1]
    assert "a thing (1 of 1)" in talk.getvalue()
    assert talk.getvalue().endswith("\r\x1b[K")
    quiet = io.StringIO()
    doctor.look(probes, quiet)
    assert quiet.getvalue() == ""


def test_packages_are_named_with_the_command_that_brings_them(monkeypatch):
    torch = by_name(probesetup.look_at_packages())["torch"]
    assert (torch.state, set(torch.figures)) == ("good", {"cuda"})
    monkeypatch.setattr(probesetup, "OLDEST_TORCH", (99, 0))
    assert by_name(probesetup.look_at_packages())["torch"].state == "limits"

    def nothing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(probesetup, "distribution", nothing)
    found = by_name(probesetup.look_at_packages())
    assert {each.state for each in found.values()} == {"missing"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for each in found.values():
        extra = re.fullmatch(r"pip install 'sealift\[(\w+)\]'", each.advice).group(1)
        assert any(
            line.startswith(each.name)
            for line in extras["optional-dependencies"][extra]
        )


def test_a_port_that_is_taken_and_a_proxy_that_is_none():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = by_name(probesetup.look_at_network({}, port))
        assert found[f"port {port}"].state == "limits"
    found = by_name(probesetup.look_at_network({}, port))
    assert (found[f"port {port}"].state, found["proxy"].state) == ("good", "fact")
    secret = {"HTTPS_PROXY": "http://me:secret@proxy.example:3128"}
    proxy = by_name(probesetup.look_at_network(secret))["proxy"]
    assert proxy.state == "good"
    assert "secret" not in str(proxy)
    secret = {"HTTPS_PROXY": "socks5://me:secret@proxy.example:3128"}
    proxy = by_name(probesetup.look_at_network(secret))["proxy"]
    assert proxy.state == "limits"
    assert "secret" not in str(proxy)


def test_room_and_clock(monkeypatch, tmp_path):
    [found] = probesetup.look_at_space(tmp_path / "nothing")
    assert found.state == "missing"
    monkeypatch.setattr(probesetup, "_LEAST_BYTES", 1 << 62)
    [found] = probesetup.look_at_space(tmp_path)
    assert found.state == "limits"
    [clock] = probesetup.look_at_clock()
    assert clock.figures.get("synchronized", False) == (clock.state == "good")


def all_good(role):
    names = {name for task in roles.TASKS[role] for name in (*task.needs, *task.wants)}
    return {name: Finding(name, "here", state="good") for name in names}


def judged(role, found):
    return roles.judge(role, [("One", each) for each in found.values()])


@pytest.mark.parametrize("role", roles.TASKS)
def test_each_role_is_told_what_its_machine_can_do(role):
    """Everything where nothing is missing; and what is missing forbids what needs it."""
    found = all_good(role)
    assert not any(each.lacks or each.warns for each in judged(role, found))
    for name, good in found.items():
        bad = Finding(name, "gone", advice="bring it", state="missing")
        verdicts = judged(role, found | {name: bad})
        for each in verdicts:
            assert (each.lacks == [bad]) == (name in each.task.needs)
            assert (each.warns == [bad]) == (name in each.task.wants)
        lines = roles.to_lines(role, verdicts)
        assert lines.count("    -> bring it") == 1
        written = roles.to_json(verdicts)
        assert {each["can"] for each in written} == {not e.lacks for e in verdicts}
        assert good.state == "good"


def test_a_slow_disk_forbids_nothing_and_an_unknown_use_of_a_gpu_is_no_yes():
    found = all_good("host")
    slow = {"fsync": Finding("fsync", "1 s", state="limits")}
    assert not any(each.lacks for each in judged("host", found | slow))
    del found["GPU for train"]
    [gpu] = [each for each in judged("host", found) if each.lacks]
    assert [each.name for each in gpu.lacks] == ["GPU for train"]


@pytest.mark.distributed
def test_the_names_that_roles_need_are_those_of_findings(capsys):
    """Printed as JSON: findings that a task names and no probe has would be lost."""
    assert main(["doctor", "--json", "--as", "operator"]) == 0
    document = json.loads(capsys.readouterr().out)
    names = {each["name"] for each in document["findings"]}
    named = {
        name
        for tasks in roles.TASKS.values()
        for task in tasks
        for name in (*task.needs, *task.wants)
    }
    assert {name for name in named - names if not name.startswith("GPU for ")} == set()
    assert len(document["tasks"]) == len(roles.TASKS["operator"])


def test_what_is_required_and_missing_is_exit_code_3():
    with pytest.raises(UnavailableError, match="--require gpu") as caught:
        doctor.require(FOUND, ["gpu"])
    assert (caught.value.code, caught.value.exit_code) == ("doctor-requires", 3)
    doctor.require([("x", Finding("GPU", "one", state="good"))], ["gpu"])
    with pytest.raises(UnavailableError, match="sandbox"):
        doctor.require([], ["sandbox"])
