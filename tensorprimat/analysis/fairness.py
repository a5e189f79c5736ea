"""Did two sides do the same work at all? A table of the fields that decide it, and a verdict with its sentence.

Three weights. `work`: another value is another problem, and no ratio means anything. `configuration`: the same problem
solved another way, as tuned comparisons do; the sentence names it. `context`: good to know, decides nothing.

    identical          every decisive field is stated by both and equal, and no configuration is known to differ
    like_for_like      same work and precision, no configuration known to differ, but some of it is not stated
    own_configuration  same work, own parallelism, micro batch, precision …; also where a field of the work is not
                       stated, because then nobody can call it like for like: the sentence says what is missing
    not_comparable     another model, shape, sequence length or global batch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tensorprimat.analysis.records import Difference, Fairness, FairnessVerdict
from tensorprimat.core.records import ModelShape, Result

Weight = Literal["work", "configuration", "context"]
Reader = Callable[[Result], str | None]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One row of the fairness table."""

    key: str
    """Key in the result."""
    label: str
    weight: Weight
    read: Reader
    """The value as a person reads it; None where the result does not state it."""
    decisive: bool = False
    """Has to be stated by both sides before they can be called identical."""


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _config(key: str) -> Reader:
    return lambda result: _text(getattr(result.training_config, key))


def _lower(key: str, same: dict[str, str] | None = None) -> Reader:
    """A word of the configuration, whatever its case; `same` maps other names of one thing."""

    def read(result: Result) -> str | None:
        value = getattr(result.training_config, key)
        return (same or {}).get(value.lower(), value.lower()) if value else None

    return read


def _precision(result: Result) -> str | None:
    precision = result.training_config.precision
    return precision.upper() if precision else None


def _model(result: Result) -> str | None:
    return result.model.name.lower() if result.model.name else None


def _shape(result: Result) -> str | None:
    """The numbers of the shape; a sliding window that no sequence reaches is no difference."""
    shape = result.model.shape
    return None if shape is None else _spelled(shape, result.training_config.sequence_length)


def _spelled(shape: ModelShape, sequence_length: int | None) -> str:
    window = shape.sliding_window
    seen = f", window {window}" if window and (sequence_length is None or window < sequence_length) else ""
    extras = "".join(
        f", {name}"
        for name, present in (
            ("ungated MLP", not shape.gated_mlp),
            ("attention bias", shape.attention_bias),
            ("tied embeddings", shape.tied_embeddings),
        )
        if present
    )
    return (
        f"{shape.num_layers} layers × {shape.hidden_size}, FFN {shape.ffn_hidden_size}, "
        f"{shape.num_attention_heads}/{shape.num_key_value_heads} heads × {shape.head_dim}, "
        f"vocabulary {shape.vocab_size}{seen}{extras}"
    )


def _versions(result: Result) -> str | None:
    versions = result.training_config.versions
    return ", ".join(f"{package} {version}" for package, version in sorted(versions.items())) or None


def _watts(result: Result) -> str | None:
    limit = result.gpu_info.power_limit_watts
    return None if limit is None else f"{limit:g} W"


FIELDS: tuple[Field, ...] = (
    Field(key="model", label="model", weight="work", decisive=True, read=_model),
    Field(key="methodology", label="methodology", weight="work", read=lambda result: _text(result.methodology)),
    Field(key="preset", label="preset", weight="work", read=lambda result: _text(result.model.preset)),
    Field(key="shape", label="model shape", weight="work", decisive=True, read=_shape),
    *(
        Field(key=key, label=label, weight="work", decisive=True, read=_config(key))
        for key, label in (("sequence_length", "sequence length"), ("global_batch_size", "global batch size"))
    ),
    Field(key="precision", label="precision", weight="configuration", decisive=True, read=_precision),
    *(
        Field(key=key, label=label, weight="configuration", decisive=True, read=_config(key))
        for key, label in (
            ("num_gpus", "GPUs"),
            ("micro_batch_size", "micro batch size"),
            ("tensor_model_parallel_size", "tensor parallel"),
            ("pipeline_model_parallel_size", "pipeline parallel"),
            ("context_parallel_size", "context parallel"),
        )
    ),
    Field(
        key="expert_model_parallel_size",
        label="expert parallel",
        weight="configuration",
        read=_config("expert_model_parallel_size"),
    ),
    Field(key="num_nodes", label="nodes", weight="configuration", read=_config("num_nodes")),
    Field(key="strategy", label="strategy", weight="configuration", read=_lower("strategy")),
    Field(key="fp8_recipe", label="FP8 recipe", weight="configuration", read=_lower("fp8_recipe")),
    Field(key="compute_dtype", label="compute dtype", weight="configuration", read=_lower("compute_dtype")),
    Field(key="parameter_dtype", label="parameter dtype", weight="configuration", read=_lower("parameter_dtype")),
    Field(key="optimizer_dtype", label="optimizer dtype", weight="configuration", read=_lower("optimizer_dtype")),
    Field(key="recompute", label="recompute", weight="configuration", read=_lower("recompute")),
    Field(key="fused_kernels", label="fused kernels", weight="configuration", read=_lower("fused_kernels")),
    Field(key="attention_backend", label="attention", weight="configuration", read=_lower("attention_backend")),
    Field(key="compile", label="compiled", weight="configuration", read=_config("compile")),
    Field(
        key="padded_vocabulary_size",
        label="padded vocabulary",
        weight="configuration",
        read=_config("padded_vocabulary_size"),
    ),
    Field(
        key="optimizer",
        label="optimizer",
        weight="configuration",
        read=_lower("optimizer", {"adam": "adamw"}),  # Megatron's "adam" decays weights apart from gradients: AdamW
    ),
    Field(key="data", label="data", weight="configuration", read=_lower("data", {"synthetic": "mock"})),
    Field(key="engine", label="engine", weight="context", read=lambda result: _text(result.provenance.engine)),
    Field(key="framework", label="framework", weight="context", read=_config("framework")),
    Field(key="framework_version", label="framework version", weight="context", read=_config("framework_version")),
    Field(
        key="software_version",
        label="CUDA / ROCm version",
        weight="context",
        read=lambda result: _text(result.gpu_info.software_version),
    ),
    Field(
        key="pytorch_version",
        label="PyTorch version",
        weight="context",
        read=lambda result: _text(result.gpu_info.pytorch_version),
    ),
    Field(key="versions", label="package versions", weight="context", read=_versions),
    Field(key="timing", label="step times", weight="context", read=lambda result: _text(result.provenance.timing)),
    Field(key="power_limit_watts", label="power limit", weight="context", read=_watts),
    Field(key="warmup_steps", label="declared warm-up steps", weight="context", read=_config("warmup_steps")),
)


