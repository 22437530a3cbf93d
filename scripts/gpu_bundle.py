"""Collect what a bare GPU machine needs to run GPU tests and benches: `make gpu-bundle`.

For a machine with Python 3.12, torch and an NVIDIA driver, and without a package
registry. The bundle holds the wheels of everything else at the versions that are pinned,
sealift as a wheel, the tests, and `run.sh`, the one command. It is one folder and one
tar file under `build/`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pins import ROOT, needs_of

BUNDLE = ROOT / "build/gpu-bundle"
MOST_BYTES = 60 << 20
PYTHON = "3.12"
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
# The machine brings them; torch's GPU builds bring the compiler.
BROUGHT = {"torch", "nvidia-cuda-nvrtc"}
EXTRAS = ("cuda",)
TESTS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
SOURCES = (
    "tests", "src", "scripts", "spec/vectors", "pyproject.toml", "README.md", "LICENSE",
    "NOTICE",
)  # fmt: skip


def project() -> dict[str, list[str]]:
    """Return what pyproject.toml asks for: the dependencies and each extra."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": read["dependencies"], **read["optional-dependencies"]}


def wanted() -> Iterator[Requirement]:
    """Yield what sealift, the extra for GPUs and the tests need there."""
    asked = project()
    lines = [*asked[""], *(line for extra in EXTRAS for line in asked[extra])]
    for line in (*lines, *TESTS):
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) not in BROUGHT:
            yield requirement


def closure() -> dict[str, str]:
    """Return name -> pinned version of everything that is needed there."""
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    found: dict[str, str] = {}
    queue = list(wanted())
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in found or name in BROUGHT:
            continue
        found[name] = pins[name]
        queue += needs_of(requirement)
    return found


def download(packages: dict[str, str], folder: Path) -> None:
    """Fetch the wheels for that Python and platform, and no other."""
    platforms = [f"--platform=manylinux_{each}_x86_64" for each in PLATFORMS]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
        "--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp",
        *platforms, "--platform=manylinux2014_x86_64", f"--dest={folder}",
        *(f"{name}=={version}" for name, version in sorted(packages.items())),
    ]  # fmt: skip
    run(command)


def build_wheel(source: Path, folder: Path) -> None:
    """Make sealift's own wheel of the copy, so that no earlier build is in it."""
    command = [
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps",
        "--no-build-isolation", f"--wheel-dir={folder}", str(source),
    ]  # fmt: skip
    run(command)
    for left in (source / "build", *source.glob("src/*.egg-info")):
        shutil.rmtree(left, ignore_errors=True)


def copy_sources(folder: Path) -> None:
    """Copy the tests and what they read: files that git knows, as they are now."""
    known = said("git", "ls-files", "-z", "--", *SOURCES)
    for name in filter(None, known.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)


def commit() -> str:
    """Return the commit, marked if the tree differs from it."""
    return said("git", "describe", "--always", "--dirty", "--abbrev=12").strip()


def said(*command: str) -> str:
    """Return what a command prints."""
    done = subprocess.run(  # noqa: S603 - fixed commands
        command, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def requirements() -> str:
    """Return a line a package, with lower bounds: what is there already may stay."""
    return "".join(f"{requirement}\n" for requirement in wanted())


def pack() -> Path:
    """Make the tar file; refuse one that is too large to carry."""
    archive = BUNDLE.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(BUNDLE, arcname=BUNDLE.name)
    size = archive.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{archive} has {size >> 20} MiB, the most is 60")
    return archive


def run(command: list[str]) -> None:
    """Run a command, and end with its exit code if it fails."""
    done = subprocess.run(command, check=False)  # noqa: S603 - fixed commands
    if done.returncode:
        raise SystemExit(done.returncode)


def main() -> None:
    """Make the folder and the tar file, and print their sizes."""
    assert default_environment()["platform_machine"] == "x86_64", "made on x86-64 only"
    shutil.rmtree(BUNDLE, ignore_errors=True)
    wheels = BUNDLE / "wheels"
    wheels.mkdir(parents=True)
    download(closure(), wheels)
    copy_sources(BUNDLE / "source")
    build_wheel(BUNDLE / "source", wheels)
    (BUNDLE / "requirements.txt").write_text(requirements())
    (BUNDLE / "commit.txt").write_text(f"{commit()}\n")
    shutil.copy2(ROOT / "scripts/gpu_run.sh", BUNDLE / "run.sh")
    archive = pack()
    for wheel in sorted(wheels.iterdir(), key=lambda each: -each.stat().st_size)[:6]:
        print(f"{wheel.stat().st_size / 2**20:6.1f} MiB  {wheel.name}")
    print(f"{archive.stat().st_size / 2**20:6.1f} MiB  {archive.relative_to(ROOT)}")
    print(
        "on the GPU machine: tar xzf gpu-bundle.tar.gz && sh gpu-bundle/run.sh RESULTS"
    )


if __name__ == "__main__":
    main()
