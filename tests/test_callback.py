"""BenchmarkCallback in real Lightning trainings on the CPU: what it counts, times, marks and writes."""

# ruff: noqa: ARG002  hooks of Lightning have fixed signatures

import json
import pickle
import re
import tempfile
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader, Dataset

from benchmark_utils import BenchmarkCallback, load_results
from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.result import TrainingConfig
from tensorprimat.engines.batches import CountedBatches, tokens_of_step
from tensorprimat.storage import store

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers, loggers and the like


class Tokens(Dataset):
    """Sequences of eight token ids; `pause` seconds to fetch one."""

    def __init__(self, size, pause=0.0):
        self.size, self.pause = size, pause

    def __len__(self):
        return self.size

    def __getitem__(self, position):
        time.sleep(self.pause)
        return (torch.arange(8) * (position + 1)) % 16


class Small(lightning.LightningModule):
    """Model whose loss is the number of the call: 1.0, 2.0, …"""

    def __init__(self, *, manual_every=None, fail_at=None, error=None):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 1)
        self.automatic_optimization = manual_every is None
        self.manual_every, self.fail_at, self.error, self.calls = manual_every, fail_at, error, 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        if self.calls == self.fail_at:
            raise self.error
        loss = self.embedding(batch).sum() * 0.0 + float(self.calls)
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        if self.calls % self.manual_every == 0:
            self.optimizers().step()
        return loss

    def validation_step(self, batch, batch_idx):
        time.sleep(0.05)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1.0)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "interval": "step"}]


def fit(callback, module=None, *, data=None, loader=None, validation=None, callbacks=(), **options):
    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
            "enable_checkpointing": False, "max_epochs": 1, "callbacks": [callback, *callbacks], **options,
        }
    )  # fmt: skip
    trainer.fit(module or Small(), loader or DataLoader(data or Tokens(24), batch_size=2), validation)
    return callback.result


@pytest.fixture
def callback(tmp_path):
    return BenchmarkCallback(output_dir=str(tmp_path), model_name="llama", print_every=0)


def test_a_step_is_an_optimizer_step_and_its_loss_the_mean_of_its_micro_batches(callback):
    result = fit(callback, accumulate_grad_batches=3)
    assert [step.index for step in result.steps] == [1, 2, 3, 4]
    assert [step.loss for step in result.steps] == pytest.approx([2.0, 5.0, 8.0, 11.0])


def test_an_epoch_that_ends_within_an_accumulation_still_has_the_mean_loss(callback):
    result = fit(callback, data=Tokens(10), accumulate_grad_batches=3)
    assert [step.loss for step in result.steps] == pytest.approx([2.0, 4.5])


def test_the_loss_is_the_models_own_where_a_callback_schedules_the_accumulation(callback):
    schedule = lightning.callbacks.GradientAccumulationScheduler({0: 2, 1: 4})
    result = fit(callback, data=Tokens(16), callbacks=[schedule], max_epochs=2)
    assert [step.loss for step in result.steps] == pytest.approx([1.5, 3.5, 5.5, 7.5, 10.5, 14.5])


def test_manual_optimization_counts_its_own_steps(callback):
    result = fit(callback, Small(manual_every=2))
    assert [step.index for step in result.steps] == [1, 2, 3, 4, 5, 6]
    assert [step.loss for step in result.steps] == pytest.approx([1.5, 3.5, 5.5, 7.5, 9.5, 11.5])


@pytest.mark.parametrize("every", [1, 2])
def test_a_loss_of_every_token_counts_as_their_mean_and_does_not_end_the_training(callback, every):
    class PerToken(Small):
        def training_step(self, batch, batch_idx):
            return {"loss": super().training_step(batch, batch_idx) + torch.arange(-batch_idx, batch_idx + 1)}

    result = fit(callback, PerToken(manual_every=every), max_steps=4)
    assert [step.loss for step in result.steps] == ([1.0, 2.0, 3.0, 4.0] if every == 1 else [1.5, 3.5, 5.5, 7.5])


