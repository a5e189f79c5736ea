"""The environment that NVIDIA's performance scripts set, by GPU and parallel sizes."""

from each import in_each

from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.nemo import recipe as nemo_recipe
from tensorprimat.machine import environment


def spec(**changes):
    return RunSpec(
        **{
            "model": "llama", "preset": "full", "engine": "nemo", "steps": 5, "warmup_steps": 1, "micro_batch_size": 1,
            "global_batch_size": 128, "sequence_length": 8192, "precision": "bf16", "num_gpus": 8, "platform": "nvd",
            **changes,
        }
    )  # fmt: skip


def test_h100_with_context_parallel_has_exactly_these_variables():
    assert nemo_recipe.performance_environment(spec(context_parallel_size=2), "NVIDIA H100 80GB HBM3") == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_NVLS_ENABLE": "0", "NVTE_BWD_LAYERNORM_SM_MARGIN": "16",
        "NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "1", "NVTE_FWD_LAYERNORM_SM_MARGIN": "16",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "TORCH_NCCL_HIGH_PRIORITY": "1",
    }  # fmt: skip


@in_each(
    ("changes", "gpu", "connections"),
    [
        ({}, "NVIDIA H100 80GB HBM3", None),
        ({"context_parallel_size": 2}, "NVIDIA H100 80GB HBM3", "1"),
        ({"tensor_model_parallel_size": 4}, "NVIDIA H200", "1"),
        ({"tensor_model_parallel_size": 4}, "NVIDIA B200", "32"),
    ],
)
def test_device_connections_follow_gpu_and_parallel_sizes(changes, gpu, connections):
    assert nemo_recipe.performance_environment(spec(**changes), gpu).get("CUDA_DEVICE_MAX_CONNECTIONS") == connections


@in_each(
    ("gpu", "changes", "expandable"),
    [
        ("NVIDIA H100", {}, True),
        ("NVIDIA B200", {"recompute": "full"}, False),
        ("NVIDIA GB200", {"recompute": "full"}, True),
        ("NVIDIA GB200", {}, False),
    ],
)
def test_expandable_segments_are_left_out_where_they_fail_and_with_cuda_graphs(gpu, changes, expandable):
    assert ("PYTORCH_CUDA_ALLOC_CONF" in nemo_recipe.performance_environment(spec(**changes), gpu)) is expandable


@in_each(
    ("gpu", "changes", "graphs"),
    [
        ("NVIDIA H100 80GB HBM3", {}, False),
        ("NVIDIA B200", {}, True),
        ("NVIDIA GB200", {}, True),
        ("NVIDIA B200", {"recompute": "full"}, False),
        ("NVIDIA B200", {"model": "mistral"}, False),
        (None, {}, False),
    ],
)
def test_cuda_graphs_are_on_where_nvidias_table_has_them(gpu, changes, graphs):
    assert nemo_recipe.uses_cuda_graphs(spec(**changes), gpu) is graphs


def test_the_network_of_gb200_is_reached_through_its_cpu():
    assert nemo_recipe.performance_environment(spec(), "NVIDIA GB200")["NCCL_NET_GDR_LEVEL"] == "PHB"
    assert "NCCL_NET_GDR_LEVEL" not in nemo_recipe.performance_environment(spec(), "NVIDIA B200")


def test_settings_that_change_speed_are_recorded_and_paths_devices_and_secrets_are_not(monkeypatch):
    for name, value in {
        "NVTE_FUSED_ATTN": "1", "HSA_NO_SCRATCH_RECLAIM": "1", "CUDA_HOME": "/usr", "CUDA_VISIBLE_DEVICES": "3",
        "TRITON_CACHE_DIR": "/tmp", "NCCL_VERSION": "2.27", "MY_TOKEN": "secret",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    recorded = environment.speed_variables()
    assert (recorded["NVTE_FUSED_ATTN"], recorded["HSA_NO_SCRATCH_RECLAIM"]) == ("1", "1")
    assert not {"CUDA_HOME", "CUDA_VISIBLE_DEVICES", "TRITON_CACHE_DIR", "NCCL_VERSION", "MY_TOKEN"} & set(recorded)
