"""Memory of a Primus configuration, by the settings that it really sets."""

import fake_primus
import pytest

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSettings
from tensorprimat.core.units import GB
from tensorprimat.engines import modules, prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.machine.platform import Machine
from tensorprimat.session import run_summary, run_time

MEGATRON = ("use_distributed_optimizer: true", "cross_entropy_loss_fusion: true", "sequence_parallel: true")
"""Settings of Primus' presets and of its configurations of dense models."""


@pytest.fixture
def needs(tmp_path, monkeypatch):
    """Return a function: settings of a configuration → (spec, machine) of a run by it."""
    root = fake_primus.checkout(tmp_path / "Primus", gpus=("MI300X",))
    monkeypatch.setenv("PRIMUS_PATH", str(root))
    monkeypatch.setenv("PRIMUS_GPU_MODEL", "MI300X")

    def configure(*overrides, model="llama", memory_gb=206.0, **flags):
        stem = {"llama": "llama3.1_8B", "qwen": "qwen2.5_7B"}[model]
        shape = {} if model == "llama" else {"num_layers": 28, "hidden_size": 3584, "ffn_hidden_size": 18944,
                                             "num_attention_heads": 28}  # fmt: skip
        lines = [*MEGATRON, *(f"{name}: {value}" for name, value in shape.items()), *overrides]
        experiment = fake_primus.EXPERIMENT.replace("MODEL", stem) + "".join(f"      {line}\n" for line in lines)
        fake_primus.write(root / f"examples/megatron/configs/MI300X/{stem}-BF16-pretrain.yaml", experiment)
        node = Machine(
            platform="amd",
            gpu_info=GpuInfo(device_name="AMD Instinct MI300X", device_count=8, total_memory_gb=memory_gb),
            host="here",
        )
        settings = RunSettings(**{"steps": 20, "warmup_steps": 5, "seed": 1, "global_batch_size": 1920, **flags})
        return prepare.spec_of(model, settings, engine=ENGINES["primus"], machine=node), node

    return configure


def estimate(prepared):
    spec, node = prepared
    return prepare.memory_estimate(spec, node.gpu_info.device_name)


@pytest.mark.parametrize(
    ("model", "micro_batch", "length", "precision", "memory_gb"),
    [
        # AMD-AGI/Primus at fd1eeab, examples/megatron/configs/{MI300X,MI325X,MI355X}
        ("llama", 2, 8192, "bf16", 206.0),
        ("llama", 2, 8192, "fp8", 206.0),
        ("qwen", 10, 2048, "bf16", 206.0),
        ("qwen", 10, 2048, "fp8", 206.0),
        ("llama", 4, 8192, "bf16", 274.9),
        ("llama", 4, 8192, "fp8", 274.9),
        ("qwen", 12, 2048, "bf16", 274.9),
        ("llama", 4, 8192, "bf16", 309.2),
        ("llama", 6, 8192, "fp8", 309.2),
        ("qwen", 16, 2048, "bf16", 309.2),
        ("qwen", 20, 2048, "fp8", 309.2),
    ],
)
def test_batches_that_amd_publishes_fit_their_gpu_and_three_times_as_much_does_not(
    needs, model, micro_batch, length, precision, memory_gb
):
    fp8 = ("fp8: hybrid",) if precision == "fp8" else ()
    flags = {"micro_batch_size": micro_batch, "sequence_length": length}
    spec, node = needs(*fp8, model=model, memory_gb=memory_gb, **flags)
    assert spec.precision == precision
    prepare.check_memory(spec, node)
    with pytest.raises(UsageError, match=r"needs about .* GB on each device"):
        prepare.check_memory(spec.model_copy(update={"micro_batch_size": 3 * micro_batch}), node)


def test_each_flag_that_the_refusal_names_makes_the_run_fit(needs):
    with pytest.raises(UsageError) as refused:
        prepare.check_memory(*needs(micro_batch_size=8, sequence_length=8192))
    assert "--context-parallel-size 4, or --tensor-parallel-size 2" in str(refused.value)
    for change in ({"context_parallel_size": 4}, {"tensor_model_parallel_size": 2}, {"recompute": "full"}):
        flags = {"micro_batch_size": 8, "sequence_length": 8192, **change}
        prepare.check_memory(*needs(**flags))


