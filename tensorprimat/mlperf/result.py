"""MLPerf Training entries converted to results and to published rows, so that one fairness table reads them all."""

from __future__ import annotations

from typing import Any

from tensorprimat.core import settings
from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.quantities import fixed
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.core.result import Run as RunRecord
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import summarise
from tensorprimat.facts import mlperf_rules
from tensorprimat.facts.catalogue import Published
from tensorprimat.facts.devices import platform_of
from tensorprimat.mlperf.library import Entry, derived_from
from tensorprimat.mlperf.score import Scored
from tensorprimat.models import names, presets

_ENGINE = "mlperf"
TRAINED_WHOLE = {"llama31_8b": "llama"}
"""Benchmarks that train all of a model that the project knows; the rules fix its shape."""


def row_of_entry(entry: Entry) -> Published | None:
    """Return an entry as a published result; None without a score or number of GPUs, or outside the closed division."""
    scored = Scored(entry)
    rate, minutes, configured = scored.tokens_per_second_per_gpu, scored.minutes, scored.configured
    if minutes is None or entry.num_gpus is None or not entry.is_closed:
        return None
    published = mlperf_rules.published_on(entry.round)
    return Published(
        model=names.key(entry.benchmark),
        gpu=entry.gpu,
        num_gpus=entry.num_gpus,
        precision=scored.precision,
        global_batch_size=entry.global_batch_size,
        sequence_length=scored.sequence_length,
        **_parallel_sizes(entry),
        fp8_recipe=configured.recipe if configured else None,
        recipe=configured.source if configured else None,
        versions=dict(entry.software),
        peft=rules.peft if (rules := mlperf_rules.benchmark_rules(entry.benchmark)) else None,
        framework=f"MLPerf: {entry.framework}" if entry.framework else "MLPerf",
        tokens_per_second_per_gpu=rate,
        samples_per_second=scored.samples_per_second,
        mfu=scored.mfu.value,
        mfu_because=scored.mfu.because,
        derived=True,
        source=f"MLPerf Training {entry.round}, {entry.benchmark}, {entry.submitter}, {entry.system}",
        date=published.isoformat() if published else None,
        note=f"time to train {fixed(minutes, 3)} min; {derived_from([entry.round])}",
        url=f"https://github.com/mlcommons/training_results_{entry.round}",
    )


def _parallel_sizes(entry: Entry) -> dict[str, Any]:
    """Return the parallel sizes of an entry by TrainingConfig's names; the entry has them by symbol, such as "tp"."""
    return {name: entry.parallelism.get((settings.BY_NAME[name].symbol or "").lower()) for name in MODEL_PARALLEL}


def result_of_entry(entry: Entry) -> Result:
    """Return an entry as a result: a row of training per run that reached the target, set-up and evaluation left out.

    Raises InputError where no such run states batch, samples and training time.
    """
    runs = [run for run in entry.runs if run.succeeded and run.training_seconds and run.samples]
    batch = entry.global_batch_size
    if not runs or not batch:
        raise InputError(
            f"mlperf:{entry.name}: no run that reached the target states batch, samples and training time, "
            "so the rate is unknown; choose another entry"
        )
    steps, facts = [], []
    for number, run in enumerate(runs):
        covers = max(1, round((run.samples or 0.0) / batch))
        seconds = (run.training_seconds or 0.0) / covers
        steps.append(Step(index=covers, seconds=seconds, covers=covers, samples=batch, run=number))
        facts.append(RunRecord(index=number, time_to_train_seconds=run.seconds, samples_to_train=run.samples))
    rules = mlperf_rules.benchmark_rules(entry.benchmark)
    device = entry.device_name or entry.gpu
    preset = presets.find_preset(TRAINED_WHOLE[entry.benchmark]) if entry.benchmark in TRAINED_WHOLE else None
    found = summarise(
        Result(
            platform=platform_of(device),
            source=f"MLPerf Training {entry.round}",
            gpu_info=GpuInfo(device_name=device, device_count=entry.num_gpus),
            model=Model(
                name=names.key(entry.benchmark),
                preset=preset.name if preset else None,
                shape=preset.shape if preset else None,
            ),
            training_config=TrainingConfig(
                warmup_steps=0,
                global_batch_size=batch,
                sequence_length=Scored(entry).sequence_length,
                num_gpus=entry.num_gpus,
                num_nodes=entry.num_nodes,
                precision=Scored(entry).precision,
                peft=rules.peft if rules else None,
                **_parallel_sizes(entry),
            ),
            performance_metrics=PerformanceMetrics(),
            runs=tuple(facts),
            steps=Steps.of(steps),
            provenance=Provenance(engine=_ENGINE, format="mlperf", timing="reported"),
        )
    )
    return found.changed(warnings=(Notice("rates_derived", "", how=derived_from([entry.round])),))
