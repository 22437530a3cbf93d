"""`python -m benchmarks outsource --device cuda`: three share servers on this machine's GPU.

Each layer and each model beside the same machine's own threads, in turn: what a machine
with many cores loses or gains by servers that multiply on a GPU. Servers, the trusted
process and the lines between them share the machine; lines are loopback TCP.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy
from torch.nn.grad import conv2d_input, conv2d_weight

from benchmarks.outsource.ends import ShareEnds
from benchmarks.outsource.models import vgg11, vgg11_layers
from benchmarks.outsource.steps import Timed
from benchmarks.report import BenchReport, Row, start_report
from sealift.numeric.kernels import best_kernels
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.messages import plan_step
from sealift.outsource.module.model import outsource
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import StepKind, StepTrace, Trace, tabulate

BOTH: Final[tuple[Direction, ...]] = ("input", "weight")
# Rows and width of linear layers, and how often each is timed.
LINEAR: Final = ((4096, 4096, 3), (8192, 4096, 3), (8192, 8192, 2))
LINEAR_QUICK: Final = ((256, 512, 2),)
BATCH: Final = 128
MODEL_REPEATS: Final = 5
FORMATS: Final = {
    "NCHW": torch.contiguous_format,
    "channels_last": torch.channels_last,
}
SERVER_CORES: Final = 4
THREADS: Final = (8, 16)
Work = Callable[[], object]


def run(*, quick: bool = False, device: str = "cuda") -> BenchReport:
    """Measure: about 80 seconds on sixteen cores and one GPU."""
    report = start_report("outsource")
    cores = torch.get_num_threads()
    threads = [each for each in THREADS if each < cores] + [cores]
    report.real = [
        f"three server processes on {device}, sealed sessions, checks, signatures",
        f"own: float32 by torch on {threads} threads, the quickest of them",
    ]
    with ExitStack() as stack:
        ends = ShareEnds(stack, device, min(SERVER_CORES, cores))
        best_kernels()
        for rows, side, repeats in LINEAR_QUICK if quick else LINEAR:
            layer = Layer(name=f"linear {side}", batch=rows, inputs=side, outputs=side)
            _measure_layer(report, ends, layer, threads[-1:], repeats)
        for number, layer in enumerate(vgg11_layers(16 if quick else BATCH)):
            wants = BOTH if number else BOTH[1:]
            _measure_layer(report, ends, layer, threads, 2 if quick else 5, wants)
        batch = 16 if quick else BATCH
        _measure_models(report, ends, threads, batch, MODEL_REPEATS)
    return report


def _measure_layer(
    report: BenchReport,
    ends: ShareEnds,
    layer: Layer,
    threads: list[int],
    repeats: int,
    wants: tuple[Direction, ...] = BOTH,
) -> None:
    """One call of a layer, and its gradients."""
    trace: Trace = (Forward(layer, wants), Backward(0, wants))
    kind, kernels = StepKind("train", layer.batch), best_kernels()
    rng = np.random.default_rng(0)
    x, w, dy = (
        rng.standard_normal(layer.shape(t), np.float32) for t in ("x", "w", "dy")
    )
    with ends.asked(tabulate({kind: trace})) as servers:
        products = MaskedProducts(servers, kernels)
        multiplier = Multiplier(products, kernels, 0)
        parts: dict[str, list[float]] = {"forward": [], "backward": [], "asked": []}

        def ours() -> None:
            asked_s = products.asked_s
            multiplier.begin(kind, 0, StepTrace(trace))
            began_s = perf_counter()
            multiplier.forward(Forward(layer, wants), x, w)
            forward_s = perf_counter()
            multiplier.backward(Backward(0, wants), dy)
            parts["forward"].append(forward_s - began_s)
            parts["backward"].append(perf_counter() - forward_s)
            parts["asked"].append(products.asked_s - asked_s)
            multiplier.settle()

        ours_s, cpu_s = _timed(ours, repeats)
        before = ends.cpu_s()
        ours()
        servers_s = [s - before[n] for n, s in ends.cpu_s().items()]
    own = {n: _own(layer, wants, n, (x, w, dy), repeats) for n in threads}
    numbers = sum(s.size for each in plan_step(trace) for s in each.sent)
    _keep(
        report,
        {
            "layer": layer.name,
            "rows": layer.depth("weight"),
            "depth": layer.depth("forward"),
            "columns": layer.outputs,
            "ours_ms": _ms(ours_s),
            **{f"{name}_ms": _ms(median(each[1:])) for name, each in parts.items()},
            "here_cpu_ms": _ms(cpu_s),
            "busiest_server_cpu_ms": _ms(max(servers_s)),
            "masked_mb": round(numbers * 4e-6, 1),
            **{f"own_{n}_threads_ms": _ms(each) for n, each in own.items()},
            "own_vs_ours": round(min(own.values()) / ours_s, 2),
        },
    )
    name = layer.name.replace(" ", "_")
    report.ratios[f"own_vs_ours_{name}_{layer.batch}"] = round(
        min(own.values()) / ours_s, 2
    )


def _own(
    layer: Layer,
    wants: tuple[Direction, ...],
    threads: int,
    arrays: tuple[np.ndarray, ...],
    repeats: int,
) -> float:
    x, w, dy = (torch.from_numpy(each) for each in arrays)

    def linear() -> None:
        a, b, c = x.flatten(1), w.flatten(1), dy.flatten(1)
        _ = a @ b.T, c.T @ a
        if "input" in wants:
            _ = c @ b, None

    steps = {"stride": layer.stride, "padding": layer.padding}
    # As a model's own convolution has them.
    images, kernel, slopes = (
        each.permute(0, 3, 1, 2).contiguous() for each in (x, w, dy)
    )

    def convolution() -> None:
        conv2d(images, kernel, **steps)
        conv2d_weight(images, kernel.shape, slopes, **steps)
        if "input" in wants:
            conv2d_input(images.shape, kernel, slopes, **steps)

    with _on_threads(threads):
        return _timed(linear if layer.is_linear else convolution, repeats)[0]


def _measure_models(
    report: BenchReport, ends: ShareEnds, threads: list[int], batch: int, repeats: int
) -> None:
    """A step of VGG-11 in both of PyTorch's memory formats; the quickest is the ratio."""
    own, ours, planned = list[float](), list[float](), list[float]()
    for name, form in FORMATS.items():
        torch.manual_seed(0)
        x = torch.rand(batch, 3, 32, 32).contiguous(memory_format=form)
        y, kernels = torch.randint(10, (batch,)), best_kernels()
        step = Timed(vgg11().to(memory_format=form), x, y)
        with ends.asked(tabulate({step.kind: step.trace})) as servers:
            multiplier = Multiplier(MaskedProducts(servers, kernels), kernels, 0)
            ours_s, cpu_s = _timed(partial(step.step, multiplier), repeats)
            products_s = median(step.products_s[-repeats:])
        alone: dict[int, float] = {}
        for each in threads:
            with _on_threads(each):
                alone[each] = _timed(step.fp32, repeats)[0]
        planned_s, modules = _planned(ends, vgg11().to(memory_format=form), (x, y))
        for module in modules:
            _keep(report, module)
        _keep(
            report,
            {
                "model": f"VGG-11, batch {batch}",
                "memory": name,
                "ours_ms": _ms(ours_s),
                "planned_ms": _ms(planned_s),
                "products_ms": _ms(products_s),
                "here_cpu_ms": _ms(cpu_s),
                **{f"own_{n}_threads_ms": _ms(each) for n, each in alone.items()},
                "images_per_h": round(batch / min(ours_s, planned_s) * 3600),
            },
        )
        own += alone.values()
        ours.append(ours_s)
        planned.append(planned_s)
    report.ratios["own_vs_ours_vgg11"] = round(min(own) / min(ours), 2)
    report.ratios["own_vs_planned_vgg11"] = round(min(own) / min(planned), 2)