def test_the_learning_rate_is_the_one_that_the_step_used(callback):
    assert [step.learning_rate for step in fit(callback, max_steps=3).steps] == [1.0, 0.5, 0.25]


def test_a_learning_rate_that_is_a_whole_number_is_recorded(callback):
    class Constant(Small):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1)

    result = fit(callback, Constant(), max_steps=3)
    assert [step.learning_rate for step in result.steps] == [1.0, 1.0, 1.0]
    assert result.training_config.learning_rate == 1.0


def test_batch_sizes_and_sequence_length_come_from_the_batches(callback):
    config = fit(callback, accumulate_grad_batches=3).training_config
    assert (config.micro_batch_size, config.gradient_accumulation_steps, config.global_batch_size) == (2, 3, 6)
    assert (config.sequence_length, config.num_gpus, config.max_steps) == (8, 1, None)
    assert (config.precision, config.parameter_dtype, config.optimizer_dtype) == ("fp32", "float32", "float32")
    assert (config.optimizer, config.framework) == ("AdamW", "Lightning")


def test_a_first_step_with_fewer_sequences_than_the_others_states_no_batch_size(callback):
    batches = [torch.zeros((size, 8), dtype=torch.long) for size in (1, 2, 2, 2)]
    result = fit(callback, loader=DataLoader(batches, batch_size=None))
    assert (result.training_config.global_batch_size, [step.samples for step in result.steps]) == (2, [1, 2, 2, 2])
    assert not [warning for warning in result.warnings if "stated as" in warning]


def test_micro_batches_that_a_module_adds_itself_are_counted(callback):
    config = fit(callback, Small(manual_every=2)).training_config
    assert (config.micro_batch_size, config.gradient_accumulation_steps, config.global_batch_size) == (2, 2, 4)


@pytest.mark.parametrize(("granularity", "recorded"), [(None, "none"), ("selective", "selective"), ("full", "full")])
def test_recomputation_under_megatron_comes_from_the_models_configuration(callback, granularity, recorded):
    module = Small()
    module.config = SimpleNamespace(num_layers=2, recompute_granularity=granularity)
    assert fit(callback, module).training_config.recompute == recorded


def test_stated_sizes_that_the_batches_contradict_are_replaced_and_named(tmp_path):
    stated = {"micro_batch_size": 4, "global_batch_size": 128, "sequence_length": 4096}
    callback = BenchmarkCallback(output_dir=str(tmp_path), print_every=0, training_config=stated)
    result = fit(callback, accumulate_grad_batches=3)
    config = result.training_config
    assert (config.micro_batch_size, config.global_batch_size, config.sequence_length) == (2, 6, 8)
    assert result.performance_metrics.tokens_per_step == 6 * 8
    named = "training_config: sequence_length is stated as 4,096, but the batches have 8, which is used"
    assert named in result.warnings


def test_a_batch_may_hold_the_label_of_the_last_token_too(tmp_path):
    callback = BenchmarkCallback(output_dir=str(tmp_path), print_every=0, training_config={"sequence_length": 7})
    result = fit(callback)
    assert (result.training_config.sequence_length, result.performance_metrics.tokens_per_step) == (7, 2 * 7)
    assert "setting_of_batches" not in [one.code for one in result.remarks]


def test_sequences_of_varying_length_are_counted(callback):
    lengths = [8, 4, 8, 12, 8, 8, 12, 8, 4, 8, 8, 8]
    batches = [torch.zeros((2, length), dtype=torch.long) for length in lengths]
    result = fit(callback, loader=DataLoader(batches, batch_size=None))
    assert [step.tokens for step in result.steps] == [2 * length for length in lengths]
    assert (result.training_config.sequence_length, result.training_config.global_batch_size) == (None, 2)
    assert any(warning.startswith("sequence_length: varies from 4 to 12 tokens") for warning in result.warnings)


