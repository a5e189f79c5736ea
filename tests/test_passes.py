"""Tests of tprimat passes: timed parts, written files, and one-line errors for impossible requests."""

import json
import re
import statistics
import subprocess
import sys

import pytest
import torch
from each import in_each

from tensorprimat.cli import main, micro_options
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.units import GB
from tensorprimat.engines import clock as clocks
from tensorprimat.engines.launch import process_environment
from tensorprimat.machine.platform import Machine
from tensorprimat.measure import grid, passes
from tensorprimat.measure.workload import Network, Workload
from tensorprimat.models import presets
from tensorprimat.reports.micro_tables import cells_table
from tensorprimat.storage import micro_result
from tensorprimat.storage.micro_result import CellSpec, MicroResult, with_figures

TINY = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab": 100, "context_length": 16, "batch_size": 2}
FLAGS = ["--d-model", "32", "--d-ff", "64", "--num-layers", "2", "--num-heads", "2", "--vocab-size", "100"]
FLAGS += ["--context-length", "16", "--batch-size", "2", "--warmup-steps", "1", "--trials", "3", "--device", "cpu"]


@pytest.fixture(autouse=True)
def one_thread():
    """Let torch use one thread: tiny work on two threads waits for other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spec(**changed):
    values = {"model_size": "tiny", "pass_name": "train", "precision": "fp32", "num_warmups": 1, "num_trials": 3}
    return CellSpec(**{**TINY, **values, **changed})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder for what the command saves by default."""
    monkeypatch.chdir(tmp_path)


def run(*flags):
    return main(["passes", *FLAGS, *flags])


@in_each(
    ("size", "count"),
    [
        ("small", 128_625_408),
        ("medium", 423_183_360),
        ("large", 969_411_840),
        ("xl", 1_998_235_200),
        ("2.7B", 3_406_809_600),
    ],
)
def test_each_size_has_its_listed_number_of_parameters(size, count):
    (cell,) = grid.cells(grid.GridOptions(model_size=size, pass_name="train"))
    assert cell.num_parameters == count
    assert cell.vocab == 10_000


@in_each("size", ["small", "2.7B", "qwen"])
def test_a_size_is_built_with_as_many_parameters_as_it_claims(size):
    (cell,) = grid.cells(grid.GridOptions(model_size=size, pass_name="train"))
    with torch.device("meta"):
        network = Network(cell.as_preset)
    assert sum(parameter.numel() for parameter in network.parameters()) == cell.num_parameters


@in_each("name", ["llama", "qwen", "mistral"])
def test_real_models_are_timed_in_their_own_shape(name):
    (cell,) = grid.cells(grid.GridOptions(model_size=name, pass_name="train"))
    assert cell.shape == presets.find_preset(name).shape
    assert (cell.context_length, cell.batch_size) == (8192, 1)


def test_every_part_of_a_step_is_timed_and_no_part_twice():
    cell = passes.measure_cell(spec(num_trials=5))
    assert cell.status == "ok"
    parts = (cell.forward_time_ms, cell.backward_time_ms, cell.optimizer_time_ms)
    assert min(parts) > 0
    assert sum(parts) <= cell.mean_time_ms * 1.001
    assert cell.backward_forward_ratio == pytest.approx(cell.backward_time_ms / cell.forward_time_ms, rel=0.01)


def test_the_parts_of_a_step_add_up_to_the_step(monkeypatch):
    workload = Workload(spec())
    now = 0.0

    def works(seconds):
        def before(*_):
            nonlocal now
            now += seconds

        return before

    monkeypatch.setattr("time.perf_counter", lambda: now)
    workload.network.register_forward_pre_hook(works(0.010))
    next(workload.network.parameters()).register_hook(works(0.020))
    # Not by a hook of the optimizer: torch calls it twice once a test has made an AdamW of torch's own.
    monkeypatch.setattr(workload._optimizer, "step", works(0.005))
    times = passes.trial(workload, clocks.choose_clock("cpu", sync=False), steps=3)
    assert times.parts_ms == pytest.approx({"forward": 10, "backward": 20, "optimizer": 5})
    assert times.step_ms == pytest.approx(35)


