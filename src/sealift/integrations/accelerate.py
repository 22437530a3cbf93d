"""Hugging Face Accelerate with sealed data: ``prepare_loader`` beside ``accelerator.prepare``.

``accelerator.prepare`` changes torch's own loaders alone and returns every other object as it
is, without a word: a ``SealedDataLoader`` would not be shared among processes, and the last
gradients of an epoch that are accumulated would not be used. ``prepare_loader`` gives it
what Accelerate asks of a prepared loader. For sealed gradients nothing of this module is
needed: call ``torch.distributed.init_process_group("sealift")`` before ``Accelerator()``.
Source: Accelerate 1.15, ``accelerate.data_loader.DataLoaderStateMixin``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device

from sealift.data.loader.torchloader import SealedDataLoader
from sealift.errors import UsageError


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """A sealed loader as Accelerate knows loaders.

    Args:
        loader: Hands out this process's rows.
        accelerator: Where batches go, and who accumulates gradients.
    """

    _is_accelerate_prepared = True
    use_stateful_dataloader = True  # its state is in checkpoints

    def __init__(self, loader: SealedDataLoader, accelerator: Accelerator) -> None:
        self.loader = loader
        self.gradient_state = GradientState()
        self.total_batch_size = loader.batch_size * accelerator.num_processes
        self._drop_last = loader.drop_last
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        """All else is the loader's: its rows, its state, ``set_epoch``."""
        if name == "loader":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """One epoch, on the accelerator's device; see ``SealedDataLoader``."""
        self.begin()
        try:
            for batch in self.loader:
                self.end_of_dataloader = self.loader.is_at_end
                yield send_to_device(batch, self._accelerator.device)
        finally:
            self.end()

    def skip_first_batches(self, count: int) -> None:
        """Begin the next epoch ``count`` batches later; no record of these is opened.

        It takes the place of ``accelerate.skip_first_batches``, which is for torch's loaders.
        """
        state = self.loader.state_dict()
        self.loader.load_state_dict(
            {**state, "position": state["position"] + count * self.loader.batch_size}
        )


def prepare_loader(
    accelerator: Accelerator, loader: SealedDataLoader
) -> PreparedLoader:
    """The loader as ``accelerator.prepare`` would return one of torch's.

    Args:
        accelerator: Of this process.
        loader: Made with ``rank=accelerator.process_index`` and
            ``world_size=accelerator.num_processes``: each process opens its own rows alone.

    Raises:
        UsageError: code ``loader-world``, if it is another process's part.
    """
    wanted = accelerator.process_index, accelerator.num_processes
    if (loader.rank, loader.world_size) != wanted:
        raise UsageError(
            f"the loader is part {loader.rank} of {loader.world_size}, and this process is "
            f"{wanted[0]} of {wanted[1]}",
            code="loader-world",
        )
    return accelerator.prepare_data_loader(PreparedLoader(loader, accelerator))  # type: ignore[no-any-return]
