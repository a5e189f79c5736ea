"""The result file: the settings of one benchmark, its measurements, and the source of every figure.

`Result` is the JSON document (schema version 3, docs/result.schema.json is generated from it). Keys that users' scripts
have read since version 1 keep their places; a key that ends in `_gb` counts 10**9 bytes, one that ends in `_seconds`
counts seconds. None (null) means that nothing was measured, with a reason in `warnings`.
`storage/store` reads and writes the file, `storage/legacy` lifts older versions to this one, `core/summary` fills in
figures.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, computed_field, model_serializer, model_validator

from tensorprimat.audit.evidence import Evidence
from tensorprimat.core import step_columns
from tensorprimat.core.notices import Notice, NoticeRecord, Sentences, with_codes
from tensorprimat.core.provenance import LOGS, Audit, Provenance
from tensorprimat.core.records import Count, Dimension, Finite, Record, RoundedRecord
from tensorprimat.core.spec import SeenSettings
from tensorprimat.core.steps import Steps
from tensorprimat.models.shape_parts import Experts, LatentAttention

SCHEMA_VERSION = 3

Platform = Literal["nvd", "amd", "cpu"]
VENDORS: dict[str, str] = {"nvd": "NVIDIA", "amd": "AMD"}
"""Platform → the vendor of its GPUs."""
STACK_OF_PLATFORM = {"nvd": "cuda", "amd": "rocm", "cpu": "cpu", None: "unknown"}


class GpuInfo(RoundedRecord):
    """The accelerator, as the driver or the log names it."""

    device_name: str | None = None
    """Name of the device, as the driver or the log spells it."""
    device_count: Count = None
    """GPUs of the training, on all nodes."""
    total_memory_gb: Finite = None
    """Memory of one device."""
    gpu_cores: Count = None
    """CUDA cores or stream processors, of a log from the catalogue of GPUs; CPU cores on a CPU."""
    software_stack: str | None = None
    """cuda, rocm or cpu."""
    software_version: str | None = None
    """Version of CUDA or ROCm."""
    pytorch_version: str | None = None
    """Version of the PyTorch that trained."""
    power_limit_watts: Finite = None
    """Power limit of one device."""
    default_power_limit_watts: Finite = None
    """Power limit with which the board starts."""
    max_clock_hertz: Finite = None
    """Highest clock of the compute units."""
    power_boundary: str | None = None
    """Hardware that power and energy include: the GPU with its memory, a socket, a board of two dies."""


class TrainingConfig(SeenSettings):
    """The configuration of a training; a field is None if neither the run nor the log states it."""

    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the packages that took part, by package."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of a live run that change how fast it runs, by name; empty where none is known."""


SPECIAL_PARTS = ("summed_products", "windowed_layers", "multi_token_layers", "experts", "latent_attention")
"""Fields of a shape that only special models have; files leave them out where they are None."""


class ModelShape(Record):
    """The numbers that a decoder-only transformer's cost depends on."""

    num_layers: Dimension
    """Transformer layers."""
    hidden_size: Dimension
    """Width of the hidden state of a token."""
    ffn_hidden_size: Dimension
    """Inner width of the MLP of a dense layer."""
    num_attention_heads: Dimension
    """Heads of queries in one layer."""
    num_key_value_heads: Dimension
    """Heads of keys and values in one layer; fewer than the query heads with grouped queries."""
    head_dim: Dimension
    """Dimensions of one head."""
    vocab_size: Dimension
    """Tokens in the vocabulary."""
    gated_mlp: bool = True
    """True for a gated MLP (SwiGLU), which has three matrices; False for two."""
    summed_products: tuple[str, ...] | None = None
    """Matrix products of a layer (`Recompute.PRODUCTS`) whose results are only added to others: backward does not need
    them. None means the last one. None of them where a norm follows the MLP (Gemma 2, OLMo 2)."""
    attention_bias: bool = False
    """True if queries, keys and values have biases (Qwen 2.5)."""
    tied_embeddings: bool = False
    """True if the output head uses the weights of the input embedding."""
    sliding_window: Dimension | None = None
    """Tokens that a query can see; None means all before it."""
    windowed_layers: Count = None
    """Layers with the sliding window; None means all."""
    multi_token_layers: Count = None
    """Modules that predict later tokens (DeepSeek-V3, arXiv:2412.19437, section 2.2): each adds a layer like the
    model's last one, a projection of two hidden states onto one, and another pass through the output head."""
    experts: Experts | None = None
    """Mixture of experts; None means that every layer has one MLP."""
    latent_attention: LatentAttention | None = None
    """Multi-head latent attention; None means ordinary attention with num_key_value_heads."""

    @model_validator(mode="after")
    def _layers_exist(self) -> ModelShape:
        of_kinds = (self.windowed_layers or 0, self.experts.layers if self.experts else 0)
        if max(of_kinds) > self.num_layers:
            raise ValueError(f"{max(of_kinds)} layers with a window or experts, but only {self.num_layers} layers")
        return self

    @model_serializer(mode="wrap")
    def _without_absent_parts(self, serialise: Any) -> dict[str, Any]:
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value is not None or key not in SPECIAL_PARTS}