@pytest.mark.parametrize(
    ("collate", "length"),
    [
        (lambda rows: {"input_ids": torch.stack(rows).numpy()}, 8),
        (lambda rows: {"input_ids": torch.stack(rows).float().numpy()}, None),
        (lambda rows: {"input_ids": torch.nested.nested_tensor(rows, layout=torch.jagged)}, None),
        (lambda rows: {"input_ids": torch.nested.nested_tensor(rows)}, None),
        (lambda rows: {"input_ids": SimpleNamespace(ndim=2, rows=rows)}, None),
    ],
)
def test_a_batch_of_another_library_or_of_ragged_sequences_does_not_end_the_training(callback, collate, length):
    class Own(Small):
        def training_step(self, batch, batch_idx):
            return super().training_step(torch.zeros(2, 8, dtype=torch.long), batch_idx)

    result = fit(callback, Own(), loader=DataLoader(Tokens(8), batch_size=2, collate_fn=collate))
    assert len(result.steps) == 4
    assert result.training_config.sequence_length == length


def test_a_step_that_the_end_of_an_epoch_shortens_has_fewer_tokens(callback):
    result = fit(callback, data=Tokens(10), accumulate_grad_batches=3)
    assert [(step.samples, step.tokens) for step in result.steps] == [(6, 48), (4, 32)]


class MegatronLike(SingleDeviceStrategy):
    """A strategy of NeMo's kind: its data sampler knows the sizes, and batch hooks fire once per optimizer step."""

    def __init__(self, **sizes):
        super().__init__(device="cpu")
        self.data_sampler = SimpleNamespace(**sizes)


MegatronLike.__module__ = "nemo.lightning.pytorch.strategies"


def test_accumulation_under_nemo_comes_from_its_sizes_and_not_from_the_batch_hooks(callback):
    config = fit(callback, strategy=MegatronLike(micro_batch_size=1, global_batch_size=4)).training_config
    sizes = (config.micro_batch_size, config.global_batch_size, config.data_parallel_size)
    assert sizes == (1, 4, 1)
    assert config.gradient_accumulation_steps == 4
    assert ("nvidia_recipe", "CPU") in [(one.code, one.values.get("machine")) for one in callback.result.remarks]


@pytest.mark.parametrize(
    "sizes",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 3, "global_batch_size": 4},
        {"micro_batch_size": 1, "global_batch_size": 4, "rampup_batch_size": [1, 1, 8]},
    ],
    ids=["no global batch", "no divisor", "growing batch"],
)
def test_accumulation_under_nemo_stays_unknown_where_its_sizes_do_not_give_it(callback, sizes):
    config = fit(callback, strategy=MegatronLike(**sizes)).training_config
    assert config.gradient_accumulation_steps is None
    assert config.global_batch_size == sizes.get("global_batch_size")


def test_data_wait_is_inside_the_step_and_known(callback):
    steps = fit(callback, data=Tokens(12, pause=0.02)).steps
    assert (steps.column("seconds")[1:] >= 0.04).all()
    assert (steps.column("data_wait_seconds")[1:] >= 0.04).all()
    assert (steps.column("data_wait_seconds")[1:] <= steps.column("seconds")[1:]).all()


def test_step_times_add_up_to_the_run(callback):
    class Stopwatch(lightning.Callback):
        def on_fit_start(self, trainer, pl_module):
            self.began = time.perf_counter()

        def on_fit_end(self, trainer, pl_module):
            self.took = time.perf_counter() - self.began

    watch = Stopwatch()
    result = fit(callback, data=Tokens(24, pause=0.005), callbacks=[watch])
    assert len(result.steps) == 12
    assert 24 * 0.005 <= result.performance_metrics.total_time_seconds <= watch.took
    assert not [warning for warning in result.warnings if warning.startswith("timer")]


