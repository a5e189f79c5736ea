"""Derived metrics of one result: MFU, memory, energy, cost and time to train.

Every figure is a `Figure` that carries its formula and its inputs with their sources, or the reason why it is None: an
unknown GPU, precision or model shape gives no MFU, never a guessed one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorprimat.analysis import formulas, inputs
from tensorprimat.analysis.explanations import FROM_RUNS, explained
from tensorprimat.analysis.memory import headroom, largest_micro_batch, utilization
from tensorprimat.core.errors import UsageError
from tensorprimat.core.figures import Figure, Input, derive, unknown
from tensorprimat.core.quantities import as_stated, count, fixed, of_data_sheet, percent
from tensorprimat.core.result import ModelShape, Result
from tensorprimat.core.units import TERA
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.facts import catalogue
from tensorprimat.facts.catalogue import Gpu
from tensorprimat.models import flops, presets, recompute
from tensorprimat.storage.preflight import Preflight

SAME_CONVENTION = 0.01  # allows for rounding and a padded vocabulary; most conventions differ by more for one model,
# and between those that do not (torchtitan, full_attention) the restated figure hardly changes


@dataclass(frozen=True, kw_only=True)
class MetricChoices:
    """The user's choices for derived metrics: FLOPs convention, prices, token budget.

    Raises UsageError for a price or a budget that is not a finite number above 0.
    """

    convention: str = flops.DEFAULT_CONVENTION
    """Name in `core.flops.CONVENTIONS`."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """USD per GPU-hour by the name that the user wrote; they replace the catalogue's prices."""
    budget_tokens: float = float(TERA)
    """For cost, time and energy of a training run of the user's own size."""
    preflights: Sequence[Preflight] = ()
    """Best performance of machines, newest first; a result is compared with that of its own machine."""

    def __post_init__(self) -> None:
        for name, usd in self.prices.items():
            if not 0 < usd < math.inf:
                raise UsageError(
                    f"price of {name or 'every device'}: {as_stated(usd)} USD per GPU-hour; must be more than 0"
                )
        if not 0 < self.budget_tokens < math.inf:
            raise UsageError(f"budget of {as_stated(self.budget_tokens)} tokens: must be more than 0")


def calculate_metrics(
    result: Result,
    assumptions: MetricChoices | None = None,
    figures: Mapping[str, Mapping[str, Figure]] | None = None,
    *,
    label: str | None = None,
) -> dict[str, Figure]:
    """Return every derived figure of a result, by its name in `core.figures.DERIVED_FIGURES`.

    figures: those of the result with their terms, where the caller has them already. label: of the side that it is.
    Raises UsageError for an unknown convention, and for two prices of one device.
    """
    chosen = assumptions or MetricChoices()
    convention = flops.convention_named(chosen.convention).name
    gpu = catalogue.find_gpu_of(result.gpu_info)
    known = (explained(result) if figures is None else figures).get("performance_metrics", {})
    per_gpu = _rate_per_gpu(result, known.get("tokens_per_second_per_gpu"))
    speed = {metric.name: metric for metric in _speed(result, gpu, convention, chosen.preflights)}
    metrics = (
        per_gpu,
        *speed.values(),
        utilization(result, gpu),
        headroom(result, gpu),
        largest_micro_batch(result, gpu),
        *_energy_and_money(result, gpu, chosen, speed["model_tflops_per_gpu"], label),
    )
    return {metric.name: metric for metric in metrics}


def _rate_per_gpu(result: Result, figure: Figure | None) -> Figure:
    """Return the tokens/s/GPU with the formula and the numbers that it was computed from, as far as steps give them."""
    rate = inputs.rate_per_gpu(result)
    metric = derive("tokens_per_second_per_gpu", (rate,), lambda value: value)
    if metric.value is None or figure is None:
        return metric
    if figure.is_stated:
        return replace(metric, origin=figure.origin)
    return replace(
        metric,
        own_formula=figure.formula,
        inputs=tuple(
            Input(name=one.name, value=one.value, unit=one.unit, source=_source(result, one.name) or rate.source)
            for one in figure.inputs
            if one.in_formula or figure.origin == FROM_RUNS
        ),
    )


def _source(result: Result, name: str) -> str | None:
    """Return the origin of an input that is a setting; None for a sum over steps."""
    setting = {"GPUs": "num_gpus", "tokens of a sequence": "sequence_length"}.get(name)
    return setting and result.provenance.assumed.get(setting, inputs.CONFIGURED)


