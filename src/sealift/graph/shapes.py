"""The shape of what each operation gives, and its work, from the shapes of what it takes.

Numbers only: a graph is checked with a few numbers of rows before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Shape = tuple[int, ...]
Arguments = Mapping[str, Any]  # by name; a value is given by its shape


class UnfitError(Exception):
    """Shapes or numbers that do not fit the operation; the text says how."""


def infer_shapes(name: str, family: str, arguments: Arguments) -> list[Shape]:
    """Shapes of an operation's results.

    Raises:
        UnfitError: the arguments do not fit each other.
    """
    try:
        rule = _RULES.get(name) or _FAMILIES[family]
        return rule(arguments)
    except (IndexError, OverflowError, TypeError, ZeroDivisionError, ValueError):
        raise UnfitError("its arguments do not fit each other") from None


def count_work(
    name: str, family: str, arguments: Arguments, results: Sequence[Shape]
) -> int:
    """About how many additions and multiplications an operation makes."""
    made = sum(map(math.prod, results))
    if name == "scaled_dot_product_attention":
        key, value = arguments["key"], arguments["value"]
        made = math.prod(arguments["query"][:-1]) * key[-2]
        return 2 * made * (key[-1] + value[-1])
    if family == "convolution":
        weight = arguments["weight"]
        taken = math.prod(arguments["input"]) if "output_padding" in arguments else made
        return 2 * taken * math.prod(weight[1:])
    if family == "product":
        left = arguments.get("mat1", arguments.get("batch1", arguments.get("input")))
        return 2 * made * (left or arguments.get("self") or (1,))[-1]
    if family == "pooling":
        return 2 * made * _window_of(name, arguments, results[0])
    taken = sum(math.prod(each) for each in arguments.values() if _is_shape(each))
    return 4 * (made + taken)


def _window_of(name: str, a: Arguments, made: Shape) -> int:
    """How many elements one result of a pooling is made of, at most."""
    axes = int(name[-2])
    if "kernel_size" in a:
        return math.prod(_spread(a["kernel_size"], axes, ()))
    sizes = zip(a["self"][-axes:], made[-axes:], strict=True)
    return math.prod(-(-size // parts) + 1 for size, parts in sizes)


def demand(holds: bool, text: str) -> None:
    """Raise ``UnfitError`` with the text unless it holds."""
    if not holds:
        raise UnfitError(text)


def _is_shape(value: Any) -> bool:
    return type(value) is tuple and all(type(each) is int for each in value)


def _axis(dim: Any, rank: int) -> int:
    demand(-rank <= dim < max(rank, 1), f"there is no axis {dim} of {rank}")
    return int(dim) % max(rank, 1)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that these shapes are stretched to."""
    rank = max(map(len, shapes))
    sizes = []
    for each in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        long = {size for size in each if size != 1}
        demand(len(long) <= 1, f"shapes {_say(shapes)} do not fit each other")
        sizes.append(long.pop() if long else 1)
    return tuple(sizes)


def _say(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(str, map(list, shapes)))


def _elementwise(a: Arguments) -> list[Shape]:
    shapes = [value for value in a.values() if _is_shape(value)]
    return [broadcast(*shapes)]


def _same(a: Arguments) -> list[Shape]:
    shape = a.get("self", a.get("input"))
    for name in ("dim", "dims"):
        given = a.get(name)
        for dim in (
            given if isinstance(given, list) else [] if given is None else [given]
        ):
            _axis(dim, len(shape))
    return [shape]


def _norm(a: Arguments) -> list[Shape]:
    shape, tail = a["input"], tuple(a["normalized_shape"])
    demand(
        bool(tail) and shape[-len(tail) :] == tail, "the normalized shape does not fit"
    )
    for name in ("weight", "bias"):
        demand(a.get(name) in (None, tail), f"{name} does not fit")
    return [shape]


def _group_norm(a: Arguments) -> list[Shape]:
    shape, groups = a["input"], a["num_groups"]
    demand(groups > 0 and shape[1] % groups == 0, "the groups do not fit the channels")
    for name in ("weight", "bias"):
        demand(a[name] in (None, (shape[1],)), f"{name} does not fit")
    return [shape]


def _scatter(a: Arguments) -> list[Shape]:
    shape, index, source = a["self"], a["index"], a.get("src")
    dim = _axis(a["dim"], len(shape))
    demand(len(index) == len(shape), "the index has another number of axes")
    for axis, size in enumerate(index):
        demand(axis == dim or size <= shape[axis], "the index does not fit")
        demand(source is None or size <= source[axis], "the source does not fit")
    return [shape]


