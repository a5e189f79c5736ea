"""Published results next to our own measurements: never pooled, never a verdict, always with their fairness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorprimat.analysis import mlperf_result
from tensorprimat.analysis.fairness import judge
from tensorprimat.analysis.records import Against, Beside, Side
from tensorprimat.core import models
from tensorprimat.core.catalogue import Published, find_gpu, published
from tensorprimat.core.errors import UsageError
from tensorprimat.core.records import GpuInfo, Model, PerformanceMetrics, Provenance, Result, TrainingConfig

PRIMARY = "tokens_per_second_per_gpu"
ENGINE = "published"
MOST_OF_LIBRARY = 8  # rows of a table that a person reads


def beside(sides: Sequence[Side]) -> tuple[Beside, ...]:
    """Every published result of a model that a side trained, with each of its sides against it.

    Of the MLPerf library only the MOST_OF_LIBRARY rows that resemble the sides most.

    A ratio (measured here over published) is given only where fairness does not forbid it. It has no interval: nobody
    published how much the runs behind those numbers varied.
    """
    rows = []
    for row in _candidates(sides):
        own = [side for side in sides if side.model == row.model]
        if own and row.tokens_per_second_per_gpu is not None:
            rows.append(Beside(published=row, against=tuple(_against(side, row) for side in own)))
    return tuple(rows)


def _candidates(sides: Sequence[Side]) -> Iterator[Published]:
    """Return the published table without what the library holds run by run, then the library's nearest rows."""
    library = mlperf_result.published_rows()
    held = {f"MLPerf Training {entry.round}, {entry.benchmark}" for entry, _ in library}
    yield from (row for row in published() if not any(name in row.source for name in held))
    for model in dict.fromkeys(side.model for side in sides):
        own = [side.result for side in sides if side.model == model]
        devices = [find_gpu(result.gpu_info.device_name) if result.gpu_info.device_name else None for result in own]
        yield from mlperf_result.nearest(
            [item for item in library if item[1].model == model],
            gpus={device.name for device in devices if device},
            counts={result.training_config.num_gpus for result in own},
            lengths={result.training_config.sequence_length for result in own},
            most=MOST_OF_LIBRARY,
        )


def _against(side: Side, row: Published) -> Against:
    fairness = judge(as_result(row), side.result)
    measured, theirs = side.tokens_per_second_per_gpu.value, row.tokens_per_second_per_gpu
    comparable = (
        fairness.metric == "tokens_per_second_per_gpu" and measured is not None and theirs is not None and theirs > 0
    )
    return Against(label=side.label, fairness=fairness, ratio=measured / theirs if comparable else None)  # type: ignore[operator]


def as_result(row: Published) -> Result:
    """A published result in the shape of one of ours, so that the same fairness table reads both."""
    try:
        shape = models.find(row.model).shape
    except UsageError:  # a model that this project does not train
        shape = None
    config = {field: getattr(row, field) for field in TrainingConfig.model_fields if hasattr(row, field)}
    return Result(
        platform=None,
        gpu_info=GpuInfo(device_name=row.gpu),
        model=Model(name=row.model, preset="full" if shape else None, shape=shape),
        training_config=TrainingConfig(**config),
        performance_metrics=PerformanceMetrics(tokens_per_second_per_gpu=row.tokens_per_second_per_gpu),
        provenance=Provenance(engine=ENGINE, timing="reported"),
    )
