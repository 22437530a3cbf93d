"""Who takes part in the demo, whatever is learnt."""

from __future__ import annotations

from typing import Final

OWNERS: Final = ("north", "east", "south")  # bring data
MODEL_OWNER: Final = "lab"  # brings the recipe, gets the model
OPERATOR: Final = "cloud"  # runs the orchestrator
HOST: Final = "gpu-host"  # runs the accelerator
PARTIES: Final = (*OWNERS, MODEL_OWNER, OPERATOR, HOST)