class Model(Record):
    """The model that was trained. `name` is a label; FLOPs and MFU need a shape that run, log or flag states."""

    name: str | None = None
    """Name of the model, as the user or the log spells it: llama, Qwen3-30B-A3B …"""
    preset: str | None = None
    """Size or version of a built-in model: full, tiny, v0.3 …"""
    shape: ModelShape | None = None
    parameters: Count = None
    """Parameters of the whole model, all experts included."""
    trainable_parameters: Count = None
    """Parameters that the optimizer changes; fewer than all with LoRA or frozen layers."""
    trainable_parameters_per_process: Count = None
    """Trainable parameters that one process counts: its share under FSDP and ZeRO-3, otherwise all."""
    training_flops_per_token: Count = None
    """Training FLOPs of one token as `--flops megatron` counts them, at the sequence length of the training; only if
    `shape` cannot express the model. It counts only the experts that a token uses, and only the pairs of tokens
    within the windows and chunks of attention."""


class Reported(RoundedRecord):
    """Figures that a framework printed about its training, over the measured rows; never mixed with computed ones."""

    tokens_per_second: Finite = None
    """Tokens per second of all GPUs together."""
    tokens_per_second_per_gpu: Finite = None
    """Tokens per second of one GPU."""
    tokens_per_second_per_process: Finite = None
    """Tokens per second of one process, where the framework does not count those of the others."""
    counted_tokens_per_second: Finite = None
    """The log's count of tokens over the clock of the whole training."""
    samples_per_second: Finite = None
    """Sequences per second of all GPUs together."""
    tflops_per_gpu: Finite = None
    """TFLOP/s by the framework's own count of FLOPs."""
    mfu: Finite = None
    """MFU by the framework's own FLOPs and peak; 1 is the peak."""
    step_time_seconds: Finite = None
    """Mean step time that the framework printed."""
    runtime_seconds: Finite = None
    """Time of the whole training that the framework printed."""
    time_to_train_seconds: Finite = None
    """Time between the run's own start and stop marks (MLPerf)."""
    samples_to_train: Finite = None
    """Sequences that the run trained on between its start and stop marks (MLPerf)."""
    status: str | None = None
    """The run's own verdict about itself (MLPerf: success, aborted)."""
    benchmark: str | None = None
    """The task of a public benchmark (MLPerf: llama31_8b)."""
    quality_target: Finite = None
    """Value that the evaluation has to reach."""


class PerformanceMetrics(RoundedRecord):
    """Figures of the measured steps, except `total_*`, which count every logged step. A rate is a ratio of sums."""

    total_steps: Count = None
    """Optimizer steps of all logged rows."""
    total_time_seconds: Finite = None
    """Sum over all logged rows that have a time."""
    measured_steps: Count = None
    """Optimizer steps of the measured rows."""
    measured_time_seconds: Finite = None
    """Sum over the measured rows."""
    warmup_steps_dropped: Count = None
    """Optimizer steps left out at the start, over all runs."""
    excluded_steps: Count = None
    """Steps left out because they contain a validation, a checkpoint or the writing of a profile."""
    avg_step_time_seconds: Finite = None
    """Measured time over measured steps."""
    median_step_time_seconds: Finite = None
    """Median over the rows; a row that covers several steps counts with their mean."""
    min_step_time_seconds: Finite = None
    """Step time of the fastest row."""
    max_step_time_seconds: Finite = None
    """Step time of the slowest row."""
    std_step_time_seconds: Finite = None
    """Sample standard deviation of the rows' step times (n − 1)."""
    cv_step_time: Finite = None
    """Coefficient of variation of the step time: standard deviation over mean."""
    steps_per_second: Finite = None
    """Optimizer steps per second: 1 / avg_step_time_seconds."""
    tokens_per_second: Finite = None
    """Tokens per second of all GPUs together."""
    tokens_per_second_per_gpu: Finite = None
    """The primary figure: tokens of the measured steps over their seconds and the number of GPUs."""
    samples_per_second: Finite = None
    """Sequences per second of all GPUs together."""
    samples_per_second_per_gpu: Finite = None
    """Sequences per second of one GPU."""
    tokens_per_step: Finite = None
    """Tokens of one optimizer step, mean over the measured steps; if they differ, a warning names the range."""
    basis: Literal["step_times", "reported_rates", "reported_means"] | None = None
    """Basis of the rates: step times, rates that the framework printed, or means of the whole run, where the file holds
    no steps."""
    reported: Reported = Field(default_factory=Reported)


