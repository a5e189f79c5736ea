"""Linear layers of the torch engine that multiply in FP8."""

import copy

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("transformers")

import torch

from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.torch import engine, fp8, linear
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.module import TrainingModule
from tensorprimat.models import presets, training_memory
from tensorprimat.storage import store

pytestmark = [  # of torch, while it compiles
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
]
TINY = {
    "model": "llama", "preset": "tiny", "engine": "torch", "steps": 3, "warmup_steps": 1, "micro_batch_size": 1,
    "global_batch_size": 4, "sequence_length": 32, "precision": "bf16", "num_gpus": 1, "platform": "cpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def without_compiled_code():
    """Compiled code belongs to the class of a layer: other tests compile the same."""
    yield
    torch._dynamo.reset()


def losses(tmp_path, **changes):
    spec = RunSpec(**{**TINY, **changes})
    module, file = TrainingModule(spec), tmp_path / "result.json"
    engine.trainer_of(spec, [engine.callback_of(spec, module, file)]).fit(module)
    result = store.load(file)
    return result.steps.column("loss"), result.training_config.fused_kernels


def test_products_in_fp8_are_those_of_torchao():
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(64, 96, dtype=torch.bfloat16))
    ours, theirs = copy.deepcopy(plain), copy.deepcopy(plain)
    linear.keep_quantised(linear.to_fp8([ours]), compiled=False)
    fp8.convert_layers([theirs], "tensorwise", emulate=True)
    inputs, gradient = torch.randn(2, 16, 64).bfloat16(), torch.randn(2, 16, 96).bfloat16()
    found = []
    for one in (plain, ours, theirs):
        leaf = inputs.clone().requires_grad_()
        output = one(leaf)
        output.backward(gradient)
        found.append([output.detach(), leaf.grad, *(part.grad for part in one.parameters())])
    for without, one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.01)  # which multiplies in BF16 here
        assert without.ndim == 1 or not torch.equal(one, without)


def test_a_training_in_fp8_quantises_its_weights_before_each_step(tmp_path):
    plain, _ = losses(tmp_path)
    kept, kernels = losses(tmp_path, precision="fp8", options={training_memory.KEPT_FP8: "yes"})
    assert "FP8 weights once per step" in kernels
    assert kept == pytest.approx(plain, rel=0.01)
    assert kept[-1] < kept[0] - 0.3
    assert not (kept == plain).all()


@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_in_fp8_are_compiled_once_for_all_steps():
    ours = LanguageModel(presets.find_preset("llama", "tiny"), sequence_length=32).to(torch.bfloat16)
    parts = linear.to_fp8(ours.decoder.layers)
    for layer in ours.decoder.layers:
        layer.compile(dynamic=False, backend="aot_eager")
    tokens = torch.randint(0, 500, (2, 33))
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        linear.keep_quantised(parts, compiled=False)
        ours(tokens).backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_weights_stay_in_fp8_only_on_one_device_with_room():
    spec = RunSpec(**{**TINY, "preset": "full", "precision": "fp8", "platform": "nvd", "sequence_length": 8192})
    kept = training_memory.with_kept_fp8(spec, 150e9)
    assert kept.options == {training_memory.KEPT_FP8: "yes"}
    weights = [training_memory.estimate(one).weights for one in (spec, kept)]
    assert weights[1] - weights[0] == 2 * 6_979_321_856  # numbers in the layers' matrices
    for changes in ({"precision": "bf16"}, {"fp8_recipe": "rowwise"}, {"num_gpus": 2, "global_batch_size": 8}):
        assert training_memory.with_kept_fp8(spec.changed(**changes), 500e9) == spec.changed(**changes)
    assert training_memory.with_kept_fp8(spec, 85e9) == spec
    fp8.check_torchao(kept, [])  # which it does not need


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("size", [(8192, 14336), (48, 144)])
def test_the_kernel_transposes_on_a_gpu(size):
    matrix = torch.randint(-100, 100, size, device="cuda", dtype=torch.int8).view(torch.float8_e4m3fn)
    turned = torch.ops.tensorprimat.transposed(matrix)
    assert turned.is_contiguous()
    assert torch.equal(turned.view(torch.int8), matrix.view(torch.int8).t())
