"""What can be wrong with a recipe, in words that carry no value (rule H8).

A fault is found in the process that runs the recipe and told in the parent, which
believes nothing of it but what it can check: a file and line of the bundle, the name of
a built-in type, a reason out of this list.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from sealift.errors import (
    JobError,
    MalformedError,
    SealiftError,
    UnavailableError,
)

Kind = Literal[
    "error",
    "unfit",
    "not-finite",
    "gradient",
    "rows",
    "bundle",
    "memory",
    "import",
    "device",
    "gpu",
]
REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "no-build": ("it does not define build()", ""),
    "no-loss": ("it does not define loss()", ""),
    "no-configure_optimizers": ("it does not define configure_optimizers()", ""),
    "no-prepare": (
        "it does not define prepare()",
        "Set training.prepare to false in the job, or define prepare()",
    ),
    "no-module": ("build() does not return an nn.Module", ""),
    "parameters": (
        "build() has no argument for one of the job's [parameters]",
        "Give build() an argument of that name, or remove the parameter from the job",
    ),
    "no-parameter": (
        "build() needs a parameter that the job does not set",
        "Set it in [parameters] of the job, or give the argument a default",
    ),
    "no-optimizer": (
        "configure_optimizers() does not return an optimizer",
        "Return one torch.optim.Optimizer, alone, as (optimizer, schedulers), or in a dict "
        'with "optimizer" and "lr_scheduler"; several optimizers are not supported',
    ),
    "frozen": (
        "a parameter was frozen, or freed, while the model was trained",
        "Set requires_grad in build(): what is frozen there comes from the recipe's assets in "
        "every process, and is in no state",
    ),
    "no-scheduler": (
        "configure_optimizers() returns something that is not a scheduler of its optimizer",
        "Return schedulers of torch.optim.lr_scheduler, or dicts with scheduler, interval "
        '("step" or "epoch") and frequency (1 or more)',
    ),
    "scheduler-measure": (
        "configure_optimizers() returns a scheduler that waits for a measure",
        "Use one that counts steps or epochs: held-out measures are not known to a recipe",
    ),
    "loss": ("loss() does not return a scalar tensor", ""),
    "measures": (
        "evaluate() returns something other than a dict of numbers and tensors by name",
        'Return sums over the batch, such as {"right": 12.0}',
    ),
    "measures-infinite": (
        "evaluate() returns a measure that is infinite or NaN on random rows",
        "Return sums that are numbers for any rows, also for a batch of one row",
    ),
    "measures-differ": (
        "evaluate() returns some measures for some batches alone",
        "Return the same names for every batch, also for one of one row: the agreement lists them",
    ),
    "sums": (
        "prepare() returns something other than a dict of numbers and tensors",
        "",
    ),
    "other-sums": (
        "prepare() returns other names or shapes than in the visit before, or values "
        "outside their range",
        "Sums of whole numbers may be at most 2^53 - 1; all other values must be "
        "finite",
    ),
    "many-sums": ("prepare() returns too many numbers", "The limit is 65,536 numbers"),
    "model-state": ("the model's state_dict contains something other than tensors", ""),
    "optimizer-state": (
        "the optimizer's state contains something other than tensors, numbers and text",
        "",
    ),
    "restore": (
        "build() returns another model or optimizer than the one whose state is "
        "restored",
        "Sealift calls build() again for every slice and loads the state: it must "
        "always build the same model",
    ),
    "model-differs": (
        "build() returns another model than the one that is to be served",
        "Serve the model with the code that trained it",
    ),
    "no-statistics": (
        "build() needs the sums of prepare(), which a served model does not get",
        "Store these values in buffers of the model, so that build({}) works without "
        "them",
    ),
    "no-evaluate": ("it has no measures", ""),
    "no-predict": ("it has no answers", ""),
    "graph": (
        "its graph is not valid, or does not fit its rows and weights",
        "Export it again from the program that it was made of",
    ),
    "graph-parameters": (
        "one of the job's [parameters] is fixed in its graph",
        "Only options of the optimizer can be changed; export the recipe again for others",
    ),
    "graph-outsourced": (
        "the products of a graph cannot be outsourced",
        "Choose another plan, or a recipe that is a program",
    ),
    "no-generate": ("it does not define generate()", ""),
    "no-stream": ("generate() returns something that is not iterable", ""),
    "answer": (
        "the answer's names, rows, shapes or number types differ from the model's form",
        "predict() and generate() must return a dict of tensors with one row for each "
        "question",
    ),
    "gradients": (
        "its gradients cannot be summed in every step",
        "Train dense float32 or float64 parameters of the model, all on the job's device, the "
        "same ones throughout, with one backward pass that is not the recipe's to start; or "
        'choose `slices.sync = "round"`',
    ),
    "batch-norm": (
        "it has BatchNorm, which mixes rows, and the job's steps are private",
        "Use nn.GroupNorm(1, channels) in its place, or nn.LayerNorm",
    ),
    "row-gradients": (
        "the gradient of each row cannot be computed by itself, and the job's steps are private",
        "loss() has to work under torch.func.vmap: without .item(), without branches that depend "
        "on values, and without buffers that it changes",
    ),
    "compiler": (
        "torch.compile starts a compiler, and a recipe may not start programs",
        'Compile with backend="aot_eager", or not at all',
    ),
    "state-bytes": (
        "the model and the optimizer are larger than the memory that is reserved for "
        "them",
        "",
    ),
}
MOST_ROOM: Final = 1 << 42  # bytes, of a machine's GPUs
NOT_OVERWRITTEN: Final = "the GPU's memory was not overwritten"
# What CUDA and torch say in an error's first line, by what that is. A fault names one of
# these phrases: so nothing else that a process says is told.
_SAID: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": ("out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED"),
    "device": ("invalid device ordinal",),
    "error": ("device-side assert", "invalid argument", "invalid configuration"),
    "no-code": ("no kernel image is available",),
    "busy": ("busy or unavailable",),
    "lost": (
        "unknown error", "initialization error", "driver initialization failed",
        "no CUDA-capable device is detected", "No CUDA GPUs are available",
        "Found no NVIDIA driver", "driver version is insufficient",
        "driver on your system is too old", "system not yet initialized",
        "OS call failed", "not compiled with CUDA",
    ),
}  # fmt: skip
CUDA_SAYS: Final = {each: kind for kind, said in _SAID.items() for each in said}
_NO_ROOM: Final = ("no-memory", "no-pinned-memory", "device-out-of-memory")
GPU_FAULTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "lost": ("the GPU failed during the computation", "", "device-lost"),
    "no-code": (
        "this torch was built without support for this GPU", "it supports other kinds of GPUs", "no-device"
    ),
    "busy": (
        "the GPU accepts no more processes",
        "its compute mode allows one process, or none", "no-device",
    ),
    "not-begun": ("the GPU could not be initialized", "", "no-device"),
}  # fmt: skip
RULES: Final = (
    "not true or false",
    "not finite",
    "below its minimum",
    "above its maximum",
    "next to a gap that is not zero",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: Which of the others mean something.
        path: File of the bundle, or empty.
        line: Line of that file.
        type: Name of a built-in exception.
        reason: Key of ``REASONS`` or ``GPU_FAULTS``, or one of ``RULES``.
        step: Optimizer step.
        field: Field of a schema, name of a parameter, or a phrase of ``CUDA_SAYS``.
        room: Bytes of a GPU's memory, and of them in use before a batch; 0 if unknown.
    """

    kind: Kind
    path: str = ""
    line: int = 0
    type: str = "Exception"
    reason: str = ""
    step: int = 0
    field: str = ""
    room: tuple[int, int] = (0, 0)