def test_a_step_that_holds_a_validation_is_marked_and_not_measured(callback):
    validation = DataLoader(Tokens(2), batch_size=2)
    result = fit(callback, validation=validation, val_check_interval=4, num_sanity_val_steps=1)
    marks = [step.interrupted_by for step in result.steps]
    assert marks == [""] * 4 + ["validation"] + [""] * 3 + ["validation"] + [""] * 3
    assert result.steps[4].seconds >= 0.05
    assert result.steps[4].data_wait_seconds is None
    figures = result.performance_metrics
    marked = [step for step in result.steps if step.interrupted_by and step.index > figures.warmup_steps_dropped]
    assert figures.excluded_steps == len(marked) > 0


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_step_that_holds_a_checkpoint_is_marked(tmp_path, callback, weights_only):
    saving = lightning.callbacks.ModelCheckpoint(
        dirpath=tmp_path / "checkpoints", every_n_train_steps=3, save_weights_only=weights_only, save_top_k=-1
    )
    result = fit(callback, callbacks=[saving], enable_checkpointing=True, max_steps=8)
    assert [step.index for step in result.steps if step.interrupted_by == "checkpoint"] == [4, 7]


def test_the_result_is_a_file_that_loads(tmp_path, callback):
    fit(callback)
    assert callback.result_path == tmp_path / "benchmark_cpu_llama.json"
    (loaded,) = load_results([tmp_path])
    assert loaded.complete
    assert len(loaded.steps) == 12
    assert (loaded.platform, loaded.model.name, loaded.provenance.timer) == ("cpu", "llama", "wall clock")
    assert loaded.memory_metrics is None
    assert loaded.host_memory_peak_gb > 0.05
    moments = loaded.steps.column("ended_at")
    assert (np.diff(moments) >= 0).all()
    assert abs(moments[-1] - time.time()) < 60


def test_a_model_without_a_name_gets_a_time_stamp(tmp_path):
    unnamed = BenchmarkCallback(output_dir=str(tmp_path), print_every=0)
    fit(unnamed, max_steps=2)
    assert re.fullmatch(r"benchmark_cpu_\d{8}_\d{6}_\d{6}\.json", unnamed.result_path.name)


def test_name_shape_and_count_come_from_a_model_of_transformers(tmp_path):
    from tensorprimat.engines.torch.model import LanguageModel
    from tensorprimat.models import presets

    class Wrapped(Small):
        def __init__(self):
            super().__init__()
            del self.embedding
            self.language_model = LanguageModel(presets.find_preset("qwen", "tiny"))

        def training_step(self, batch, batch_idx):
            return self.language_model(batch)

    unnamed = BenchmarkCallback(output_dir=str(tmp_path), print_every=0)
    found = fit(unnamed, Wrapped(), max_steps=2).model
    assert found.name == "qwen"
    assert found.shape == presets.find_preset("qwen", "tiny").shape
    assert found.parameters == presets.parameters(found.shape)


def test_a_modified_model_gets_no_shape_but_a_warning():
    from tensorprimat.engines import introspect
    from tensorprimat.engines.torch.model import LanguageModel
    from tensorprimat.models import presets

    changed = LanguageModel(presets.find_preset("llama", "tiny"))
    changed.adapter = torch.nn.Linear(3, 3)
    found, warnings = introspect.describe_model(changed, sharded=False)
    assert found.shape is None
    assert warnings[0].code == "shape_unconfirmed"


