"""What the models of ``models.py`` are asked when they are served, for measurements."""

from __future__ import annotations

from importlib import resources
from typing import Final

from sealift.data.schema.schema import Field, Schema
from sealift.lab.bench.models import (
    CLASSES,
    IMAGE,
    MLP_IN,
    TOKENS,
    VOCABULARY,
    WIDTH,
)
from sealift.train.modelform import Fields, ModelForm

MAX_ROWS: Final = 32
_INPUT: Final = {
    "mlp": Field("x", "float32", (MLP_IN,)),
    "resnet18": Field("x", "float32", (3, IMAGE, IMAGE)),
    "gpt": Field("tokens", "int32", (TOKENS,), classes=VOCABULARY),
    "bert": Field("features", "float32", (TOKENS, WIDTH)),
}
_OUTPUT: Final = {
    "mlp": Field("y", "float32", (CLASSES,)),
    "resnet18": Field("y", "float32", (CLASSES,)),
    "gpt": Field("scores", "float32", (TOKENS, VOCABULARY)),
    "bert": Field("labels", "float32", (TOKENS, CLASSES)),
}
NAMES: Final = tuple(_INPUT)


def form_for(name: str) -> ModelForm:
    """The form of a model."""
    out = _OUTPUT[name]
    return ModelForm(
        inputs=Schema((_INPUT[name],)),
        outputs=Fields(Schema((out,)), {out.name: 4}),
        max_rows=MAX_ROWS,
    )


def bundle_for(name: str) -> dict[str, bytes]:
    """A code bundle that builds the model: this package's own file, and three lines."""
    models = resources.files("sealift.lab.bench").joinpath("models.py").read_bytes()
    recipe = (
        "import benchmodels\n\n\ndef build():\n"
        f"    return benchmodels.make({name!r})\n\n\n"
        "def predict(model, batch):\n    return model(next(iter(batch.values())))\n"
    )
    return {"benchmodels.py": models, "recipe.py": recipe.encode()}
