"""What a recipe imports is read off its text, and compared with what is installed."""

from __future__ import annotations

import sys

import pytest

from sealift.errors import SealiftError
from sealift.meet.packages import require_packages

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
        OPTIONAL,
        "this is no Python",
        "x = " + "(" * 5000,
        "\0",
    ],
)
def test_what_is_there_or_can_be_done_without_is_allowed(text: str) -> None:
    require_packages(
        {"recipe.py": text.encode(), "parts/inner.py": b"", "a.json": b"{"}
    )


@pytest.mark.parametrize(
    "text",
    [
        "import far_off",
        "import json, far_off.part as part",
        "from far_off.part import thing",
        "def build():\n    from far_off import thing\n",
        "class A:\n    if True:\n        import far_off\n",
    ],
)
def test_what_is_missing_is_named(text: str) -> None:
    with pytest.raises(SealiftError, match="imports far_off: ") as refused:
        require_packages({"parts/inner.py": text.encode(), "recipe.py": b""})
    assert refused.value.code == "recipe-imports"
    assert "far_off" not in sys.modules
