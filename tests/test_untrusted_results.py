"""Result files that anyone may have written: one clear line or correct output, never a traceback, in bounded time."""

import copy
import functools
import json

import plausible
import pytest

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.storage import store

ROWS = 2 * 55
"""Of the result below: two runs of five steps of warm-up and fifty measured ones."""
EVIL_NUMBERS = (float("inf"), float("-inf"), float("nan"), -1.0, 1e300, 10**300, 10**400, "many", [1], {}, True)
SERIES = (("raw_step_times", 7), ("step_metrics", "loss", 7), ("step_metrics", "index", 7), ("step_metrics", "run", 7))
IMPOSSIBLE_FIGURES = (
    ("performance_metrics", "avg_step_time_seconds"),
    ("performance_metrics", "reported", "tokens_per_second"),
    ("memory_metrics", "peak_memory_reserved_gb"),
    ("power_metrics", "energy_joules_per_gpu"),
    ("runs", 1, "time_to_train_seconds"),
    ("host_memory_peak_gb",),
)
FIGURES = (
    ("training_config", "global_batch_size"), ("training_config", "num_gpus"), ("training_config", "warmup_steps"),
    ("model", "parameters"), ("gpu_info", "total_memory_gb"),
)  # fmt: skip
WHOLE_SERIES = {
    "loss": ([1.0], [(-1) ** row * 1e308 for row in range(ROWS)]),
    "covers": ([2**62] * ROWS, [-1] * ROWS),
    "tokens": ([1e308] * ROWS,),
    "memory_allocated_bytes": ([1e308] * ROWS, [-1.0] * ROWS, []),
    "index": ([2**62 + row for row in range(ROWS)],),
}


@functools.cache
def document():
    """Return a result as JSON, to be spoilt."""
    return json.loads(store.to_json(plausible.result("h100", runs=2, steps=50)))


def spoilt(place, value):
    """Return the document with another value at a place."""
    content = copy.deepcopy(document())
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return content


@pytest.fixture
def judge(tmp_path, capsys):
    """Function that compares a spoilt file with a good one and returns the exit code and what stderr says."""
    good = tmp_path / "good.json"
    good.write_text(store.to_json(plausible.result("mi300x", runs=2)))

    def judge(content, *options):
        bad = tmp_path / "bad.json"
        bad.write_text(json.dumps(content))
        outcome = main(["compare", str(bad), str(good), "--output-dir", str(tmp_path / "out"), "--no-plot", *options])
        printed = capsys.readouterr()
        assert outcome in (0, 2)
        if outcome == 2:
            assert printed.err.count("\n") == 1, printed.err
            assert "bad.json" in printed.err
        return outcome, printed

    return judge


@pytest.mark.parametrize("place", [*SERIES, *FIGURES], ids=lambda place: ".".join(map(str, place)))
def test_an_impossible_number_is_refused_in_one_line_or_ignored(judge, place):
    for value in EVIL_NUMBERS:
        judge(spoilt(place, value))


@pytest.mark.parametrize("name", WHOLE_SERIES)
def test_a_series_of_another_length_or_size_is_refused_or_ignored(judge, name):
    for values in WHOLE_SERIES[name]:
        judge(spoilt(("step_metrics", name), values))


def test_arrays_of_different_length_are_named_as_such(judge):
    outcome, printed = judge(spoilt(("step_metrics", "loss"), [1.0]))
    assert outcome == 2
    assert "different length" in printed.err
    assert "Value error" not in printed.err  # pydantic's words


def test_every_missing_key_is_ignored_or_named(judge):
    for key in document():
        judge({name: value for name, value in document().items() if name != key})


def test_a_step_of_negative_or_endless_time_is_refused_with_its_place(judge):
    for seconds in (-1.0, 1e300):
        outcome, printed = judge(spoilt(("raw_step_times", 7), seconds))
        assert outcome == 2
        assert "raw_step_times[7]" in printed.err


def test_a_figure_that_nothing_measures_is_refused_with_its_place(judge):
    outcome, printed = judge(spoilt(("step_metrics", "memory_allocated_bytes", 3), 1e300))
    assert outcome == 2
    assert "step_metrics.memory_allocated_bytes[3]" in printed.err


@pytest.mark.parametrize("place", IMPOSSIBLE_FIGURES, ids=lambda place: ".".join(map(str, place)))
@pytest.mark.parametrize("value", [-1.0, 1e300, 1e-300])
def test_a_negative_endless_or_vanishing_figure_is_refused_with_its_place(judge, place, value):
    content = spoilt(("power_metrics",), {})
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    outcome, printed = judge(content)
    assert outcome == 2
    named = ".".join(map(str, place)).replace("runs.1.", "runs[1].")
    assert f"{named} is {value:g}, which cannot be a measurement" in printed.err


def test_a_loss_and_a_temperature_may_be_negative_or_vanish(judge):
    for place, value in ((("step_metrics", "loss", 7), -1e-40), (("runs", 0, "final_loss"), -2.0)):
        outcome, _ = judge(spoilt(place, value))
        assert outcome == 0
    outcome, _ = judge(spoilt(("power_metrics",), {"avg_temperature_celsius": -5.0}))
    assert outcome == 0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model", "shape", "hidden_size"), 10**19),
        (("model", "shape", "sliding_window"), -4096),
        (("provenance", "looks"), 0),
    ],
)
def test_a_dimension_or_a_count_out_of_range_is_refused_with_its_place(judge, place, value):
    outcome, printed = judge(spoilt(place, value))
    assert outcome == 2
    assert f"{'.'.join(place)}: Input should be" in printed.err


def test_text_that_steers_a_terminal_or_a_spreadsheet_is_made_harmless_everywhere(judge, tmp_path):
    outcome, printed = judge(spoilt(("gpu_info", "device_name"), "=cmd|' /C calc'!A0\x1b[2J<script>x</script>"))
    assert outcome == 0
    assert "\x1b[2J" not in printed.out
    out = tmp_path / "out"
    assert "<script>x" not in (out / "comparison_report.html").read_text()
    assert "<script>x" not in (out / "comparison_report.md").read_text()
    assert not any(cell.startswith("=") for cell in (out / "comparison.csv").read_text().replace('"', "").split(","))


def test_a_file_beyond_the_size_of_any_result_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGEST_RESULT_BYTES", 2**20)
    path = tmp_path / "huge.json"
    path.write_bytes(b'{"performance_metrics": {}' + b" " * 2**20)
    with pytest.raises(InputError, match="more than 1 MiB"):
        store.load(path)