@pytest.mark.parametrize(
    ("error", "ended_by"),
    [
        (ValueError("no such token\nmore"), "ValueError: no such token"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"), "out of memory"),
    ],
)
def test_measurements_before_an_exception_are_kept_as_incomplete(tmp_path, callback, error, ended_by):
    with pytest.raises(type(error)):
        fit(callback, Small(fail_at=6, error=error))
    assert callback.result_path.parent == tmp_path / "history"
    kept = store.load(callback.result_path)
    assert not kept.complete
    assert (len(kept.steps), kept.runs[0].ended_by) == (5, ended_by)
    assert not (tmp_path / "benchmark_cpu_llama.json").exists()


def test_measurements_before_ctrl_c_are_kept_as_incomplete(callback, monkeypatch):
    monkeypatch.setattr(
        "signal.signal", lambda *_: None
    )  # Lightning would leave Ctrl-C switched off for the other tests
    with pytest.raises(SystemExit):
        fit(callback, Small(fail_at=4, error=KeyboardInterrupt()))
    assert (len(callback.result.steps), callback.result.runs[0].ended_by) == (3, "interrupted")


def test_a_failure_before_the_first_step_still_writes_the_configuration(callback):
    with pytest.raises(ValueError, match="at once"):
        fit(callback, Small(fail_at=1, error=ValueError("at once")), max_steps=7)
    document = json.loads(callback.result_path.read_text())
    assert document["complete"] is False
    assert document["training_config"]["max_steps"] == 7
    assert document["raw_step_times"] == []


def test_only_an_engine_freezes_the_objects_of_its_process(tmp_path, monkeypatch):
    frozen = []
    monkeypatch.setattr("tensorprimat.engines.callback.gc.freeze", lambda: frozen.append("first batch"))
    for engine in (None, "torch"):
        fit(BenchmarkCallback(output_dir=str(tmp_path), engine=engine), max_steps=3)
    assert frozen == ["first batch"]


def test_the_trainer_is_left_as_it_was_found(callback):
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False, max_steps=2,
        callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Small(), DataLoader(Tokens(24), batch_size=2))
    assert "save_checkpoint" not in vars(trainer)


def test_one_callback_can_watch_one_training_after_another(callback):
    assert len(fit(callback, max_steps=3).steps) == 3
    assert len(fit(callback, max_steps=5).steps) == 5


def test_the_callback_can_be_sent_to_another_process(callback):
    copy = pickle.loads(pickle.dumps(callback))
    assert copy.declared == callback.declared
    assert len(fit(copy, max_steps=2).steps) == 2


def test_it_prints_a_start_block_a_line_per_ten_steps_and_an_end_block(tmp_path, capsys):
    fit(BenchmarkCallback(output_dir=str(tmp_path), model_name="llama", warmup_steps=2), data=Tokens(48))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "[CPU] Training starts"
    lines = [line for line in printed if " Step " in line]
    assert [int(re.search(r"Step +(\d+)", line)[1]) for line in lines] == [10, 20]
    assert all(
        re.fullmatch(r"\[CPU\] Step  \d\d \| Time: \d+\.\d{3}s \| Avg: \d+\.\d{3}s \| Loss: .*", x) for x in lines
    )
    assert "[CPU] Training finished" in printed
    assert printed[-1].endswith("benchmark_cpu_llama.json")


def test_its_lines_mark_the_warm_up_and_show_rate_and_time_left(tmp_path, capsys):
    callback = BenchmarkCallback(output_dir=str(tmp_path), model_name="llama", warmup_steps=2, print_every=1)
    fit(callback, data=Tokens(48), max_steps=4)
    lines = [line for line in capsys.readouterr().out.splitlines() if " Step " in line]
    assert [line.endswith("(warm-up, not measured)") for line in lines] == [True, True, False, False]
    assert ["Avg: " in line for line in lines] == [False, False, True, True], "warm-up steps have no part in it"
    times, averages = ([re.search(rf"{name}: ([\d.]+)s", line)[1] for line in lines[2:]] for name in ("Time", "Avg"))
    assert averages[0] == times[0]
    assert float(averages[1]) == pytest.approx(sum(map(float, times)) / 2, abs=1.1e-3)
    assert ["left" in line for line in lines[1:]] == [True, True, False], "nothing is left after the last step"
    assert all(re.search(r" [\d,]+ tokens/s", line) for line in lines[1:])


