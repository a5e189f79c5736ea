"""Estimate of a benchmark's time before it runs, and reduction of specs until they fit a number of minutes.

The time of a step is its FLOPs, with those of recomputed layers, divided by a share of the GPU's dense peak. The
estimate only distinguishes minutes from hours, and it is printed as an estimate. There is none for a device without a
known peak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import alternatives, as_stated, percent, rough_time, stated_seconds
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.units import TERA
from tensorprimat.engines.modules import recomputed_share
from tensorprimat.engines.registry import ENGINES
from tensorprimat.facts import catalogue
from tensorprimat.facts.methodologies import METHODOLOGY_GPUS
from tensorprimat.machine.platform import Machine
from tensorprimat.models.custom import model_of

UTILISATION = 0.3  # share of the dense peak; published PyTorch training is above it (docs/reference/expected-mfu.md)
START_SECONDS = 60.0  # start of a fresh process: imports, building the model, compiling its layers
FEWEST_STEPS = 5  # measured steps; the mean of fewer is unreliable
FEWEST_WARMUP_STEPS = 2  # the first step compiles and allocates; a result warns if its measured steps still drift
FITTED = {"global_batch_size": "batch", "steps": "steps", "warmup_steps": "warm-up steps"}
"""Settings that a budget reduces → label."""


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """Estimated time of one run of a spec."""

    step_seconds: float
    seconds: float
    """Time of the whole process, warm-up included."""
    gpu: str
    """Name of the GPU in the catalogue, whose dense peak the estimate uses."""
    recomputed: float | None
    """Share of the layers whose forward pass is counted twice; None if unknown, so that all are counted once."""


def of_run(spec: RunSpec, machine: Machine) -> RunTime | None:
    """Return the estimated time of one run, or None for a device whose peak is not known."""
    gpu = catalogue.find_gpu_of(machine.gpu_info)
    peak = catalogue.dense_peak(gpu, spec.precision)
    if gpu is None or not peak or spec.platform == "cpu":
        return None
    devices = spec.num_gpus * spec.num_nodes
    recomputed = recomputed_share(spec, machine.gpu_info.device_name)
    of_token, again = _flops_per_token(spec)
    work = (of_token + (recomputed or 0.0) * again) * spec.global_batch_size * spec.sequence_length
    step = work / (devices * peak * TERA * UTILISATION)
    return RunTime(
        step_seconds=step, seconds=START_SECONDS + spec.max_steps * step, gpu=gpu.name, recomputed=recomputed
    )


def of_benchmark(specs: Sequence[RunSpec], machine: Machine, *, runs: int, pause: float) -> float | None:
    """Return the estimated seconds of all runs of all specs with the pauses between runs, or None without a peak."""
    each = [of_run(spec, machine) for spec in specs]
    known = [one.seconds for one in each if one is not None]
    if not specs or len(known) != len(specs):
        return None
    return runs * math.fsum(known) + (runs - 1) * len(specs) * pause


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Specs that fit a budget, and the number of runs of each."""

    specs: Mapping[str, RunSpec]
    """By model."""
    runs: int
    """Runs of each model that are estimated to fit, at least 1."""
    minutes_for_all: float | None
    """Estimated minutes of all requested runs with the shortest possible specs; None without an estimate."""


def fitted(
    specs: Mapping[str, RunSpec], machine: Machine, *, runs: int, pause: float, minutes: float, free: frozenset[str]
) -> Fit:
    """Return the specs, with batch size, steps, warm-up and number of runs reduced until the benchmark fits.

    free: those of `global_batch_size`, `steps` and `warmup_steps` that may change. First the batch becomes one
    micro-batch per replica; sizes between that and the default are not used, so that two machines are likely to choose
    the same size. Then the measured steps are reduced to at least FEWEST_STEPS, then the warm-up steps, and last the
    number of runs, because the interval is computed from their scatter. A spec that fits, or whose time cannot be
    estimated, is returned unchanged.
    """

    def within(share: float) -> dict[str, RunSpec]:
        return {name: _fitted(spec, machine, share, free) for name, spec in specs.items()}

    least = of_benchmark(list(within(0.0).values()), machine, runs=runs, pause=pause)
    for fewer in range(runs, 0, -1):
        found = within((60 * minutes - (fewer - 1) * len(specs) * pause) / (fewer * max(1, len(specs))))
        total = of_benchmark(list(found.values()), machine, runs=fewer, pause=pause)
        if total is None or total <= 60 * minutes:
            break
    return Fit(specs=found, runs=fewer, minutes_for_all=None if least is None else least / 60)


def with_note(before: RunSpec, after: RunSpec, minutes: float) -> RunSpec:
    """Return the fitted spec with a note on what was reduced, if anything was."""
    reduced = [
        f"{label} {getattr(after, name)} instead of {getattr(before, name)}"
        for name, label in FITTED.items()
        if getattr(after, name) != getattr(before, name)
    ]
    if not reduced:
        return after
    other_work = before.global_batch_size != after.global_batch_size
    advice = "; compare only results of one batch size, or set it with --global-batch-size" if other_work else ""
    note = Notice("run_fitted", "", minutes=minutes, reduced=", ".join(reduced), advice=advice)
    return after.changed(notes=(*after.notes, note))


