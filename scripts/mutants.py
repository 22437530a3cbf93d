"""Break the product one line at a time; fail unless a test sees every break.

`mutants.py [WORD...]` runs the mutants of tests/mutants/*.toml, or those whose place or
property holds one of the words. Each names its place by qualified name and text, so that
the list moves with the code: a text that is not there exactly once is a failure. A mutant
is seen when a test that passes without it fails with it; one that cannot be imported is
no mutant. One with which a test does not end is seen if the list says ``hangs = true``:
else nobody knows whether the test saw it or the machine was busy.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "mutants"
WORKERS = int(os.environ.get("WORKERS", "2"))
TEST_S = 100  # most tests take a second
ONE_S = 500
ALL_TESTS_S = 1800
TESTS_FAILED = 1  # pytest's exit status; 2 and more mean that nothing was tested


@dataclass(frozen=True)
class Mutant:
    """One line of the product, changed.

    Attributes:
        at: Qualified name of the module, class or function that holds the line.
        line: A part of that line, which stands there exactly once.
        becomes: What stands in its place.
        breaks: The property that is lost.
        tests: Files or node ids of the tests that see it.
        hangs: Whether they see it by not coming to an end.
    """

    at: str
    line: str
    becomes: str
    breaks: str
    tests: tuple[str, ...]
    hangs: bool = False

    def path(self) -> Path:
        """The module's file, relative to the project.

        Raises:
            LookupError: there is no such module.
        """
        parts = self.at.split(".")
        for length in range(len(parts), 0, -1):
            stem = Path("src", *parts[:length])
            for path in (stem.with_suffix(".py"), stem / "__init__.py"):
                if (ROOT / path).is_file():
                    return path
        raise LookupError(f"no module holds {self.at}")

    def apply(self, source: str) -> str:
        """Return the module's text with the line changed.

        Raises:
            LookupError: the name or the text is not there exactly once.
        """
        begin, end = self._span(source)
        part = source[begin:end]
        if part.count(self.line) != 1:
            raise LookupError(
                f"{self.at} holds {part.count(self.line)} times: {self.line}"
            )
        changed = source[:begin] + part.replace(self.line, self.becomes) + source[end:]
        ast.parse(changed)
        return changed

    def _span(self, source: str) -> tuple[int, int]:
        """Where the named class or function begins and ends in its module's text."""
        module = self.path().with_suffix("").parts[1:]
        names = self.at.split(".")[len(module) - (module[-1] == "__init__") :]
        node: ast.AST = ast.parse(source)
        for name in names:
            found = [
                each
                for each in getattr(node, "body", [])
                if getattr(each, "name", None) == name
            ]
            if not found:
                raise LookupError(f"{self.at} is not in {self.path()}")
            node = found[-1]
        if isinstance(node, ast.Module):
            return 0, len(source)
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        starts = [0, *(match.end() for match in re.finditer("\n", source)), len(source)]
        return starts[node.lineno - 1], starts[node.end_lineno or node.lineno]


def read_list() -> list[Mutant]:
    """Read every mutant of the committed list."""
    return [
        Mutant(**{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(LIST.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutant"]
    ]


def tracked_files() -> Iterator[str]:
    """Name every file of the project."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)  # noqa: S603 - git
    yield from filter(None, listed.stdout.decode().split("\0"))


def copy_project(folder: Path) -> None:
    """Make a project of its own for one worker."""
    for name in tracked_files():
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def run_tests(
    project: Path, tests: list[str], *more: str, within_s: int
) -> tuple[int, str]:
    """Run tests in a copy; return pytest's exit status and what it printed."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"),
        *("-m", "not soak and not online"),
        *more,
        *dict.fromkeys(tests),
    ]
    environment = {
        **os.environ,
        "COLUMNS": "1000",  # so that the reason of a failure is not cut off
        "PYTHONPATH": str(project / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(project / ".hypothesis"),
        "SEALIFT_VECTORS": os.environ.get(
            "SEALIFT_VECTORS", str(ROOT.parent / "shared" / "vectors")
        ),
    }
    ran = subprocess.run(  # noqa: S603 - our own tests
        command,
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )
    return ran.returncode, ran.stdout + ran.stderr


def try_one(mutant: Mutant, project: Path) -> str:
    """Return what is wrong with a mutant; nothing if a test saw it."""
    try:
        path = mutant.path()
        source = (ROOT / path).read_text()
        changed = mutant.apply(source)
    except (LookupError, SyntaxError) as error:
        return f"not found: {error}"
    (project / path).write_text(changed)
    try:
        how = ("-x", f"--timeout={TEST_S}")
        status, printed = run_tests(project, list(mutant.tests), *how, within_s=ONE_S)
    except subprocess.TimeoutExpired:
        return f"hung: its tests took more than {ONE_S} s"
    finally:
        (project / path).write_text(source)
    if status == TESTS_FAILED:
        hung = "from pytest-timeout" in printed and not mutant.hangs
        return f"hung\n{printed[-600:]}" if hung else ""
    what = "survived" if status == 0 else f"tested nothing (pytest says {status})"
    return f"{what}\n{printed[-600:]}" if status else what


def passes_without(mutants: list[Mutant], project: Path) -> bool:
    """Run all named tests once in an unchanged copy: they must pass."""
    tests = [test for mutant in mutants for test in mutant.tests]
    how = ["-n", str(WORKERS), "--dist", "loadfile"] if WORKERS > 1 else []
    status, printed = run_tests(project, tests, *how, within_s=ALL_TESTS_S)
    print(printed[-2000:] if status else printed.strip().splitlines()[-1], flush=True)
    return status == 0


def try_all(mutants: list[Mutant], folder: Path) -> int:
    """Try every mutant in as many copies as there are workers; count what is wrong."""
    projects: queue.Queue[Path] = queue.Queue()
    for number in range(WORKERS):
        project = folder / f"project-{number}"
        copy_project(project)
        projects.put(project)
    if not passes_without(mutants, folder / "project-0"):
        print("the tests fail without any mutant")
        return len(mutants)

    def one(mutant: Mutant) -> str:
        project = projects.get()
        try:
            return try_one(mutant, project)
        finally:
            projects.put(project)

    wrong = 0
    with ThreadPoolExecutor(WORKERS) as pool:
        for mutant, problem in zip(mutants, pool.map(one, mutants), strict=True):
            wrong += bool(problem)
            print(f"{'SURVIVED' if problem else 'caught  '}  {mutant.at}: ", end="")
            print(mutant.breaks, f"\n  {problem}" if problem else "", flush=True)
    return wrong


def main() -> int:
    """Try the mutants that the words choose; 1 if one of them is not seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="of place or property")
    words = parser.parse_args().words
    mutants = [
        each
        for each in read_list()
        if not words or any(word in f"{each.at} {each.breaks}" for word in words)
    ]
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        wrong = try_all(mutants, Path(folder))
    minutes = (monotonic() - began) / 60
    print(f"{len(mutants) - wrong} caught, {wrong} not, in {minutes:.1f} min")
    return 1 if wrong or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