class _ToldError(SealiftError):
    """An error that a fault stands for."""

    def __init__(
        self, fault: Fault, what: str, *, why: str = "", fix: str = "", code: str
    ):
        super().__init__(what, why=why, fix=fix, code=code)
        self.fault = fault


class RecipeError(_ToldError, JobError):
    """A recipe failed; ``fault`` says how, and ``left`` what stayed on a GPU, or nothing."""

    left = ""


class MachineError(_ToldError, UnavailableError):
    """The machine failed, and not the recipe; ``fault`` says how."""


def unfit(reason: str) -> RecipeError:
    """The error for a recipe that does not fit."""
    why, fix = REASONS[reason]
    fault = Fault(kind="unfit", reason=reason)
    return RecipeError(
        fault, "the recipe is not valid", why=why, fix=fix, code="bad-recipe"
    )


def recipe_failed(path: str, line: int, type_: str) -> RecipeError:
    """The error for an exception of a recipe."""
    place = f"{path}:{line}" if path else "an unknown line"
    return RecipeError(
        Fault(kind="error", path=path, line=line, type=type_),
        f"the recipe failed at {place} with {type_}",
        fix=(
            "Run `sealift try`: it runs the recipe on random rows and shows the "
            "whole traceback"
        ),
        code="recipe-error",
    )