MEMORY_KINDS = {"memory_allocated": "allocated", "memory_reserved": "reserved", "memory_device_used": "device used"}
"""Kinds of device memory, by their names, in the order in which they include each other."""


class MemoryMetrics(RoundedRecord):
    """Device memory by kind, in units of 10**9 bytes; only equal kinds can be compared. Peaks are maxima over ranks."""

    avg_memory_allocated_gb: Finite = None
    """Memory of live tensors in PyTorch's allocator, mean over the measured rows."""
    peak_memory_allocated_gb: Finite = None
    """Peak memory of live tensors, over all rows, warm-up included."""
    avg_memory_reserved_gb: Finite = None
    """Memory that the allocator holds, caches included, mean over the measured rows."""
    peak_memory_reserved_gb: Finite = None
    """Peak memory that the allocator holds, over all rows, warm-up included."""
    avg_memory_device_used_gb: Finite = None
    """Memory in use on the device by all processes, as the driver reports it, mean over the measured rows."""
    peak_memory_device_used_gb: Finite = None
    """Peak memory in use on the device, over all rows, warm-up included."""

    def peaks(self) -> dict[str, float]:
        """Return the peak in GB of each kind of MEMORY_KINDS that was measured."""
        return {kind: peak for kind in MEMORY_KINDS if (peak := getattr(self, f"peak_{kind}_gb")) is not None}


class PowerMetrics(RoundedRecord):
    """Power and related figures as measured, never nameplate values. A mean needs values for half of the time."""

    avg_power_watts_per_gpu: Finite = None
    """Mean power of one GPU over the measured steps."""
    energy_joules_per_gpu: Finite = None
    """Energy of one GPU over the measured steps: from its own counter if every step has a reading, else from sampled
    power, if that is known for 90 % of the measured time."""
    sampled_energy_joules_per_gpu: Finite = None
    """Energy from sampled power over the same steps, a check of `energy_joules_per_gpu`; None unless that figure comes
    from the counter."""
    avg_clock_hertz: Finite = None
    """Mean clock of the compute units over the measured steps."""
    avg_temperature_celsius: Finite = None
    """Mean temperature of the hottest GPU over the measured steps."""
    max_temperature_celsius: Finite = None
    """Highest mean temperature of a measured step, of the hottest GPU."""
    throttled_seconds: Finite = None
    """Measured time in which the clock of a GPU was reduced (power cap, heat)."""
    slowdown_seconds: Finite = None
    """The part of it for which the driver names another reason than the power cap."""


POWER_CAP = "the power cap"
"""Entry of `Run.throttled_by` that is normal: a GPU at full load is limited by its power cap."""


class Startup(RoundedRecord):
    """Time of a run outside its usual steps, by part."""

    imports_seconds: Finite = None
    """From the start of the process to the last import (torch engine); during a pause of 10 s or more before the run,
    if there is one."""
    device_seconds: Finite = None
    """From then to the start of Lightning: detection of the device, and checks."""
    model_seconds: Finite = None
    """From the start of Lightning to the first step: model, weights and optimizer."""
    first_step_seconds: Finite = None
    """First step, with the compilation in it."""
    compile_seconds: Finite = None
    """Compilation by torch.compile, or reading its cache; it is part of the first steps."""
    writing_seconds: Finite = None
    """From the end of the last step to the end of the process."""