def test_gradients_and_optimizer_are_those_that_the_configuration_sets(needs):
    per_parameter = {
        (): (2, 4, 12 / 8),
        ("grad_reduce_in_bf16: true",): (2, 2, 16 / 8),
        ("use_distributed_optimizer: false",): (2, 4, 12),
        ("use_precision_aware_optimizer: true", "main_grads_dtype: bf16", "exp_avg_dtype: bf16"): (2, 2, 10 / 8),
    }
    for overrides, (weights, gradients, optimizer) in per_parameter.items():
        found = estimate(needs(*overrides))
        parameters = found.weights / weights
        assert found.gradients == pytest.approx(gradients * parameters), overrides
        assert found.optimizer == pytest.approx(optimizer * parameters), overrides


def test_layers_that_the_configuration_recomputes_keep_their_input_only(needs):
    every = "recompute_granularity: full"
    whole = estimate(needs()).activations
    uniform = estimate(needs(every, "recompute_method: uniform", "recompute_num_layers: 1")).activations
    half = estimate(needs(every, "recompute_method: block", "recompute_num_layers: 16")).activations
    assert uniform == 32 * 2 * 4096 * 4096 * 2
    assert half == pytest.approx((whole + uniform) / 2)
    assert estimate(needs("recompute_granularity: selective")).activations == whole, "a flash kernel keeps no scores"


def test_a_loss_that_is_not_fused_keeps_its_softmax(needs):
    fused, plain = estimate(needs()), estimate(needs("cross_entropy_loss_fusion: false"))
    assert plain.workspace - fused.workspace == pytest.approx(4 * 2 * 4096 * 128256)


@pytest.mark.parametrize(
    "override",
    [
        "use_torch_fsdp2: true",
        "optimizer_cpu_offload: true",
        "num_experts: 8",
        "num_layers: 16",
        "tensor_model_parallel_size: 2\n      sequence_parallel: false",
        "recompute_granularity: selective\n      recompute_modules: [mlp]",
    ],
)
def test_a_model_without_an_estimate_is_not_refused(needs, override):
    spec, node = needs(override, memory_gb=40.0)
    assert estimate((spec, node)) is None
    assert run_summary.memory_estimate_text(spec, node) is None
    prepare.check_memory(spec, node)


def test_a_preset_that_is_missing_gives_no_estimate(needs, tmp_path):
    prepared = needs()
    (tmp_path / "Primus/primus/configs/modules/megatron/pre_trainer.yaml").unlink()
    assert estimate(prepared) is None


def test_the_plan_shows_the_estimate(needs):
    spec, node = needs(micro_batch_size=2, sequence_length=8192)
    assert run_summary.memory_estimate_text(spec, node) == (
        "about 144 GB on each GPU: weights, gradients and optimizer 60.2 GB, activations 78.4 GB, workspace 5.2 GB"
    )
    assert estimate((spec, node)).total / GB == pytest.approx(144, rel=0.01)


def test_the_plan_names_the_layers_that_the_configuration_recomputes(needs):
    every = "recompute_granularity: full"
    half = needs(every, "recompute_method: block", "recompute_num_layers: 16")
    ending = "; the engine's configuration recomputes the activations of 50 % of the layers"
    assert run_summary.memory_estimate_text(*half).endswith(ending)
    assert run_summary.memory_estimate_text(*needs(every, recompute="full")).endswith(
        "; activations of all layers are recomputed"
    )


def test_the_time_counts_the_layers_that_the_configuration_recomputes(needs):
    every = "recompute_granularity: full"

    def share(*overrides, **flags):
        return modules.recomputed_share(needs(*overrides, **flags)[0], None)

    assert [share(), share(every), share(recompute="full")] == [0, 1, 1]
    assert share(every, "recompute_method: block", "recompute_num_layers: 16") == 0.5
    of_each = (every, "recompute_method: block", "recompute_num_layers: 2", "num_virtual_stages_per_pipeline_rank: 4")
    assert share(*of_each, pipeline_model_parallel_size=2) == 2 * 4 * 2 / 32
    of_parts = "recompute_granularity: selective\n      recompute_modules: [mlp]"
    assert share(of_parts) is None
    spec, node = needs(of_parts)
    assert ", recomputation unknown and not counted, " in run_time.run_time_sentence([spec], node, runs=1, pause=0)


def test_a_recomputation_that_only_the_torch_engine_has_is_refused(needs):
    with pytest.raises(UsageError, match="--activation-checkpointing selective: only the torch engine has it"):
        needs(recompute="selective")
