"""Names of devices: every command that takes --device accepts the same ones, and refuses others in one line."""

import pytest
from each import in_each

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.machine.platform import Machine, existing_device
from tensorprimat.measure import passes
from tensorprimat.session import preflight
from tensorprimat.storage.micro_result import CellSpec

NODE = Machine(platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=8), host="here")
LAPTOP = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU"), host="laptop")
NAMES = "must be auto, cpu, cuda or cuda:N (cuda is also ROCm's name)"


def of_passes(device, machine):
    spec = CellSpec(
        model_size="s", d_model=64, d_ff=256, num_layers=3, num_heads=4, vocab=50, context_length=64, batch_size=2,
        pass_name="forward", precision="fp32", num_warmups=0, num_trials=1, device=device,
    )  # fmt: skip
    passes.check_cell(spec, machine)


@in_each("check", [existing_device, preflight.device_of, of_passes])
@in_each(
    ("device", "because"),
    [
        *((name, NAMES) for name in ("cudafoo", "cuda0", "cuda:", "cuda:²", "cuda:٣", "cuda:-1", "cuda:1:2", "cpu:0")),
        *((name, NAMES) for name in ("", "CUDA", " cuda", "cuda:1\n", "tpu", "cuda:1e0", "cuda:0x1")),
        ("cuda:8", "8 GPUs here, numbered from 0"),
        ("cuda:999999999", "8 GPUs here, numbered from 0"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_by_its_name(check, device, because):
    with pytest.raises(UsageError) as refused:
        check(device, NODE)
    assert str(refused.value) == f"--device {device}: {because}"


@pytest.mark.parametrize("check", [existing_device, preflight.device_of, of_passes])
def test_a_gpu_is_refused_where_torch_sees_none(check):
    with pytest.raises(UsageError, match="--device cuda: torch sees no GPU here; use --device cpu"):
        check("cuda", LAPTOP)


def test_a_device_that_exists_has_its_number(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert [existing_device(name, NODE) for name in ("cpu", "cuda", "cuda:7", "cuda:007")] == [
        "cpu", "cuda:0", "cuda:7", "cuda:7",
    ]  # fmt: skip
    assert [preflight.device_of("auto", machine) for machine in (NODE, LAPTOP)] == ["cuda:0", "cpu"]
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert preflight.device_of("cuda", NODE) == "cuda:3"
