"""Reader of a Megatron log's configuration: arguments, YAML, banners, devices, allocator lines.

Sources, the most reliable first: the arguments that Megatron prints after checking them (`seq_length ....... 8192`),
the line with the parallel sizes, YAML dumps (Primus, Megatron-Bridge; placeholders like `${PRIMUS_SEQ_LENGTH:4096}` may
be unresolved), the command line.
"""

from __future__ import annotations

import re
from typing import Any

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import ModelShape
from tensorprimat.core.settings import OF_A_LOG, PARALLEL_SIZES, flag
from tensorprimat.core.units import GB, MIB
from tensorprimat.facts import devices
from tensorprimat.logs import headers, model_names
from tensorprimat.logs.fields import ENDS, UNGROUPED
from tensorprimat.logs.megatron import shape as shapes
from tensorprimat.logs.megatron.layout import NEEDLE
from tensorprimat.logs.text import without_colours
from tensorprimat.system.line_kinds import kinds_of, occurs_in

_CONFIGURATION = {
    "seq_length": "sequence_length",
    **{name: name for name in ("sequence_length", "global_batch_size", "micro_batch_size")},
    "train_iters": "max_steps",
    "world_size": "num_gpus",
    "nnodes": "num_nodes",
    **{name: name for name in (*PARALLEL_SIZES, "virtual_pipeline_model_parallel_size", "data_parallel_size", "seed")},
    "padded_vocab_size": "padded_vocabulary_size",
}
"""Whole numbers: Megatron's name → field of TrainingConfig."""
_WORDS = {
    "optimizer": "optimizer",
    "recompute_granularity": "recompute",
    "fp8_recipe": "fp8_recipe",
    "attention_backend": "attention_backend",
}
OTHERS = (
    "bf16", "fp16", "fp8", "fp4", "lr", "use_distributed_optimizer", "mock_data", "model_name", "exp_name", "model",
    *(shapes.FIRST_RECOMPUTE, *shapes.SINCE_2022),
)  # fmt: skip
SPELLED_OUT = (*_CONFIGURATION, *_WORDS, *shapes.DENSE, *OTHERS)
_KEYS = frozenset((*SPELLED_OUT, *shapes.PARTS, *shapes.SPECIAL))

BRIDGE_SUMMARY = "[model] Non-default values (vs Mcore "

_HINTS = tuple(
    hint.encode()
    for hint in (
        *(BRIDGE_SUMMARY, " ...", "train_micro_batch_size_per_gpu ..", "world size", "padded vocab"),
        *("memory (MB)", "memory (GB)", ".yaml", ".yml", "--lr", "--fp16", "--bf16"),
        *("ROCm", "RCCL", "rocm", "hipblas", "HIP", "CUDA", "cudnn", "nvcr.io", "NVIDIA", "Tesla", "MI1", "MI2", "MI3"),
        *("PyTorch", "torch=", "torch:", "torch version"),
        *sorted({key.replace("_", "-") for key in SPELLED_OUT if "_" in key}),
        *(f"{key}{end}" for end in (":", '":') for key in sorted(SPELLED_OUT)),
        *shapes.HINTS,
        *sorted({hint.replace("_", "-") for hint in shapes.HINTS if "_" in hint}),
    )
)
"""Texts of which a line must contain one to be examined: plain searches are a hundred times faster than expressions."""
START_BYTES = 2**25  # bytes of text to search: DeepSpeed prints its configuration before the first row
_MAX_LINE_BYTES = 4096  # longer lines state no fact

_OF_DEEPSPEED = b":print]  "
"""Text in each line of DeepSpeed's own configuration, whose world_size counts only data-parallel ranks."""

_DEEPSPEED_BATCH = re.compile(
    rb":print\] {1,9}(train_batch_size|train_micro_batch_size_per_gpu) {1,9}\.{0,80} {0,9}(\d{1,9})\s"
)
_BATCHES = {b"train_batch_size": "global_batch_size", b"train_micro_batch_size_per_gpu": "micro_batch_size"}

