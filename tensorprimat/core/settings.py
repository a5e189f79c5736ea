"""Settings of a training: one row for each, which every part of the tool reads.

A row has the name of the setting in `TrainingConfig`, `RunSpec` and `RunSettings`, its label, its weight in a
comparison, the form of its value, and the option that sets it for a run. A new setting is a row here and a field of the
records that contain it; the command line, completion, identity, fairness, reports and methodologies follow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tensorprimat.core.quantities import alternatives

Weight = Literal["work", "configuration", "context"]
"""work: another value is another problem. configuration: the same problem, solved another way. context: decides
nothing."""
Kind = Literal["count", "number", "word", "upper", "text"]
"""Form of a value. count: whole number. number: shown with six digits at most. word: compared in lower case. upper:
shown in upper case. text: shown as it is, a truth value as yes or no."""
Applies = Literal["always", "several GPUs", "FP8", "Megatron", "where stated"]
"""Results that have the setting. Elsewhere, two sides that both leave it out can still be identical."""

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
TRAINED_PRECISIONS: tuple[str, ...] = get_args(Precision)
PRECISIONS = (*TRAINED_PRECISIONS, "fp4")
"""Precisions that a log can state; a run here trains in one of TRAINED_PRECISIONS."""
PRECISION_OF_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Type of a number as torch and JAX name it → precision."""
LIGHTNING_PRECISIONS = {"32": "fp32", "16": "fp16", "bf16": "bf16", "transformer": "fp8"}
"""First part of Lightning's name of a precision ("bf16-mixed", "32-true") → precision."""
_FP8_RECIPES = {
    "delayed": "delayed", "delayedscaling": "delayed",
    "tensorwise": "tensorwise", "current": "tensorwise", "currentscaling": "tensorwise",
    "float8currentscaling": "tensorwise", "float8blockscaling": "blockwise", "mxfp8blockscaling": "mxfp8",
    "nvfp4blockscaling": "nvfp4",
}  # fmt: skip
"""Spelling of the scales of FP8, without spaces → Megatron's: one for a tensor, from the tensor's history (delayed) or
from the tensor itself (tensorwise, which Transformer Engine calls Float8CurrentScaling), or one for each block."""


def fp8_recipe(stated: str) -> str:
    """Return the scales of an FP8 training by Megatron's word, in whatever spelling they are stated.

    The format before them ("hybrid, delayed scaling") belongs to the recipe: E4M3 forward and E5M2 backward. A recipe
    that is not known is returned as it is.
    """
    words = stated.lower().replace(",", " ").replace("_", " ").split()
    plain = "".join(words[1:] if words[:1] == ["hybrid"] else words)
    return _FP8_RECIPES.get(plain, stated)


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
    takes_share: bool = False
    """True if the value can also be a percentage."""
    in_ab: bool = True
    """True if it may differ between the two configurations of --ab."""

    @property
    def parameter(self) -> str:
        """Return the parameter of the command: the flag as an identifier."""
        return self.flag.partition("/")[0].removeprefix("--").replace("-", "_")


