"""What is installed: wheel and sdist, built here and put where nothing else is.

Offline: other packages are linked from this environment, those that the wheel asks for
and no others, and ``pip check`` says whether that is all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sealift.crypto.identity import create_identity
from sealift.crypto.keys import SecretKey
from sealift.meet.invitation import Invitation
from tests.unit.data.tables import make_arrays, write_table

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("LICENSE", "NOTICE", "README.md", "pyproject.toml")
MOST_PACKAGES = 30  # beyond torch and what it brings itself

TABLE = """
[[fields]]
name = "label"
dtype = "int64"
classes = 10
"""


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, check=False, capture_output=True, text=True, **options)


def done(*command: object, **options: object) -> str:
    ended = run(*command, **options)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def needs(lines: Iterable[str], extras: Iterable[str]) -> set[str]:
    """Names of all packages that requirements come to, here."""
    found: set[str] = set()
    queue = [(Requirement(line), set(extras)) for line in lines]
    while queue:
        requirement, asked = queue.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        here = marker is None or any(
            marker.evaluate({"extra": extra}) for extra in asked | {""}
        )
        if here and name not in found:
            found.add(name)
            for line in distribution(name).requires or ():
                queue.append((Requirement(line), requirement.extras))
    return found


class Packages:
    """The wheel and the sdist of the working tree's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "tree"
        known = done("git", "-C", ROOT, "ls-files", "-z", "--", "src")
        for name in [*filter(None, known.split("\0")), *BESIDE]:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.tree / name)
        build = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
        done(sys.executable, "-c", build, folder, cwd=self.tree)
        (self.sdist,) = folder.glob("*.tar.gz")
        self.wheel = self._wheel_of(self.tree, "from-tree")
        self.wheel_of_sdist = self._wheel_of(self.sdist, "from-sdist")
        self.requires = PathDistribution(
            next(p for p in zipfile.Path(self.wheel).iterdir() if "dist-info" in p.name)
        ).requires

    def _wheel_of(self, source: Path, name: str) -> Path:
        done(
            sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps",
            "--no-build-isolation", "-w", self.folder / name, source,
        )  # fmt: skip
        (wheel,) = (self.folder / name).glob("*.whl")
        return wheel

    def install(self, wheel: Path, *extras: str) -> Path:
        """An environment with ``sealift[extras]`` and nothing more; its ``bin``."""
        place = self.folder / "-".join(("env", wheel.parent.name, *extras))
        done(sys.executable, "-m", "venv", place)
        (site,) = place.glob("lib/python*/site-packages")
        for name in needs(self.requires, extras):
            lay_out(name, site)
        done(
            place / "bin/python", "-m", "pip", "install", "-q", "--no-index",
            f"sealift[{','.join(extras)}] @ {wheel.as_uri()}",
        )  # fmt: skip
        done(place / "bin/python", "-m", "pip", "check")
        return place / "bin"