def foreign_import(path: str, line: int) -> RecipeError:
    """The error for a module that is neither in the bundle nor installed."""
    return RecipeError(
        Fault(kind="import", path=path, line=line, type="ImportError"),
        "the recipe imports a module that is not "
        f"available{f' at {path}:{line}' if path else ''}",
        why="the module is neither in the code bundle nor installed on the accelerator",
        code="foreign-import",
    )


def foreign_device(path: str, line: int) -> RecipeError:
    """The error for a GPU that a recipe asks for by itself, and does not have."""
    return RecipeError(
        Fault(kind="device", path=path, line=line, type="RuntimeError"),
        f"the recipe requires a GPU{f' at {path}:{line}' if path else ''}",
        why="its process computes on the CPU, or was given another GPU",
        code="foreign-device",
    )


def not_finite(step: int) -> RecipeError:
    """The error for a loss that is NaN or infinite."""
    return RecipeError(
        Fault(kind="not-finite", step=step),
        f"the loss is infinite or NaN at step {step}",
        code="not-finite",
    )


def gradient_not_finite(parameter: str, step: int) -> RecipeError:
    """The error for gradients of all slices whose sum is NaN or infinite."""
    return RecipeError(
        Fault(kind="gradient", field=parameter, step=step),
        f"the gradient of {parameter} is infinite or NaN at step {step}",
        code="not-finite",
    )


def no_memory(room: tuple[int, int] = (0, 0)) -> MachineError:
    """The error where memory ran out; ``room`` as in ``Fault``."""
    total, resting = (each / 2**30 for each in room)
    said = (
        f"the GPU has {total:.1f} GiB; the model, the optimizer and the batches take "
        f"{resting:.1f} GiB, and the intermediate results of a batch do not fit in "
        "the rest"
    )
    return MachineError(
        Fault(kind="memory", room=room),
        "the recipe ran out of memory",
        why=said if total else "",
        fix=(
            "Free memory and resume the job; or reduce batch_rows or buffer_bytes, in "
            "a job with another name"
        ),
        code="no-memory",
    )


def gpu_failed(reason: str, phrase: str = "") -> MachineError:
    """The error for a GPU: a key of ``GPU_FAULTS``, and one of ``CUDA_SAYS`` or nothing."""
    what, why, code = GPU_FAULTS[reason]
    fault = Fault(kind="gpu", reason=reason, field=phrase)
    why = why or (f"CUDA reported {phrase!r}" if phrase else "")
    return MachineError(fault, what, why=why, code=code)


def not_begun(error: BaseException) -> MachineError:
    """The error for a GPU that failed before a recipe ran."""
    phrase = _phrase(error)
    kind = CUDA_SAYS.get(phrase)
    return gpu_failed(kind if kind in ("no-code", "busy") else "not-begun", phrase)


def cuda_says(error: BaseException) -> str:
    """What an exception of CUDA's is, a kind of ``CUDA_SAYS``; empty of all others."""
    kind = CUDA_SAYS.get(_phrase(error), "lost")
    if any(each.__name__ == "AcceleratorError" for each in type(error).__mro__):
        return kind
    # cuBLAS, cuDNN and others have no type: "cuDNN error: CUDNN_STATUS_ALLOC_FAILED".
    library = type(error) is RuntimeError and " error: CU" in _first_line(error)
    return kind if library and kind == "memory" else ""


def machine_failed(error: BaseException) -> MachineError | None:
    """The error if an exception is no fault of a recipe's; None if it may be.

    Memory ran out: Python's own, a device's, or the CPU allocator's, which has no type. Or
    a GPU failed, and not what was computed there, an assertion of a kernel.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    told = type(error) is RuntimeError and "can't allocate memory" in str(error)
    said = cuda_says(error)
    if told or said == "memory" or kinds & {"MemoryError", "OutOfMemoryError"}:
        return no_memory()
    return gpu_failed(said, _phrase(error)) if said in GPU_FAULTS else None


def _phrase(error: BaseException) -> str:
    """The one of ``CUDA_SAYS`` that its first line has; further ones are torch's advice."""
    said = _first_line(error)
    return next((phrase for phrase in CUDA_SAYS if phrase in said), "")


