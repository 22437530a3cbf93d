"""Write constraints.txt: every package that sealift and its extras need, pinned.

Reads the environment it runs in, so it pins what was tested there; run it with
`.venv/bin/python scripts/pins.py` after trying newer versions. Local version parts
(`+cpu`) are dropped: which build of torch is installed is the machine's choice.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
HEADING = """\
# Exact versions of everything in `.venv`; written by scripts/pins.py.
# What torch's GPU builds bring along is pinned by torch itself.
"""


def declared() -> Iterator[Requirement]:
    """Yield what pyproject.toml asks for, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for line in [
        *project["dependencies"],
        *(line for extra in extras for line in extra),
    ]:
        yield Requirement(line)


def needs_of(requirement: Requirement) -> Iterator[Requirement]:
    """Yield what one installed package needs on this machine."""
    for line in distribution(requirement.name).requires or ():
        needed = Requirement(line)
        extras = requirement.extras or {""}
        if not needed.marker or any(
            needed.marker.evaluate({"extra": e}) for e in extras
        ):
            yield needed


def closure(wanted: list[Requirement]) -> dict[str, str]:
    """Return name -> version of everything reachable from `wanted`."""
    versions: dict[str, str] = {}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in versions:
            continue
        try:
            versions[name] = distribution(name).version.partition("+")[0]
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed; install it, then pin") from None
        wanted.extend(needs_of(requirement))
    return versions


def main() -> None:
    """Write the file."""
    lines = [
        f"{name}=={version}\n"
        for name, version in sorted(closure([*declared()]).items())
    ]
    (ROOT / "constraints.txt").write_text(HEADING + "".join(lines))
    print(f"constraints.txt: {len(lines)} packages pinned")


if __name__ == "__main__":
    main()