def test_every_part_has_a_deviation_over_the_trials_and_a_single_trial_has_none():
    from tensorprimat.storage.micro_result import with_figures

    cell = passes.measure_cell(spec(num_trials=3))
    for part in ("forward", "backward", "optimizer"):
        mean, deviation, cv = (getattr(cell, f"{part}_{kind}") for kind in ("time_ms", "std_ms", "cv_percent"))
        assert cv == pytest.approx(100 * deviation / mean)
    known = with_figures(cell, {"forward": [10.0, 12.0, 14.0], "backward": [20.0, 20.0, 26.0]})
    assert (known.forward_std_ms, known.backward_time_ms) == (2.0, 22.0)
    assert known.backward_std_ms == pytest.approx(3.4641, rel=1e-4)
    single = with_figures(cell, {"forward": [10.0], "backward": [20.0]})
    assert (single.backward_time_ms, single.backward_std_ms, single.backward_cv_percent) == (20.0, None, None)


def test_a_pass_runs_only_its_own_parts():
    forward = passes.measure_cell(spec(pass_name="forward"))
    both = passes.measure_cell(spec(pass_name="forward-backward"))
    assert (forward.backward_time_ms, forward.optimizer_time_ms, forward.forward_only) == (None, None, True)
    assert both.backward_time_ms is not None
    assert (both.optimizer_time_ms, both.forward_only) == (None, False)


def test_only_the_train_pass_changes_the_weights():
    for name, changes in (("forward", False), ("forward-backward", False), ("train", True)):
        workload = Workload(spec(pass_name=name))
        before = [parameter.clone() for parameter in workload.network.parameters()]
        workload.step()
        moved = any(not torch.equal(old, new) for old, new in zip(before, workload.network.parameters(), strict=True))
        assert moved is changes


def test_the_loss_in_pieces_equals_the_whole_loss(monkeypatch):
    whole = Workload(spec())
    tokens = torch.randint(0, 100, (2, 17))
    required = whole.network(tokens)
    monkeypatch.setattr("tensorprimat.measure.workload.LARGEST_LOGITS", 1000)
    assert "in pieces" in whole.loss
    torch.testing.assert_close(whole.network(tokens), required)
    whole.network.forward_only = True
    torch.testing.assert_close(whole.network(tokens), required)


def test_a_forward_pass_in_pieces_does_not_claim_gradients(monkeypatch):
    monkeypatch.setattr("tensorprimat.measure.workload.LARGEST_LOGITS", 1000)
    assert Workload(spec(pass_name="forward")).loss == "cross-entropy in pieces"
    assert Workload(spec()).loss == "linear cross-entropy in pieces, gradients in forward"


def test_figures_follow_from_the_trial_times():
    times = (10.0, 12.0, 11.0)
    cell = with_figures(
        MicroResult(**spec().model_dump(exclude={"forward_only", "num_parameters"}), trial_times_ms=times)
    )
    assert cell.mean_time_ms == 11.0
    assert cell.std_time_ms == statistics.stdev(times)
    assert cell.cv_percent == pytest.approx(100 * statistics.stdev(times) / 11.0)
    assert cell.tokens_per_second == pytest.approx(32 / 0.011)
    assert cell.mfu is None


def test_a_forward_pass_has_a_third_of_the_flops():
    assert spec(pass_name="forward").step_flops * 3 == spec().step_flops


def test_mfu_uses_the_catalogues_peak():
    h100 = {"platform": "nvd", "device_name": "NVIDIA H100 80GB HBM3", "total_memory_gb": 85.0}
    values = spec(precision="bf16").model_dump(exclude={"forward_only", "num_parameters"})
    cell = with_figures(MicroResult(**values, trial_times_ms=(1.0,), **h100))
    assert cell.mfu == pytest.approx(cell.flops_per_second / 989.4e12)