_DUMPED = re.compile(r"(?:^|[\s:])([A-Za-z]\w{1,60}) \.{2,} ([^\n]{1,1500})", re.MULTILINE)
_OF_NEOX = re.compile(r"^(?P<value>(?:.{0,1400}?[^.])?)(?P<dots>\.*)(?:default|updated)$")
"""A value in gpt-neox's dump: dots fill the line up to a column, and the origin of the value follows."""
NEOX = {
    "seq_length": "sequence_length",
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "model_parallel_size": "tensor_model_parallel_size",
    "pipe_parallel_size": "pipeline_model_parallel_size",
    "global_num_gpus": "num_gpus",
    "train_iters": "max_steps",
    "seed": "seed",
}
NEOX_PRECISIONS = {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"}
_YAML = re.compile(r"(?:^|\s)\"?(" + "|".join(sorted(_KEYS)) + r")\"?: +([^\s#,|][^\n#,|]{0,200})", re.MULTILINE)
_LISTED = re.compile(
    r"\b(moe_layer_freq|window_size|window_attn_skip_freq)\"?: +[\"']?([\[(][\d, ()*+\[\]-]{1,1500}[\])])"
)
"""A list that a YAML value states for its layers, or a window; other values end at a comma."""
_FLAG = re.compile(r"--([a-z][a-z0-9-]{1,60})(?:[ =]+(?!--|[#|&;>]|\d>|\d{1,3} \d{3}(?!\d))([^\s\\]{1,200})|(?=\s|$))")
"""A switch has no value: another flag, a comment, a pipe or a redirection follows it, or the line ends."""
_DEFAULT = re.compile(r"(?<!\s)\s+\(Mcore default: .*\)$")
_PLACEHOLDER = re.compile(r"^\$\{\w+:-?([^}]*)\}$")
_SIZES = re.compile(
    r"using world size: (\d+), data[- ]parallel[- ]size: (\d+),.{0,300}?tensor-model-parallel size: (\d+), "
    r"pipeline-model-parallel size: (\d+)"
)
_WORLD = re.compile(r"using world size: (\d+)")
_VOCABULARY = re.compile(r"padded vocab \(size: (\d+)\) with \d+ dummy tokens \(new size: (\d+)\)")
_EXPERIMENT = re.compile(r"(?:EXP=|--config[ =]|config file: ?|\bconfig(?:_name)? *: )(\S{1,400}\.ya?ml)")
_SIZE = rf"({UNGROUPED}(?:\.\d{{0,15}})?){ENDS}"
_MEMORY = re.compile(
    rf"\(after (\d{{1,15}}) iterations\) memory \(MB\) \| allocated: {_SIZE} \| max allocated: {_SIZE} "
    rf"\| reserved: {_SIZE} \| max reserved: {_SIZE}"
)
_MEMORY_OF_BRIDGE = re.compile(r"\(after (\d{1,15}) iterations\) memory \(GB\)((?: \| mem-[a-z-]{1,40}: [\d.]{1,30})+)")
_SIZE_OF_BRIDGE = re.compile(rf" \| (mem-[a-z-]{{1,40}}): {_SIZE}")
BRIDGE_SIZES = tuple(f"mem-{kind}-gigabytes" for kind in ("allocated", "max-allocated", "reserved", "max-reserved"))
_ROCM = re.compile(
    r"\bROCm\b|\bRCCL\b|\bhipblas|\bHIP version|hip mem usage|rocm mem usage|(?<![\w/])rocm/|torch hip version \.+ \d"
)
_CUDA = re.compile(r"\bCUDA version|\bcudnn\b|\bNVIDIA Driver|nvcr\.io/|torch cuda version \.+ \d")
_ABSENT = re.compile(
    r"\bNo (?:ROCm|CUDA|NVIDIA)\b|cannot open shared object|\bnot (?:been )?(?:found|available|installed)\b"
)
"""A library of one vendor that a machine of the other lacks: monitors look for both."""
_DEFAULTS = {
    **dict.fromkeys(PARALLEL_SIZES, "1"),
    **dict.fromkeys(("bf16", "fp16", "gated_linear_unit", "add_qkv_bias", "group_query_attention"), "False"),
}
"""Defaults of a Megatron-Bridge model for settings that the summary of its differences does not name (megatron.core's
TransformerConfig and ModelParallelConfig)."""


class Facts:
    """Settings collected from the text, block by block; the most reliable source of a setting counts.

    If a source states a setting twice, the first statement counts, of YAML the last. If the arguments state two
    different values of a setting, it is unknown.
    """

    def __init__(self) -> None:
        self._dumped: dict[str, str] = {}
        self._contradicted: dict[str, str] = {}
        """Argument that the log states twice → its second, different value."""
        self._yaml: dict[str, str] = {}
        self._flags: dict[str, str] = {}
        self._omits_defaults = False
        """True if the log has Megatron-Bridge's summary, which lists only settings that differ from the defaults."""
        self._omits_latent_defaults = False
        self._experiment: str | None = None
        self._vocabulary: tuple[int, int] | None = None
        self._batches: dict[str, int] = {}
        """Batch sizes of DeepSpeed's configuration; Megatron's own arguments and rows take precedence."""
        self._is_neox = False
        self._neox: dict[str, Any] = {}
        """Fields of TrainingConfig in gpt-neox's dump, which names other dimensions of the model than Megatron."""
        self._neox_texts: dict[str, str] = {}
        """All arguments of that dump."""
        self._seen_bytes = 0
        self.device: str | None = None
        self.is_rocm = self.is_cuda = False
        self.pytorch_version: str | None = None
        self.memory: dict[int, list[float]] = {}
        """Iteration → allocated, peak allocated, reserved, peak reserved: bytes, largest over ranks; 0: unknown."""
        self.warnings: list[str] = []

    def add(self, block: bytes) -> None:
        """Take in a block of whole lines."""
        self._seen_bytes += len(block)
        if self._seen_bytes < START_BYTES and _OF_DEEPSPEED in block:
            for name, size in _DEEPSPEED_BATCH.findall(block):
                self._batches.setdefault(_BATCHES[name], int(size))
        text = without_colours("\n".join(_hinted_lines(block))).replace("\r", "\n")
        for key, value in _DUMPED.findall(text):
            if self._take_neox(key, value.rstrip()):
                continue
            if key in _KEYS and self._dumped.setdefault(key, value.strip()) != value.strip():
                self._contradicted.setdefault(key, value.strip())
        for key, value in _YAML.findall(text):
            if key in _WORDS and value[0].isdigit():  # `optimizer: 63.01` among timers
                continue
            self._yaml[key] = _DEFAULT.sub("", value.strip()).strip("'\"")
        self._yaml |= dict(_LISTED.findall(text))
        self._omits_defaults = self._omits_defaults or BRIDGE_SUMMARY in text
        self._omits_latent_defaults = self._omits_latent_defaults or shapes.LATENT_SUMMARY in text
        for key, value in _FLAG.findall(text):
            if (name := key.replace("-", "_")) in _KEYS and not value.startswith("$"):  # a variable of the shell
                self._flags.setdefault(name, value.strip("'\"") or "True")
        if match := _SIZES.search(text):
            for key, value in zip(_SIZE_KEYS, match.groups(), strict=True):
                self._dumped.setdefault(key, value)
        elif match := _WORLD.search(text):
            self._dumped.setdefault("world_size", match[1])
        if match := _VOCABULARY.search(text):
            self._vocabulary = (int(match[1]), int(match[2]))
        if self._experiment is None and (match := _EXPERIMENT.search(text)):
            self._experiment = match[1]
        for iteration, *sizes in _MEMORY.findall(text):
            self._add_memory(int(iteration), [float(size) * MIB for size in sizes])
        for iteration, listed in _MEMORY_OF_BRIDGE.findall(text):
            by_name = dict(_SIZE_OF_BRIDGE.findall(listed))  # the user chooses which of them are printed
            self._add_memory(int(iteration), [float(by_name.get(name, 0)) * GB for name in BRIDGE_SIZES])
        self.device = self.device or devices.find_name(text)
        self.is_rocm = self.is_rocm or _is_present(_ROCM, text)
        self.is_cuda = self.is_cuda or _is_present(_CUDA, text)
        if self.pytorch_version is None:
            self.pytorch_version = headers.pytorch_version_in(text)

    def _take_neox(self, key: str, value: str) -> bool:
        """Take in a line of gpt-neox's dump of arguments; return False for a line of another program."""
        match = _OF_NEOX.match(value)
        if match is None or not match["value"] or not (self._is_neox or len(match["dots"]) > 1):
            return False
        self._is_neox = True  # a value that is longer than the column has no dots
        stated = match["value"].strip()
        if key in NEOX and stated.isdecimal() and int(stated) > 0:
            self._neox.setdefault(NEOX[key], int(stated[:9]))
        elif key == "precision" and stated in NEOX_PRECISIONS:
            self._neox.setdefault(key, NEOX_PRECISIONS[stated])
        elif key == "zero_stage" and stated in ("1", "2", "3"):
            self._neox.setdefault("strategy", f"zero-{stated}")
        elif key == shapes.FIRST_RECOMPUTE:
            self._neox.setdefault("recompute", "full" if stated == "True" else "none")
        self._neox_texts.setdefault(key, stated)
        return True

    def _add_memory(self, iteration: int, in_bytes: list[float]) -> None:
        known = self.memory.get(iteration, [0.0] * 4)
        self.memory[iteration] = [max(pair) for pair in zip(known, in_bytes, strict=True)]

    def training_config(self) -> dict[str, Any]:
        """Return the fields of TrainingConfig that the log states."""
        config: dict[str, Any] = {}
        settings = self._settings
        numbers = settings.numbers(_CONFIGURATION)
        for key, field in _CONFIGURATION.items():
            if (other := self._contradicted.get(key)) is not None:
                remedy = f"; give {flag(field)}" if field in OF_A_LOG else ""
                self.warnings.append(
                    Notice("arguments_contradict", field, one=self._dumped[key], other=other, remedy=remedy)
                )
            elif (number := numbers.get(key)) is not None and (number > 0 or key == "seed"):
                config[field] = number
        config = {**self._neox, **self._batches, **config}
        for key, field in _WORDS.items():
            if (word := self._value(key)) and word not in ("None", "null", "none"):
                config[field] = word
        if precision := self._precision():
            config["precision"] = precision
        if config.get("precision") != "fp8":
            config.pop("fp8_recipe", None)  # its default is in every dump of arguments
        if (rate := self._value("lr")) and re.fullmatch(r"\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", rate):
            config["learning_rate"] = float(rate)
        if settings.is_set("use_distributed_optimizer"):
            config["strategy"] = "zero-1"
        if "recompute" not in config and settings.value(shapes.FIRST_RECOMPUTE) is not None:
            config["recompute"] = "full" if settings.is_set(shapes.FIRST_RECOMPUTE) else "none"
        if settings.is_set("mock_data"):
            config["data"] = "mock"
        if self._vocabulary:
            config["padded_vocabulary_size"] = self._vocabulary[1]
        return config

    def model(self) -> dict[str, Any]:
        """Return the fields of Model that the log states; the shape only where every number of it is there."""
        model: dict[str, Any] = {}
        if shape := self._shape():
            model["shape"] = shape
        for spelled in (self._experiment, self._value("model_name"), self._value("model"), self._value("exp_name")):
            if spelled and "${" not in spelled and (name := model_names.model_name(spelled)):
                model["name"] = name
                break
        return model

    def _value(self, key: str) -> str | None:
        if key in self._contradicted:
            return None
        for source in (self._dumped, self._yaml, self._flags):
            if (value := source.get(key)) is None:
                continue
            if match := _PLACEHOLDER.match(value):
                value = match[1]
                note = Notice("default_of_variable", _CONFIGURATION.get(key, key), value=value)
                if note not in self.warnings:
                    self.warnings.append(note)
            return value
        return _DEFAULTS.get(key) if self._omits_defaults else None

    @property
    def _settings(self) -> shapes.MegatronSettings:
        return shapes.MegatronSettings(
            texts={key: value for key in _KEYS if (value := self._value(key)) is not None},
            omits_defaults=self._omits_defaults,
            omits_latent_defaults=self._omits_latent_defaults,
            vocabulary=self._vocabulary[0] if self._vocabulary else None,
        )

    def _precision(self) -> str | None:
        for key in ("fp4", "fp8"):
            if (self._value(key) or "None").lower() not in ("none", "null", "false", ""):
                return key
        precisions = [key for key in ("bf16", "fp16") if (self._value(key) or "").lower() in ("true", "false")]
        is_on = (key for key in precisions if (self._value(key) or "").lower() == "true")
        return next(is_on, "fp32" if len(precisions) == 2 else None)

    def _shape(self) -> ModelShape | None:
        if self._is_neox:
            return shapes.shape_of_neox(self._neox_texts, self._vocabulary[0] if self._vocabulary else None)
        if "num_layers" not in self._dumped | self._yaml:  # a command line may keep other arguments in variables
            return None
        try:
            return shapes.shape_of_settings(self._settings)
        except shapes.UnknownShapeError as error:
            self.warnings.append(Notice("shape_unknown", "model shape", error=error))
            return None


def _is_present(library: re.Pattern[str], text: str) -> bool:
    """Return True if a line names the library, other than one that reports that it is missing."""
    for match in library.finditer(text):
        end = text.find("\n", match.end())
        if not _ABSENT.search(text, text.rfind("\n", 0, match.start()) + 1, end if end >= 0 else len(text)):
            return True
    return False


def _hinted_lines(block: bytes) -> list[str]:
    """Return the lines of a block that may state a setting, in their order; iteration lines are not among them."""
    spans: dict[int, int] = {}
    kinds = kinds_of(block)
    for hint in _HINTS:
        at = block.find(hint) if occurs_in(hint, kinds) else -1
        while at >= 0:
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            end = len(block) if end < 0 else end
            spans[start] = end
            at = block.find(hint, end)
    return [
        block[start : min(end, start + _MAX_LINE_BYTES)].decode("utf-8", "replace")
        for start, end in sorted(spans.items())
        if block.find(NEEDLE, start, end) < 0 and block.find(_OF_DEEPSPEED, start, end) < 0
    ]


_SIZE_KEYS = ("world_size", "data_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size")