def _speed(result: Result, gpu: Gpu | None, convention: str, preflights: Sequence[Preflight]) -> list[Figure]:
    rate = inputs.rate_per_gpu(result)
    per_token = flops_per_token(result, convention)
    tflops = derive("model_tflops_per_gpu", (rate, per_token.as_input()), formulas.calculate_tflops)
    peak = inputs.peak_tflops(result, gpu)
    best = inputs.achievable_tflops(result, gpu, preflights)
    mfu = derive("mfu", (rate, per_token.as_input(), peak), formulas.calculate_mfu)
    if mfu.value is not None and isinstance(peak.value, float | int):
        remark = f"{convention} convention, {of_data_sheet(peak.value)} TFLOP/s ({peak.name})"
        remark += _of_parts(result, gpu, convention, mfu.value, peak.value) + _of_packing(result, convention, mfu.value)
        if mfu.value > 1:
            remark += "; above the peak: check for a wrong sequence length, batch size, GPU count or precision"
        assumed = result.provenance.assumed
        if stated := [f"{label} ({assumed[key]})" for key, label in UNDER_MFU.items() if key in assumed]:
            remark += f"; {STATED}: {', '.join(stated)}"
        mfu = replace(mfu, remark=remark)
    clocks = inputs.mean_clock(result), inputs.peak_clock(result, gpu)
    of_clocks = " of ".join(f"{count(one.value)} MHz" for one in clocks if isinstance(one.value, float | int))
    share = derive("achievable_fraction", (tflops.as_input(), best), lambda rate, best: rate / best)
    if share.value is not None and share.value > 1:
        above = "above 100 %: no training is faster than the best matrix product"
        share = replace(share, remark=f"{above}; check the work of the training, and the product ({best.source})")
    return [
        per_token,
        tflops,
        mfu,
        derive(
            "mfu_at_clock",
            (*clocks, mfu.as_input()),
            lambda mean, of_peak, mfu: mfu * of_peak / mean,
            remark=f"{of_clocks}, at which the peak is defined",
        ),
        _hfu(result, mfu, convention),
        share,
        restated_tflops(result, convention),
    ]


def _of_parts(result: Result, gpu: Gpu | None, convention: str, mfu: float, peak: float) -> str:
    """Return the MFU of an FP8 or FP4 run with every part of the model at the peak of its own precision; else ""."""
    ran, shape, length = result.training_config.precision, result.model.shape, result.training_config.sequence_length
    wide = catalogue.dense_peak(gpu, "bf16")
    if ran not in ("fp8", "fp4") or shape is None or not length or not wide:
        return ""
    parts = flops.peak_of_parts(shape, length, layers=peak, others=wide, convention=convention)
    return (
        f"; {percent(mfu * peak / parts)} of a mixed peak of {count(parts)} TFLOP/s (layers' matrices at the "
        f"{ran} peak, output head and attention at the bf16 peak of {of_data_sheet(wide)})"
    )


def _of_packing(result: Result, convention: str, mfu: float) -> str:
    """Return the range of the MFU of packed sequences, whose documents have unknown lengths; "" for others.

    Tokens attend to their own document alone: their attention costs more than none, and at most that of one document as
    long as the sequence.
    """
    shape, length = result.model.shape, result.training_config.sequence_length
    if not result.training_config.packing or not length:
        return ""
    attention = flops.convention_named(convention).attention(shape, length) if shape else None
    if attention == 0:
        return ""
    charged = flops.charged_per_token(result, convention)
    least = f"at least {percent(mfu * (1 - attention / charged))}" if attention and charged else "lower"
    return f"; a packed sequence is counted as one document; if attention stays within documents, MFU is {least}"


STATED = "inferred or set by the user"
"""Introduction of facts that run or log does not state directly, in the remark of an MFU."""
UNDER_MFU = {
    "model.shape": "model shape",
    "device_name": "GPU",
    "precision": "precision",
    "num_gpus": "number of GPUs",
    "global_batch_size": "global batch size",
    "sequence_length": "sequence length",
}
"""Facts that an MFU rests on, as keys of provenance.assumed."""


def flops_per_token(result: Result, convention: str) -> Figure:
    """Return the training FLOPs of one token by a named convention, for a shape that run, log or user states."""
    shape, length = result.model.shape, inputs.sequence_length(result)
    counting = flops.convention_named(convention)
    convention_used = Input(name="convention", value=counting.name, source=f"{counting.formula}: {counting.used_by}")
    if stated := result.model.training_flops_per_token if shape is None else None:
        return _stated_flops(stated, flops.charged_per_token(result, convention), length, convention_used)
    rests_on = (inputs.shape(result), length, convention_used)
    if shape is None:
        return unknown("flops_per_token", str(inputs.shape(result).because), rests_on)
    charged = flops.charged_per_token(result, convention)
    if charged is None and result.training_config.sequence_length:
        because = "only some parameters train, and the cost of the frozen ones depends on their position"
        return unknown("flops_per_token", because, rests_on)
    frozen = flops.frozen_parameters(result)
    remark = f"{counting.name}, frozen weights at 4 FLOPs" if frozen else counting.name
    if charged and result.training_config.sequence_length:
        attention = counting.attention(shape, result.training_config.sequence_length)
        weights = counting.weights(shape)
        remark += f": {4 if frozen else 6} × {count(weights)} weights of matrix products"
        remark += f" + {count(attention)} FLOP of attention" if attention else ""
    return derive("flops_per_token", rests_on, lambda _: float(charged or 0), remark=remark)


