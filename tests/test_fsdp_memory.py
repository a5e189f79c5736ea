"""FSDP of the torch engine: which weights are kept, the collectives and their order, and the update of each rank."""

import copy
import dataclasses
from functools import partial

import autograd_memory
import process_group
import pytest
import torch
import torch.distributed as dist
from each import in_each
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tensorprimat.analysis.memory import SHARDED_BY_REPLICAS
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSettings
from tensorprimat.core.units import GB
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.engines.torch import engine
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.module import TrainingModule
from tensorprimat.engines.torch.optimizer import KERNEL_ROW, adamw
from tensorprimat.machine.platform import Machine
from tensorprimat.models import presets, training_memory


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
    layers = presets.find_preset("llama").decoder.layer_weights
    assert kept - freed == pytest.approx(2 * layers * (1 - 2 / 32))


def test_one_gpu_and_replicas_have_nothing_to_free():
    assert spec_on(150.0, num_gpus=1).reshard
    assert spec_on(150.0, strategy="ddp").reshard


@pytest.mark.parametrize(("memory_gb", "stated"), [(150.0, "fsdp, weights kept after forward"), (40.0, None)])
def test_the_recorded_strategy_states_that_weights_are_kept(memory_gb, stated):
    assert TrainingModule(spec_on(memory_gb, attention_backend="eager")).benchmark_config()["strategy"] == stated
    assert SHARDED_BY_REPLICAS[stated or "fsdp"] == SHARDED_BY_REPLICAS["fsdp"]


def test_float32_master_weights_are_gathered_as_bfloat16_and_their_gradients_summed_in_float32(mesh):
    network = LanguageModel(presets.find_preset("llama", "tiny"))
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


@in_each(
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
def mesh():
    with process_group.one_rank():
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))


class Collectives(TorchDispatchMode):
    """Records collectives as they are issued, with the bytes of all ranks, and where layers begin and end."""

    def __init__(self, layers):
        super().__init__()
        self.events = []
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self.mark, f"forward {index}"))
            layer.register_full_backward_hook(partial(self.mark, f"backward {index}"))

    def mark(self, name, *_):
        self.events.append((name, 0))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            tensors = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
            self.events.append((function.overloadpacket.__name__, max(one.nbytes for one in tensors)))
        return function(*args, **(kwargs or {}))

    def before(self, mark, name):
        """Return how many collectives of a name were issued before a mark."""
        return [event for event, _ in self.events[: self.events.index((mark, 0))]].count(name)


def collectives_of(spec, *, prefetch=True):
    """Return the collectives of one micro-batch: of rank 1 of eight with FSDP, of one rank alone with DDP."""
    preset = presets.find_preset("llama", "tiny")
    if not training_memory.is_sharded(spec):
        with process_group.one_rank():
            network = LanguageModel(preset)
            replica = torch.nn.parallel.DistributedDataParallel(network)
            with Collectives(network.decoder.layers) as found:
                replica(torch.randint(0, 512, (2, 17))).backward()
        return found
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=8)
    try:
        network = LanguageModel(preset, layers_later=True)
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (8,))
        network.shard(mesh, reshard=spec.reshard, gathered=torch.bfloat16 if spec.master_weights else None)
        if spec.recompute != "none":
            network.recompute_activations(spec.recompute)
        if not prefetch:
            for layer in network.decoder.layers:
                layer.set_modules_to_forward_prefetch([])
        with Collectives(network.decoder.layers) as found:
            network(torch.randint(0, 512, (2, 17))).backward()
    finally:
        dist.destroy_process_group()
    return found


def tiny_on_eight(**changes):
    return spec_on(150.0, preset="tiny", num_gpus=8, **{"precision": "fp32", "strategy": "fsdp", **changes})


GATHER, SCATTER = "_allgather_base_", "_reduce_scatter_base_"


@in_each("recompute", ["none", "full"])
@in_each(("reshard", "prefetch"), [(True, True), (False, True), (True, False)])
def test_a_layer_is_gathered_before_the_one_before_it_computes(reshard, prefetch, recompute):
    spec = tiny_on_eight().changed(reshard=reshard, recompute=recompute)
    found = collectives_of(spec, prefetch=prefetch)
    ahead = 1 if prefetch else 0
    forward = [found.before(f"forward {layer}", GATHER) for layer in range(4)]
    assert forward == [1 + min(layer + 1 + ahead, 4) for layer in range(4)], "the first one is of embedding and head"
    again = [found.before(f"backward {layer}", GATHER) - 5 for layer in range(4)]
    assert again == ([4, 4, 3, 2] if reshard else [0] * 4)
    assert [found.before(f"backward {layer}", SCATTER) for layer in range(4)] == [3, 2, 1, 0]
    assert [event for event, _ in found.events].count(SCATTER) == 5


@in_each(
    ("changes", "reshard"),
    [({}, True), ({}, False), ({"precision": "bf16", "master_weights": "fp32"}, True), ({"strategy": "ddp"}, True)],
)
def test_the_estimated_traffic_is_that_of_the_collectives(changes, reshard):
    spec = tiny_on_eight(**changes).changed(reshard=reshard)
    micro_batches = spec.gradient_accumulation_steps if training_memory.is_sharded(spec) else 1
    of_ring = {"allreduce_": 2, GATHER: 1, SCATTER: 1}
    whole = sum(of_ring.get(name, 0) * size for name, size in collectives_of(spec).events)
    assert training_memory.network_bytes(spec) == pytest.approx(micro_batches * whole * 7 / 8, rel=2e-3), "norms aside"


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch, when it first compiles
@pytest.mark.parametrize(("rank", "compiled"), [(0, False), (4, False), (7, False), (4, True), (7, True)])
def test_a_rank_updates_its_own_rows_with_clipped_gradients(rank, compiled):
    """Of nine rows, ranks 0 to 3 of eight have two each, rank 4 has one, and the others have none."""
    torch.manual_seed(1)
    whole = torch.nn.Linear(KERNEL_ROW, 9)
    split = copy.deepcopy(whole)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (8,))
        fully_shard(split, mesh=mesh)
        optimizers = [adamw(whole, fused=True), adamw(split, fused=True, compiled=compiled)]
        for scale in (4.0, 1.0):  # the first step of AdamW is the same with any scale
            for one, own in zip(whole.parameters(), split.parameters(), strict=True):
                one.grad = torch.randn_like(one)
                part = one.grad[2 * rank : 2 * rank + 2].clone()
                own.grad = DTensor.from_local(
                    part, mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
                )
            for optimizer in optimizers:
                optimizer.grad_scale = torch.tensor(scale)
                optimizer.step()
    finally:
        dist.destroy_process_group()
    for one, own in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(own.to_local(), one[2 * rank : 2 * rank + 2], rtol=1e-6, atol=1e-8)


def test_splitting_holds_one_whole_layer_at_a_time():
    """Each rank of eight, which a whole model of a hundred layers would not fit."""
    preset = presets.find_preset("llama", "tiny")
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