def lay_out(name: str, site: Path) -> None:
    """The files of an installed package, there too."""
    for file in distribution(name).files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            try:
                os.link(file.locate(), target)
            except OSError:
                shutil.copy2(file.locate(), target)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages(tmp_path_factory.mktemp("packages"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        names = [name for name in opened.namelist() if name.startswith("sealift/")]
        return {name: opened.read(name) for name in names}


@pytest.mark.long
def test_wheel_and_sdist_have_every_file(packages: Packages) -> None:
    found = contents(packages.wheel)
    src = packages.tree / "src"
    files = [path for path in src.rglob("sealift/**/*") if path.is_file()]
    kept = {str(path.relative_to(src)) for path in files}
    assert set(found) == kept
    assert contents(packages.wheel_of_sdist) == found


@pytest.mark.long
def test_who_owns_data_needs_no_torch(packages: Packages, tmp_path: Path) -> None:
    commands = packages.install(packages.wheel_of_sdist)
    torch = run(commands / "python", "-c", "import torch")
    assert "No module named 'torch'" in torch.stderr
    (tmp_path / "north.pass").write_text("a passphrase\n")
    write_table(tmp_path / "t.npz", {"label": make_arrays(100)["label"]})
    (tmp_path / "schema.toml").write_text(TABLE)
    secret = ("--passphrase-file", "north.pass")
    here = {"cwd": tmp_path}
    done(commands / "sealift", "key", "new", "north", *secret, **here)
    done(
        commands / "sealift", "data", "seal", "t.npz", "--schema", "schema.toml", "--name", "t",
        "--part", "train", "--vault", "vault.db", "--key", "north.key", *secret,
        "-o", "sealed", **here,
    )  # fmt: skip
    script = (
        "from sealift.data import SealedDataset, owner_keys\n"
        "with owner_keys('vault.db', 'north.key', passphrase_file='north.pass') as k:\n"
        "    print(len(SealedDataset('sealed/t.sealed', k)[:]['label']))\n"
        "from sealift.data import SealedDataLoader\n"
    )
    read = run(commands / "python", "-c", script, **here)
    assert read.stdout == "100\n"
    assert "pip install '.[train]'" in read.stderr
    for noun in ("join", "broker", "orchestrator", "agreement", "doctor", "receipt"):
        done(commands / "sealift", noun, "--help")
    refused = run(commands / "sealift", "demo", **here)
    assert refused.returncode == 3
    assert refused.stderr == (
        "sealift: `sealift demo` needs torch, which is not installed. "
        "In Sealift's folder, run: pip install '.[demo]' [extra-missing]\n"
    )
    job = 'name = "j"\nagreement = "a.json"\nbundle = "b"\nplan = "ddp"\n'
    (tmp_path / "job.toml").write_text(job)
    words = ("join", "job.toml", "--key", "north.key", *secret)
    stores = ("--vault", "vault.db", "--log", "l.db", "--heads", "h", "--receipts", "r")
    refused = run(commands / "sealift", *words, *stores, "--sealed", "sealed", **here)
    assert "`sealift join` needs torch" in refused.stderr
    invited = Invitation(
        meeting=bytes(16), name="north", host=create_identity("host").public_key,
        secret=SecretKey.generate(), expires_s=2**33, addresses=("127.0.0.1:1",),
    )  # fmt: skip
    meeting = tmp_path / "meeting"  # a folder of its own
    meeting.mkdir()
    (meeting / "invitation").write_text(invited.to_text())
    there = {**here, "cwd": meeting}
    refused = run(commands / "sealift", "join", "invitation", "t.npz", **there)
    # Before anything is signed.
    assert "`sealift join INVITATION` needs torch" in refused.stderr
    (tmp_path / "t.csv").write_text("x;y\n1,5;a\n2,5;a\n")
    drafted = done(commands / "sealift", "data", "schema", "t.csv", **here)
    assert 'name = "x"\ndtype = "float32"' in drafted


@pytest.mark.long
@pytest.mark.distributed
def test_the_demo_runs_from_the_wheel(packages: Packages, tmp_path: Path) -> None:
    commands = packages.install(packages.wheel, "train", "demo")
    said = done(commands / "sealift", "demo", "--json", "--output", "run", cwd=tmp_path)
    assert json.loads(said.splitlines()[-1])
    assert list((tmp_path / "run").rglob("model.safetensors"))


def test_few_packages_are_needed_beyond_torchs_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    base = needs(project["dependencies"], ())
    whole = needs([*project["dependencies"], *extras["train"], *extras["demo"]], ())
    assert "torch" not in base
    assert len(whole - needs(["torch"], ())) <= MOST_PACKAGES
    assert len(base) <= MOST_PACKAGES


def test_the_first_screen_says_what_to_install() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[:30]
    assert any(line.startswith("pip install . ") for line in first)
    assert any(line.startswith("pip install '.[train]'") for line in first)
