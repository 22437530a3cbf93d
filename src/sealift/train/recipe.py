"""A recipe: ordinary PyTorch, loaded from the bytes that the agreement measured.

The agreement names the entry file of a code bundle. It defines ``build()``, which
returns either an object shaped like a ``LightningModule`` (``training_step``,
``configure_optimizers``) or a plain ``nn.Module``, for which the file also defines
``loss(model, batch)`` and ``configure_optimizers(model)``. It may define
``evaluate(model, batch)``, which returns sums over a batch; see ``Recipe.evaluate``.

Modules of the bundle are executed from memory, never from the disk, so what runs is what
was hashed. Errors of a recipe leave as file, line and type (rule H8). The sandbox is a
later step: until then a recipe can do what its process can, and every run says so.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

from sealift.errors import JobError, MalformedError, SealiftError

Batch = dict[str, Tensor]
BUNDLE_SCHEME: Final = "bundle:"


class Recipe:
    """The code owner's part of a job.

    Args:
        files: The bundle: relative path -> source bytes, already measured.
        entry: Path of the file that defines ``build``.

    Raises:
        MalformedError: if the entry is not in the bundle.
        JobError: if the bundle does not load.
    """

    def __init__(self, files: Mapping[str, bytes], entry: str) -> None:
        if entry not in files or not entry.endswith(".py"):
            raise MalformedError(
                f"entry {entry!r} is not in the code bundle",
                fix="Name a .py file of the bundle that defines build()",
                code="bad-entry",
            )
        module = entry.removesuffix(".py").replace("/", ".")
        with recipe_errors(), _bundle_imports(files):
            self._module = importlib.import_module(module)
        self._build = _function(self._module, "build")

    def build(self) -> nn.Module:
        """A fresh model; draws from torch's generators."""
        with recipe_errors():
            model = self._build()
        if not isinstance(model, nn.Module):
            raise JobError("the recipe's entry returns no nn.Module", code="bad-recipe")
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer that the recipe configures for ``model``."""
        with recipe_errors():
            if hasattr(model, "configure_optimizers"):
                made: Any = model.configure_optimizers()
            else:
                made = _function(self._module, "configure_optimizers")(model)
        if not isinstance(made, torch.optim.Optimizer):
            raise JobError(
                "configure_optimizers returns no optimizer",
                fix="Return one torch.optim.Optimizer; several are not supported yet",
                code="bad-recipe",
            )
        return made

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Tensor:
        """The scalar training loss of one batch."""
        with recipe_errors():
            if hasattr(model, "training_step"):
                loss: Any = model.training_step(batch, step)
            else:
                loss = _function(self._module, "loss")(model, batch)
        if isinstance(loss, Mapping):
            loss = loss.get("loss")
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            raise JobError(
                "the recipe's loss is not a scalar tensor", code="bad-recipe"
            )
        return loss

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Sums over one batch, by metric; the caller divides by the number of rows.

        A recipe without ``evaluate`` is measured by its loss.
        """
        with recipe_errors():
            if hasattr(self._module, "evaluate"):
                sums = self._module.evaluate(model, batch)
                return {str(name): float(value) for name, value in sums.items()}
        rows = len(next(iter(batch.values())))
        return {"loss": float(self.loss(model, batch, 0)) * rows}


@contextmanager
def recipe_errors() -> Iterator[None]:
    """Turn whatever a recipe raises into file, line and type: no message, no values.

    Raises:
        JobError: code ``recipe-error``.
    """
    try:
        yield
    except SealiftError:
        raise
    except Exception as error:
        place = _place_in_bundle(error)
        raise JobError(
            f"the recipe failed at {place} with {type(error).__name__}",
            fix="`sealift try` runs it on synthetic rows and shows the whole traceback",
            code="recipe-error",
        ) from None


def _place_in_bundle(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(BUNDLE_SCHEME)]
    if not ours:
        return "its edge"
    return f"{ours[-1].filename.removeprefix(BUNDLE_SCHEME)}:{ours[-1].lineno}"


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise JobError(f"the recipe defines no {name}()", code="bad-recipe")
    return found


def _path_of(module: str, files: Mapping[str, bytes]) -> str | None:
    stem = module.replace(".", "/")
    paths = (f"{stem}.py", f"{stem}/__init__.py")
    return next((path for path in paths if path in files), None)


class _BundleFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads modules of one bundle from its measured bytes."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = _path_of(fullname, self._files)
        if found is None:
            return None
        return importlib.util.spec_from_loader(
            fullname,
            self,
            origin=BUNDLE_SCHEME + found,
            is_package=found.endswith("/__init__.py"),
        )

    def get_source(self, fullname: str) -> str:
        found = _path_of(fullname, self._files)
        if found is None:
            raise ImportError(fullname)
        return self._files[found].decode()

    def exec_module(self, module: ModuleType) -> None:
        found = _path_of(module.__name__, self._files)
        source = self.get_source(module.__name__)
        exec(compile(source, f"{BUNDLE_SCHEME}{found}", "exec"), module.__dict__)  # noqa: S102 - the measured recipe is what this process is for


@contextmanager
def _bundle_imports(files: Mapping[str, bytes]) -> Iterator[None]:
    """Let imports find the bundle first, freshly, while it is being loaded."""
    finder = _BundleFinder(files)
    for name in [name for name in sys.modules if _path_of(name, files)]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