def _first_line(error: BaseException) -> str:
    """Of its message, read without a call of what may be a recipe's own."""
    said = next(iter(error.args), "")
    return said.partition("\n")[0] if type(said) is str else ""


def bad_row(field: str, rule: str) -> MalformedError:
    """The error for a party's rows that do not fit their schema."""
    return MalformedError(
        "a party's rows do not match their schema",
        field=field,
        why=f"a value is {rule}",
        fix=(
            "The owner of the rows can find the row: `sealift data seal` on the "
            "source names it"
        ),
        code="bad-row",
    )


def describe(error: SealiftError) -> Fault:
    """The fault that an error stands for, in the recipe's process."""
    if isinstance(error, RecipeError | MachineError):
        return error.fault
    if isinstance(error, UnavailableError):
        if error.code in _NO_ROOM:
            return Fault(kind="memory")
        return Fault(kind="gpu", reason="not-begun")
    if isinstance(error, MalformedError) and error.code == "bad-row":
        return Fault(
            kind="rows", field=error.field, reason=error.why[len("a value is ") :]
        )
    if isinstance(error, MalformedError) and error.code == "bad-graph":
        return Fault(kind="unfit", reason="graph")
    if isinstance(error, MalformedError):
        return Fault(kind="bundle")
    return Fault(kind="error")


def explain(fault: Fault) -> SealiftError:
    """The error that a fault, checked by ``believable``, stands for."""
    match fault.kind:
        case "unfit":
            return unfit(fault.reason)
        case "not-finite":
            return not_finite(fault.step)
        case "gradient":
            return gradient_not_finite(fault.field, fault.step)
        case "rows":
            return bad_row(fault.field, fault.reason)
        case "memory":
            return no_memory(fault.room)
        case "gpu":
            return gpu_failed(fault.reason, fault.field)
        case "import" | "device":
            foreign = foreign_import if fault.kind == "import" else foreign_device
            return foreign(fault.path, fault.line)
        case "bundle":
            return MalformedError(
                "a file of the code bundle has the name of a Python module or of an "
                "installed package",
                code="bundle-hides-module",
            )
        case "error":
            return recipe_failed(fault.path, fault.line, fault.type)


def believable(
    fault: Fault,
    files: Mapping[str, bytes],
    *,
    fields: frozenset[str],
    parameters: frozenset[str],
    steps: range,
    gpu: bool,
) -> Fault:
    """What of a fault can be so; the rest becomes a plain error without a place.

    Args:
        fault: From a process that a recipe may have taken over.
        files: The bundle.
        fields: Names of the schemas' fields.
        parameters: Names of the models' tensors.
        steps: Optimizer steps of the task.
        gpu: Whether it computed on one.
    """
    if fault.kind == "memory" and not gpu:
        fault = Fault(kind="memory")
    said = CUDA_SAYS.get(fault.field, "") if fault.field else fault.reason
    fits: dict[Kind, bool] = {
        "unfit": fault.reason in REASONS,
        "not-finite": fault.step in steps,
        "gradient": fault.step in steps and fault.field in parameters,
        "rows": fault.field in fields and fault.reason in RULES,
        "memory": 0 <= fault.room[1] <= fault.room[0] < MOST_ROOM,
        "gpu": gpu
        and fault.reason in GPU_FAULTS
        and bool(said)
        and fault.reason in (said, "not-begun"),
    }
    if not fits.get(fault.kind, True):
        return Fault(kind="error")
    return _believable_place(fault, files)


def _believable_place(fault: Fault, files: Mapping[str, bytes]) -> Fault:
    lines = files.get(fault.path, b"").count(b"\n") + 1
    if fault.path not in files or not 1 <= fault.line <= lines:
        fault = replace(fault, path="", line=0)
    found = getattr(builtins, fault.type, None)
    known = isinstance(found, type) and issubclass(found, BaseException)
    return fault if known else replace(fault, type="Exception")
