"""Device memory that the torch engine needs, estimated from shape and configuration before anything runs.

The tensors that autograd keeps of a layer were counted in graphs of the torch engine's layers (test_training_memory.py
counts again, with fake tensors and with the graphs that torch.compile partitions). The rest is arithmetic: bytes per
parameter of weights, gradients and optimizer state, the loss, and a fixed allowance for the driver and its libraries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tensorprimat.core.errors import UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import as_stated, percent
from tensorprimat.core.result import ModelShape
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.units import NUMBER_BYTES
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.models import presets, recompute
from tensorprimat.models.custom import model_of
from tensorprimat.models.memory_estimate import CONTEXT_BYTES, MemoryEstimate, smaller_micro_batches

COUNTED = "kept_bytes_per_token"
"""Option of a spec: bytes that one layer keeps of one token, counted in the model's own layers (engines/torch/memory).
A formula for built-in models takes its place where it is absent."""
UNFUSED_NORM = "unfused_norm"
"""Option of a spec: this torch has no single kernel for RMS norm, so that an uncompiled norm keeps more."""
OTHER_LAYERS = "other_layers"
"""Option of a spec: the layers of this configured model have other operations than those of a plan."""
KEPT_FP8 = "kept_fp8_weights"
"""Option of a spec: the layers' weights are quantised once for all micro-batches of a step, by engines/torch/linear."""
RECOMPUTE_FLAG = "--activation-checkpointing"
ALL_RECOMPUTED = f"{RECOMPUTE_FLAG} full"
LOSS_LOGITS = 2**28  # of one chunk, as in engines/torch/cross_entropy


def kept_bytes_per_token(
    shape: ModelShape,
    *,
    width: int,
    compiled: bool,
    fused_norm: bool,
    whole_scores: int,
    quantised: int = 0,
    kept_fp8: bool = False,
    autocast: bool = False,
) -> float:
    """Return the bytes that autograd keeps of one token in one decoder layer.

    width: bytes of a number in the compute type. Kept in that type: input and output of both norms (4 hidden sizes),
    rotated queries, keys, values and the attention's output, gate, up, their product and, uncompiled, the activated
    gate. In float32: the norms' inverse deviations and the attention's log-sums. Without a fused norm autograd keeps
    the norm's input and its quotient in float32. whole_scores: tokens whose scores are kept whole (eager attention).
    quantised: copies in FP8 of the attention's output, 0 without FP8. A compiled layer keeps them, and computes the
    norms' outputs and the MLP's product again, which it would only quantise; an eager layer keeps what bf16 keeps.
    kept_fp8: as KEPT_FP8; a compiled layer keeps those three in FP8 too, because they are transposed one by one.
    autocast: weights are in float32 and cast for each product. The layer's input is in float32 then; an eager layer
    keeps the input of its second norm in float32 too, and a cast of a norm's output for each product that reads it.
    The casts of the weights are not of one token, and not counted here.
    """
    hidden, feed_forward = shape.hidden_size, shape.ffn_hidden_size
    queries = shape.num_attention_heads * shape.head_dim
    pairs = 2 * shape.num_key_value_heads * shape.head_dim
    mlp_copies = (3 if compiled else 4) if shape.gated_mlp else 2
    numbers = 4 * hidden + 2 * queries + pairs + mlp_copies * feed_forward
    in_float32 = 2 + shape.num_attention_heads
    if not (fused_norm or compiled):
        numbers -= 2 * hidden
        in_float32 += 4 * hidden
    if autocast and compiled:
        numbers -= hidden
        in_float32 += hidden
    elif autocast:
        numbers += (3 if shape.gated_mlp else 2) * hidden  # queries, keys and values read one norm, gate and up another
        if fused_norm:
            numbers -= 2 * hidden
            in_float32 += 2 * hidden
    if quantised and compiled:
        numbers -= 2 * hidden + feed_forward
    in_fp8 = quantised * queries + (2 * hidden + feed_forward) * kept_fp8 if compiled else 0
    return float(numbers * width + in_float32 * 4 + in_fp8 + _scores(shape, width, whole_scores))


def _scores(shape: ModelShape, width: int, whole: int) -> int:
    """Return the bytes of a token's scores: transformers computes softmax in float32 and keeps its cast, if any."""
    return shape.num_attention_heads * whole * (4 + (width if width < 4 else 0))


