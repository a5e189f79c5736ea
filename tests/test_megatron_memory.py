"""Memory of Megatron Core by arithmetic, against NVIDIA's own choices, a paper, and Megatron's own formula."""

import dataclasses
import importlib
import types

import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo, ModelShape
from tensorprimat.core.spec import RunSettings, RunSpec
from tensorprimat.core.units import GB
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.machine.platform import Machine
from tensorprimat.models import megatron_memory, presets
from tensorprimat.models.megatron_memory import RankLayout
from tensorprimat.session import run_summary

NEMO = ENGINES["nemo"].megatron
H100_BYTES = 85.0 * GB  # torch's total_memory of an H100 SXM of 80 GB: 79.2 GiB
LLAMA_8B = presets.find_preset("llama").shape
LLAMA_70B = LLAMA_8B.model_copy(
    update={"num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64}
)
INTERLEAVED = RankLayout(tensor=4, pipeline=4, context=2, data=2, virtual_pipeline=5)
INTERLEAVED_FP8 = RankLayout(tensor=4, pipeline=8, data=2, virtual_pipeline=5)
ONE_SEQUENCE = {"micro_batch_size": 1, "sequence_length": 8192, "micro_batches": 16}


def machine(name, memory_gb, *, gpus=8):
    info = GpuInfo(device_name=name, device_count=gpus, total_memory_gb=memory_gb)
    return Machine(platform="nvd", gpu_info=info, host="here")


H100 = machine("NVIDIA H100 80GB HBM3", 85.0)


def spec(**changes):
    return RunSpec(
        **{
            "model": "llama", "preset": "full", "engine": "nemo", "steps": 5, "warmup_steps": 1, "micro_batch_size": 1,
            "global_batch_size": 128, "sequence_length": 8192, "precision": "fp8", "num_gpus": 8, "platform": "nvd",
            **changes,
        }
    )  # fmt: skip


def test_the_untuned_recipe_in_fp8_needs_98_gb():
    """Gradients in float32, as NeMo's recipe has them without NVIDIA's performance settings: 6 + 12/d bytes."""
    needed = megatron_memory.of_layout(
        LLAMA_8B, RankLayout(data=8), fp8=True, gradient_bytes=4, state_bytes=12, **ONE_SEQUENCE
    )
    assert needed.total / GB == pytest.approx(98, rel=0.01)


@in_each(
    ("shape", "layout", "changes", "memory_gb"),
    [
        # Megatron-Bridge v0.6.0 (2026-08-19), perf_recipes/llama/{h100,b200,gb200,b300,gb300}/llama3.py
        (LLAMA_8B, RankLayout(data=4, context=2), {}, 85),
        (LLAMA_8B, RankLayout(data=8), {"fp8": True, "recomputed_layers": 5}, 85),
        (LLAMA_70B, INTERLEAVED, {"micro_batches": 128}, 85),
        (LLAMA_70B, INTERLEAVED_FP8, {"fp8": True, "micro_batches": 128}, 85),
        (LLAMA_8B, RankLayout(data=8), {"micro_batch_size": 2}, 180),
        (LLAMA_8B, RankLayout(data=8), {"micro_batch_size": 2, "fp8": True}, 180),
        (LLAMA_8B, RankLayout(data=8), {"micro_batch_size": 4}, 275),
        (LLAMA_8B, RankLayout(data=8), {"micro_batch_size": 4, "fp8": True}, 275),
        # NVIDIA/NeMo docs, performance_summary (24.12): Llama 3 8B in FP8 on 8 H100, CP 2
        (LLAMA_8B, RankLayout(data=4, context=2), {"fp8": True}, 85),
    ],
)  # fmt: skip
def test_layouts_that_nvidia_publishes_fit_their_gpu(shape, layout, changes, memory_gb):
    needed = megatron_memory.of_layout(shape, layout, **{**ONE_SEQUENCE, **changes})
    assert needed.total <= memory_gb * GB


@in_each(
    ("shape", "layout", "changes"),
    [
        (LLAMA_8B, RankLayout(data=8), {}),
        (LLAMA_8B, RankLayout(data=8), {"fp8": True}),
        (LLAMA_70B, RankLayout(tensor=4, pipeline=4, data=4, virtual_pipeline=5), {"micro_batches": 128}),
    ],
)
def test_layouts_that_nvidia_splits_or_recomputes_do_not_fit_without_it(shape, layout, changes):
    assert megatron_memory.of_layout(shape, layout, **{**ONE_SEQUENCE, **changes}).total > H100_BYTES


def test_an_ungated_layer_keeps_the_bytes_that_korthikanti_et_al_count():
    """34 bytes per token and hidden unit, less both masks of dropout and the scores that flash recomputes."""
    shape = ModelShape(
        num_layers=48, hidden_size=6144, ffn_hidden_size=4 * 6144, num_attention_heads=64, num_key_value_heads=64,
        head_dim=96, vocab_size=51200, gated_mlp=False,
    )  # fmt: skip
    rotary = 4 * 6144  # rotated queries and keys, which the paper's learned positions do not need
    assert megatron_memory.megatron_kept_bytes_per_token(shape, fp8=False) - rotary == 32 * 6144


@in_each(("data", "context"), [(8, 1), (4, 2), (64, 1)])
def test_the_state_equals_that_of_megatrons_own_estimate(data, context):
    """6 + 12/d bytes for each parameter (theoretical_memory_usage.py at 00caa53), d over data and context ranks."""
    needed = megatron_memory.of_layout(
        LLAMA_8B, RankLayout(data=data, context=context), gradient_bytes=4, state_bytes=12, **ONE_SEQUENCE
    )
    state = needed.weights + needed.gradients + needed.optimizer
    assert state == pytest.approx((6 + 12 / (data * context)) * presets.parameters(LLAMA_8B))


def test_the_fullest_pipeline_stage_is_the_estimate():
    split = {"tensor": 4, "pipeline": 4, "data": 4}
    first = megatron_memory.of_layout(LLAMA_70B, RankLayout(**split), **ONE_SEQUENCE)
    layers = presets.parameters(LLAMA_70B) - 2 * presets.embedding_parameters(LLAMA_70B)
    assert first.weights == pytest.approx(2 * (layers / 4 + presets.embedding_parameters(LLAMA_70B)) / 4)
    one = megatron_memory.of_layout(LLAMA_70B, RankLayout(**split), **{**ONE_SEQUENCE, "micro_batches": 1})
    assert one.activations == pytest.approx(first.activations / 4), "one micro-batch is in flight instead of four"
    parts = megatron_memory.of_layout(LLAMA_70B, RankLayout(**split, virtual_pipeline=5), **ONE_SEQUENCE)
    assert parts.activations == pytest.approx(first.activations * (1 + 3 / 20)), "the paper's factor of the schedule"


@pytest.mark.parametrize("parts", [1, 5])
def test_no_stage_holds_more_micro_batches_than_a_step_has(parts):
    layout = RankLayout(pipeline=4, virtual_pipeline=parts)
    for micro_batches in (1, 2, 4):
        assert all(layout.in_flight(micro_batches, stage=stage) <= micro_batches for stage in range(4))
        assert layout.in_flight(micro_batches) == micro_batches
    assert layout.in_flight(16) == (4 if parts == 1 else 4 + 3 / 5)
    few, many = (
        megatron_memory.of_layout(LLAMA_70B, layout, **{**ONE_SEQUENCE, "micro_batches": number}) for number in (2, 16)
    )
    assert few.activations == pytest.approx(many.activations * 2 / layout.in_flight(16))


def test_the_last_stage_of_an_interleaved_schedule_holds_the_parts_that_run_before_its_first_backward():
    """Of 4 stages with 5 parts each, the last has run 4 × 4 parts and runs one more; without parts, one micro-batch."""
    assert RankLayout(pipeline=4, virtual_pipeline=5).in_flight(16, stage=3) == 17 / 5
    assert RankLayout(pipeline=4).in_flight(16, stage=3) == 1
    assert [RankLayout(pipeline=4).in_flight(16, stage=stage) for stage in range(4)] == [4, 3, 2, 1]
    vocabulary = LLAMA_8B.model_copy(update={"vocab_size": 2_000_000})
    layout = RankLayout(pipeline=4, virtual_pipeline=4)
    needed = megatron_memory.of_layout(vocabulary, layout, **ONE_SEQUENCE)
    kept = megatron_memory.megatron_kept_bytes_per_token(vocabulary, fp8=False)
    assert needed.activations == pytest.approx(13 / 4 * 8192 * 8 * kept), "the last stage, with the logits"


def test_full_recomputation_keeps_one_input_of_each_layer():
    kept, recomputed = NEMO.estimate(spec()), NEMO.estimate(spec(recompute="full"))
    assert recomputed.activations == 32 * 8192 * 4096 * 2
    assert recomputed.total < kept.total / 1.5


def test_fp8_without_context_parallel_is_refused_with_flags_that_make_it_fit():
    with pytest.raises(UsageError) as refused:
        prepare.check_memory(spec(), H100)
    printed = str(refused.value)
    assert (
        "needs about 85.6 GB on each device (weights, gradients and optimizer 48.2 GB, activations 34.4 GB" in printed
    )
    assert printed.endswith("to make it fit use --context-parallel-size 2, or --tensor-parallel-size 2")
    for change in ({"context_parallel_size": 2}, {"tensor_model_parallel_size": 2}, {"recompute": "full"}):
        prepare.check_memory(spec(**change), H100)


@pytest.mark.parametrize(("engine", "offered"), [("nemo", True), ("bridge", False)])
def test_a_model_with_a_window_is_sent_to_context_parallel_only_where_the_engine_can_split_it(engine, offered):
    small = machine("NVIDIA H100 80GB HBM3", 60.0)
    with pytest.raises(UsageError) as refused:
        prepare.check_memory(spec(model="mistral", engine=engine, precision="bf16"), small)
    assert "--tensor-parallel-size 2" in str(refused.value)
    assert ("--context-parallel-size" in str(refused.value)) == offered


@pytest.fixture
def no_engine(monkeypatch):
    """Leave out the checks of the engine itself."""
    real, stand_in = importlib.import_module, types.SimpleNamespace(check=lambda *_: None)
    monkeypatch.setattr(
        importlib, "import_module", lambda name, *more: stand_in if ".engines." in name else real(name, *more)
    )


@pytest.mark.usefixtures("no_engine")
def test_context_parallel_is_refused_for_sequences_longer_than_the_window_with_bridge_alone():
    prepare.check_spec(
        ENGINES["nemo"], spec(model="mistral", engine="nemo", precision="bf16", context_parallel_size=2), H100
    )
    windowed = spec(model="mistral", engine="bridge", precision="bf16", context_parallel_size=2)
    with pytest.raises(UsageError) as refused:
        prepare.check_spec(ENGINES["bridge"], windowed, H100)
    assert str(refused.value) == (
        "--context-parallel-size 2: Megatron Core cannot split sequences of 8192 tokens of a model with an attention "
        "window of 4096; use --tensor-parallel-size 2, or --sequence-length 4096"
    )
    prepare.check_window(windowed.model_copy(update={"sequence_length": 4096}), ENGINES["bridge"])
    prepare.check_window(windowed.model_copy(update={"model": "llama"}), ENGINES["bridge"])


@in_each(
    ("engine", "changes", "complaint"),
    [
        (
            "nemo", {"model": "mistral", "tensor_model_parallel_size": 4, "context_parallel_size": 4},
            "--tensor-parallel-size 4 and --context-parallel-size 4: Megatron Core cannot divide the 8 key-value heads "
            "of Mistral-7B-v0.1 evenly; tensor parallel × context parallel must be 1, 2, 4 or 8",
        ),
        (
            "nemo", {"model": "qwen", "tensor_model_parallel_size": 8},
            "--tensor-parallel-size 8: Megatron Core cannot divide the 4 key-value heads of Qwen2.5-7B evenly; tensor "
            "parallel must be 1, 2 or 4",
        ),
        (
            "bridge", {"model": "qwen", "pipeline_model_parallel_size": 8},
            "--pipeline-parallel-size 8: Megatron Core cannot divide the 28 layers of Qwen2.5-7B evenly; pipeline "
            "parallel must be 1, 2, 4, 7, 14 or 28",
        ),
        ("nemo", {"model": "mistral", "tensor_model_parallel_size": 4, "context_parallel_size": 2}, None),
        ("nemo", {"model": "llama", "tensor_model_parallel_size": 4, "context_parallel_size": 4}, None),
        ("bridge", {"model": "mistral", "context_parallel_size": 16, "sequence_length": 4096}, None),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_engine")
def test_parallel_sizes_that_do_not_divide_the_model_are_refused(engine, changes, complaint):
    uneven = spec(engine=engine, precision="bf16", num_gpus=16, **changes)
    if complaint is None:
        prepare.check_spec(ENGINES[engine], uneven, H100)
        return
    with pytest.raises(UsageError) as refused:
        prepare.check_spec(ENGINES[engine], uneven, H100)
    assert str(refused.value) == complaint


@pytest.mark.parametrize(
    ("tensor", "offered"), [(2, "--context-parallel-size 2"), (8, "--activation-checkpointing full")]
)
def test_no_remedy_divides_heads_unevenly(tensor, offered):
    on_32 = spec(model="mistral", precision="bf16", num_gpus=32, tensor_model_parallel_size=tensor)
    needed = NEMO.estimate(on_32).total
    assert NEMO.remedies(on_32, 0.9 * needed, estimate=NEMO.estimate)[0] == offered


def test_a_run_that_never_fits_names_more_gpus():
    alone = dataclasses.replace(H100, gpu_info=H100.gpu_info.model_copy(update={"total_memory_gb": 10.0}))
    with pytest.raises(UsageError, match=r"use more --num-gpus$"):
        prepare.check_memory(spec(), alone)


def test_the_recipes_own_recomputation_counts_on_the_gpus_that_have_it():
    bridge = spec(engine="bridge")
    prepare.check_memory(bridge, H100)
    assert "NVIDIA's recipe recomputes the activations of 5 layers" in run_summary.memory_estimate_text(bridge, H100)
    assert "recipe" not in run_summary.memory_estimate_text(bridge, machine("NVIDIA B200", 180.0))
    assert "all layers are recomputed" in run_summary.memory_estimate_text(
        spec(engine="bridge", recompute="full"), H100
    )


@in_each("engine", ["nemo", "bridge"])
@in_each("model", ["llama", "qwen", "mistral"])
@in_each("gpu", [("NVIDIA H100 80GB HBM3", 85.0), ("NVIDIA H200", 150.8), ("NVIDIA B200", 191.5)])
def test_default_runs_fit_their_node(engine, model, gpu):
    node = machine(*gpu)
    settings = RunSettings(steps=20, warmup_steps=5, seed=1234)
    prepare.check_memory(prepare.spec_of(model, settings, engine=ENGINES[engine], machine=node), node)


@pytest.mark.parametrize("engine", ["nemo", "bridge"])
def test_the_dry_run_prints_the_estimate(monkeypatch, capsys, tmp_path, engine):
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda **_: H100)
    monkeypatch.setattr("tensorprimat.engines.registry.importable", lambda _: True)
    monkeypatch.setattr(prepare, "check_engine", lambda *_: None)
    command = ["run", "--model", "llama", "--engine", engine, "--dry-run", "--output", str(tmp_path)]
    assert main(command) == 0, capsys.readouterr().err
    assert "GB on each GPU: weights, gradients and optimizer" in capsys.readouterr().out