def share_of(text: str) -> float | None:
    """Return a percentage above 0 and up to 100 as a share; None for other text.

    >>> share_of("35%"), share_of("full"), share_of("0%")
    (0.35, None, None)
    """
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)\s?%", text)
    return float(found[1]) / 100 if found and 0 < float(found[1]) <= 100 else None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of a training."""

    name: str
    """Field of TrainingConfig, RunSpec and RunSettings."""
    label: str
    """Name in the middle of a sentence."""
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

    @property
    def heading(self) -> str:
        """Return the label as it begins a row of a table."""
        return self.label[:1].upper() + self.label[1:]


_METHODOLOGY_OR_PRESET = "the methodology's or the preset's"
_METHODOLOGY_OR_ONE = "the methodology's, or 1"


def _parallel(name: str, label: str, symbol: str, flag: str | None = None, among: str = "") -> Setting:
    option = None if flag is None else Option(
        flag=flag, help=f"GPUs among which {among} split.", shown_default=_METHODOLOGY_OR_ONE, least=1,
        engine="engines nemo, bridge and primus",
    )  # fmt: skip
    applies: Applies = "where stated" if symbol in ("EP", "VPP") else "always"  # few trainings have any
    return Setting(name=name, label=label, kind="count", symbol=symbol, option=option, applies=applies)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="steps", label="measured steps", weight=None,
        option=Option(flag="--steps", help="Measured optimizer steps of a run.", default=20, least=1),
    ),
    Setting(
        name="warmup_steps", label="declared warm-up steps", weight="context", kind="count",
        option=Option(flag="--warmup-steps", help="Warm-up steps before the measured ones.", default=5, least=0),
    ),
    Setting(
        name="preset", label="preset", weight=None,
        option=Option(
            flag="--preset", help="Size of the model to train: full or tiny.", metavar="NAME", type=str,
            choices=("full", "tiny"), shown_default="full on a GPU, tiny on a CPU",
        ),
    ),
    Setting(
        name="methodology", label="methodology", weight=None,
        option=Option(
            flag="--methodology", metavar="NAME", type=str, shown_default="agreed with nemo and bridge, else none",
            choices=("agreed", "max", "identical", "classic"),
            help="Predefined configuration: agreed (same work, each vendor's tuning), max (each vendor's best), "
            "identical (same settings) or classic (as in the earlier scripts).",
        ),
    ),
    Setting(name="max_steps", label="planned steps", weight=None, kind="count"),
    Setting(name="peft", label="adapter", weight="work", kind="word"),
    Setting(name="packing", label="packing", weight="work"),
    Setting(
        name="sequence_length", label="sequence length", weight="work", kind="count",
        option=Option(
            flag="--sequence-length", help="Tokens of a sequence.", shown_default=_METHODOLOGY_OR_PRESET, least=2
        ),
    ),
    Setting(
        name="global_batch_size", label="global batch size", weight="work", kind="count",
        option=Option(
            flag="--global-batch-size", help="Sequences of one optimizer step.",
            shown_default=_METHODOLOGY_OR_PRESET, least=1,
        ),
    ),
    Setting(
        name="precision", label="precision", kind="upper",
        option=Option(
            flag="--precision", metavar="FORMAT", type=str, choices=TRAINED_PRECISIONS,
            help=f"{alternatives(TRAINED_PRECISIONS)}.",
            shown_default="the methodology's; bf16 on a GPU, or fp16 if it lacks bf16; fp32 on a CPU",
        ),
    ),
    Setting(
        name="num_gpus", label="GPUs", kind="count",
        option=Option(
            flag="--num-gpus", help="GPUs of the whole training, or processes on a CPU.",
            shown_default="all, or 1 on a CPU", least=1,
        ),
    ),
    Setting(
        name="micro_batch_size", label="micro batch size", kind="count",
        option=Option(
            flag="--micro-batch-size", help="Sequences of one forward pass.",
            shown_default=_METHODOLOGY_OR_PRESET, least=1,
        ),
    ),
    Setting(name="gradient_accumulation_steps", label="gradient accumulation", kind="count"),
    _parallel("tensor_model_parallel_size", "tensor parallel", "TP", "--tensor-parallel-size", "each layer is"),
    _parallel("pipeline_model_parallel_size", "pipeline parallel", "PP", "--pipeline-parallel-size", "the layers are"),
    _parallel("virtual_pipeline_model_parallel_size", "virtual pipeline stages", "VPP"),
    _parallel("context_parallel_size", "context parallel", "CP", "--context-parallel-size", "a sequence is"),
    _parallel("data_parallel_size", "data parallel", "DP"),
    _parallel("expert_model_parallel_size", "expert parallel", "EP"),
    Setting(
        name="num_nodes", label="nodes", kind="count",
        option=Option(
            flag="--nodes", help="Machines that train together, with --executor.", default=1, least=1, in_ab=False
        ),
    ),
    Setting(
        name="strategy", label="strategy", kind="word", applies="several GPUs",
        option=Option(
            flag="--strategy", help="Strategy for several GPUs: auto, ddp or fsdp.", metavar="HOW",
            type=str, default="auto", engine="torch engine", own_training=True,
            choices=("auto", "ddp", "fsdp"),
        ),
    ),
    Setting(
        name="fp8_recipe", label="FP8 recipe", kind="word", applies="FP8",
        option=Option(
            flag="--fp8-recipe", help="Scales of --precision fp8: tensorwise, rowwise, or mxfp8 on Blackwell.",
            metavar="HOW", type=str, shown_default="tensorwise", engine="torch engine with torchao",
            own_training=True,
            choices=("tensorwise", "rowwise", "mxfp8"),
        ),
    ),
    Setting(name="compute_dtype", label="compute dtype", kind="word"),
    Setting(name="parameter_dtype", label="parameter dtype", kind="word"),
    Setting(name="optimizer_dtype", label="optimizer dtype", kind="word"),
    Setting(
        name="master_weights", label="master weights", weight=None,
        option=Option(
            flag="--master-weights", metavar="FORMAT", type=str, engine="torch engine", own_training=True,
            choices=("fp32",),
            help="fp32: keep float32 weights and optimizer state under bf16 compute, as Megatron does.",
            shown_default="none: bf16 throughout",
        ),
    ),
    Setting(
        name="recompute", label="recompute", kind="word",
        option=Option(
            flag="--activation-checkpointing", metavar="HOW", type=str, choices=("none", "selective", "full"),
            takes_share=True,
            help="Activations to recompute: none, selective (torch engine: every second layer) or full; with the torch "
            "engine also the share to keep at most, such as 35%.",
            shown_default="torch engine: what fits; else none",
        ),
    ),
    Setting(name="fused_kernels", label="fused kernels", kind="word", applies="Megatron"),
    Setting(
        name="attention_backend", label="attention", kind="word",
        option=Option(
            flag="--attention", help="Attention: sdpa, eager or flash.", metavar="HOW", type=str, shown_default="sdpa",
            engine="torch engine", own_training=True, choices=("sdpa", "eager", "flash"),
        ),
    ),
    Setting(name="attention_kernel", label="attention kernel", kind="word", applies="where stated"),  # few state it
    Setting(
        name="compile", label="compiled",
        option=Option(
            flag="--compile/--no-compile", help="Compile each layer with torch.compile.", type=bool,
            shown_default="on a GPU", engine="torch engine", own_training=True,
        ),
    ),
    Setting(name="cuda_graphs", label="CUDA graphs", applies="where stated"),
    Setting(name="padded_vocabulary_size", label="padded vocabulary", kind="count", applies="Megatron"),
    Setting(
        name="optimizer", label="optimizer", kind="word",
        same=dict.fromkeys(  # Megatron's "adam" decouples weight decay from gradients: AdamW; the others are kernels
            ("adam", "adamw_torch", "adamw_torch_fused", "adamw_hf", "decoupled_adamw", "distributed_fused_adam"),
            "adamw",
        ),
    ),
    Setting(name="learning_rate", label="learning rate", kind="number"),
    Setting(name="data", label="data", kind="word", same={"synthetic": "mock"}),
    Setting(name="data_fingerprint", label="data fingerprint", kind="word", applies="where stated"),
    Setting(
        name="seed", label="seed", identifies=False,
        option=Option(flag="--seed", help="Seed of weights and data.", default=1234),
    ),
    Setting(name="framework", label="framework", weight="context"),
    Setting(name="framework_version", label="framework version", weight="context"),
)  # fmt: skip
"""Every setting with a plain value, in the order of the tables; versions and environment variables are collections."""

BY_NAME = {setting.name: setting for setting in SETTINGS}
WITH_OPTION = tuple(setting for setting in SETTINGS if setting.option is not None)
"""Settings that a user chooses by flag: the fields of RunSettings."""

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
    found = BY_NAME[name].option
    if found is None:
        raise KeyError(name)
    return found


def flag(name: str) -> str:
    """Return the flag of a setting. Raises KeyError for a setting without one."""
    return option(name).flag


def replica_devices(record: Any) -> int:
    """Return how many devices share one replica of the model; a parallel size that is not stated counts as 1."""
    return math.prod(getattr(record, name) or 1 for name in MODEL_PARALLEL)