def estimate(spec: RunSpec, _device_name: str | None = None) -> MemoryEstimate:
    """Return the peak memory of the torch engine on one device, in backward of a micro-batch."""
    model = model_of(spec)
    shape, parameters = model.memory_shape, model.parameters
    width, stored = _width(spec), _stored_width(spec)
    autocast = uses_autocast(spec)
    shards = spec.data_parallel_size if is_sharded(spec) else 1
    tokens = spec.micro_batch_size * spec.sequence_length
    of_token, of_input = _bytes_of_layer(spec)
    kept, layer, layer_input = tokens * _kept_of_layer(spec), tokens * of_token, tokens * of_input
    activations = shape.num_layers * kept + 2 * layer_input
    layer_weights = model.decoder.layer_weights
    whole = spec.recompute.of_layers
    recomputed = layer if whole else layer - kept  # of one layer, while its backward pass runs
    casts = 0.0
    if autocast:  # an eager cast lives until the optimizer's step, one of a compiled layer until its backward
        kept_whole = 0.0 if whole is None else 1 - whole
        casts = width * layer_weights * (kept_whole if spec.compile else 1.0)
        recomputed += width * layer_weights / shape.num_layers if recomputed and spec.compile else 0.0
    embedding = presets.embedding_parameters(shape)
    of_logit = 2.0 * width if spec.compile else 10.0  # logits and their gradient; in eager code, likelihoods too
    loss = embedding * width * (2 if autocast else 1) + min(LOSS_LOGITS, tokens * shape.vocab_size) * of_logit
    at_once = 2 / shape.num_layers if spec.reshard else 1.0  # of the layers: two where one is gathered ahead, or all
    gathered = (2 * embedding + at_once * layer_weights) * (4 if autocast else width) if shards > 1 else 0.0
    gradients = parameters * stored / shards
    begins, ends = activations + max(loss, recomputed), gradients + recomputed
    # With one micro-batch per step, no gradient exists before backward, which frees the activations of each layer and
    # then stores its gradients. The buckets of DDP exist all the time.
    is_alone = spec.gradient_accumulation_steps == 1 and strategy_of(spec) != "ddp"
    in_fp8 = 2 * layer_weights if KEPT_FP8 in spec.options else 0  # one byte each, and transposed
    return MemoryEstimate(
        weights=parameters * stored / shards + in_fp8,
        gradients=gradients,
        optimizer=2 * parameters * stored / shards,
        activations=activations + casts,
        workspace=max(loss, recomputed) + gathered + CONTEXT_BYTES,
        in_turn=begins + gradients - max(begins, ends) if is_alone else 0.0,
    )


def _width(spec: RunSpec) -> int:
    """Return the bytes of a number in the compute type; with FP8 only the operands of products are narrower."""
    return NUMBER_BYTES["bf16" if spec.precision == "fp8" else spec.precision]


def _stored_width(spec: RunSpec) -> int:
    """Return the bytes of a number in the type of weights, gradients and optimizer state."""
    return 4 if spec.master_weights == "fp32" or spec.precision == "fp16" else _width(spec)


def network_bytes(spec: RunSpec) -> float:
    """Return the bytes that each device receives from the other ones in one optimizer step of the torch engine.

    FSDP gathers the weights and scatters the sums of the gradients in every micro-batch; weights of layers that are
    freed after forward are gathered again. DDP sums the gradients once, in a ring: it scatters the sums, and gathers
    them. The clip norm and the loss, two numbers, are left out.
    """
    model, stored = model_of(spec), _stored_width(spec)
    gradients = model.parameters * stored
    received = 2.0 * gradients
    if is_sharded(spec):
        weights = model.parameters + (model.decoder.layer_weights if spec.reshard else 0)
        gathered = weights * (_width(spec) if spec.master_weights else stored)
        received = spec.gradient_accumulation_steps * (gathered + gradients)
    return received * (1 - 1 / spec.data_parallel_size)


def _bytes_of_layer(spec: RunSpec) -> tuple[float, float]:
    """Return the bytes of one token that a layer keeps without recomputation, and those of its input."""
    shape, width, autocast = model_of(spec).memory_shape, _width(spec), uses_autocast(spec)
    whole_scores = spec.sequence_length if spec.attention_backend == "eager" else 0
    layer_input = shape.hidden_size * (4 if autocast else width)
    if COUNTED in spec.options:
        in_fp8 = 2 * shape.hidden_size + shape.ffn_hidden_size if spec.compile and KEPT_FP8 in spec.options else 0
        return float(spec.options[COUNTED]) + in_fp8 + _scores(shape, width, whole_scores), layer_input
    kept = kept_bytes_per_token(
        shape,
        width=width,
        compiled=spec.compile,
        fused_norm=UNFUSED_NORM not in spec.options,
        whole_scores=whole_scores,
        quantised=(2 if spec.fp8_recipe == "mxfp8" else 1) if spec.precision == "fp8" else 0,  # along both axes
        kept_fp8=KEPT_FP8 in spec.options,
        autocast=autocast,
    )
    return kept, layer_input


