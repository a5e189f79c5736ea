"""--append: runs of one result are runs of one configuration."""

import pytest
from each import in_each

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSpec
from tensorprimat.machine.platform import Machine
from tensorprimat.session import append

NODE = Machine(platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=8), host="here")


def planned(**changes):
    spec = RunSpec(
        **{
            "model": "llama", "preset": "full", "engine": "nemo", "steps": 10, "warmup_steps": 2,
            "micro_batch_size": 1, "global_batch_size": 128, "sequence_length": 2048, "precision": "bf16",
            "num_gpus": 8, "tensor_model_parallel_size": 4, "platform": "nvd", **changes,
        }
    )  # fmt: skip
    return append.planned_result(spec, NODE)


@in_each(
    ("changes", "difference"),
    [
        ({"tensor_model_parallel_size": 2}, "tensor parallel (4 there, 2 here)"),
        ({"pipeline_model_parallel_size": 2}, "pipeline parallel (1 there, 2 here)"),
        ({"context_parallel_size": 2}, "context parallel (1 there, 2 here)"),
        ({"num_gpus": 4, "num_nodes": 2}, "nodes (1 there, 2 here)"),
        ({"recompute": "full"}, "recompute (none there, full here)"),
    ],
)
def test_a_run_laid_out_differently_is_refused_before_it_starts(changes, difference):
    with pytest.raises(UsageError) as refused:
        append.refuse_unlike(planned(), planned(**changes), known_only=True)
    assert str(refused.value) == f"--append: the latest result is another benchmark: {difference}; run without --append"


def test_a_setting_that_an_earlier_result_lacks_does_not_refuse_a_plan():
    earlier = planned()
    silent = earlier.training_config.model_copy(update={"recompute": None, "num_nodes": None})
    earlier = earlier.model_copy(update={"training_config": silent})
    append.refuse_unlike(earlier, planned(), known_only=True)
    with pytest.raises(UsageError, match="recompute"):
        append.refuse_unlike(earlier, planned())
