"""Settings of a training: `TrainingSettings` declares each once, with its type, label, weight, form and option.

The records of core/records have these fields in three states: chosen by the user, resolved for a run, and seen in a log
or a result. A new setting is one field here; the records, the command line, completion, identity, fairness, reports and
documentation follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from tensorprimat.core.quantities import alternatives
from tensorprimat.core.vocabulary import Recompute, fp8_recipe

Weight = Literal["work", "configuration", "context"]
"""work: another value is another problem. configuration: the same problem, solved another way. context: decides
nothing."""
Kind = Literal["count", "number", "word", "upper", "text"]
"""Form of a value. count: whole number. number: shown with six digits at most. word: compared in lower case. upper:
shown in upper case. text: shown as it is, a truth value as yes or no."""
Applies = Literal["always", "several GPUs", "FP8", "Megatron", "where stated"]
"""Results that have the setting. Elsewhere, two sides that both leave it out can still be identical."""

TRAINED_PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
PRECISIONS = (*TRAINED_PRECISIONS, "fp4")
"""Precisions that a log can state; a run here trains in one of TRAINED_PRECISIONS."""
PRECISION_OF_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Type of a number as torch and JAX name it → precision."""
LIGHTNING_PRECISIONS = {"32": "fp32", "16": "fp16", "bf16": "bf16", "transformer": "fp8"}
"""First part of Lightning's name of a precision ("bf16-mixed", "32-true") → precision."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of the commands that train."""

    flag: str
    help: str
    metavar: str = "N"
    type: type = int
    default: Any = None
    shown_default: str | None = None
    """Description of a default that depends on the machine or the model."""
    engine: str | None = None
    """Engines that have the option, as text for its help; None if all do."""
    own_training: bool = False
    """True if only the project's own training loop has the option."""
    least: int | None = None
    choices: tuple[str, ...] = ()
    of_every_engine: tuple[str, ...] = ()
    """Choices that every engine has, if the others need the project's own training loop; the last one is advised."""
    takes_share: bool = False
    """True if the value can also be a percentage."""
    in_ab: bool = True
    """True if it may differ between the two configurations of --ab."""

    @cached_property
    def parameter(self) -> str:
        """Return the parameter of the command: the flag as an identifier."""
        return self.flag.partition("/")[0].removeprefix("--").replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of a training."""

    label: str
    """Name in the middle of a sentence."""
    name: str = ""
    """Field of `TrainingSettings`."""
    weight: Weight | None = "configuration"
    """None for a setting that no comparison looks at."""
    kind: Kind = "text"
    applies: Applies = "always"
    same: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of a value, in lower case → the value."""
    identifies: bool = True
    """False for a setting that differs between runs of one benchmark: the seed."""
    symbol: str | None = None
    """Short name of a parallel size: TP, PP …"""
    option: Option | None = None
    usual: Any = None
    """Value of a run for which nothing states another; None if a run must state it, or can lack it."""
    read: Callable[[str], str] | None = None
    """Function from a text to the value."""
    read_for_run: Callable[[str], str] | None = None
    """The same for the value of a run; None if that is the value that was chosen."""
    in_results: bool = True
    """False for a setting that the configuration in a result leaves out."""

    @property
    def heading(self) -> str:
        """Return the label as it begins a row of a table."""
        return self.label[:1].upper() + self.label[1:]


_METHODOLOGY_OR_PRESET = "the methodology's or the preset's"
Absent = TypeVar("Absent")
"""Type of a setting that is not known: None as chosen or seen, Never as resolved."""


def _row(label: str, weight: Weight | None = "configuration", kind: Kind = "text", **more: Any) -> Any:
    """Return the value of a field of `TrainingSettings`: its row, with the rest as in `Setting`."""
    return field(default=None, metadata={"row": Setting(label=label, weight=weight, kind=kind, **more)})


