"""What a recipe imports is read off its text, and compared with what is installed."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from sealift.errors import MalformedError, SealiftError
from sealift.meet.packages import require_packages, require_versions

OPTIONAL = """
try:
    import far_off
except ImportError:
    far_off = None
"""


@pytest.mark.parametrize(
    "text",
    [
        "import json, torch\nfrom numpy import array\n",
        "import parts.inner\nfrom parts import other\nfrom . import near\n",
        "from .near import far_off\n",
        "import __main__\n",
        "if TYPE_CHECKING:\n    import far_off\n",
        "if typing.TYPE_CHECKING:\n    import far_off\n",
        "if __name__ == '__main__':\n    import far_off\n",
        "if sys.version_info >= (3, 9):\n    pass\nelse:\n    import far_off\n",
        OPTIONAL,
        OPTIONAL.replace("except", "except*"),
        OPTIONAL.replace("ImportError", "(KeyError, builtins.ModuleNotFoundError)"),
        OPTIONAL.replace("far_off = None", "import json"),
        OPTIONAL.replace(" ImportError", ""),
        "try:\n    import json\nexcept ImportError:\n    import far_off\n",
        "try:\n    from . import near\nexcept ImportError:\n    import far_off\n",
        "this is no Python",
        "# coding: utf-7\nimport far_off+AC4-a\n",
        "\N{LATIN SMALL LETTER E WITH ACUTE}\udc80",
        "import far_off" + ".a" * 300_000,
        "import far_off" + ". \\\n a" * 300_000,
        "import far_off" + ".\N{SCRIPT CAPITAL P}" * 300_000,
        "import far_off" + ".a\N{COMBINING ACUTE ACCENT}" * 300_000,
        "x = " + "(" * 5000,
        "\0",
    ],
)
def test_what_is_there_or_can_be_done_without_is_allowed(text: str) -> None:
    files = {
        "recipe.py": text.encode(errors="surrogateescape"),
        "parts/inner.py": b"",
        "a.json": b"{",
        "tools/draw.py": b"import far_off",
    }
    require_packages(files, "recipe.py")


@pytest.mark.parametrize(
    "entry",
    [
        "import parts.inner",
        "from parts import inner",
        "from parts.inner import thing",
        "from .parts import inner",
        "from parts import beside",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "import far_off",
        f"# {'.' * 200}\n" + "import json.decoder\n" * 200 + "import far_off",
        "import json, far_off.part as part",
        "from far_off.part import thing",
        "def build():\n    from far_off import thing\n",
        "class A:\n    if True:\n        import far_off\n",
        OPTIONAL.replace("ImportError", "KeyError"),
        OPTIONAL.replace(
            "far_off = None", "raise RuntimeError('install it') from None"
        ),
        OPTIONAL.replace(
            "import far_off", "import json\nfinally:\n    import far_off"
        ).split("except")[0],
        OPTIONAL.replace("import far_off", "import json").replace(
            "far_off = None", "pass\nelse:\n    import far_off"
        ),
        OPTIONAL.replace("far_off = None", "import far_off.part"),
    ],
)
def test_what_is_missing_is_named(text: str, entry: str) -> None:
    files = {
        "parts/inner.py": text.encode(),
        "parts/beside.py": b"from . import inner",
        "recipe.py": entry.encode(),
    }
    with pytest.raises(SealiftError, match="imports far_off: ") as refused:
        require_packages(files, "recipe.py")
    assert refused.value.code == "recipe-imports"
    assert "far_off" not in sys.modules


def test_a_host_fills_no_screen_with_names() -> None:
    names = [f"far_{n}_{'a' * 3000}" for n in range(30)]
    with pytest.raises(SealiftError, match="and 20 more: ") as refused:
        require_packages(
            {"recipe.py": f"import {', '.join(names)}".encode()}, "recipe.py"
        )
    assert len(str(refused.value)) < 2000


@pytest.mark.filterwarnings("error")
def test_what_python_warns_of_stands_on_no_screen() -> None:
    require_packages({"recipe.py": b"x = '\\d'\ny = 1 is 1\n"}, "recipe.py")


def needing(*lines: str) -> dict[str, bytes]:
    return {"requirements.txt": "\n".join(lines).encode()}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"peft": "0.10.1", "torch": "2.13.0+cpu", "odd": "2.0rc1", "none": "dev"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.usefixtures("installed")
def test_versions_that_fit_are_allowed() -> None:
    require_versions({})
    require_versions(
        needing(
            "peft>=0.9", "", "# of the adapter", "torch == 2.13 # built here", "odd>=2"
        )
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("line", "here"),
    [
        ("peft>=0.11", "this machine has peft 0.10.1"),
        ("peft==0.10", "this machine has peft 0.10.1"),
        ("torch>=2.13.0.1", "this machine has torch"),
        ("far-off>=1", "no package of that name"),
        ("none>=0.1", "this machine has none"),
    ],
)
def test_a_package_in_another_version_is_named(line: str, here: str) -> None:
    with pytest.raises(SealiftError) as refused:
        require_versions(needing("torch>=2", line))
    assert refused.value.code == "recipe-imports"
    assert line in refused.value.what
    assert here in str(refused.value)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "line",
    [
        "peft", "peft<1", "peft~=0.10", "peft>=0.9,<1", "peft>=0.9rc1", "-r other.txt", "--index-url http://a",
        "peft @ http://a/b.whl", "../../x>=1", "peft>=" + "1" * 5000, "a" * 5000, "peft>=1.\N{ARABIC-INDIC DIGIT ONE}",
        "\x1b[31mpeft>=1",
    ],
)  # fmt: skip
def test_a_line_that_is_not_read_is_refused(line: str) -> None:
    with pytest.raises(MalformedError) as refused:
        require_versions(needing(line))
    assert refused.value.code == "bad-requirements"
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 1000
