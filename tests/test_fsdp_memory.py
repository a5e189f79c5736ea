"""FSDP of the torch engine: gathered weights are kept if they fit, and each layer prefetches those of the next."""

import dataclasses

import autograd_memory
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tensorprimat.analysis.memory import SHARDED_BY_REPLICAS
from tensorprimat.core import models, training_memory
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSettings
from tensorprimat.core.units import GB
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.engines.torch import engine
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.module import TrainingModule
from tensorprimat.machine.platform import Machine


def spec_on(memory_gb, **settings):
    gpu = GpuInfo(device_name="NVIDIA H200", device_count=8, total_memory_gb=memory_gb)
    machine = Machine(platform="nvd", gpu_info=gpu, host="here")
    expected = RunSettings(steps=5, warmup_steps=1, seed=1, **settings)
    return prepare.spec_of("llama", expected, engine=ENGINES["torch"], machine=machine)


def test_gathered_weights_are_kept_where_the_memory_has_room():
    large, small = spec_on(150.0), spec_on(40.0)
    assert (large.reshard, small.reshard) == (False, True)
    assert training_memory.estimate(large).total <= training_memory.ROOM_TO_KEEP * 150 * GB
    kept = training_memory.estimate(large).workspace
    freed = training_memory.estimate(large.model_copy(update={"reshard": True})).workspace
    layers = models.find_preset("llama").matrix_parameters - models.embedding_parameters(
        models.find_preset("llama").shape
    )
    assert kept - freed == pytest.approx(2 * layers * (1 - 2 / 32))


def test_one_gpu_and_replicas_have_nothing_to_free():
    assert spec_on(150.0, num_gpus=1).reshard
    assert spec_on(150.0, strategy="ddp").reshard


@pytest.mark.parametrize(("memory_gb", "stated"), [(150.0, "fsdp, weights kept after forward"), (40.0, None)])
def test_the_recorded_strategy_states_that_weights_are_kept(memory_gb, stated):
    assert TrainingModule(spec_on(memory_gb, attention_backend="eager")).benchmark_config()["strategy"] == stated
    assert SHARDED_BY_REPLICAS[stated or "fsdp"] == SHARDED_BY_REPLICAS["fsdp"]


def test_float32_master_weights_are_gathered_as_bfloat16_and_their_gradients_summed_in_float32(mesh):
    network = LanguageModel(models.find_preset("llama", "tiny"))
    seen = set()

    def look(layer, *_):
        seen.update((layer.mlp.up_proj.weight.dtype, layer.input_layernorm.weight.dtype))

    network.shard(mesh, gathered=torch.bfloat16)
    network.decoder.layers[0].mlp.register_forward_pre_hook(lambda *_: look(network.decoder.layers[0]))
    loss = network(torch.randint(0, 512, (2, 17)))
    loss.backward()
    assert seen == {torch.bfloat16}
    assert {(one.dtype, one.grad.dtype) for one in network.parameters()} == {(torch.float32, torch.float32)}
    assert network.decoder.layers[0]._get_fsdp_state()._fsdp_param_group._reduce_dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_gpus": 8}, "bf16-true"), ({"num_gpus": 8, "master_weights": "fp32"}, "32-true"),
        ({"num_gpus": 1, "master_weights": "fp32"}, "bf16-mixed"),
        ({"num_gpus": 8, "strategy": "ddp", "master_weights": "fp32"}, "bf16-mixed"),
    ],
)  # fmt: skip
def test_autocast_is_for_master_weights_that_are_not_split(changes, expected):
    assert engine.lightning_precision(spec_on(400.0, **changes)) == expected


@pytest.fixture
def mesh(tmp_path):
    """A group of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("reshard", [True, False])
def test_layers_keep_or_free_their_weights_and_gather_the_next(mesh, reshard):
    network = LanguageModel(models.find_preset("llama", "tiny"))
    network.shard(mesh, reshard=reshard)
    states = [layer._get_fsdp_state() for layer in network.decoder.layers]
    assert all(len(state._states_to_forward_prefetch) == 1 for state in states[:-1])
    assert all(len(state._states_to_backward_prefetch) == 1 for state in states[1:])
    loss = network(torch.randint(0, 512, (2, 17)))
    gathered = [group._sharded_state.name for state in states if (group := state._fsdp_param_group)]
    assert (set(gathered) == {"UNSHARDED"}) == (not reshard)
    loss.backward()
    assert torch.isfinite(loss)


def test_splitting_holds_one_whole_layer_at_a_time():
    """Each rank of eight, which a whole model of a hundred layers would not fit."""
    preset = models.find_preset("llama", "tiny")
    preset = dataclasses.replace(preset, shape=preset.shape.model_copy(update={"num_layers": 12}))
    torch.manual_seed(1)
    whole = LanguageModel(preset)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=8)
    try:
        torch.manual_seed(1)
        network = LanguageModel(preset, layers_later=True)
        later = sum(parameter.nbytes for parameter in network.parameters() if parameter.is_meta)
        with autograd_memory.PeakOfStorages(*network.parameters()) as counted:
            network.shard(torch.distributed.device_mesh.init_device_mesh("cpu", (8,)))
    finally:
        dist.destroy_process_group()
    layers = sum(parameter.nbytes for parameter in whole.decoder.layers.parameters())
    assert later == pytest.approx(layers, rel=0.01), "norms aside"
    shares = sum(parameter.nbytes for parameter in whole.parameters()) / 8
    assert counted.peak_bytes < shares + 1.5 * layers / 12
    for (name, ours), theirs in zip(network.named_parameters(), whole.parameters(), strict=True):
        part = theirs.chunk(8)[1]
        torch.testing.assert_close(ours.to_local(), part, msg=name)
