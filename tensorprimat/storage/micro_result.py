"""`MicroResult`: one configuration of one model, timed alone, as `tprimat passes`, `warmup` and `sweep` write it.

A cell's JSON is flat, so that a folder of them is a table: `storage/cell_rows` reads any such folder (files of other
tools with `model_size` and `mean_time_ms` too), `tensorprimat.load_cells` makes a pandas DataFrame of it. Times of a
trial are milliseconds of one step: a trial of several steps is divided by them. None (null) is unmeasured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError, computed_field

from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.quantities import alternatives, count, to_digits
from tensorprimat.core.records import LARGEST_COUNT, Count, Finite, Record, RoundedRecord, first_fault
from tensorprimat.core.result import ModelShape
from tensorprimat.core.units import TERA
from tensorprimat.facts import catalogue
from tensorprimat.models import flops, presets
from tensorprimat.models.presets import COURSE, Preset
from tensorprimat.system import regular
from tensorprimat.system.atomic import write_atomically

Pass = Literal["forward", "forward-backward", "train"]
PASSES: tuple[Pass, ...] = ("forward", "forward-backward", "train")
CELL_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
ATTENTIONS = ("sdpa", "eager", "flash")
LARGEST_TIME_MS = 1e10  # four months
LARGEST_CELL_BYTES = 2**25  # of a JSON file of cells; a sweep of ten thousand makes 10 MB
TIME_DIGITS = 6  # significant digits of a trial time: a microsecond in a second
ROPE_THETA, RMS_NORM_EPS = 10_000.0, 1e-5  # of the ladder; neither changes cost

USABLE_MEMORY = 0.95  # of a device: driver and kernels hold the rest


class CellSpec(Record):
    """The settings of one micro-benchmark. Field names are the keys of the JSON file."""

    model_size: str
    """Label of the shape: small … 2.7B, llama, or the name given by --label or --shape."""
    architecture: str = COURSE
    """course, llama, qwen or mistral."""
    preset: str | None = None
    """Of llama, qwen and mistral: full, tiny …; None for a shape given by its numbers."""
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab: int
    context_length: int
    batch_size: int
    pass_name: Pass = Field(validation_alias=AliasChoices("pass", "pass_name"), serialization_alias="pass")
    """forward, forward-backward, or train (with the optimizer step)."""
    precision: str
    autocast: bool = False
    """Weights in fp32 and matrix products in `precision`; False: everything in `precision`."""
    compile: bool = False
    attention: str = "sdpa"
    data: str | None = None
    """Token file; None for synthetic tokens."""
    seed: int = 1234
    device: str = "cpu"
    """cpu or cuda (which is ROCm's name too), with a number where it is not the first."""
    num_warmups: int
    num_trials: int
    num_steps: int = 1
    """Steps of one trial."""
    memory_limit_gb: Finite = None
    """Memory that the process may use; None: no limit."""

    @property
    def shape(self) -> ModelShape:
        """Return the model's shape with this cell's vocabulary."""
        if self.preset is not None:
            named = presets.find_preset(self.architecture, self.preset).shape
            return named if named.vocab_size == self.vocab else named.changed(vocab_size=self.vocab)
        heads = self.num_heads
        return presets.shape_of_numbers(self.num_layers, self.d_model, self.d_ff, heads, heads, self.vocab)

    @property
    def as_preset(self) -> Preset:
        """Return the preset that a model class is built from."""
        named = None if self.preset is None else presets.find_preset(self.architecture, self.preset)
        return Preset(
            model=self.architecture,
            name=self.model_size,
            title=self.model_size,
            shape=self.shape,
            rope_theta=named.rope_theta if named else ROPE_THETA,
            rms_norm_eps=named.rms_norm_eps if named else RMS_NORM_EPS,
            max_position_embeddings=max(self.context_length, named.max_position_embeddings if named else 0),
            micro_batch_size=self.batch_size,
            global_batch_size=self.batch_size,
            sequence_length=self.context_length,
        )

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own idiom
    @property
    def forward_only(self) -> bool:
        """Return True if only the forward pass is timed."""
        return self.pass_name == "forward"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def num_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return presets.parameters(self.shape)

    @property
    def tokens(self) -> int:
        """Return the tokens of one step."""
        return self.batch_size * self.context_length

    @property
    def step_flops(self) -> float:
        """Return the FLOPs of one step by the default convention; a forward pass alone is a third of training."""
        training = float(self.tokens * flops.per_token(self.shape, self.context_length))
        return training / 3 if self.forward_only else training

    @property
    def title(self) -> str:
        """Return the configuration in a phrase."""
        words = [
            self.model_size, f"context {self.context_length}", f"batch {self.batch_size}", self.pass_name,
            f"{self.precision}{' autocast' if self.autocast else ''}",
        ]  # fmt: skip
        return ", ".join([*words, *(["compiled"] * self.compile), *([self.attention] * (self.attention != "sdpa"))])

    @property
    def file_name(self) -> str:
        """Return the name of the sweep's file, bench_{model}_{context}_…, which contains the value of every axis."""
        parts = [self.model_size, str(self.context_length), f"b{self.batch_size}", self.pass_name, self.precision]
        parts += ["autocast"] if self.autocast else []
        parts += ["compile"] if self.compile else []
        parts += [self.attention] if self.attention != "sdpa" else []
        safe = ("".join(c if c.isalnum() or c in ".-" else "-" for c in part) for part in parts)
        return f"bench_{'_'.join(safe)}.json"

    def check(self) -> CellSpec:
        """Return the spec itself if such a model can be built and timed; raises UsageError naming the flag if not."""
        for flag, value, least in (
            ("--d-model", self.d_model, 1),
            ("--d-ff", self.d_ff, 1),
            ("--num-layers", self.num_layers, 1),
            ("--num-heads", self.num_heads, 1),
            ("--vocab-size", self.vocab, 2),
            ("--context-length", self.context_length, 1),
            ("--batch-size", self.batch_size, 1),
            ("--warmup-steps", self.num_warmups, 0),
            ("--trials", self.num_trials, 1),
            ("--steps-per-trial", self.num_steps, 1),
        ):
            if value < least:
                raise UsageError(f"{flag} {value}: must be at least {least}")
            if value > LARGEST_COUNT:
                raise UsageError(f"{flag} {value}: must be at most {count(LARGEST_COUNT)}")
        if self.preset is None and self.d_model % self.num_heads:
            raise UsageError(f"--num-heads {self.num_heads}: does not divide --d-model {self.d_model}")
        if self.preset is None and (self.d_model // self.num_heads) % 2:
            raise UsageError(
                f"--num-heads {self.num_heads}: heads of width {self.d_model // self.num_heads} (--d-model "
                f"{self.d_model}) cannot be rotated in pairs (RoPE); the width must be even"
            )
        for flag, word, words in (
            ("--pass", self.pass_name, PASSES),
            ("--precision", self.precision, CELL_PRECISIONS),
            ("--attention", self.attention, ATTENTIONS),
        ):
            if word not in words:
                raise UsageError(f"{flag} {word}: must be {alternatives(words)}")
        if self.autocast and self.precision not in ("bf16", "fp16"):
            raise UsageError(
                f"--autocast and --precision {self.precision} contradict: autocast computes in bf16 or fp16"
            )
        return self


class MicroResult(CellSpec, RoundedRecord):
    """One configuration and its measurements."""

    kind: Literal["cell"] = "cell"
    schema_version: int = 1
    status: Literal["ok", "oom", "failed"] = "ok"
    """oom: the device's memory was not enough, which is a result too."""
    reason: str | None = None
    """Reason why the status is not ok; None if it is."""
    trial_times_ms: tuple[float, ...] = ()
    """Milliseconds of one step, trial by trial."""
    warmup_times_ms: tuple[float, ...] = ()
    """Milliseconds of each warm-up step; no figure includes them."""
    mean_time_ms: Finite = None
    std_time_ms: Finite = None
    """Sample standard deviation; None for a single trial."""
    cv_percent: Finite = None
    median_time_ms: Finite = None
    min_time_ms: Finite = None
    max_time_ms: Finite = None
    forward_time_ms: Finite = None
    backward_time_ms: Finite = None
    optimizer_time_ms: Finite = None
    """Mean times of forward, backward and optimizer step, measured inside the same trials."""
    forward_std_ms: Finite = None
    backward_std_ms: Finite = None
    optimizer_std_ms: Finite = None
    """Sample standard deviations of the parts over the trials; None for a single trial."""
    forward_cv_percent: Finite = None
    backward_cv_percent: Finite = None
    optimizer_cv_percent: Finite = None
    launch_time_ms: Finite = None
    """Mean milliseconds in which the host queues the kernels of a step, including its waits while the queue is full.

    None on a CPU, where it means nothing, and for train with fp16 autocast, whose gradient scaler makes the host wait
    for the device within the step.
    """
    backward_forward_ratio: Finite = None
    tokens_per_second: Finite = None
    flops_per_second: Finite = None
    """Model FLOP/s, by `flops_convention`."""
    flops_convention: str = flops.DEFAULT_CONVENTION
    mfu: Finite = None
    """flops_per_second over the device's dense peak at this precision, as the catalogue has it."""
    peak_memory_gb: Finite = None
    memory_kind: Literal["allocated", "resident"] | None = None
    """allocated: by torch, on a GPU; resident: memory of the process, on a CPU."""
    fit_batch_size: Count = None
    """Largest batch that fits if the requested one does not (--fit)."""
    fit_context_length: Count = None
    """Largest context at a batch of 1, if no batch fits at the requested context (--fit)."""
    platform: str | None = None
    device_name: str | None = None
    total_memory_gb: Finite = None
    host: str | None = None
    gpu_ids: tuple[str, ...] = ()
    torch_version: str | None = None
    tool_version: str | None = None
    timestamp: str | None = None
    loss: str | None = None
    """Computation of the loss, if it changes the split of times."""
    fused_norm: bool | None = None
    """True if RMS norm ran as one kernel of torch; None in files from before this key."""
    warnings: tuple[str, ...] = ()
    """Advice that follows from the data, one sentence each, beginning with its subject."""

    @property
    def spec(self) -> CellSpec:
        """Return only the requested keys."""
        return CellSpec.model_validate({name: getattr(self, name) for name in CellSpec.model_fields})


@dataclass(frozen=True, kw_only=True)
class MicroEstimate:
    """Estimated memory and time of one cell."""

    memory_gb: float
    seconds: float | None
    """The whole process, warm-up included; None where no rate is known."""

    def fits(self, memory_gb: float) -> bool:
        """Return True if a device with so much memory has room for it, and for memory that the estimate leaves out."""
        return self.memory_gb < USABLE_MEMORY * memory_gb


def with_figures(cell: MicroResult, parts_ms: Mapping[str, Sequence[float]] | None = None) -> MicroResult:
    """Return the cell with every figure that follows from its trial times. Raises ValueError for an impossible time.

    parts_ms: times of forward, backward and optimizer by trial, where they were marked.
    """
    times = cell.trial_times_ms
    if not times:
        return cell
    if not all(0 < time < LARGEST_TIME_MS for time in times):
        raise ValueError("trial_times_ms holds a number that is not a time")
    mean, deviation, cv_percent = _scatter(times)
    parts = {
        f"{name}_{figure}": value
        for name, values in (parts_ms or {}).items()
        if values
        for figure, value in zip(("time_ms", "std_ms", "cv_percent"), _scatter(values), strict=True)
    }
    forward, backward = parts.get("forward_time_ms"), parts.get("backward_time_ms")
    rate = cell.step_flops / (mean / 1e3)
    gpu = catalogue.find_gpu(cell.device_name, cell.total_memory_gb) if cell.platform != "cpu" else None
    peak = gpu.peak(cell.precision) if gpu and cell.precision not in gpu.lacks else None
    return cell.changed(
        trial_times_ms=tuple(to_digits(value, TIME_DIGITS) for value in times),
        warmup_times_ms=tuple(to_digits(value, TIME_DIGITS) for value in cell.warmup_times_ms),
        mean_time_ms=mean,
        std_time_ms=deviation,
        cv_percent=cv_percent,
        median_time_ms=statistics.median(times),
        min_time_ms=min(times),
        max_time_ms=max(times),
        **parts,
        backward_forward_ratio=backward / forward if forward and backward else None,
        tokens_per_second=cell.tokens / (mean / 1e3),
        flops_per_second=rate,
        mfu=rate / (peak.value * TERA) if peak and peak.value else None,
    )


def _scatter(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean, the sample standard deviation, and that in percent of the mean; None for a single value."""
    mean = statistics.fmean(values)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return mean, deviation, None if deviation is None or not mean else 100 * deviation / mean


def to_json(cell: MicroResult) -> str:
    """Return the JSON document of one cell, each list on one line."""
    document = cell.model_dump(mode="json", by_alias=True)
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def to_json_array(cells: Sequence[MicroResult]) -> str:
    """Return several cells as one JSON document."""
    return "[" + ",".join(f"\n{to_json(cell).rstrip()}" for cell in cells) + "\n]\n"


def save(cell: MicroResult, path: Path) -> Path:
    """Write one cell, whole or not at all. Raises OSError."""
    write_atomically(path, to_json(cell))
    return path


def load(path: Path) -> MicroResult:
    """Read one cell that TensorPrimat wrote. Raises InputError for anything else."""
    document = parsed(regular.content(path, most_bytes=LARGEST_CELL_BYTES), path)
    if not isinstance(document, dict) or document.get("kind") != "cell":
        raise InputError("JSON, but not a cell of tprimat passes or sweep", path=path)
    try:
        return MicroResult.model_validate(document)
    except ValidationError as error:
        raise InputError(first_fault(error), path=path, remedy="repair or remove the file") from error


def parsed(content: bytes, path: Path) -> Any:
    """Return a JSON document; NaN and Infinity of other writers are unmeasured."""
    return regular.json_document(content, path, "a cell", constants=lambda _: None)