def test_the_json_has_the_keys_that_scripts_read(tmp_path, capsys):
    assert run("--pass", "forward", "--label", "mine", "--output", str(tmp_path)) == 0
    document = json.loads((tmp_path / "bench_mine_16_b2_forward_fp32.json").read_text())
    expected = {
        "model_size": "mine", "vocab": 100, "context_length": 16, "d_model": 32, "d_ff": 64, "num_layers": 2,
        "num_heads": 2, "batch_size": 2, "num_steps": 1, "num_warmups": 1, "num_trials": 3, "forward_only": True,
        "device": "cpu", "num_parameters": presets.parameters(spec().shape),
    }  # fmt: skip
    assert {key: document[key] for key in expected} == expected
    assert len(document["trial_times_ms"]) == 3
    assert document["mean_time_ms"] == pytest.approx(statistics.fmean(document["trial_times_ms"]), rel=1e-3)
    assert document["std_time_ms"] == pytest.approx(statistics.stdev(document["trial_times_ms"]), rel=1e-2, abs=1e-3)
    assert (tmp_path / "passes.md").read_text().startswith("# Passes\n\n| Model |")
    assert (tmp_path / "passes.csv").read_text().startswith("model_size,")
    assert capsys.readouterr().out.startswith("| Model |")


def test_a_cell_is_unchanged_after_writing_and_reading(tmp_path):
    cell = passes.measure_cell(spec())
    loaded = micro_result.load(micro_result.save(cell, tmp_path / "cell.json"))
    assert loaded.spec == cell.spec
    assert loaded.trial_times_ms == cell.trial_times_ms
    assert loaded.fused_norm is cell.fused_norm is False, "no kernel of a CPU"


def test_without_a_pass_flag_every_pass_is_timed(capsys):
    assert run("--json") == 0
    assert [cell["pass"] for cell in json.loads(capsys.readouterr().out)] == list(micro_result.PASSES)


def test_several_steps_of_a_trial_are_divided_by_their_number(monkeypatch):
    steps = []
    monkeypatch.setattr(Workload, "step", lambda _self, mark: [steps.append(1), *(mark() for _ in range(4))])
    cell = passes.measure_cell(spec(num_trials=2, num_steps=5, num_warmups=3))
    assert len(steps) == 3 + 2 * 5
    assert (len(cell.trial_times_ms), len(cell.warmup_times_ms)) == (2, 3)


@in_each("flags", [["--precision", "bf16"], ["--precision", "bf16", "--autocast"], ["--attention", "eager"]])
def test_bf16_autocast_and_eager_attention_run(flags, capsys):
    assert run("--pass", "train", *flags) == 0
    assert "OOM" not in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides its own warning, unless warnings are errors
def test_every_cell_of_a_process_is_compiled(monkeypatch):
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    def compile_layers(network):
        for layer in network.decoder.layers:
            layer.compile(backend=backend, dynamic=False)

    monkeypatch.setattr(Network, "compile_layers", compile_layers)
    sizes = []
    with torch._dynamo.config.patch(recompile_limit=1):
        for batch in (1, 2, 3):
            assert passes.measure_cell(spec(compile=True, pass_name="forward", batch_size=batch)).status == "ok"
            sizes.append(len(compiled))
    assert 0 < sizes[0] < sizes[1] < sizes[2]