def test_the_rate_of_a_line_is_that_of_the_steps_own_batches(tmp_path, capsys):
    lengths = [8, 4000, 8, 12]
    batches = [torch.zeros((2, length), dtype=torch.long) for length in lengths]
    callback = BenchmarkCallback(output_dir=str(tmp_path), model_name="llama", print_every=1)
    result = fit(callback, loader=DataLoader(batches, batch_size=None))
    lines = [line for line in capsys.readouterr().out.splitlines() if " Step " in line]
    rates = [float(re.search(r" ([\d,]+) tokens/s", line)[1].replace(",", "")) for line in lines]
    expected = [2 * length / step.seconds for length, step in zip(lengths, result.steps, strict=True)]
    assert rates == pytest.approx(expected, rel=0.01)


def test_a_line_counts_no_tokens_of_labels_and_every_rank():
    config = TrainingConfig(global_batch_size=8, sequence_length=16, data_parallel_size=2)
    with_labels = CountedBatches(batches=2, sequences=4, lengths=(17, 17), tokens=68)
    assert tokens_of_step(config, with_labels) == tokens_of_step(config, None) == 128
    assert tokens_of_step(config, replace(with_labels, sequences=2)) == 64
    assert tokens_of_step(config, replace(with_labels, lengths=(3, 30), tokens=70)) == 140
    assert tokens_of_step(config.changed(tensor_model_parallel_size=2), replace(with_labels, sequences=1)) == 128
    assert tokens_of_step(TrainingConfig(), with_labels) is None


def test_declared_facts_are_kept_or_corrected_with_a_warning(tmp_path):
    declared = BenchmarkCallback(
        output_dir=str(tmp_path), platform="nvd", model_name="llama", print_every=0,
        training_config={"seed": 4, "num_gpus": 8, "data": "mock"},
    )  # fmt: skip
    result = fit(declared, max_steps=3)
    assert (result.training_config.seed, result.training_config.data) == (4, "mock")
    assert result.platform == "cpu"
    told = [(one.code, one.field, one.values) for one in result.remarks]
    assert ("other_platform", "platform", {"requested": "nvd", "machine": "CPU"}) in told
    assert ("setting_of_trainer", "training_config", {"name": "num_gpus", "stated": 8, "found": 1}) in told


def test_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match="platform='tpu': must be auto"):
        BenchmarkCallback(platform="tpu")
    with pytest.raises(UsageError, match="must not be negative"):
        BenchmarkCallback(print_every=-1)


def test_measurements_are_reported_and_kept_elsewhere_if_their_folder_cannot_be_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "history").write_text("a file where the folder should be, as good as a full disk")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RunError, match=r"history: File exists; the result is in .*benchmark_\w+\.json"):
        fit(BenchmarkCallback(output_dir=str(tmp_path / "out"), model_name="llama", print_every=100), max_steps=3)
    assert [len(store.load(path).steps) for path in tmp_path.glob("benchmark_*.json")] == [3]
    assert "3 steps in" in capsys.readouterr().out


def test_an_output_that_cannot_be_written_is_refused_before_the_training(tmp_path):
    (tmp_path / "file").write_text("")
    module = Small()
    with pytest.raises(RunError, match="give another output folder"):
        fit(BenchmarkCallback(output_dir=str(tmp_path / "file" / "results"), print_every=0), module)
    assert module.calls == 0


def test_frozen_layers_and_adapters_are_recorded_as_work(tmp_path):
    def trained(change):
        module = Small()
        module.frozen = torch.nn.Linear(4, 4)
        change(module)
        result = fit(BenchmarkCallback(output_dir=str(tmp_path), platform="cpu"), module, max_steps=3)
        return result.training_config.peft, result.model.trainable_parameters, result.model.parameters

    def with_adapter(module):
        module.frozen.requires_grad_(False)
        module.lora_a = torch.nn.Linear(4, 2, bias=False)

    assert trained(lambda _: None) == ("none", 36, 36)
    assert trained(lambda module: module.frozen.requires_grad_(False)) == ("frozen", 16, 36)
    assert trained(with_adapter) == ("lora", 24, 44)
