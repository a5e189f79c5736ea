"""Formula, numbers, inputs and origin of the figures of comparison.json, enhanced_metrics.json and the HTML report."""

import json as json_module
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import plausible
import pytest
from arithmetic import computed, evaluated
from job_logs import JOBS, Job
from mlperf_journal import Journal
from test_legacy import MINIMAL, VERSION_1
from test_mlperf_log import step_times

from tensorprimat import logs
from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.explanations import FROM_FILE, FROM_PRINTED, FROM_RUNS, FROM_STEPS, SECTIONS
from tensorprimat.analysis.records import Comparison
from tensorprimat.core import terms
from tensorprimat.core.result import Result
from tensorprimat.core.summary import summarise
from tensorprimat.logs.format import UserFacts
from tensorprimat.reports import csv, html, json
from tensorprimat.reports.sections import ENHANCED
from tensorprimat.session.explain import explain
from tensorprimat.storage import store
from tensorprimat.storage.store import Loaded

CLOSE = 1e-4  # numbers in formulas have 6 digits


def megatron(folder: Path) -> Result:
    path = folder / "megatron.log"
    path.write_text("\n".join(JOBS["megatron"](Job())) + "\n")
    return logs.read(path)


def rates_alone(folder: Path) -> Result:
    """Return the figures of a log that prints tokens/s/GPU, but neither times nor the work of a step."""
    row = "step: {0}  loss:  5.7  memory: 1.0GiB(1.0%)  tps: {1:,}  tflops: 9.5  mfu: N/A\n"
    path = folder / "rates.log"
    path.write_text("".join(row.format(step, 1000 + 400 * (step % 3)) for step in range(1, 21)))
    return logs.read(path, facts=UserFacts(num_gpus=4))


def mlperf(folder: Path) -> Result:
    journal = Journal(global_batch_size=16, max_sequence_length=128, submission_platform="1xNVIDIA GB200")
    step_times(journal)
    return journal.read(folder / "result_0.txt", UserFacts(num_gpus=8))


def mlperf_rates(folder: Path) -> Result:
    journal = Journal(global_batch_size=8, submission_platform="1xMI300X")
    journal.say("run_start")
    for samples in range(80, 1000, 80):
        journal.track({"throughput": 2.0 + samples % 3}, 80 / (2.0 + samples % 3), step=samples)
    journal.say("run_stop", None, 0.1, status="success")
    return journal.read(folder / "result_1.txt", UserFacts(sequence_length=8192))


def cpu(folder: Path) -> Result:  # noqa: ARG001  # the others need a folder
    return plausible.result("cpu", preset="tiny", seconds=0.2, noise=0.05)


def several_runs(folder: Path) -> Result:  # noqa: ARG001
    return plausible.result("h100", runs=4, run_noise=0.1)


def with_power(folder: Path) -> Result:  # noqa: ARG001
    """Return the figures of a run with power, clocks, temperatures and throttled time in each step."""
    run = plausible.result("mi300x")
    rows = np.arange(len(run.steps))
    measured = {
        "power_watts_per_gpu": 500.0 + rows, "clock_hertz": 1.98e9 - rows, "temperature_celsius": 60.5 + rows % 5,
        "throttled_seconds": 0.1 + rows % 2, "energy_joules_per_gpu": 6400.0 + rows,
    }  # fmt: skip
    return summarise(run.changed(steps=run.steps.replace(**measured)))


def legacy(folder: Path) -> Result:
    path = folder / "benchmark_cuda_llama.json"
    path.write_text(json_module.dumps(VERSION_1))
    return store.load(path)


def legacy_means(folder: Path) -> Result:
    path = folder / "benchmark_rocm_llama.json"
    path.write_text(json_module.dumps(MINIMAL))
    return store.load(path)


SOURCES: tuple[Callable[[Path], Result], ...] = (
    megatron, rates_alone, mlperf, mlperf_rates, cpu, several_runs, with_power, legacy,
)  # fmt: skip
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)


def comparison_of(result: Result) -> Comparison:
    return compare([Loaded(path=Path("benchmark_0.json"), result=result)])


def side_of(comparison: Comparison) -> dict[str, Any]:
    (side,) = json_module.loads(json.render(comparison))["sides"]
    return side


