"""Power that a result file states and its steps do not contain: kept, pooled, and never counted as computed."""

import json

import pytest
from plausible import result

from tensorprimat.analysis import sides, verify
from tensorprimat.analysis.inputs import power_input
from tensorprimat.core.result import PowerMetrics
from tensorprimat.core.summary import pool, summarise
from tensorprimat.storage import store

STATED = PowerMetrics(avg_power_watts_per_gpu=650.0, energy_joules_per_gpu=4e5, max_temperature_celsius=71.0)
NOTE = (
    "power_metrics: avg_power_watts_per_gpu, energy_joules_per_gpu and max_temperature_celsius are as the file states "
    "them; its steps hold no such values, so nothing confirms that the same steps were measured"
)


def stated(power=STATED, **of_result):
    return result(**of_result).changed(power_metrics=power)


@pytest.fixture
def read_again(tmp_path):
    """Return a function that writes a result to a file and reads it, with changes to its document."""

    def read(written, **changes):
        path = tmp_path / "benchmark_nvd_llama.json"
        document = {**json.loads(store.to_json(written)), **changes}
        path.write_text(json.dumps({key: value for key, value in document.items() if value != "absent"}))
        return store.load(path)

    return read


def test_power_that_a_file_states_stays_with_its_steps_and_a_warning_says_so_once(read_again):
    read = read_again(stated())
    assert (read.power_metrics, read.warnings.count(NOTE)) == (STATED, 1)
    again = read_again(read)
    assert (again.power_metrics, again.warnings) == (read.power_metrics, read.warnings)


def test_power_and_host_memory_of_a_file_without_a_version_are_read(read_again):
    read = read_again(stated(), schema_version="absent", runs="absent", host_memory_peak_gb=3.5)
    assert (read.power_metrics, read.host_memory_peak_gb) == (STATED, 3.5)
    unknown = read_again(
        stated(), schema_version="absent", power_metrics={"avg_power_watts_per_gpu": -1}, host_memory_peak_gb=-1
    )
    assert (unknown.power_metrics, unknown.host_memory_peak_gb) == (None, None)
    told = {"key": "avg_power_watts_per_gpu", "value": "-1"}
    assert ("value_unknown", "power_metrics", told) in [(one.code, one.field, one.values) for one in unknown.remarks]


def test_a_figure_of_the_steps_replaces_the_stated_one_of_its_kind(read_again):
    whole = stated()
    steps = whole.steps.replace(power_watts_per_gpu=[500.0] * len(whole.steps))
    power = read_again(whole.changed(steps=steps)).power_metrics
    assert power.avg_power_watts_per_gpu == pytest.approx(500.0)
    time = whole.performance_metrics.measured_time_seconds
    assert power.energy_joules_per_gpu == pytest.approx(500.0 * time)
    assert power.max_temperature_celsius == 71.0


def test_stated_means_are_pooled_by_time_and_sums_are_added_if_every_file_has_them():
    short, long = stated(steps=20, seed=1), stated(STATED.changed(avg_power_watts_per_gpu=350.0), steps=80, seed=2)
    times = [one.performance_metrics.measured_time_seconds for one in (short, long)]
    both = pool([short, long]).power_metrics
    assert both.avg_power_watts_per_gpu == pytest.approx((650 * times[0] + 350 * times[1]) / sum(times), abs=0.01)
    assert (both.energy_joules_per_gpu, both.max_temperature_celsius) == (8e5, 71.0)
    assert pool([short, result(seed=3)]).power_metrics is None
    assert pool([result(seed=3), short]).power_metrics is None


def test_power_stated_for_all_runs_is_not_that_of_one():
    runs = sides.runs_of(summarise(stated(runs=3)))
    assert [run.power_metrics for run in runs] == [None] * 3
    assert [run.power_metrics for run in sides.runs_of(stated())] == [STATED]


def test_stated_energy_is_not_divided_by_the_time_of_steps_that_may_be_others():
    energy = PowerMetrics(energy_joules_per_gpu=4e5)
    refused = power_input(summarise(stated(energy)), None)
    assert (refused.value, "no power was measured" in refused.because) == (None, True)
    whole = stated(energy)
    counted = summarise(whole.changed(steps=whole.steps.replace(energy_joules_per_gpu=[9000.0] * len(whole.steps))))
    assert power_input(counted, None).source == "measured by counter"


def test_verify_counts_stated_power_as_unverified(tmp_path):
    path = store.write(summarise(stated()), tmp_path / "benchmark_nvd_llama.json")
    (finding, *_) = verify.verify(path.parent)
    assert (finding.state, finding.says.partition("; ")[2]) == ("ok", "3 figures of memory or power not in the steps")
