"""Live training on this machine's CPU: tokens that can be learned, real models, and a callback that counts right."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorprimat.core import models, store
from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import RunSpec

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning.pytorch")

from benchmark_utils import BenchmarkCallback, detect_platform, load_results  # noqa: E402
from tensorprimat.engines.torch_data import CIRCLE, FOLLOWS, StepBatches, TokenStream  # noqa: E402
from tensorprimat.engines.torch_model import LanguageModel  # noqa: E402

ROOT = Path(__file__).parents[1]
foreign = pytest.mark.filterwarnings("ignore")
"""Lightning's advice on workers and loggers is about a training that is not ours."""


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_sequence_of_the_stream_depends_on_seed_and_number_alone():
    stream = TokenStream(vocabulary_size=1000, seed=7)
    assert np.array_equal(stream.sequence(3, 50), TokenStream(vocabulary_size=1000, seed=7).sequence(3, 50))
    assert not np.array_equal(stream.sequence(3, 50), stream.sequence(4, 50))
    assert not np.array_equal(stream.sequence(3, 50), TokenStream(vocabulary_size=1000, seed=8).sequence(3, 50))


def test_tokens_have_zipf_frequencies_and_successors_to_learn():
    stream = TokenStream(vocabulary_size=512, seed=1)
    tokens = np.stack([stream.sequence(number, 256) for number in range(400)])
    counts = np.bincount(tokens.ravel(), minlength=512)
    of_circle = counts.reshape(-1, CIRCLE).sum(axis=1)
    assert (of_circle[:4] > of_circle[1:5]).all()
    assert counts[:8].sum() > 3 * counts[64:128].sum() / 2
    successors = (tokens[:, 1:] // CIRCLE == tokens[:, :-1] // CIRCLE) & (
        tokens[:, 1:] % CIRCLE == (tokens[:, :-1] + 1) % CIRCLE
    )
    assert successors.mean() > FOLLOWS - 0.02


def test_ranks_train_on_different_sequences_and_together_on_all_of_them():
    stream = TokenStream(vocabulary_size=64, seed=1)
    parts = [
        StepBatches(stream, micro_batch_size=2, accumulation=3, sequence_length=8, rank=rank, replicas=2).numbers(5)
        for rank in range(2)
    ]
    assert sorted(np.concatenate([part.ravel() for part in parts])) == list(range(60, 72))


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "parameters"), [("llama", 8_030_261_248), ("qwen", 7_615_616_512), ("mistral", 7_241_732_096)]
)
def test_the_real_model_has_its_published_number_of_parameters(model, parameters):
    preset = models.find(model, "full")
    with torch.device("meta"):
        built = LanguageModel(preset)
    assert sum(weight.numel() for weight in built.parameters()) == parameters == models.parameters(preset.shape)


# --- the engine -------------------------------------------------------------------------------------------------------


def spec(folder, **changes):
    """Three measured steps of the tiny llama."""
    return RunSpec(
        **{
            "model": "llama", "preset": "tiny", "engine": "torch", "steps": 3, "warmup_steps": 1,
            "micro_batch_size": 1, "global_batch_size": 2, "sequence_length": 32, "precision": "fp32", "num_gpus": 1,
            "output_dir": str(folder), **changes,
        }
    )  # fmt: skip