def _stated_flops(stated: int, charged: int | None, length: Input, convention_used: Input) -> Figure:
    """Return the FLOPs of a model whose layers differ, which only the default convention counts."""
    layers = Input(name="model's layers", value=stated, unit="FLOP", source="counted layer by layer in the run")
    if charged is None:
        because = f"a model with layers of several kinds is counted by {flops.DEFAULT_CONVENTION} only"
        return unknown("flops_per_token", because, (layers, length, convention_used))
    remark = f"{flops.DEFAULT_CONVENTION}, active experts and visible pairs"
    return derive("flops_per_token", (layers, length, convention_used), lambda *_: float(charged), remark=remark)


_SECOND_PRODUCT = "every second matrix product"
_WITHOUT_LAST_PRODUCT = ("transformers on lightning", "torchtitan")
"""Frameworks whose `full` does not repeat the last product of a layer, in lower case; the first is the torch engine."""
_OF_PARTS = (_SECOND_PRODUCT, "every second layer")
"""Recomputations whose cost is known only if all layers are alike: dense, with grouped queries."""


def _hfu(result: Result, mfu: Figure, convention: str) -> Figure:
    """Return MFU × FLOPs executed / FLOPs of the model (Korthikanti et al., Reducing Activation Recomputation, 2022).

    Layers run again, never the output head. `full`: their whole forward pass, without the products that backward does
    not need where torch leaves them out. A plan of the torch engine names its operations (models/recompute).
    `selective`: the attention core with Megatron and NeMo; with torchtitan the second, fourth and sixth matrix product
    of a layer and no attention (torchtitan/distributed/activation_checkpoint.py; docs/concepts/mfu.md derives the
    factor).
    """
    setting = (result.training_config.recompute or Recompute("")).word
    framework = (result.training_config.framework or "").lower()
    shape, length = result.model.shape, result.training_config.sequence_length
    of_layers = setting.of_layers
    named = setting.OPERATIONS if of_layers else setting.operations
    has_products = recompute.has_dense_layers if of_layers else recompute.is_plannable
    if shape is None or not has_products(shape) or (of_layers and framework not in _WITHOUT_LAST_PRODUCT):
        named = None
    is_known = named is not None or of_layers is not None or setting == "selective"
    kind: str | None = setting if is_known else None
    if kind == "selective" and framework == "torchtitan":
        kind = _SECOND_PRODUCT
    because = f"recompute {setting!r} is unknown" if setting else "activation recomputation is not stated"
    if shape is None and kind not in (None, "none"):
        kind, because = None, "what recomputation costs is known only for a model whose layers are all alike"
    elif shape is not None and kind in _OF_PARTS and (feature := _of_unknown_cost(kind, shape)):
        kind, because = None, f"the cost of recomputing {kind} is not known for {feature}"
    stated = Input(name="recompute", value=kind, source="the run's configuration", because=because)
    model = flops.charged_per_token(result, convention)
    if kind is None or shape is None or not length or model is None:
        return derive("hfu", (mfu.as_input(), stated), lambda mfu: mfu)
    counting = flops.convention_named(convention)
    products = 2 * min(counting.weights(shape), presets.matrix_parameters(shape) - shape.vocab_size * shape.hidden_size)
    core = counting.attention(shape, length) / 3
    second = presets.every_second_product(shape)  # None only for a kind that `_of_unknown_cost` has refused
    if named is not None:
        of_products = recompute.recomputed_flops(shape, set(named) - {Recompute.ATTENTION}, length) * shape.num_layers
        again = (of_products + (core if Recompute.ATTENTION in named else 0.0)) * (of_layers or 1.0)
    else:
        again = {
            "none": 0.0,
            "selective": core,
            **({} if second is None else {_SECOND_PRODUCT: products * second}),
            "full": products + core,
            "every second layer": (products + core) / 2,
        }[kind]
    return derive("hfu", (mfu.as_input(), stated), lambda mfu: mfu * (1 + again / model), remark=f"recompute {kind}")


def _of_unknown_cost(kind: str, shape: ModelShape) -> str | None:
    """Return the features of a model for which the cost of recomputing parts of it is unknown, or None."""
    if shape.experts or shape.latent_attention or shape.windowed_layers:
        return "experts, latent attention or windows in some layers"
    of_products = kind == _SECOND_PRODUCT and presets.every_second_product(shape) is None
    return "an attention with biases" if of_products else None