def test_a_terminal_of_120_columns_keeps_the_parts_of_a_step_and_their_ratio(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    values = spec().model_dump(exclude={"forward_only", "num_parameters"})
    parts = {"forward": [4.0, 4.1], "backward": [8.0, 8.4], "optimizer": [1.0, 1.1]}
    cell = with_figures(MicroResult(**values, trial_times_ms=(10.0, 11.0), peak_memory_gb=1.0), parts)
    micro_options.print_table(cells_table([cell]))
    heading = capsys.readouterr().out.splitlines()[0]
    for column, shown in (("Forward, ms", True), ("Backward, ms", True), ("Backward / forward", True), ("CV", False)):
        assert (column in heading) is shown, column


@in_each(("columns", "left_out"), [(80, "Parameters"), (110, "Median, ms"), (200, None)])
def test_a_terminal_has_as_many_columns_as_fit(columns, left_out, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    values = spec().model_dump(exclude={"forward_only", "num_parameters"})
    cell = with_figures(MicroResult(**values, trial_times_ms=(10.0, 11.0), peak_memory_gb=1.0), {"forward": [4.0]})
    micro_options.print_table(cells_table([cell]))
    heading, *rest = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert heading.startswith("Model")
    assert "Step, ms" in heading
    assert all(len(line) <= columns for line in [heading, *rest])
    printed = " ".join(rest)
    assert ("A wider terminal and files also have: " in printed) is (left_out is not None)
    assert left_out is None or (left_out in printed and left_out not in heading)


@in_each(
    ("requested", "trials"),
    [
        ({}, (10, 1)),
        ({"measure_steps": 4}, (4, 1)),
        ({"trials": 3}, (3, 1)),
        ({"steps_per_trial": 2}, (10, 2)),
        ({"measure_steps": 12, "trials": 3}, (3, 4)),
        ({"measure_steps": 12, "steps_per_trial": 3}, (4, 3)),
        ({"measure_steps": 6, "trials": 3, "steps_per_trial": 2}, (3, 2)),
    ],
)
def test_measured_steps_are_trials_times_their_steps(requested, trials):
    assert grid.trials_of(grid.GridOptions(**requested)) == trials


@in_each(
    ("flags", "says"),
    [
        (["--num-heads", "3"], "--num-heads 3: does not divide --d-model 32"),
        (["--num-heads", "32"], "the width must be even"),
        (["--trials", "0"], "--trials 0: must be at least 1"),
        (["--measure-steps", "0"], "--measure-steps 0: must be at least 1"),
        (["--measure-steps", "7", "--trials", "3"], "--measure-steps 7 contradicts --trials 3"),
        (["--warmup-steps", "-1"], "--warmup-steps -1: must be at least 0"),
        (["--num-layers", "0"], "--num-layers 0: must be at least 1"),
        (["--d-model", "1" + "0" * 20], "must be at most 1,000,000,000,000,000,000"),
        (["--batch-size", "0"], "--batch-size 0: must be at least 1"),
        (["--batch-size", "many"], "--batch-size many: write whole numbers"),
        (["--vocab-size", "1"], "--vocab-size 1: must be at least 2"),
        (["--device", "cuda:9"], "--device cuda:9"),
        (["--device", "tpu"], "--device tpu: must be auto, cpu, cuda or cuda:N"),
        (["--precision", "fp16"], "--precision fp16: not on a CPU"),
        (["--precision", "fp7"], "--precision fp7: must be fp32, tf32, bf16 or fp16"),
        (["--autocast"], "--autocast and --precision fp32 contradict"),
        (["--pass", "sideways"], "--pass sideways: must be forward"),
        (["--attention", "flash"], "--attention flash: not on a CPU"),
        (["--model-size", "small"], "--model-size small and --d-model 32 contradict"),
        (["--memory-limit", "0"], "--memory-limit 0: must be a number above 0"),
        (["--memory-limit", "nan"], "--memory-limit nan: must be a number above 0"),
        (["--data", "absent.npy"], "absent.npy: no such token file"),
    ],
)
def test_an_impossible_setting_is_refused_in_one_line_that_names_the_flag(flags, says, capsys):
    assert run(*flags) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert len(lines) == 1
    assert says in lines[0]


def test_a_cell_that_cannot_run_is_known_before_the_first_runs(capsys, monkeypatch):
    monkeypatch.setattr(passes, "measure_cell", lambda spec: pytest.fail(f"{spec.title} ran"))
    assert run("--precision", "fp32,tf32") == 2
    assert "--precision tf32: not on a CPU" in capsys.readouterr().err


def test_an_unknown_size_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"no such size; sizes: small, medium, large, xl, 2\.7B, llama"):
        grid.cells(grid.GridOptions(model_size="huge"))


def test_a_label_names_one_size_only():
    with pytest.raises(UsageError, match="labels one size, and there are 2; leave it out"):
        grid.cells(grid.GridOptions(model_size="small,medium", label="both"))


def test_running_out_of_memory_gives_a_row_marked_oom(capsys, monkeypatch):
    def refuse(*_):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(Workload, "step", refuse)
    assert run("--pass", "train") == 0
    captured = capsys.readouterr()
    assert "| OOM |" in captured.out
    assert "out of memory: custom, context 16, batch 2, train, fp32" in captured.err


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts memory on Linux only")
def test_a_memory_limit_is_kept_and_lifted_again():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = passes.used_bytes() / GB + 0.5
    large = spec(batch_size=8192, context_length=128, memory_limit_gb=limit, pass_name="forward-backward")
    cell = passes.measure_cell(large)
    assert (cell.status, cell.trial_times_ms) == ("oom", ())
    assert cell.peak_memory_gb > 0
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts memory on Linux only")
def test_a_memory_limit_below_what_the_process_uses_is_refused(capsys):
    assert run("--pass", "train", "--memory-limit", "0.01") == 2
    assert "--memory-limit 0.01: the process already uses " in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="other systems state no peak of the program alone")