def _kept_of_layer(spec: RunSpec) -> float:
    """Return the bytes of one token that a layer keeps for backward, as the mean of all layers."""
    of_token, of_input = _bytes_of_layer(spec)
    whole, again = spec.recompute.of_layers, spec.recompute.operations
    if whole is None and again is not None:
        return of_input + recompute.kept_bytes(_operations(spec), again)
    return of_token + (whole or 0.0) * (of_input - of_token)


def _operations(spec: RunSpec) -> dict[str, recompute.Operation]:
    shape = model_of(spec).memory_shape
    return recompute.operations_of(shape, sequence_length=spec.sequence_length, width=_width(spec))


def can_plan(spec: RunSpec) -> bool:
    """Return True if single operations of the model's layers can be recomputed."""
    model = model_of(spec)
    shape = model.shape
    # Eager attention is not one operation, and the products of torchao's MXFP8 are not torch's.
    unlike = spec.attention_backend == "eager" or spec.fp8_recipe == "mxfp8" or OTHER_LAYERS in spec.options
    return shape is not None and recompute.is_plannable(shape) and not unlike


def plans(spec: RunSpec) -> list[Recompute]:
    """Return the values of `recompute` that the spec can have, from the fastest to the smallest."""
    if not can_plan(spec):
        return [Recompute.NONE, Recompute.SECOND_LAYERS, Recompute.ALL_LAYERS]
    of_token, of_input = _bytes_of_layer(spec)
    operations = _operations(spec)
    shares = {
        again: (of_input + recompute.kept_bytes(operations, again)) / of_token
        for again in recompute.cheapest_first(operations)
    }
    described = [Recompute.plan(again, share) for again, share in shares.items() if share < 1]
    return [Recompute.NONE, *described[:-1], Recompute.ALL_LAYERS]


def with_share(spec: RunSpec, share: float) -> RunSpec:
    """Return the spec with the fastest plan that keeps at most a share of the activations, 0 to 1.

    Raises UsageError where no plan keeps so little, or the model's layers have no plan.
    """
    named = f"{RECOMPUTE_FLAG} {as_stated(round(100 * share, 3))}%"
    if not can_plan(spec):
        raise UsageError(
            f"{named}: only for dense models with a gated MLP and fused attention, and not with MXFP8; "
            "use selective or full"
        )
    whole, _ = _bytes_of_layer(spec)
    found = {one: _kept_of_layer(spec.changed(recompute=one)) / whole for one in plans(spec)}
    fitting = [one for one, kept in found.items() if round(kept, 2) <= share]
    if not fitting:
        raise UsageError(f"{named}: {RECOMPUTE_FLAG} full keeps least, {percent(min(found.values()), 0)}; use full")
    return spec.changed(recompute=fitting[0])


def uses_autocast(spec: RunSpec) -> bool:
    """Return True if weights are in float32 and autocast casts them for each product; FSDP casts BF16 ones itself."""
    return spec.precision == "fp16" or (spec.master_weights is not None and not is_sharded(spec))


def recomputed_share(spec: RunSpec, _device_name: str | None = None) -> float:
    """Return the FLOPs that backward runs again, as a share of all layers' forward pass."""
    whole = spec.recompute.of_layers
    part = 1.0 if whole is None else whole
    if not part or not can_plan(spec):
        return part
    shape, length = model_of(spec).memory_shape, spec.sequence_length
    again = Recompute.OPERATIONS if part < 1 else spec.recompute.operations or ()
    forward = recompute.recomputed_flops(shape.changed(summed_products=()), Recompute.OPERATIONS, length)
    return part * recompute.recomputed_flops(shape, again, length) / forward


def is_sharded(spec: RunSpec) -> bool:
    """Return True if the torch engine splits weights and optimizer state over its devices (FSDP)."""
    return strategy_of(spec) == "fsdp"


LARGEST_REPLICATED = 1_000_000_000
"""Parameters up to which `auto` gives every rank a whole replica (DDP); beyond it the state is split (FSDP). The rule
looks at the model alone, so that two machines with different memory run the same thing."""


def strategy_of(spec: RunSpec) -> str:
    """Return the strategy that runs: the spec's own, or for "auto" one chosen by the model's size."""
    if spec.num_gpus * spec.num_nodes == 1:
        return "single"
    if spec.strategy != "auto":
        return spec.strategy
    large = model_of(spec).parameters > LARGEST_REPLICATED
    return "fsdp" if large else "ddp"


ROOM_TO_CHOOSE = 0.94
"""Share of the memory that an estimate (good to 3 %) may reach before more recomputation is chosen by default. The
allocator reserves some 2 % more than it hands out."""


def smallest_that_fits(spec: RunSpec, memory_bytes: float) -> RunSpec | None:
    """Return the spec with the least recomputation that leaves room in the device's memory.

    With full recomputation the estimate may reach all of the memory; None where it needs more.
    """
    candidates = [spec.changed(recompute=one) for one in plans(spec)]
    for candidate in candidates:
        if estimate(candidate).total <= ROOM_TO_CHOOSE * memory_bytes:
            return candidate
    return candidates[-1] if estimate(candidates[-1]).total <= memory_bytes else None