def _index_add(a: Arguments) -> list[Shape]:
    shape, index, source = a["self"], a["index"], a["source"]
    dim = _axis(a["dim"], len(shape))
    wanted = (*shape[:dim], *index, *shape[dim + 1 :])
    demand(len(index) == 1 and wanted == source, "the source does not fit")
    return [shape]


def _reduce(a: Arguments) -> list[Shape]:
    shape, dims = a["self"], a.get("dim")
    dims = [dims] if type(dims) is int else dims
    gone = {_axis(dim, len(shape)) for dim in dims or range(len(shape))}
    if a.get("keepdim"):
        return [tuple(1 if i in gone else size for i, size in enumerate(shape))]
    return [tuple(size for i, size in enumerate(shape) if i not in gone)]


def _reduce_twice(a: Arguments) -> list[Shape]:
    return _reduce(a) * 2


def _linear(a: Arguments) -> list[Shape]:
    shape, weight, bias = a["input"], a["weight"], a["bias"]
    demand(
        len(weight) == 2 and shape[-1] == weight[1],
        f"{_say((shape, weight))} do not fit",
    )
    demand(bias in (None, weight[:1]), "the bias does not fit")
    return [(*shape[:-1], weight[0])]


def _matmul(left: Shape, right: Shape) -> Shape:
    demand(bool(left) and bool(right), "a scalar is not a matrix")
    wide = (1, *left) if len(left) == 1 else left
    tall = (*right, 1) if len(right) == 1 else right
    demand(wide[-1] == tall[-2], f"{_say((left, right))} do not fit")
    made = (*broadcast(wide[:-2], tall[:-2]), wide[-2], tall[-1])
    made = made[:-2] + made[-1:] if len(left) == 1 else made
    return made[:-1] if len(right) == 1 else made


def _product(first: str, second: str, axes: int) -> Callable[[Arguments], list[Shape]]:
    def rule(a: Arguments) -> list[Shape]:
        left, right = a[first], a[second]
        demand(
            not axes or len(left) == len(right) == axes, f"matrices have {axes} axes"
        )
        demand(axes != 3 or left[0] == right[0], f"{_say((left, right))} do not fit")
        made = _matmul(left, right)
        demand(
            not axes or first == "self" or broadcast(a["self"], made) == made,
            "what is added does not fit",
        )
        return [made]

    return rule


def _attention(a: Arguments) -> list[Shape]:
    query, key, value = a["query"], a["key"], a["value"]
    demand(len(query) >= 2 and query[-1] == key[-1], "query and key do not fit")
    demand(
        key[:-1] == value[:-1] and key[:-2] == query[:-2], "key and value do not fit"
    )
    scores = (*query[:-1], key[-2])
    mask = a["attn_mask"]
    demand(mask is None or broadcast(mask, scores) == scores, "the mask does not fit")
    return [(*query[:-1], value[-1])]


def _view(a: Arguments) -> list[Shape]:
    size = tuple(a["size"])
    demand(all(each >= 0 for each in size), "a size is negative")
    demand(
        math.prod(size) == math.prod(a["self"]),
        f"{_say((a['self'], size))} differ in their number of elements",
    )
    return [size]


def _expand(a: Arguments) -> list[Shape]:
    size = tuple(a["size"])
    demand(all(each >= 0 for each in size), "a size is negative")
    demand(broadcast(a["self"], size) == size, f"{_say((a['self'], size))} do not fit")
    return [size]


def _permute(a: Arguments) -> list[Shape]:
    shape = a["self"]
    dims = [_axis(dim, len(shape)) for dim in a["dims"]]
    demand(sorted(dims) == list(range(len(shape))), "each axis must be named once")
    return [tuple(shape[dim] for dim in dims)]


def _transpose(a: Arguments) -> list[Shape]:
    shape = list(a["self"])
    one, other = (
        _axis(a.get("dim0", 0), len(shape)),
        _axis(a.get("dim1", 1), len(shape)),
    )
    shape[one], shape[other] = shape[other], shape[one]
    return [tuple(shape)]


def _t(a: Arguments) -> list[Shape]:
    demand(len(a["self"]) <= 2, "a matrix has two axes")
    return [a["self"][::-1]]


def _unsqueeze(a: Arguments) -> list[Shape]:
    shape = a["self"]
    dim = _axis(a["dim"], len(shape) + 1)
    return [(*shape[:dim], 1, *shape[dim:])]