def test_the_peak_of_a_process_does_not_contain_the_memory_of_the_program_that_started_it():
    peak = "from tensorprimat.engines.memory import host_peak_bytes; print(host_peak_bytes())"
    large = f"import subprocess as s, sys; held = bytearray(400 * 2**20); s.run([sys.executable, '-c', {peak!r}])"
    command = [sys.executable, "-c", large]
    shown = subprocess.run(command, env=process_environment(), capture_output=True, text=True, check=True)
    assert 2e6 < float(shown.stdout) < 200e6


def test_a_step_that_fails_gives_exit_code_1_and_prints_its_error(capsys, monkeypatch):
    def fail(*_):
        raise RuntimeError("the device went away")

    monkeypatch.setattr(Workload, "step", fail)
    assert run("--pass", "train") == 1
    assert "RuntimeError: the device went away" in capsys.readouterr().err


def test_measurements_before_ctrl_c_are_kept(tmp_path, capsys, monkeypatch):
    measure = passes.measure_cell

    def interrupted(one):
        if one.pass_name == "train":
            raise KeyboardInterrupt
        return measure(one)

    monkeypatch.setattr(passes, "measure_cell", interrupted)
    assert run("--output", str(tmp_path)) == 1
    assert len(list(tmp_path.glob("bench_*.json"))) == 2
    captured = capsys.readouterr()
    assert "| forward-backward |" in captured.out
    assert "interrupted" in captured.err


@pytest.mark.parametrize(("device", "number"), [("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_is_chosen_by_its_number_and_a_cuda_error_gives_a_row(device, number, monkeypatch):
    chosen = []

    def lost(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    gpus = Machine(platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA H200", device_count=2), host="node1")
    monkeypatch.setattr(passes, "detect_platform", lambda **_: gpus)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", chosen.append, raising=False)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 10**9)
    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    monkeypatch.setattr(passes, "_run", lost)
    cell = passes.measure_cell(spec(device=device, precision="bf16"))
    assert chosen == [number]
    assert (cell.status, cell.reason) == (
        "failed",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    )
    assert (cell.peak_memory_gb, cell.memory_kind) == (1.0, "allocated")


@pytest.mark.gpu
def test_a_gpu_is_timed_with_its_parts_and_its_memory():
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    cell = passes.measure_cell(spec(device="cuda", precision="bf16"))
    assert (cell.status, cell.memory_kind) == ("ok", "allocated")
    assert cell.forward_time_ms + cell.backward_time_ms + cell.optimizer_time_ms <= cell.mean_time_ms * 1.05


class _Widest(torch.utils._python_dispatch.TorchDispatchMode):
    """Dispatch mode that records the size of the largest float32 tensor made while it is active."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # as torch calls it
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(one, torch.Tensor) and one.dtype == torch.float32:
                self.numbers = max(self.numbers, one.numel())
        return made


def test_a_bf16_model_is_never_built_in_fp32():
    requested = grid.GridOptions(
        shapes=("own=64/128/2/4",), context_length="16", batch_size="2", precision="bf16", pass_name="train"
    )
    (spec,) = grid.cells(requested)
    with _Widest() as made:
        workload = Workload(spec)
    assert made.numbers < 1000  # rotary frequencies, and no weight
    assert {weight.dtype for weight in workload.network.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