def _parallel(label: str, symbol: str, among: str | None = None) -> Any:
    option = None if among is None else Option(
        flag=f"--{label.replace(' ', '-')}-size", help=f"GPUs among which {among} split.", least=1,
        shown_default="the methodology's, or 1", engine="engines nemo, bridge and primus",
    )  # fmt: skip
    applies: Applies = "where stated" if symbol in ("EP", "VPP") else "always"  # few trainings have any
    return _row(label, kind="count", symbol=symbol, option=option, applies=applies, usual=1)


@dataclass(kw_only=True)
class TrainingSettings(Generic[Absent]):
    """Every setting with a plain value, in the order of the tables; versions and environment variables are collections.

    A run resolves each setting whose type names `Absent`; the others it states if it can.
    """

    steps: int | Absent = _row(
        "measured steps", None, in_results=False,
        option=Option(flag="--steps", help="Measured optimizer steps of a run.", default=20, least=1),
    )  # fmt: skip
    warmup_steps: int | Absent = _row(
        "declared warm-up steps", "context", "count",
        option=Option(flag="--warmup-steps", help="Warm-up steps before the measured ones.", default=5, least=0),
    )  # fmt: skip
    """Steps declared as warm-up before the run; None where the warm-up is detected."""
    preset: str | Absent = _row(
        "preset", None, in_results=False,
        option=Option(
            flag="--preset", help="Size of the model to train: full or tiny.", metavar="NAME", type=str,
            choices=("full", "tiny"), shown_default="full on a GPU, tiny on a CPU",
        ),
    )  # fmt: skip
    methodology: str | None = _row(
        "methodology", None, in_results=False,
        option=Option(
            flag="--methodology", metavar="NAME", type=str, shown_default="agreed with nemo and bridge, else none",
            choices=("agreed", "max", "identical", "classic"),
            help="Predefined configuration: agreed (same work, each vendor's tuning), max (each vendor's best), "
            "identical (same settings) or classic (as in the earlier scripts).",
        ),
    )  # fmt: skip
    max_steps: int | None = _row("planned steps", None, "count")
    """Optimizer steps planned, warm-up included."""
    peft: str | None = _row("adapter", "work", "word")
    """"none" if every parameter trains; lora, qlora, frozen … if not all do."""
    packing: bool | None = _row("packing", "work")
    """True if several documents share one sequence; False if each document has a sequence of its own."""
    sequence_length: int | Absent = _row(
        "sequence length", "work", "count",
        option=Option(
            flag="--sequence-length", help="Tokens of a sequence.", shown_default=_METHODOLOGY_OR_PRESET, least=2
        ),
    )  # fmt: skip
    global_batch_size: int | Absent = _row(
        "global batch size", "work", "count",
        option=Option(
            flag="--global-batch-size", help="Sequences of one optimizer step.",
            shown_default=_METHODOLOGY_OR_PRESET, least=1,
        ),
    )  # fmt: skip
    precision: str | Absent = _row(
        "precision", kind="upper",
        option=Option(
            flag="--precision", metavar="FORMAT", type=str, choices=TRAINED_PRECISIONS,
            help=f"{alternatives(TRAINED_PRECISIONS)}.",
            shown_default="the methodology's; bf16 on a GPU, or fp16 if it lacks bf16; fp32 on a CPU",
        ),
    )  # fmt: skip
    """fp32, tf32, bf16, fp16, fp8, fp4."""
    num_gpus: int | Absent = _row(
        "GPUs", kind="count",
        option=Option(
            flag="--num-gpus", help="GPUs of the whole training, or processes on a CPU.",
            shown_default="all, or 1 on a CPU", least=1,
        ),
    )  # fmt: skip
    micro_batch_size: int | Absent = _row(
        "micro batch size", kind="count",
        option=Option(
            flag="--micro-batch-size", help="Sequences of one forward pass.",
            shown_default=_METHODOLOGY_OR_PRESET, least=1,
        ),
    )  # fmt: skip
    gradient_accumulation_steps: int | None = _row("gradient accumulation", kind="count")
    """Micro-batches of one replica in one optimizer step."""
    tensor_model_parallel_size: int | Absent = _parallel("tensor parallel", "TP", "each layer is")
    pipeline_model_parallel_size: int | Absent = _parallel("pipeline parallel", "PP", "the layers are")
    virtual_pipeline_model_parallel_size: int | None = _parallel("virtual pipeline stages", "VPP")
    """Model stages on each pipeline rank (interleaved schedule); None for one stage, or if none is stated."""
    context_parallel_size: int | Absent = _parallel("context parallel", "CP", "a sequence is")
    data_parallel_size: int | None = _parallel("data parallel", "DP")
    """Replicas of the model, each of which trains on its own part of a batch."""
    expert_model_parallel_size: int | None = _parallel("expert parallel", "EP")
    """GPUs among which the experts of a layer are split."""
    num_nodes: int | Absent = _row(
        "nodes", kind="count",
        option=Option(
            flag="--nodes", help="Machines that train together, with --executor.", default=1, least=1, in_ab=False
        ),
    )  # fmt: skip
    """Machines of the training."""
    strategy: str | Absent = _row(
        "strategy", kind="word", applies="several GPUs",
        option=Option(
            flag="--strategy", help="Strategy for several GPUs: auto, ddp or fsdp.", metavar="HOW",
            type=str, default="auto", engine="torch engine", own_training=True,
            choices=("auto", "ddp", "fsdp"),
        ),
    )  # fmt: skip
    """Sharding of weights among replicas: ddp, fsdp, zero-1, megatron …"""
    fp8_recipe: str | None = _row(
        "FP8 recipe", kind="word", applies="FP8", read=fp8_recipe,
        option=Option(
            flag="--fp8-recipe", help="Scales of --precision fp8: tensorwise, rowwise, or mxfp8 on Blackwell.",
            metavar="HOW", type=str, shown_default="tensorwise", engine="torch engine with torchao",
            own_training=True,
            choices=("tensorwise", "rowwise", "mxfp8"),
        ),
    )  # fmt: skip
    """Scales of FP8 products: delayed, tensorwise (current scaling), rowwise, blockwise, mxfp8 …"""
    compute_dtype: str | None = _row("compute dtype", kind="word")
    """Type in which matrix products are computed: bfloat16, float8 …"""
    parameter_dtype: str | None = _row("parameter dtype", kind="word")
    """Type in which weights are stored."""
    optimizer_dtype: str | None = _row("optimizer dtype", kind="word")
    """Type of the optimizer's moments."""
    master_weights: str | None = _row(
        "master weights", None, in_results=False,
        option=Option(
            flag="--master-weights", metavar="FORMAT", type=str, engine="torch engine", own_training=True,
            choices=("fp32",),
            help="fp32: keep float32 weights and optimizer state under bf16 compute, as Megatron does.",
            shown_default="none: bf16 throughout",
        ),
    )  # fmt: skip
    recompute: Recompute | Absent = _row(
        "recompute", kind="word", read=Recompute, read_for_run=Recompute.of_run, usual=Recompute.NONE,
        option=Option(
            flag="--activation-checkpointing", metavar="HOW", type=str, choices=("none", "selective", "full"),
            of_every_engine=("none", "full"), takes_share=True,
            help="Activations to recompute: none, selective (torch engine: every second layer) or full; with the torch "
            "engine also the share to keep at most, such as 35%.",
            shown_default="torch engine: what fits; else none",
        ),
    )  # fmt: skip
    fused_kernels: str | None = _row("fused kernels", kind="word", applies="Megatron")
    """Operations that run as one kernel each, such as RMS norm."""
    attention_backend: str | None = _row(
        "attention", kind="word",
        option=Option(
            flag="--attention", help="Attention: sdpa, eager or flash.", metavar="HOW", type=str, shown_default="sdpa",
            engine="torch engine", own_training=True, choices=("sdpa", "eager", "flash"),
        ),
    )  # fmt: skip
    attention_kernel: str | None = _row("attention kernel", kind="word", applies="where stated")  # few state it
    """The kernel that computed attention: flash, efficient, cudnn, math, flex …"""
    compile: bool | Absent = _row(
        "compiled", usual=False,
        option=Option(
            flag="--compile/--no-compile", help="Compile each layer with torch.compile.", type=bool,
            shown_default="on a GPU", engine="torch engine", own_training=True,
        ),
    )  # fmt: skip
    cuda_graphs: bool | None = _row("CUDA graphs", applies="where stated")
    """True if kernels are launched as recorded graphs (CUDA graphs)."""
    padded_vocabulary_size: int | None = _row("padded vocabulary", kind="count", applies="Megatron")
    """Rows of the embedding, if the framework pads the vocabulary."""
    optimizer: str | None = _row(
        "optimizer", kind="word",
        same=dict.fromkeys(  # Megatron's "adam" decouples weight decay from gradients: AdamW; the others are kernels
            ("adam", "adamw_torch", "adamw_torch_fused", "adamw_hf", "decoupled_adamw", "distributed_fused_adam"),
            "adamw",
        ),
    )  # fmt: skip
    """Name of the optimizer, such as AdamW."""
    learning_rate: float | None = _row("learning rate", kind="number")
    """Learning rate that the run or the log states."""
    data: str | None = _row("data", kind="word", same={"synthetic": "mock"})
    """synthetic, mock, or the name of the data set."""
    data_fingerprint: str | None = _row("data fingerprint", kind="word", applies="where stated")
    """Fingerprint of the first tokens of the data (see system/fingerprint)."""
    seed: int | Absent = _row(
        "seed", identifies=False, option=Option(flag="--seed", help="Seed of weights and data.", default=1234)
    )
    framework: str | None = _row("framework", "context")
    """Framework that trained, such as Megatron-LM."""
    framework_version: str | None = _row("framework version", "context")
    """Version of the framework."""