def next_smaller(spec: RunSpec) -> RunSpec | None:
    """Return the spec with the fastest plan that saves at least STEP_OF_RETRY of the estimate, else with the smallest.

    Its last note, which becomes a warning of the result, says so. None where the spec has the smallest plan already.
    """
    after = plans(spec)
    smaller = [spec.changed(recompute=one) for one in after[after.index(spec.recompute) + 1 :]]
    needed = estimate(spec).total
    for one in smaller:
        if one is smaller[-1] or estimate(one).total <= (1 - STEP_OF_RETRY) * needed:
            note = Notice("recompute_increased", "recompute", before=spec.recompute, after=one.recompute)
            return one.changed(notes=(*spec.notes, note))
    return None


STEP_OF_RETRY = 0.03
"""Share of the estimate by which a plan that ran out of memory is reduced: the error that the estimate may have."""


ROOM_TO_KEEP = 0.85
"""Share of the memory that an estimate may reach with gathered weights kept: keeping them must never end a run."""


def with_resharding(spec: RunSpec, memory_bytes: float) -> RunSpec:
    """Return the spec with gathered weights kept after forward where the device has room for them (FSDP)."""
    if not is_sharded(spec):
        return spec
    kept = spec.changed(reshard=False)
    return kept if estimate(kept).total <= ROOM_TO_KEEP * memory_bytes else spec


def with_kept_fp8(spec: RunSpec, memory_bytes: float) -> RunSpec:
    """Return the spec with its weights kept in FP8 during a step, where one device quantises them and has the room."""
    if spec.precision != "fp8" or spec.fp8_recipe not in (None, "tensorwise") or strategy_of(spec) != "single":
        return spec
    kept = spec.changed(options={**spec.options, KEPT_FP8: "yes"})
    return kept if estimate(kept).total <= ROOM_TO_KEEP * memory_bytes else spec


def remedies(spec: RunSpec, memory_bytes: float) -> list[str]:
    """Return at most two flags that make the spec fit into the device's memory, the mildest first.

    A flag that is not enough by itself comes with --activation-checkpointing full.
    """

    def fits(changed: RunSpec) -> bool:
        return estimate(changed).total <= memory_bytes

    devices = spec.num_gpus * spec.num_nodes
    smaller = smallest_that_fits(spec, memory_bytes)
    share = re.match(r"\d+", smaller.recompute) if smaller else None
    plan = (f"{share[0]}%", smaller.recompute) if share and smaller else ("selective", Recompute.SECOND_LAYERS)
    sizes = smaller_micro_batches(spec.micro_batch_size)  # the largest that fits alone, else the next smaller one
    sizes = [size for size in sizes if fits(spec.changed(micro_batch_size=size))] or sizes
    candidates: list[tuple[str, Mapping[str, object]]] = [
        (f"{RECOMPUTE_FLAG} {plan[0]}", {"recompute": plan[1]}),
        (ALL_RECOMPUTED, {"recompute": Recompute.ALL_LAYERS}),
        *((f"--micro-batch-size {size}", {"micro_batch_size": size}) for size in sizes[:1]),
        ("--strategy fsdp", {"strategy": "fsdp"}),
    ]
    for length in (spec.sequence_length // 2, spec.sequence_length // 4):
        candidates.append((f"--sequence-length {length} (other work)", {"sequence_length": length}))
    for count in (2, 4, 8):
        if count > devices:
            sharded = " --strategy fsdp" if spec.strategy == "ddp" else ""
            batch = spec.global_batch_size * count // devices  # it grows with the GPUs unless a flag sets it
            more = {"num_gpus": count, "strategy": "fsdp", "global_batch_size": batch}
            candidates.append((f"--num-gpus {count}{sharded}", more))
    candidates.append(("--preset tiny", {"preset": "tiny", "recompute": Recompute.NONE, "options": {}}))
    fitting = []
    for flag, changes in candidates:
        changed = spec.changed(**dict(changes))
        if changed == spec or changed.sequence_length <= 1:
            continue
        if fits(changed):
            fitting.append(flag)
        elif ALL_RECOMPUTED in fitting or "recompute" in changes:
            continue
        elif fits(changed.changed(recompute=Recompute.ALL_LAYERS)):
            fitting.append(f"{flag} with {ALL_RECOMPUTED}")
    if len(fitting) > 1 and fitting[0].startswith(RECOMPUTE_FLAG):  # the milder one is enough
        fitting = [fitting[0], *(flag for flag in fitting if flag != ALL_RECOMPUTED and flag != fitting[0])]
    return fitting[:2]
