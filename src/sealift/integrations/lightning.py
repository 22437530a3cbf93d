"""PyTorch Lightning over a sealed group: ``Trainer(strategy=SealedDDPStrategy())``.

Launch the script by torchrun on every host, as for any other use of the process group
(docs/howto/frameworks/lightning.md). All that Lightning does then goes through the group: gradients,
what ``self.log(..., sync_dist=True)`` adds up, and the objects that its callbacks send.
Source: Lightning 2.6, ``lightning.pytorch.strategies.DDPStrategy``.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import DDPStrategy

import sealift.integrations.process_group  # noqa: F401 - registers the backend


class SealedDDPStrategy(DDPStrategy):  # type: ignore[misc]
    """``DDPStrategy`` whose ranks meet in sealed, attested sessions.

    Args:
        options: As ``DDPStrategy`` takes them, but ``process_group_backend``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(process_group_backend="sealift", **options)