def run_time_sentence(
    specs: Sequence[RunSpec],
    machine: Machine,
    *,
    runs: int,
    pause: float,
    minutes: float | None = None,
    fit: Fit | None = None,
) -> str:
    """Return the estimate of a benchmark as text, or why there is none.

    runs: the requested number. minutes, fit: the budget and the specs that fit it; if not all requested runs fit, the
    text adds the budget that they need.
    """
    planned = runs if fit is None else fit.runs
    total = of_benchmark(specs, machine, runs=planned, pause=pause)
    if total is None:
        return f"Time: no estimate, because no peak is known for {machine.gpu_info.device_name or 'this device'}."
    count = planned * len(specs)
    some = f" of {runs * len(specs)}" if planned < runs else ""
    steps = "/".join(dict.fromkeys(f"{spec.max_steps}" for spec in specs))
    pauses = f", {stated_seconds(pause)} between runs" if planned > 1 and pause else ""
    estimate = (
        f"Estimated time: {rough_time(total)} for {count}{some} run{'s' if count > 1 or some else ''} of {steps} steps "
        f"({_grounds(specs, machine)}{pauses}); not measured."
    )
    if minutes is None or fit is None or fit.minutes_for_all is None or (total <= 60 * minutes and not some):
        return estimate
    over = f" That is {rough_time(total - 60 * minutes)} more than --budget-minutes {as_stated(minutes)}."
    one_model = ", or --model for one model" if len(specs) > 1 else ""
    whole = "all runs" if some else "this"
    return (
        f"{estimate}{over if total > 60 * minutes else ''} For {whole} use --budget-minutes "
        f"{math.ceil(fit.minutes_for_all)}{one_model}."
    )


def _grounds(specs: Sequence[RunSpec], machine: Machine) -> str:
    """Return the assumptions of an estimate in words: share of the peak, GPU, recomputed layers, time to start."""
    times = [(spec, time) for spec in specs if (time := of_run(spec, machine)) is not None]
    precisions = alternatives(list(dict.fromkeys(spec.precision.upper() for spec, _ in times)))
    gpu = times[0][1].gpu  # all specs run on one machine
    models_of: dict[float | None, list[str]] = {}
    for spec, time in times:
        models_of.setdefault(time.recomputed, []).append(spec.model)
    twice = []
    for share, named in models_of.items():
        of_models = f" of {', '.join(named)}" if len(models_of) > 1 else ""
        if share is None:
            twice.append(f"recomputation{of_models} unknown and not counted")
        elif share:
            layers = "all layers" if share == 1 else f"{percent(share, 0)} of the layers"
            twice.append(f"forward pass of {layers}{of_models} twice")
    peak = f"assumed: {percent(UTILISATION, 0)} of the dense {precisions} peak of {gpu}"
    return ", ".join([peak, *twice, f"{stated_seconds(START_SECONDS)} to start a run"])


def _fitted(spec: RunSpec, machine: Machine, share: float, free: frozenset[str]) -> RunSpec:
    time = of_run(spec, machine)
    if time is None or time.seconds <= share:
        return spec
    least = spec.micro_batch_size * spec.data_parallel_size
    engine = ENGINES[spec.engine]  # all engines but torch use a vendor's batch and parallelism for one node
    below_a_node = engine.from_methodology and spec.num_gpus * spec.num_nodes < METHODOLOGY_GPUS
    scalable = (engine.own_training or below_a_node) and not spec.with_methodology_flag
    if "global_batch_size" in free and scalable and spec.global_batch_size > least:
        spec = spec.changed(global_batch_size=least, methodology=None, notes=()).check()
        time = of_run(spec, machine) or time
    fewest = {
        "steps": min(spec.steps, FEWEST_STEPS) if "steps" in free else spec.steps,
        "warmup_steps": min(spec.warmup_steps, FEWEST_WARMUP_STEPS) if "warmup_steps" in free else spec.warmup_steps,
    }
    most = math.floor((share - START_SECONDS) / time.step_seconds)  # warm-up and measured steps
    warmup = min(spec.warmup_steps, max(fewest["warmup_steps"], most - fewest["steps"]))
    return spec.changed(warmup_steps=warmup, steps=min(spec.steps, max(fewest["steps"], most - warmup)))


def _flops_per_token(spec: RunSpec) -> tuple[float, float]:
    """Return the training FLOPs of one token, and those of a forward pass of all layers, without the output head."""
    model = model_of(spec)
    whole = model.decoder.flops_per_token([spec.sequence_length])
    return whole, whole / 3 - 2 * model.decoder.embedding_weights