def _planned(
    ends: ShareEnds, plain: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
) -> tuple[float, list[Row]]:
    """A step where modules that are faster here stay, and what was measured of each."""
    kernels, (x, y) = best_kernels(), batch
    with outsource(plain, ends, kernels, seed=0, keep_faster=True) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

        for _ in range(2):  # a rehearsal; zeros, and the first one on servers
            step()
        planned_s, _ = _timed(step, MODEL_REPEATS)
        modules = model.outsourced().modules
    return planned_s, [
        {
            "module": each.name,
            "kind": each.kind,
            "where": "here" if each.stays else "servers",
            "here_ms": _ms(each.speed.here_s),
            "served_ms": _ms(each.speed.served_s),
            "said": str(each),
        }
        for each in modules
        if each.speed is not None
    ]


def _keep(report: BenchReport, row: Row) -> None:
    """Show it at once, too: a borrowed machine may be taken away."""
    report.rows.append(row)
    print("  ".join(f"{name}={value}" for name, value in row.items()), file=sys.stderr)


def _timed(work: Work, repeats: int) -> tuple[float, float]:
    """Medians of wall and of processor seconds, after one that does not count."""
    work()
    wall, cpu = list[float](), list[float]()
    for _ in range(repeats):
        began_s, spent_s = perf_counter(), process_time()
        work()
        wall.append(perf_counter() - began_s)
        cpu.append(process_time() - spent_s)
    return median(wall), median(cpu)


@contextmanager
def _on_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
