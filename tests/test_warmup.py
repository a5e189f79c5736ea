"""Tests of tprimat warmup: the cost of the first steps, and the count from which it no longer matters."""

from functools import partial

import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.measure import isolation, passes, warmup
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots import micro as cell_plots
from tensorprimat.storage.micro_result import CellSpec, MicroResult, with_figures

SPEC = CellSpec(
    model_size="tiny", d_model=32, d_ff=64, num_layers=2, num_heads=2, vocab=100, context_length=8, batch_size=1,
    pass_name="train", precision="fp32", num_warmups=5, num_trials=4,
)  # fmt: skip
QUICK = ["--shape", "tiny=32/64/2/2", "--vocab-size", "100", "--context-length", "8", "--batch-size", "1"]


def study(first=50.0, second=10.0, noise=0.1):
    """Return cells of a machine whose first step is slow, and whose second may be."""
    slow = [first, second]

    def measure(spec):
        times = [*slow, *(10.0 + noise * (-1) ** number for number in range(20))]
        cut = spec.num_warmups
        values = spec.model_dump(exclude={"forward_only", "num_parameters"})
        return with_figures(
            MicroResult(
                **values, warmup_times_ms=tuple(times[:cut]), trial_times_ms=tuple(times[cut : cut + spec.num_trials])
            )
        )

    return list(warmup.run_warmup(SPEC, (0, 1, 2, 5), measure=measure))


def test_each_count_is_measured_with_that_many_warm_up_steps():
    assert [len(cell.warmup_times_ms) for cell in study()] == [0, 1, 2, 5]


def test_a_slow_first_step_is_reported_with_its_cost():
    printed = warmup.conclusion(study())
    assert printed[0].startswith("The first step took 50.0 ms (median of 4 fresh processes), 5.0 times the 10.0 ms")
    assert "the mean of 4 trials is 99.5 % above that, with a CV of" in printed[1]
    assert printed[2].endswith("--warmup-steps 1 is enough here.")
    assert "From 1 warm-up step on the CV is stable" in printed[2]


def test_a_slow_second_step_needs_two_warm_up_steps():
    assert warmup.stable_from(study(second=30.0)).num_warmups == 2


def test_a_machine_whose_first_step_is_not_slow_needs_no_warm_up():
    assert warmup.stable_from(study(first=10.0)).num_warmups == 0


def test_a_noisy_machine_is_not_called_stable():
    cells = study()
    cells[-1] = cells[-1].model_copy(update={"cv_percent": 40.0})
    assert warmup.stable_from(cells) is None
    assert "No count is stable: after 5 warm-up steps the CV is still 40.0 %" in warmup.conclusion(cells)[-1]


@pytest.mark.parametrize("noise", [2.7, 0.7])
def test_a_scatter_that_no_count_lowers_is_neither_low_nor_stable(noise):
    cells = study(first=10.0, noise=noise)
    assert min(cell.cv_percent for cell in cells) > warmup.LOW_CV_PERCENT
    assert warmup.stable_from(cells) is None
    printed = warmup.conclusion(cells)[-1]
    assert "No count is stable" in printed
    assert "low" not in printed
    assert "--steps-per-trial" in printed


def test_a_single_trial_has_unknown_scatter():
    cells = [cell.model_copy(update={"cv_percent": None}) for cell in study()]
    assert "unknown from one trial; use --trials 2" in warmup.conclusion(cells)[-1]


def test_the_largest_count_alone_is_not_called_stable():
    cells = study()
    cells[-2] = cells[-2].model_copy(update={"cv_percent": 40.0})
    assert warmup.stable_from(cells) is None
    printed = warmup.conclusion(cells)[-1]
    assert printed.startswith("No stable count was found: after 5 warm-up steps the CV is low (1.2 %), but larger")


def test_a_first_trial_of_several_steps_is_not_a_first_step():
    cells = [cell.model_copy(update={"num_steps": 2}) for cell in study()]
    assert "(median of 3 fresh processes)" in warmup.conclusion(cells)[0]


def test_a_study_without_measurements_says_that_nothing_could_be_measured():
    values = SPEC.model_dump(exclude={"forward_only", "num_parameters"})
    assert warmup.conclusion([MicroResult(**values, status="oom")]) == ("No count of warm-up steps could be measured.",)


def test_the_study_writes_cells_table_csv_and_plot(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        isolation, "measure_isolated", passes.measure_cell
    )  # a process takes long to start; test_sweep.py starts some
    flags = ["--counts", "0,1", "--trials", "2", "--device", "cpu", "--output", str(tmp_path)]
    assert main(["warmup", *QUICK, *flags]) == 0
    captured = capsys.readouterr()
    assert "The first step took" in captured.out
    assert {path.name for path in tmp_path.iterdir()} == {
        "bench_tiny_8_b1_train_fp32_warmup0.json", "bench_tiny_8_b1_train_fp32_warmup1.json", "warmup.csv",
        "warmup.md", "warmup.png",
    }  # fmt: skip
    assert "The first step took" in (tmp_path / "warmup.md").read_text()
    assert len((tmp_path / "warmup.csv").read_text().splitlines()) == 3


def test_counts_with_a_single_trial_have_no_bar_of_their_variation():
    cells = study()
    single = cells[1].changed(trial_times_ms=cells[1].trial_times_ms[:1])
    tried = [cells[0], with_figures(single), *cells[2:]]
    figure = canvas.laid_out(partial(cell_plots.warmup, cells=tried, stable=None))
    _, variation = figure.axes
    assert [bar.get_x() + bar.get_width() / 2 for bar in variation.patches] == [0, *range(2, len(cells))]
    assert all(bar.get_height() > 0 for bar in variation.patches)


@in_each(
    ("flags", "says"),
    [
        (["--counts", "0,-1"], "--counts 0,-1: must be 0 or more"),
        (["--counts", "few"], "--counts few: write whole numbers"),
        (["--pass", "all"], "3 configurations; the study takes one"),
        (["--device", "cuda:7"], "--device cuda:7"),
    ],
)
def test_a_wrong_flag_is_reported_in_one_line(flags, says, tmp_path, capsys):
    assert main(["warmup", *QUICK, "--output", str(tmp_path), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