class Run(RoundedRecord):
    """One repetition: a fresh process, or one log."""

    index: int
    """Number of the run in this result, from 0."""
    started_at: str | None = None
    """Start of the run (ISO 8601)."""
    seed: int | None = None
    host: str | None = None
    """Name of the machine."""
    total_steps: Count = None
    """Optimizer steps of all its rows."""
    measured_steps: Count = None
    """Optimizer steps of its measured rows."""
    measured_time_seconds: Finite = None
    warmup_steps_dropped: Count = None
    """Optimizer steps left out at its start."""
    segment: int | None = None
    """Number of the measured segment (one training between restarts), counted from 0; if several are measured,
    the longest."""
    segments: int = 1
    """Number of segments of its log that have the settings of this result."""
    avg_step_time_seconds: Finite = None
    tokens_per_second: Finite = None
    tokens_per_second_per_gpu: Finite = None
    samples_per_second: Finite = None
    settled: bool | None = None
    """True if the step times reached a stable level, judged over all runs of the result; None without steps."""
    drift: Finite = None
    """Relative amount by which the average may deviate from the level after warm-up; 0 where no drift shows."""
    final_loss: Finite = None
    """Training loss of the last row that has one."""
    time_to_train_seconds: Finite = None
    """Seconds from start to quality target; None if the run has no target or missed it."""
    samples_to_train: Finite = None
    """Sequences from start to quality target."""
    complete: bool = True
    """False for a run that ended early."""
    pair: str | None = None
    """Name of the pair of runs (benchmark.py --ab) that this run belongs to."""
    throttled_by: tuple[str, ...] = ()
    """Reasons for which the driver reduced a GPU's clock during the run."""
    startup: Startup | None = None
    """Seconds before and after its steps; None for a log."""
    ended_by: str | None = None
    """Reason why an incomplete run ended: interrupted, out of memory, crashed …"""


class Result(RoundedRecord):
    """One benchmark: model, device, configuration, runs and steps."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=(), arbitrary_types_allowed=True)

    schema_version: int = SCHEMA_VERSION
    """Version of this format."""
    platform: Platform | None
    """nvd, amd or cpu; None if the log does not state the device."""
    source: str | None = None
    """Origin of the result in words: "torch engine", "primus log" …"""
    timestamp: str | None = None
    """Time of the training (ISO 8601); for a log, the log's own date."""
    methodology: str | None = None
    """Name of the methodology (a predefined configuration) that the run followed: agreed, max, identical or classic."""
    complete: bool = True
    """False if a run ended early."""
    gpu_info: GpuInfo
    model: Model
    training_config: TrainingConfig
    performance_metrics: PerformanceMetrics
    memory_metrics: MemoryMetrics | None = None
    host_memory_peak_gb: Finite = None
    """Peak resident memory of the training process, largest over ranks."""
    power_metrics: PowerMetrics | None = None
    runs: tuple[Run, ...] = ()
    provenance: Provenance = Field(default_factory=Provenance)
    audit: Audit | None = None
    """Comparison of the rate with the log's own clock; None where the log has none."""
    warnings: Sentences = ()
    """One sentence each, beginning with its subject: "memory_metrics: …". `notices` states the same for programs."""
    series_file: str | None = None
    """Sidecar file (npz, in the same folder) with the series of a result with very many steps."""
    series_sha256: str | None = None
    """SHA-256 of `series_file`; None if there is none."""
    steps: Steps = Field(exclude=True, default_factory=lambda: Steps({}))
    evidence: Evidence = Field(exclude=True, default_factory=Evidence)
    """Readings of the log's own clock, kept from reading the log until its audit."""

    _from_json = model_validator(mode="before")(step_columns.with_steps)
    _with_codes = model_validator(mode="before")(with_codes)

    @property
    def remarks(self) -> tuple[Notice, ...]:
        """Return the warnings with their codes."""
        return tuple(map(Notice.of, self.warnings))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def notices(self) -> list[NoticeRecord]:
        """Return what each of `warnings` says for programs, in the same order."""
        return [one.for_programs() for one in self.remarks]

    @property
    def is_usable(self) -> bool:
        """Return True if the runs finished, or if a log ends before the planned steps without a failure."""
        return self.complete or (self.provenance.engine == LOGS and not any(run.ended_by for run in self.runs))

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own idiom
    @property
    def raw_step_times(self) -> list[float | None]:
        """Return the seconds of one optimizer step for every logged row, warm-up included, runs one after the other;
        empty if `series_file` contains them.
        """
        inline = self.series_file is None and "seconds" in self.steps.seen
        return step_columns.column(self.steps, "seconds") if inline else []

    @computed_field  # type: ignore[prop-decorator]
    @property
    def step_metrics(self) -> dict[str, list[Any]]:
        """Return the other values of each logged row as columns: None where absent, "nan" for a nan loss; empty if
        `series_file` contains them.
        """
        if self.series_file is not None:
            return {}
        return {name: step_columns.column(self.steps, name) for name in self.steps.seen if name != "seconds"}
