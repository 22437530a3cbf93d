"""Collect what a bare GPU machine needs to run GPU tests and benches: `make gpu-bundle`.

For a machine with an NVIDIA driver, Python 3.12, torch and the usual packages beside it
(`BROUGHT`), and without a package registry. The bundle holds the wheels of everything else
at the versions that are pinned, sealift as a wheel, the tests, and `run.sh`, the one
command. It is one folder and one tar file under `build/`.
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
MOST_BYTES = 25 << 20
PYTHON = "3.12"
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
# What such a machine has, with the lowest versions that do; `run.sh` looks for each.
BROUGHT = {
    "click": "7", "cuda-bindings": "13", "h11": "0.8", "hypothesis": "6.100",
    "numba": "0.62", "numpy": "2", "nvidia-cuda-nvrtc": "13", "nvidia-ml-py": "12.575",
    "pyarrow": "20", "pytest": "8.3", "pytest-timeout": "2.3", "pytest-xdist": "3.6",
    "rich": "13", "safetensors": "0.5", "torch": "2.11",
}  # fmt: skip
EXTRAS = ("cuda", "outsource", "train")
TESTS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
SOURCES = (
    "tests", "src", "benchmarks", "scripts", "examples", "spec/vectors", "docs/reference",
    "pyproject.toml", "README.md", "LICENSE", "NOTICE",
)  # fmt: skip


def project() -> dict[str, list[str]]:
    """Return what pyproject.toml asks for: the dependencies and each extra."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": read["dependencies"], **read["optional-dependencies"]}


def wanted() -> Iterator[Requirement]:
    """Yield what sealift, these extras and the tests need there."""
    asked = project()
    lines = [*asked[""], *(line for extra in EXTRAS for line in asked[extra])]
    yield from map(Requirement, (*lines, *TESTS))


def closure() -> dict[str, str]:
    """Return name -> pinned version of everything that is carried there."""
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


def brought() -> str:
    """Return a line a package that has to be there, with its lowest version."""
    return "".join(f"{name}>={least}\n" for name, least in BROUGHT.items())


def collect(bundle: Path) -> None:
    """Make the folder, but for the wheels that a registry has."""
    shutil.rmtree(bundle, ignore_errors=True)
    (bundle / "wheels").mkdir(parents=True)
    copy_sources(bundle / "source")
    build_wheel(bundle / "source", bundle / "wheels")
    (bundle / "brought.txt").write_text(brought())
    (bundle / "commit.txt").write_text(f"{commit()}\n")
    for name in ("run.sh", "check.py", "basics.py"):
        shutil.copy2(ROOT / f"scripts/gpu_{name}", bundle / name)


def pack(bundle: Path) -> Path:
    """Make the tar file; refuse one that is too large to carry."""
    archive = bundle.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(bundle, arcname=bundle.name)
    size = archive.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(
            f"{archive} has {size / 2**20:.1f} MiB, the most is {MOST_BYTES >> 20}"
        )
    return archive


def run(command: list[str]) -> None:
    """Run a command, and end with its exit code if it fails."""
    done = subprocess.run(command, check=False)  # noqa: S603 - fixed commands
    if done.returncode:
        raise SystemExit(done.returncode)


def main() -> None:
    """Make the folder and the tar file, and print their sizes."""
    assert default_environment()["platform_machine"] == "x86_64", "made on x86-64 only"
    collect(BUNDLE)
    wheels = BUNDLE / "wheels"
    download(closure(), wheels)
    archive = pack(BUNDLE)
    for wheel in sorted(wheels.iterdir(), key=lambda each: -each.stat().st_size)[:6]:
        print(f"{wheel.stat().st_size / 2**20:6.1f} MiB  {wheel.name}")
    print(f"{archive.stat().st_size / 2**20:6.1f} MiB  {archive.relative_to(ROOT)}")
    print(
        "on the GPU machine: tar xzf gpu-bundle.tar.gz && sh gpu-bundle/run.sh RESULTS"
    )


if __name__ == "__main__":
    main()