def signature(result: Result) -> tuple[str | None, ...]:
    """What fairness looks at, in the order of FIELDS: files pool as runs of one side only if it agrees."""
    return tuple(field.read(result) for field in FIELDS)


def judge(baseline: Result, candidate: Result) -> Fairness:
    """Whether a ratio of candidate to baseline may be drawn, what differs, and the sentence that says so."""
    differences = differences_between((baseline, candidate))
    unknown = tuple(
        field.label
        for field in FIELDS
        if field.decisive
        and (field.weight == "work" or field.key == "precision")
        and None in (field.read(baseline), field.read(candidate))
    )
    verdict = _verdict((baseline, candidate), differences, unknown)
    return Fairness(
        verdict=verdict,
        differences=differences,
        unknown=unknown,
        sentence=_sentence(verdict, differences, unknown),
    )


def differences_between(results: Sequence[Result]) -> tuple[Difference, ...]:
    """Rows of the fairness table that differ; a value that only some state is listed too, except in the context."""
    differences = []
    for field in FIELDS:
        values = tuple(field.read(result) for result in results)
        stated = {value for value in values if value is not None}
        if len(stated) > 1 or (stated and None in values and field.weight != "context"):
            differences.append(Difference(field=field.key, label=field.label, values=values, weight=field.weight))
    return tuple(differences)


def _verdict(results: Sequence[Result], differences: Sequence[Difference], unknown: Sequence[str]) -> FairnessVerdict:
    if any(_is_other_work(difference) for difference in differences):
        return "not_comparable"
    if unknown or any(d.weight == "configuration" and None not in d.values for d in differences):
        return "own_configuration"
    every_value_stated = all(
        None not in (field.read(result) for result in results) for field in FIELDS if field.decisive
    )
    return "identical" if every_value_stated else "like_for_like"


def _is_other_work(difference: Difference) -> bool:
    """A preset decides only through its shape, except that nothing but a tiny preset is ever tiny."""
    if difference.weight != "work":
        return False
    if difference.field == "preset":
        return ("tiny" in difference.values) and len(set(difference.values)) > 1
    return None not in difference.values


_OPENINGS: dict[FairnessVerdict, str] = {
    "identical": "Identical: same model, shape, sequence length, global batch, precision and parallelism on both sides",
    "like_for_like": "Like for like: same model, shape, sequence length, global batch and precision",
    "own_configuration": "Same work",
    "not_comparable": "Not comparable: the sides did not do the same work",
}


def _sentence(verdict: FairnessVerdict, differences: Sequence[Difference], unknown: Sequence[str]) -> str:
    """The verdict in words; values stand in the order baseline against candidate."""
    if verdict == "not_comparable":
        return f"{_OPENINGS[verdict]} ({_spell([d for d in differences if _is_other_work(d)])})."
    configured = [d for d in differences if d.weight == "configuration" and None not in d.values]
    opening = _OPENINGS[verdict]
    if unknown:
        opening = f"Same work only if what is not stated on both sides agrees: {', '.join(unknown)}"
    return opening + (f"; own configuration: {_spell(configured)}" if configured else "") + "."


def _spell(differences: Sequence[Difference]) -> str:
    return ", ".join(
        "another model shape"  # its numbers stand in the table
        if difference.field == "shape"
        else f"{difference.label} {' against '.join(value or 'not stated' for value in difference.values)}"
        for difference in differences
    )
