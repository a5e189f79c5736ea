"""Tests of the launch time: the host's share of a step on a GPU, and the note where the host sets the pace."""

import json

import pytest
import torch
from test_passes import FLAGS, one_thread, spec  # noqa: F401  # a fixture that every test here uses

from tensorprimat.cli import main
from tensorprimat.engines import clock as clocks
from tensorprimat.measure import isolation, passes
from tensorprimat.measure.workload import Workload
from tensorprimat.reports.aggregate import all_cells_table
from tensorprimat.reports.micro_tables import cells_table, render_csv
from tensorprimat.storage import micro_result
from tensorprimat.storage.cell_rows import load_rows

KERNELS = 2929  # of a training step of the size large
QUEUE = 1024  # launches that CUDA queues before the host waits


class SimulatedGpu(clocks.Clock):
    """A GPU that runs queued kernels in order while the host queues more, by a clock of its own."""

    def __init__(self, host_us, gpu_us):
        self.now, self.ends = 0.0, [0.0]
        self.host, self.gpu = host_us / 1e6, gpu_us / 1e6

    def step(self, _workload, mark):
        for _ in range(3):
            mark()
        for _ in range(KERNELS):
            if len(self.ends) > QUEUE:
                self.now = max(self.now, self.ends[-QUEUE])
            self.now += self.host
            self.ends.append(max(self.now, self.ends[-1]) + self.gpu)
        mark()

    def synchronise(self):
        self.now = max(self.now, self.ends[-1])


@pytest.fixture
def on_gpu(monkeypatch):
    """Let cells run on a simulated GPU."""

    def use(host_us, gpu_us):
        gpu = SimulatedGpu(host_us, gpu_us)
        monkeypatch.setattr("time.perf_counter", lambda: gpu.now)
        monkeypatch.setattr(clocks, "choose_clock", lambda *_, **__: gpu)
        monkeypatch.setattr(Workload, "step", lambda workload, mark: gpu.step(workload, mark))
        monkeypatch.setattr(Workload, "queues_whole_steps", True)

    return use


@pytest.mark.parametrize("steps", [1, 20])
def test_a_host_slower_than_the_gpu_is_reported_with_both_times(on_gpu, steps):
    on_gpu(host_us=33, gpu_us=25)
    cell = passes.measure_cell(spec(num_steps=steps))
    assert cell.launch_time_ms == pytest.approx(KERNELS * 0.033)
    assert cell.warnings == (
        f"host: launching the kernels takes 96.66 ms of the {'96.68' if steps == 1 else '96.66'} ms of a step "
        "(medians), so the GPU probably waited for the host, and time and rates say little about the GPU; a larger "
        "--batch-size, a larger --context-length or --compile gives it more work per launch",
    )


@pytest.mark.parametrize("steps", [1, 20])
def test_a_gpu_slower_than_the_host_is_not_reported_for_any_number_of_steps(on_gpu, steps):
    on_gpu(host_us=10, gpu_us=25)
    cell = passes.measure_cell(spec(num_steps=steps))
    assert cell.mean_time_ms - cell.launch_time_ms == pytest.approx(QUEUE * 0.025 / steps, rel=0.01)
    assert cell.warnings == ()


def test_one_trial_that_the_host_delays_gives_no_note(on_gpu, monkeypatch):
    on_gpu(host_us=20, gpu_us=25)
    trial, turns = passes.trial, iter(range(9))

    def delayed(*arguments):
        times = trial(*arguments)
        return times._replace(launch_ms=times.step_ms) if next(turns) == 1 else times

    monkeypatch.setattr(passes, "trial", delayed)
    assert passes.measure_cell(spec()).warnings == ()


def test_a_compiled_cell_is_not_advised_to_compile(on_gpu, monkeypatch):
    on_gpu(host_us=33, gpu_us=25)
    monkeypatch.setattr("tensorprimat.measure.workload.Network.compile_layers", lambda _: None)
    (note,) = passes.measure_cell(spec(compile=True)).warnings
    assert note.endswith("; a larger --batch-size or a larger --context-length gives it more work per launch")


def test_a_cpu_has_no_launch_time():
    cell = passes.measure_cell(spec())
    assert cell.launch_time_ms is None
    assert not any(note.startswith("host: ") for note in cell.warnings)
    assert "Launch, ms" not in [column.title for column in cells_table([cell]).columns]


@pytest.mark.parametrize(
    ("changed", "queues"),
    [({}, True), ({"precision": "fp16"}, False), ({"precision": "fp16", "pass_name": "forward-backward"}, True)],
)
def test_a_gpu_has_a_launch_time_unless_a_gradient_scaler_waits_for_it(changed, queues):
    workload = Workload(spec(**{"precision": "bf16", "autocast": True, **changed}))
    workload.device = torch.device("cuda")
    assert workload.queues_whole_steps is queues


def test_the_launch_time_is_in_files_and_tables_and_an_older_file_without_it_is_read(on_gpu, tmp_path):
    on_gpu(host_us=33, gpu_us=25)
    cell = passes.measure_cell(spec())
    path = micro_result.save(cell, tmp_path / "cell.json")
    assert micro_result.load(path).launch_time_ms == 96.657
    header, row = render_csv([cell]).splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=False))["launch_time_ms"] == "96.657"
    for table in (cells_table([cell]), all_cells_table(load_rows(path)[0])):
        places = [column.title for column in table.columns]
        assert table.rows[0][places.index("Launch, ms")].text == "96.66"
    older = {key: value for key, value in json.loads(path.read_text()).items() if key != "launch_time_ms"}
    path.write_text(json.dumps(older))
    assert micro_result.load(path).launch_time_ms is None
    assert "Launch, ms" not in [column.title for column in all_cells_table(load_rows(path)[0]).columns]


@pytest.mark.parametrize("command", ["passes", "warmup"])
def test_the_note_is_printed(command, on_gpu, monkeypatch, tmp_path, capsys):
    on_gpu(host_us=33, gpu_us=25)
    monkeypatch.setattr(isolation, "measure_isolated", passes.measure_cell)
    place = FLAGS.index("--warmup-steps")
    flags = [] if command == "passes" else [*FLAGS[:place], "--counts", "0,1", *FLAGS[place + 2 :]]
    assert main([command, *(flags or FLAGS), "--pass", "train", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("note: host: launching the kernels takes 96.66 ms") == 1