def restated_tflops(result: Result, convention: str) -> Figure:
    """Return the framework's own TFLOP/s, restated in a convention; unknown if the framework's convention is unclear.

    convention: exact name.
    """
    name = "reported_tflops_per_gpu_restated"
    reported_by_log = result.performance_metrics.reported
    shape, length = result.model.shape, result.training_config.sequence_length
    tokens = reported_by_log.tokens_per_second_per_gpu or result.performance_metrics.tokens_per_second_per_gpu
    reported = Input(
        name="reported TFLOP/s per GPU",
        value=reported_by_log.tflops_per_gpu,
        unit="TFLOP/s",
        source="printed by the framework",
        because="the framework reported no TFLOP/s",
    )
    if not reported_by_log.tflops_per_gpu or not tokens or shape is None or not length:
        missing = (reported, inputs.shape(result), inputs.sequence_length(result), inputs.rate_per_gpu(result))
        return derive(name, tuple(i for i in missing if i.value is None) or (reported,), lambda value: value)
    implied = reported_by_log.tflops_per_gpu * TERA / tokens
    counts, ours = flops.countings(result), flops.charged_per_token(result, convention)
    nearest = min(counts, key=lambda known: abs(counts[known] / implied - 1))
    if abs(counts[nearest] / implied - 1) > SAME_CONVENTION:
        because = (
            f"the reported rate implies {fixed(implied / 1e9, 2)} GFLOP per token, which no known convention gives for "
            "this shape"
        )
        return unknown(name, because, (reported,))
    if ours is None:
        return unknown(name, str(flops_per_token(result, convention).because), (reported,))
    factor = ours / counts[nearest]
    return derive(name, (reported,), lambda value: value * factor, remark=f"the framework counted FLOPs by {nearest}")


def _energy_and_money(
    result: Result, gpu: Gpu | None, chosen: MetricChoices, tflops: Figure, label: str | None
) -> list[Figure]:
    per_gpu, over_all = inputs.rate_per_gpu(result), inputs.rate_input(result)
    power, price = inputs.power_input(result, gpu), inputs.price(result, gpu, chosen.prices, label)
    power_kind = (power.source or "").partition(":")[0]
    budget = Input(name="budget", value=chosen.budget_tokens, unit="tokens", source="--budget-tokens")
    work, because = result.performance_metrics.tokens_per_step, "the tokens of a step are unknown"
    tokens = Input(name="tokens of a step", value=work, unit="tokens", source=per_gpu.source, because=because)

    def energy(prefix: str, watts: Input, kind: str | None) -> tuple[Figure, Figure, Figure]:
        joules = derive(f"{prefix}joules_per_token", (watts, per_gpu), formulas.calculate_joules_per_token, remark=kind)
        per_step = derive(f"{prefix}joules_per_step", (joules.as_input(), tokens), operator.mul, remark=kind)
        by_both = (watts, per_gpu), lambda watts, rate: formulas.calculate_tokens_per_watt_hour(rate, watts)
        return joules, per_step, derive(f"{prefix}tokens_per_watt_hour", *by_both, remark=kind)

    of_energy, sampled = energy("", power, power_kind), inputs.sampled_power(result, gpu)
    hours = derive("budget_gpu_hours", (budget, per_gpu), formulas.calculate_gpu_hours)
    return [
        derive("power_watts_per_gpu", (power,), lambda watts: watts, remark=power_kind),
        *of_energy,
        *energy("sampled_", sampled, sampled.source),
        derive(
            "model_tflops_per_watt", (tflops.as_input(), power), lambda rate, watts: rate / watts, remark=power_kind
        ),
        derive("price_usd_per_gpu_hour", (price,), lambda usd: usd, remark=price.source),
        derive("cost_usd_per_trillion_tokens", (per_gpu, price), formulas.calculate_cost_per_trillion_tokens),
        derive("tokens_per_dollar", (per_gpu, price), formulas.calculate_tokens_per_dollar),
        derive("time_to_1t_tokens_seconds", (over_all,), lambda rate: TERA / rate),
        derive("time_to_15t_tokens_seconds", (over_all,), lambda rate: 15 * TERA / rate),
        hours,
        derive("budget_seconds", (budget, over_all), formulas.calculate_time_to_train),
        derive(
            "budget_energy_kwh",
            (budget, of_energy[0].as_input()),
            lambda tokens, joules: tokens * joules / 3.6e6,  # joules in a kilowatt-hour
            remark=power_kind,
        ),
        derive("budget_cost_usd", (hours.as_input(), price), lambda hours, usd: hours * usd),
    ]