SETTINGS: tuple[Setting, ...] = tuple(replace(one.metadata["row"], name=one.name) for one in fields(TrainingSettings))
"""The row of every setting, in the order of the tables."""

BY_NAME = {setting.name: setting for setting in SETTINGS}
WITH_OPTION = tuple(setting for setting in SETTINGS if setting.option is not None)
"""Settings that a user chooses by flag: the fields of `ChosenSettings` and `ResolvedSettings`."""

MODEL_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
"""Sizes whose product is the number of devices that share one replica of the model."""
PARALLEL_SIZES = (*MODEL_PARALLEL, "expert_model_parallel_size")
"""Sizes that a log or a framework's configuration states."""
OF_A_METHODOLOGY = ("precision", *MODEL_PARALLEL, "micro_batch_size", "global_batch_size", "sequence_length")
"""Settings that a methodology sets."""
OF_A_LOG = ("num_gpus", "global_batch_size", "micro_batch_size", "sequence_length", "precision")
"""Settings that a user may state about a log, by the flag that sets them for a run."""


def option(name: str) -> Option:
    """Return the option of a setting. Raises KeyError for a setting without one."""
    if (found := BY_NAME[name].option) is None:
        raise KeyError(name)
    return found


def flag(name: str) -> str:
    """Return the flag of a setting. Raises KeyError for a setting without one."""
    return option(name).flag


FACT_FLAGS = {name: flag(name) for name in (*OF_A_LOG, "warmup_steps")} | {"data_fingerprint": "--data-fingerprint"}
"""Settings that a user may state about a log or a result, with their flags: the fields of `StatedSettings`."""


def replica_devices(record: Any) -> int:
    """Return how many devices share one replica of the model; a parallel size that is not stated counts as 1."""
    return math.prod(getattr(record, name) or 1 for name in MODEL_PARALLEL)