def _squeeze(a: Arguments) -> list[Shape]:
    shape = a["self"]
    gone = {_axis(dim, len(shape)) for dim in a["dim"]}
    return [tuple(s for i, s in enumerate(shape) if not (i in gone and s == 1))]


def _slice(a: Arguments) -> list[Shape]:
    shape, step = a["self"], a["step"]
    dim = _axis(a["dim"], len(shape))
    demand(step > 0, "a step must be positive")
    taken = range(*slice(a["start"], a["end"], step).indices(shape[dim]))
    return [(*shape[:dim], len(taken), *shape[dim + 1 :])]


def _select(a: Arguments) -> list[Shape]:
    shape = a["self"]
    demand(bool(shape), "a number has no axis")
    dim = _axis(a["dim"], len(shape))
    _axis(a["index"], shape[dim])
    return [(*shape[:dim], *shape[dim + 1 :])]


def _split(a: Arguments) -> list[Shape]:
    shape = a["self"]
    demand(bool(shape), "a number has no axis")
    dim = _axis(a["dim"], len(shape))
    sizes = a.get("split_sizes")
    if sizes is None:
        size, left = a["split_size"], shape[dim]
        demand(size > 0, "a part must have a size")
        demand(left <= size * MOST_PARTS, "too many parts")
        sizes = [min(size, left - start) for start in range(0, left, size)]
    demand(min(sizes) >= 0 and sum(sizes) == shape[dim], "the parts do not fit")
    return [(*shape[:dim], size, *shape[dim + 1 :]) for size in sizes]


def _unbind(a: Arguments) -> list[Shape]:
    shape = a["self"]
    demand(bool(shape), "a number has no axis")
    dim = _axis(a["dim"], len(shape))
    demand(shape[dim] <= MOST_PARTS, "too many parts")
    return [(*shape[:dim], *shape[dim + 1 :])] * shape[dim]


def _cat(a: Arguments) -> list[Shape]:
    shapes = a["tensors"]
    dim = _axis(a["dim"], len(shapes[0]))
    others = {(len(s), s[:dim], s[dim + 1 :]) for s in shapes}
    demand(len(others) == 1 and bool(shapes[0]), "the parts do not fit each other")
    return [(*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])]


def _stack(a: Arguments) -> list[Shape]:
    shapes = a["tensors"]
    demand(len(set(shapes)) == 1, "the parts do not fit each other")
    dim = _axis(a["dim"], len(shapes[0]) + 1)
    return [(*shapes[0][:dim], len(shapes), *shapes[0][dim:])]