def figures_of(side: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for section, of_section in side["figures"].items():
        for field, figure in of_section.items():
            yield section, field, figure


@each_source
def test_the_inputs_and_the_numbers_in_json_give_each_figure(source: Callable[[Path], Result], tmp_path: Path) -> None:
    side = side_of(comparison_of(source(tmp_path)))
    explained = [figure for _, _, figure in figures_of(side) if figure["formula"] is not None]
    explained += [
        figure for name, figure in side.items() if name.startswith(("tokens_per", "step_time")) and figure["formula"]
    ]
    assert len(explained) >= 5
    for figure in explained:
        assert computed(figure["formula"], figure["inputs"]) == pytest.approx(figure["value"], rel=CLOSE), figure
        assert evaluated(figure["numbers"]) == pytest.approx(figure["value"], rel=CLOSE), figure
        assert all(isinstance(one["unit"], str) and one["name"] for one in figure["inputs"])


@each_source
def test_json_and_explain_have_the_same_words(source: Callable[[Path], Result], tmp_path: Path) -> None:
    result = source(tmp_path)
    side = side_of(comparison_of(result))
    for section, field, figure in figures_of(side):
        printed = explain(result, f"reported.{field}" if section == "reported" else field).splitlines()
        if figure["origin"] == FROM_RUNS:  # the figure of a comparison; a file alone has that of all measured rows
            assert source is several_runs
            continue
        if figure["formula"] is None:
            assert printed[1:] == [f"  {figure['origin']}"] == [f"  {FROM_FILE}"]
            continue
        assert printed[1:3] == [f"  = {figure['formula']}", f"  = {figure['numbers']}"]
        assert printed[-len(side["origins"]) :] == [f"  {line}" for line in side["origins"]]


@each_source
def test_enhanced_metrics_json_has_the_figures_and_the_real_formula_of_the_rate(
    source: Callable[[Path], Result], tmp_path: Path
) -> None:
    comparison = comparison_of(source(tmp_path))
    (result,) = json_module.loads(json.render(comparison, ENHANCED))["results"]
    side = side_of(comparison)
    assert (result["figures"], result["origins"]) == (side["figures"], side["origins"])
    rate = result["metrics"]["tokens_per_second_per_gpu"]
    if rate["value"] is None:
        assert source is mlperf_rates  # its number of GPUs is unknown
        return
    assert rate["formula"].endswith(" / GPUs") or source in (rates_alone, several_runs)
    assert computed(rate["formula"], rate["inputs"]) == pytest.approx(rate["value"], rel=CLOSE)
    assert all(one["source"] for one in rate["inputs"])
    if source is not several_runs:
        assert all(one["name"] in rate["formula"] for one in rate["inputs"]), "no parts of its numbers"


def shown(page: str) -> Iterator[tuple[float, list[str]]]:
    """Yield the value of each figure on a page with the lines of its formula, as its button opens them."""
    opened = {
        number: [unescape(line) for line in re.findall(r'<p class="term">(.*?)</p>', text)]
        for number, text in re.findall(r'<div id="source-(\d+)" class="source"(.*?)</div>', page)
    }
    for number, value in re.findall(r'popovertarget="source-(\d+)" data-value="([^"]*)"', page):
        if opened[number]:
            yield float(value), opened[number]


@each_source
def test_the_numbers_shown_with_a_figure_of_the_page_give_its_value(
    source: Callable[[Path], Result], tmp_path: Path
) -> None:
    figures = list(shown(html.render(comparison_of(source(tmp_path)))))
    explained = [(value, lines) for value, lines in figures if lines[0].startswith("= ") and len(lines) > 1]
    assert len(explained) >= 5
    for value, (formula, numbers, *_) in explained:
        assert formula.startswith("= ")
        assert evaluated(numbers.removeprefix("= ")) == pytest.approx(value, rel=CLOSE), numbers


def test_a_file_without_steps_says_that_its_figures_are_taken_from_it(tmp_path: Path) -> None:
    comparison = comparison_of(legacy_means(tmp_path))
    side = side_of(comparison)
    figures = [figure for _, _, figure in figures_of(side)]
    assert figures
    for figure in (*figures, side["step_time_seconds"]):
        assert (figure["origin"], figure["formula"], figure["inputs"]) == (FROM_FILE, None, [])
    lines = [line for _, lines in shown(html.render(comparison)) for line in lines]
    assert set(lines) == {FROM_FILE, "as measured, or nameplate", "as stated"}  # the last two: power and price
    assert "logged step" not in html.render(comparison)


def test_steps_that_give_another_value_do_not_explain_a_figure() -> None:
    run = plausible.result("h100")
    doubled = run.performance_metrics.changed(samples_per_second=2 * run.performance_metrics.samples_per_second)
    figures = side_of(comparison_of(run.changed(performance_metrics=doubled)))["figures"]["performance_metrics"]
    assert (figures["samples_per_second"]["formula"], figures["samples_per_second"]["origin"]) == (None, FROM_FILE)
    assert figures["tokens_per_second"]["formula"] == "Σ tokens / Σ seconds"


def test_a_rate_of_a_file_without_steps_is_no_sum_in_the_metrics(tmp_path: Path) -> None:
    path = tmp_path / "benchmark_rocm_llama.json"
    path.write_text(json_module.dumps({**MINIMAL, "performance_metrics": {"tokens_per_second_per_gpu": 1000.0}}))
    comparison = comparison_of(store.load(path))
    (result,) = json_module.loads(json.render(comparison, ENHANCED))["results"]
    rate = result["metrics"]["tokens_per_second_per_gpu"]
    assert (rate["value"], rate["formula"]) == (1000.0, FROM_FILE)
    assert [one["name"] for one in rate["inputs"]] == ["tokens/s/GPU"]
    page = html.render(comparison, ENHANCED)
    assert FROM_FILE in page
    assert f"= {FROM_FILE}" not in page


def test_printed_rates_are_told_apart_from_computed_ones(tmp_path: Path) -> None:
    of_rates = side_of(comparison_of(rates_alone(tmp_path)))["figures"]
    assert of_rates["performance_metrics"]["tokens_per_second_per_gpu"]["origin"] == FROM_PRINTED
    assert of_rates["performance_metrics"]["tokens_per_second"]["formula"].endswith("Σ work / Σ (work / rate) × GPUs")
    assert of_rates["performance_metrics"]["measured_steps"]["origin"] == FROM_STEPS
    of_times = side_of(comparison_of(megatron(tmp_path)))["figures"]
    assert of_times["performance_metrics"]["tokens_per_second_per_gpu"]["origin"] == FROM_STEPS
    assert of_times["reported"]["tflops_per_gpu"]["origin"] == FROM_PRINTED


def test_origins_name_lines_hash_steps_left_out_and_flags(tmp_path: Path) -> None:
    origins = side_of(comparison_of(rates_alone(tmp_path)))["origins"]
    assert "measured: rates.log: 19 lines from 2 to 20" in origins
    assert any(re.fullmatch(r"file: rates\.log, \d+ bytes, SHA-256 [0-9a-f]{64}", line) for line in origins)
    assert "left out: 1 warm-up step, 0 interrupted steps" in origins
    assert "num_gpus 4: from --num-gpus, not from the log" in origins
    page = html.render(comparison_of(rates_alone(tmp_path)))
    assert "rates.log: 19 lines from 2 to 20" in unescape(page)


def test_a_mean_over_runs_names_the_figure_of_each_run() -> None:
    side = side_of(comparison_of(plausible.result("h100", runs=9, run_noise=0.1)))
    rate = side["tokens_per_second_per_gpu"]
    assert [one["name"] for one in rate["inputs"]] == [f"run {number}" for number in range(1, 10)]
    assert rate["numbers"].startswith("9 runs: ")
    assert rate["numbers"].endswith(" and 3 more")


def test_a_mean_over_hosts_names_the_host_of_each_run() -> None:
    run = plausible.result("h100", runs=4, run_noise=0.1)
    placed = tuple(one.changed(host=f"node-{one.index // 2}") for one in run.runs)
    side = side_of(comparison_of(summarise(run.changed(runs=placed))))
    rate = side["tokens_per_second_per_gpu"]
    assert rate["formula"] == "geometric mean of the hosts' geometric means of the runs' tokens/s/GPU"
    assert [one["name"] for one in rate["inputs"]] == [f"run {n} on node-{(n - 1) // 2}" for n in range(1, 5)]


def test_every_figure_has_a_unit() -> None:
    fields = [name for record in SECTIONS.values() for name in record.model_fields]
    without = {"basis", "reported", "status", "benchmark", "quality_target"}
    assert all(terms.unit_of(name) for name in fields if name not in without)
    assert terms.unit_of("final_loss") == terms.unit_of("quality_target") == ""


def test_documents_hold_no_numbers_of_single_steps() -> None:
    sizes = [len(json.render(comparison_of(plausible.result("h100", steps=steps)))) for steps in (100, 10_000)]
    assert sizes[1] - sizes[0] < 1000
    rows = csv.render(comparison_of(plausible.result("h100")), ENHANCED).splitlines()
    assert not {"figures", "origins", "metrics"} & set(rows[0].split(","))
