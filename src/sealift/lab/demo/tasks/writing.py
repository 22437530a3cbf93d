"""What the opened text model writes: one byte after the other, by chance and a seed.

Runs at the model owner's, after the model was opened with its key; the owner also
brought the recipe, so its code runs here as any of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sealift.lab.demo.tasks.task import Sample

BEGUN: Final = '    """Return the '
LENGTH: Final = 300  # bytes
TEMPERATURE: Final = 0.8  # below 1: likelier bytes more often than the model says
SEED: Final = 7


def write_on(bundle: Path, model_file: Path) -> Sample:
    """Let the model write on after a first line.

    Args:
        bundle: Folder of the recipe.
        model_file: The opened model, as safetensors.
    """
    import torch
    from safetensors.torch import load_file

    from sealift.train.recipe import Recipe

    recipe = Recipe({"recipe.py": (bundle / "recipe.py").read_bytes()}, "recipe.py")
    model = recipe.build()
    model.load_state_dict(load_file(model_file))
    model.eval()
    window = len(model.get_parameter("place.weight"))
    chance = torch.Generator().manual_seed(SEED)
    text = list(BEGUN.encode())
    with torch.no_grad():
        for _ in range(LENGTH):
            logits = model(torch.tensor([text[-window:]]))[0, -1] / TEMPERATURE
            likely = torch.softmax(logits, dim=0)
            text.append(int(torch.multinomial(likely, 1, generator=chance)))
    made = bytes(text).decode("utf-8", "replace")[len(BEGUN) :]
    return Sample("What the joint model writes", BEGUN, made.rstrip())