def _pad(a: Arguments) -> list[Shape]:
    shape, pad = list(a["self"]), a["pad"]
    demand(len(pad) % 2 == 0 and len(pad) <= 2 * len(shape), "the padding does not fit")
    for place in range(len(pad) // 2):
        shape[-1 - place] += pad[2 * place] + pad[2 * place + 1]
    demand(min(shape, default=0) >= 0, "the padding takes away too much")
    return [tuple(shape)]


def _repeat(a: Arguments) -> list[Shape]:
    shape, repeats = a["self"], a["repeats"]
    demand(
        len(repeats) >= len(shape) and min(repeats, default=0) >= 0,
        "the repeats do not fit",
    )
    shape = (1,) * (len(repeats) - len(shape)) + shape
    return [tuple(s * r for s, r in zip(shape, repeats, strict=True))]


def _embedding(a: Arguments) -> list[Shape]:
    demand(len(a["weight"]) == 2, "a table of vectors has two axes")
    demand(
        -a["weight"][0] <= a["padding_idx"] < a["weight"][0], "the padding does not fit"
    )
    return [(*a["indices"], a["weight"][1])]


def _gather(a: Arguments) -> list[Shape]:
    _scatter(a)
    return [a["index"]]


def _index_select(a: Arguments) -> list[Shape]:
    shape = a["self"]
    dim = _axis(a["dim"], len(shape))
    demand(len(a["index"]) == 1 and bool(shape), "the index has one axis")
    return [(*shape[:dim], *a["index"], *shape[dim + 1 :])]


def _index(a: Arguments) -> list[Shape]:
    shape, indices = a["self"], a["indices"]
    demand(0 < len(indices) <= len(shape), "there are too many indices")
    places = [i for i, each in enumerate(indices) if each is not None]
    demand(bool(places), "there is no index")
    made = broadcast(*(indices[i] for i in places))
    kept = tuple(s for i, s in enumerate(shape) if i not in places)
    together = places[-1] - places[0] + 1 == len(places)
    first = places[0] if together else 0
    return [(*kept[:first], *made, *kept[first:])]


def _one_hot(a: Arguments) -> list[Shape]:
    demand(a["num_classes"] > 0, "the number of classes must be given")
    return [(*a["self"], a["num_classes"])]


def _spread(numbers: Sequence[int], axes: int, alone: Sequence[int]) -> list[int]:
    """One number for each axis; one stands for all of them, and none for others."""
    numbers = list(numbers) or list(alone)
    found = numbers * axes if len(numbers) == 1 else numbers
    demand(len(found) == axes, "the numbers do not fit the axes")
    return found


def _window(
    size: int, kernel: int, stride: int, pad: int, dilation: int, *, up: bool
) -> int:
    demand(
        stride > 0 and dilation > 0 and pad >= 0 and kernel > 0,
        "a window must have a size",
    )
    room = size + 2 * pad - dilation * (kernel - 1) - 1
    demand(room >= 0, "the window is larger than what it moves over")
    made = (-(-room // stride) if up else room // stride) + 1
    # A window that would begin behind the end is left out.
    return made - (up and (made - 1) * stride >= size + pad)


def _convolve(a: Arguments) -> list[Shape]:
    shape, weight, groups = a["input"], a["weight"], a["groups"]
    axes = len(weight) - 2
    demand(
        axes > 0 and len(shape) in (axes + 1, axes + 2) and groups > 0,
        "the axes do not fit",
    )
    channels, rest = shape[-axes - 1], shape[: -axes - 1]
    demand(
        channels == weight[1] * groups and weight[0] % groups == 0,
        "the channels do not fit",
    )
    demand(a["bias"] in (None, weight[:1]), "the bias does not fit")
    numbers = [_spread(a[n], axes, ()) for n in ("stride", "padding", "dilation")]
    sizes = zip(shape[-axes:], weight[2:], *numbers, strict=True)
    return [(*rest, weight[0], *(_window(*each, up=False) for each in sizes))]


def _convolve_back(a: Arguments) -> list[Shape]:
    shape, weight, groups = a["input"], a["weight"], a["groups"]
    axes = len(weight) - 2
    demand(
        axes > 0 and len(shape) in (axes + 1, axes + 2) and groups > 0,
        "the axes do not fit",
    )
    demand(
        shape[-axes - 1] == weight[0] and weight[0] % groups == 0,
        "the channels do not fit",
    )
    demand(a["bias"] in (None, (weight[1] * groups,)), "the bias does not fit")
    names = ("stride", "padding", "output_padding", "dilation")
    numbers = [_spread(a[n], axes, ()) for n in names]
    sizes = []
    for size, kernel, stride, pad, more, dilation in zip(
        shape[-axes:], weight[2:], *numbers, strict=True
    ):
        demand(
            stride > 0 and dilation > 0 and min(pad, more) >= 0,
            "a window must have a size",
        )
        demand(more < max(stride, dilation), "the padding does not fit")
        sizes.append((size - 1) * stride - 2 * pad + dilation * (kernel - 1) + more + 1)
    demand(min(sizes) > 0, "nothing is left")
    return [(*shape[: -axes - 1], weight[1] * groups, *sizes)]


def _pool(axes: int) -> Callable[[Arguments], list[Shape]]:
    def rule(a: Arguments) -> list[Shape]:
        shape = a["self"]
        demand(len(shape) in (axes + 1, axes + 2), "the axes do not fit")
        kernel = _spread(a["kernel_size"], axes, ())
        numbers = [
            kernel, _spread(a["stride"], axes, kernel), _spread(a["padding"], axes, ()),
            _spread(a.get("dilation", [1]), axes, ()),
        ]  # fmt: skip
        sizes = zip(shape[-axes:], *numbers, strict=True)
        for size, _stride, pad, dilation in zip(*numbers, strict=True):
            half = 2 * pad <= dilation * (size - 1) + 1
            demand(half, "the padding is more than half of the window")
        demand(a.get("divisor_override") != 0, "the divisor must not be 0")
        return [
            (*shape[:-axes], *(_window(*each, up=a["ceil_mode"]) for each in sizes))
        ]

    return rule


def _adaptive(axes: int) -> Callable[[Arguments], list[Shape]]:
    def rule(a: Arguments) -> list[Shape]:
        shape, size = a["self"], _spread(a["output_size"], axes, ())
        demand(
            len(shape) in (axes + 1, axes + 2) and min(size) > 0, "the axes do not fit"
        )
        return [(*shape[:-axes], *size)]

    return rule


def _loss(a: Arguments) -> list[Shape]:
    demand(a["reduction"] in (0, 1, 2), "reduction is none (0), mean (1) or sum (2)")
    made = broadcast(
        *(
            a[n]
            for n in ("self", "target", "weight", "pos_weight")
            if a.get(n) is not None
        )
    )
    return [made if a["reduction"] == 0 else ()]


def _class_loss(a: Arguments) -> list[Shape]:
    shape, target = a["self"], a["target"]
    demand(a["reduction"] in (0, 1, 2), "reduction is none (0), mean (1) or sum (2)")
    demand(bool(shape), "there are no classes")
    axis = min(1, len(shape) - 1)
    whole = (*shape[:axis], *shape[axis + 1 :])
    demand(target in (whole, shape), f"{_say((shape, target))} do not fit")
    demand(a["weight"] in (None, (shape[axis],)), "the weight does not fit")
    return [whole if a["reduction"] == 0 else ()]


def _batch_norm(a: Arguments) -> list[Shape]:
    shape = a["input"]
    channels = shape[1:2]
    demand(len(shape) >= 2, "the axes do not fit")
    for name in ("weight", "bias", "running_mean", "running_var"):
        demand(a[name] in (None, channels), f"{name} does not fit")
    if "training" in a:
        demand(a["training"], "it is for training")
        return [shape, channels, channels, channels, channels]
    return [shape, (0,), (0,)]


def _create(a: Arguments) -> list[Shape]:
    size = tuple(a["size"])
    demand(all(each >= 0 for each in size), "a size is negative")
    return [size]


def _arange(a: Arguments) -> list[Shape]:
    demand(
        all(type(a[n]) is int for n in ("start", "end", "step")),
        "its numbers must be whole",
    )
    demand(a["step"] > 0, "a step must be positive")
    return [(len(range(a["start"], a["end"], a["step"])),)]


def _random(a: Arguments) -> list[Shape]:
    demand(0 <= a.get("p", 0) <= 1, "a probability lies between 0 and 1")
    return _create(a) if "size" in a else [a.get("self", a.get("input"))]


MOST_PARTS: Final = 4096
_Rule = Callable[[Arguments], list[Shape]]
_FAMILIES: Final[dict[str, _Rule]] = {
    "elementwise": _elementwise, "same": _same, "reduction": _reduce,
    "convolution": _convolve, "loss": _loss, "statistics": _batch_norm,
    "creation": _create, "random": _random,
}  # fmt: skip
_RULES: Final[dict[str, _Rule]] = {
    "layer_norm": _norm, "rms_norm": _norm, "group_norm": _group_norm,
    "scatter_add": _scatter, "scatter.value": _scatter, "index_add": _index_add,
    "max.dim": _reduce_twice, "min.dim": _reduce_twice,
    "linear": _linear, "mm": _product("self", "mat2", 2), "bmm": _product("self", "mat2", 3),
    "matmul": _product("self", "other", 0), "addmm": _product("mat1", "mat2", 2),
    "baddbmm": _product("batch1", "batch2", 3), "scaled_dot_product_attention": _attention,
    "view": _view, "expand": _expand, "permute": _permute, "transpose.int": _transpose,
    "t": _t, "unsqueeze": _unsqueeze, "squeeze.dims": _squeeze, "slice.Tensor": _slice,
    "select.int": _select, "split.Tensor": _split, "split_with_sizes": _split,
    "unbind.int": _unbind, "cat": _cat, "stack": _stack, "pad": _pad,
    "constant_pad_nd": _pad, "repeat": _repeat, "embedding": _embedding, "gather": _gather,
    "index_select": _index_select, "index.Tensor": _index, "one_hot": _one_hot,
    "conv_transpose1d": _convolve_back, "conv_transpose2d.input": _convolve_back,
    "max_pool1d": _pool(1), "max_pool2d": _pool(2), "avg_pool1d": _pool(1),
    "avg_pool2d": _pool(2), "adaptive_avg_pool1d": _adaptive(1),
    "adaptive_avg_pool2d": _adaptive(2), "cross_entropy_loss": _class_loss,
    "nll_loss_nd": _class_loss, "arange.start_step": _arange,
}  # fmt: skip
