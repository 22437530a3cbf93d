"""The audited core: what is planted is found, inside and outside, and the code is clean."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
TABLE = """# Architecture

## The audited core

Words, with a `name` in them.

| part | modules | what they are |
|---|---|---|
| core: keys | `crypto.keys` `errors` | keys |
| on demand | `attest.kinds` | kinds |
| core: broker | `release.broker.stores` `release.vault.vault` `agreement.*` | doors |
| elsewhere | `data.worker` | a worker |

## Where do I find

| question | file |
|---|---|
| nothing | `cli.main` |
"""
CLEAN = {
    "__init__": "",
    "errors": "class SealiftError(Exception): ...\n",
    "crypto.__init__": "",
    "crypto.keys": "TOKEN = object()\nclass SecretKey:\n    def reveal(self, token): ...\n",
    "attest.__init__": "",
    "attest.snp": "import sealift.errors\n",
    "attest.kinds": "def snp():\n    from sealift.attest import snp\n    return snp\n",
    "agreement.__init__": "",
    "agreement.whole": "from sealift.agreement import rules\n",
    "agreement.rules": "_SECRET = 1\n",
    "release.__init__": "",
    "release.broker.__init__": "",
    "release.vault.__init__": "",
    "release.vault.vault": "class Vault:\n    @classmethod\n    def open(cls): return cls()\n",
    "release.broker.stores": (
        "from sealift.crypto.keys import TOKEN\n"
        "from sealift.release.vault.vault import Vault\n"
        "def keep(key):\n    Vault.open().store(key.reveal(TOKEN))\n"
    ),
    "release.log.auditlog": "class AuditLog: ...\n",
    "release.client": "from sealift.release.broker.stores import keep\nkeep(None)\n",
    "data.__init__": "",
    "data.worker": "def give(key, token):\n    return key.reveal(token)\n",
    "cli.__init__": "",
    "cli.main": (
        "from typing import TYPE_CHECKING\n"
        "import sealift.release.broker.stores\n"
        "if TYPE_CHECKING:\n    from sealift.release.vault.vault import Vault\n"
        "def show(vault: 'Vault'): vault.resources(); open('x')\n"
    ),
}


def tree(root: Path, table: str = TABLE, **changes: str) -> Path:
    """A small product, with what is changed or added, by dotted name."""
    modules = {**CLEAN, **changes}
    for name, text in modules.items():
        path = root / "src" / "sealift" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "ARCHITECTURE.md").write_text(table)
    return root


with patch.object(sys, "path", [str(ROOT / "scripts"), *sys.path]):
    core = importlib.import_module("core")


def run(root: Path) -> tuple[int, str]:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = core.main(root)
    return code, said.getvalue()


def test_what_is_clean_passes(tmp_path: Path) -> None:
    """Control for all that follows."""
    assert run(tree(tmp_path)) == (0, "audited core: 16 code lines of at most 10300\n")


def test_the_code_is_held_to_its_own_table() -> None:
    """As `make check` runs it."""
    command = [sys.executable, str(ROOT / "scripts" / "core.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


READS = {
    "a call": "def f(key, t): return key.reveal(t)\n",
    "its token": "from sealift.crypto.keys import TOKEN\n",
    "its token by the module": "from sealift.crypto import keys\nx = keys.TOKEN\n",
    "a method that is handed on": "def f(key): return map(key.reveal, [])\n",
    "its memory": "def f(key): return bytes(key._material)\n",
    "by name": "def f(key, t): return getattr(key, 'reveal')(t)\n",
    "by a getter": "from operator import attrgetter\nf = attrgetter('_material')\n",
    "by a caller": "from operator import methodcaller\nf = methodcaller('reveal', 1)\n",
    "by what getattr calls": "def f(key): return key.__getattribute__('reveal')\n",
    "by a pattern": "def f(k):\n match k:\n  case object(_material=m): return m\n",
    "its token by a renamed module": "import sealift.crypto.keys as k\nx = k.TOKEN\n",
    "its token, renamed twice": "from sealift.crypto import keys as k\nx = k.TOKEN\n",
    "its token by a text": "import sealift.crypto.keys as k\nx = getattr(k, 'TOKEN')\n",
    "late": "def f():\n    from sealift.crypto.keys import TOKEN\n    return TOKEN\n",
}


@pytest.mark.parametrize("text", READS.values(), ids=READS)
@pytest.mark.parametrize("name", ["cli.main", "release.client", "attest.snp"])
def test_whoever_reads_a_key_is_found(tmp_path: Path, name: str, text: str) -> None:
    code, said = run(tree(tmp_path, **{name: text}))
    assert code == 1
    assert f"{name.replace('.', '/')}.py" in said
    assert "reads a plain key" in said


def test_who_reads_keys_elsewhere_may_do_nothing_else(tmp_path: Path) -> None:
    worker = (
        CLEAN["data.worker"]
        + "from sealift.release.vault.vault import Vault\nVault.open()\n"
    )
    code, said = run(tree(tmp_path, **{"data.worker": worker}))
    assert (code, "opens a vault" in said) == (1, True)


OPENS = {
    "a call": "from sealift.release.vault.vault import Vault\nVault.open()\n",
    "a constructor": "from sealift.release.vault.vault import Vault\nVault()\n",
    "through its module": "from sealift.release.vault import vault\nvault.Vault.create()\n",
    "handed on": "from sealift.release.vault.vault import Vault\nmake = Vault.open\n",
    "under another name": "from sealift.release.vault.vault import Vault as V\nV.open()\n",
    "as a value": "from sealift.release.vault.vault import Vault\nV = Vault\n",
    "as a value with a type": (
        "from sealift.release.vault.vault import Vault\nV: object = Vault\n"
    ),
    "as an argument": "from sealift.release.vault.vault import Vault\nprint(Vault)\n",
    "as a part": "from sealift.release.vault.vault import Vault\nV = (Vault,)\n",
    "as a base": "from sealift.release.vault.vault import Vault\nclass V(Vault): ...\n",
    "by a renamed module": "from sealift.release.vault import vault as v\nv.Vault()\n",
    "by a text": "from sealift.release.vault import vault\ngetattr(vault, 'Vault')()\n",
    "below it, by a text": (
        "import importlib\nimportlib.import_module('sealift.release.vault.file')\n"
    ),
    "below it": "from sealift.release.vault.file import mark_owner\n",
    "its file": "from sealift.release.vault.file import VaultFile\nVaultFile()\n",
}


@pytest.mark.parametrize("text", OPENS.values(), ids=OPENS)
def test_whoever_opens_a_vault_is_found(tmp_path: Path, text: str) -> None:
    code, said = run(tree(tmp_path, **{"cli.main": text, "release.vault.file": ""}))
    assert (code, "cli/main.py" in said, "opens a vault" in said) == (1, True, True)


WRITES = {
    "a call": "from sealift.release.log.auditlog import AuditLog\nAuditLog.create()\n",
    "below it": "import sealift.release.log.auditlog\n",
}


def test_all_of_a_core_module_at_once_is_found(tmp_path: Path) -> None:
    text = "from sealift.crypto.keys import *\n"
    code, said = run(tree(tmp_path, **{"cli.main": text}))
    assert (code, "imports all of sealift.crypto.keys" in said) == (1, True)


def test_a_store_in_an_annotation_is_none_that_is_opened(tmp_path: Path) -> None:
    text = (
        "from sealift.release.vault.vault import Vault\nv: Vault | None = None\n"
        "def f(v: Vault, *vs: list[Vault]) -> Vault: return v\n"
    )
    assert run(tree(tmp_path, **{"cli.main": text}))[0] == 0


@pytest.mark.parametrize("text", WRITES.values(), ids=WRITES)
def test_whoever_writes_a_log_is_found(tmp_path: Path, text: str) -> None:
    code, said = run(tree(tmp_path, **{"cli.main": text}))
    assert (code, "cli/main.py" in said, "writes a log" in said) == (1, True, True)


IMPORTS = {
    "outside": ("from sealift.cli import main\n", "which is outside the core"),
    "a package outside": ("import sealift.cli\n", "which is outside the core"),
    "a name of one": ("from sealift.cli.main import show\n", "outside the core"),
    "late": ("def f():\n    import sealift.cli.main\n", "outside the core"),
    "on demand": ("def f():\n    import sealift.errors\n", "on demand"),
    "by name": ("import importlib\nimportlib.import_module('x')\n", "by name"),
    "by the language": ("__import__('sealift.cli')\n", "by name"),
}


@pytest.mark.parametrize(("text", "why"), IMPORTS.values(), ids=IMPORTS)
@pytest.mark.parametrize("name", ["errors", "agreement.rules", "crypto.__init__"])
def test_what_the_core_imports_is_in_the_core(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    code, said = run(tree(tmp_path, **{name: text}))
    assert (code, f"{name.replace('.', '/')}.py" in said, why in said) == (
        1,
        True,
        True,
    )


def test_what_loads_on_demand_does_it_on_demand_only(tmp_path: Path) -> None:
    at_once = CLEAN["attest.kinds"] + "import sealift.attest.snp\n"
    code, said = run(tree(tmp_path, **{"attest.kinds": at_once}))
    assert (code, "imports sealift.attest.snp" in said) == (1, True)


def test_what_is_private_in_the_core_stays_there(tmp_path: Path) -> None:
    text = "from sealift.agreement.rules import _SECRET\n"
    code, said = run(tree(tmp_path, **{"cli.main": text}))
    assert (code, "private to sealift.agreement.rules" in said) == (1, True)


TABLES = {
    "a module that is not there": ("`crypto.keys`", "`crypto.keys` `crypto.gone`"),
    "a package that is not there": ("`agreement.*`", "`agreement.*` `gone.*`"),
    "a reader that reads nothing": (
        "`data.worker`",
        "`data.worker` `cli.main`",
    ),
    "a place without demand": ("`attest.kinds`", "`attest.kinds` `errors`"),
    "a module left out": ("`release.vault.vault` ", ""),
    "another heading": ("## The audited core", "## The core"),
}


@pytest.mark.parametrize(("was", "now"), TABLES.values(), ids=TABLES)
def test_a_table_that_does_not_fit_is_found(tmp_path: Path, was: str, now: str) -> None:
    assert run(tree(tmp_path, TABLE.replace(was, now)))[0] == 1


def test_a_core_that_grows_too_large_is_found(tmp_path: Path) -> None:
    code, said = run(tree(tmp_path, errors="x = 1\n" * 10_300))
    assert (code, "more than 10300 code lines" in said) == (1, True)
