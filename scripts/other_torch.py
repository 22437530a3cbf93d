"""Run the tests that start real workers with another torch: `make test-torch TORCH=2.11.0`.

The environment lies in `build/torch-VERSION`: that torch, and `.venv` for everything else.
A build with CUDA is as good as any: it has no GPU here, and says so. Exit code: pytest's.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from pins import ROOT

# Recipes run in real processes there; the rest of the tests shows no other side of torch.
WHERE = (
    "tests/unit/train", "tests/unit/serve", "tests/attacks/test_sandbox_layers.py",
    "tests/attacks/test_sandbox_on_a_gpu.py", "tests/attacks/test_n6_inventory.py",
    "tests/attacks/test_n6_slices.py", "tests/attacks/test_foreign_import.py",
    "tests/attacks/test_h8_recipe.py",
)  # fmt: skip


def make(version: str) -> Path:
    """Make the environment, unless it is there; return its Python."""
    folder = ROOT / f"build/torch-{version}"
    python = folder / "bin/python"
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    beside = folder / f"lib/{name}/site-packages/beside.pth"
    if not beside.exists():
        venv.create(folder, clear=True, with_pip=True)
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"torch=={version}"], check=True)  # noqa: S603 - a fixed command
        # Its own packages come first, then those of the environment that this runs in.
        beside.write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    return python


def main() -> int:
    """Make it and run; words after the version are pytest's."""
    version, *more = sys.argv[1:]
    python = make(version)
    words = ["-q", "-p", "no:cacheprovider", "-m", "distributed", *WHERE, *more]
    ran = subprocess.run(  # noqa: S603 - a fixed command
        [python, "-m", "pytest", *words], cwd=ROOT, check=False
    )
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