def train(folder, *launcher, **changes):
    """One training in a fresh process, as benchmark.py starts it."""
    (folder / "spec.json").write_text(spec(folder, **changes).model_dump_json())
    return subprocess.run(
        [sys.executable, *launcher, "-m", "tensorprimat.engines.torch_engine",
         "--spec", str(folder / "spec.json"), "--result", str(folder / "result.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize("model", ["qwen", "mistral"])
def test_a_tiny_model_of_each_architecture_trains_and_says_what_it_is(model, tmp_path):
    done = train(tmp_path, model=model, precision="bf16")
    assert done.returncode == 0, done.stderr
    result = store.load(tmp_path / "result.json")
    assert (result.platform, result.model.preset) == ("cpu", "tiny")
    assert result.model.parameters == models.parameters(models.find(model, "tiny").shape)
    config = result.training_config
    assert (config.compute_dtype, config.global_batch_size, config.gradient_accumulation_steps) == ("bfloat16", 2, 2)
    assert result.performance_metrics.measured_steps == 3
    assert result.provenance.timing == "measured"


def test_the_loss_falls_below_what_uniform_tokens_could_give(tmp_path):
    done = train(tmp_path, steps=30, global_batch_size=4, sequence_length=64)
    assert done.returncode == 0, done.stderr
    losses = store.load(tmp_path / "result.json").steps.column("loss")
    vocabulary = models.find("llama", "tiny").shape.vocab_size
    assert losses[0] == pytest.approx(math.log(vocabulary), abs=0.3)
    assert losses[-5:].mean() < math.log(vocabulary) - 1


def test_two_processes_share_a_global_batch_and_write_one_result(tmp_path):
    done = train(tmp_path, num_gpus=2)
    assert done.returncode == 0, done.stderr
    two = store.load(tmp_path / "result.json")
    assert (two.training_config.num_gpus, two.training_config.data_parallel_size) == (2, 2)
    assert two.training_config.gradient_accumulation_steps == 1
    (tmp_path / "one").mkdir()
    assert train(tmp_path / "one").returncode == 0
    one = store.load(tmp_path / "one" / "result.json")
    assert two.steps.column("loss") == pytest.approx(one.steps.column("loss"), rel=1e-4)


def test_a_spec_that_cannot_work_is_one_line_and_exit_code_2(tmp_path):
    refused = train(tmp_path, precision="fp16")
    assert refused.returncode == 2
    assert refused.stderr.strip().count("\n") == 0
    assert "--precision fp16" in refused.stderr
    assert not (tmp_path / "result.json").exists()


# --- the callback in anybody's training -------------------------------------------------------------------------------


class Plain(lightning.LightningModule):
    """Somebody else's small model, with everything that makes counting steps hard."""

    def __init__(self, *, fails_at=None):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.fails_at = fails_at

    def training_step(self, batch, _):
        if self.fails_at is not None and self.global_step == self.fails_at:
            raise self.fails_with
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, _):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def fit(callback, *, module=None, steps=6, **trainer):
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), batch_size=2)
    lightning.Trainer(
        accelerator="cpu", max_steps=steps, callbacks=[callback], logger=False, enable_progress_bar=False,
        enable_model_summary=False, **{"enable_checkpointing": False, "limit_val_batches": 0, **trainer},
    ).fit(module or Plain(), data, data)  # fmt: skip
    return callback.result


@foreign
def test_steps_are_optimizer_steps_whatever_the_accumulation(tmp_path):
    result = fit(BenchmarkCallback(output_dir=str(tmp_path), model_name="plain"), accumulate_grad_batches=4, steps=5)
    assert [step.index for step in result.steps] == [1, 2, 3, 4, 5]
    assert result.training_config.global_batch_size == 8
    assert (tmp_path / "benchmark_cpu_plain.json").is_file()


@foreign
def test_the_sum_of_steps_is_the_time_of_the_training(tmp_path):
    result = fit(BenchmarkCallback(output_dir=str(tmp_path), model_name="plain"), steps=20)
    total = result.steps.column("seconds").sum()
    assert result.performance_metrics.total_time_seconds == pytest.approx(total)
    assert not [warning for warning in result.warnings if "clock" in warning]


@foreign
def test_a_step_with_a_validation_inside_is_marked_and_not_measured(tmp_path):
    callback = BenchmarkCallback(output_dir=str(tmp_path), model_name="plain", warmup_steps=1)
    result = fit(callback, steps=8, val_check_interval=3, limit_val_batches=2)
    marked = [step.index for step in result.steps if step.interrupted_by == "validation"]
    assert marked
    assert result.performance_metrics.excluded_steps == len([index for index in marked if index > 1])


@foreign
@pytest.mark.parametrize("failure", [RuntimeError("a kernel broke"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_was_measured_before_a_failure_is_kept_and_marked(failure, tmp_path):
    module = Plain(fails_at=4)
    module.fails_with = failure
    callback = BenchmarkCallback(output_dir=str(tmp_path), model_name="plain")
    with pytest.raises((RuntimeError, SystemExit, KeyboardInterrupt)):
        fit(callback, module=module, steps=9)
    (kept,) = (tmp_path / "history").glob("benchmark_cpu_plain_*.json")
    document = json.loads(kept.read_text())
    assert document["complete"] is False
    assert len(document["raw_step_times"]) == 4
    assert not list(tmp_path.glob("*.json"))


@foreign
def test_results_of_a_callback_are_read_by_load_results(tmp_path):
    fit(BenchmarkCallback(output_dir=str(tmp_path), model_name="plain"))
    (result,) = load_results([tmp_path])
    assert result.model.name == "plain"
    assert result.memory_metrics is None
    assert detect_platform().platform == result.platform


def test_a_wrong_platform_is_refused_when_the_callback_is_made():
    with pytest.raises(UsageError, match="tpu"):
        BenchmarkCallback(platform="tpu")
