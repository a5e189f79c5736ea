"""Sentences about odd results: absurd ratios, one device on both sides, many sides."""

import io
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import plausible
import pytest
from each import in_each
from rich.console import Console

from tensorprimat.analysis import gate, losses
from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.ratios import StatedScatter
from tensorprimat.analysis.records import Estimate, Ratio
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import Audit
from tensorprimat.core.result import Model, Reported, TrainingConfig
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.reports import bars, console, forest, formatting, html, json, markdown, notices, page, sections
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots import comparison as plots
from tensorprimat.storage.store import Loaded


def comparison_of(*results, **options):
    return compare(
        [Loaded(path=Path(f"{number}.json"), result=result) for number, result in enumerate(results)], **options
    )


def shown(comparison, width=80):
    terminal = Console(file=io.StringIO(), width=width, highlight=False)
    console.print_summary(comparison, terminal)
    return terminal.file.getvalue()


@pytest.mark.parametrize("runs", [1, 3])
def test_rates_a_factor_of_a_billion_apart_get_no_ratio(runs):
    sides = [
        plausible.result("h100", runs=runs, seconds=seconds, device_name=name, preset="tiny", sequence_length=128)
        for seconds, name in ((1e6, "unknown A"), (1e-3, "unknown B"))
    ]
    comparison = comparison_of(*sides)
    (pair,) = comparison.pairs
    assert pair.fairness.verdict == "not_comparable"
    assert "differ by a factor of 1e+09" in pair.fairness.sentence
    assert "seconds" in pair.fairness.remedy
    assert "1e+09x" not in shown(comparison)
    assert formatting.headline(pair).finding.startswith("No ratio of ")


def test_one_device_on_both_sides_has_no_cost_sentence():
    sides = [plausible.result("h100", runs=3, precision=how, seconds=s) for how, s in (("bf16", 12.8), ("fp8", 9.0))]
    (pair,) = comparison_of(*sides, by="precision").pairs
    assert page.money_sentences(pair) == []


def test_many_sides_have_one_ranked_table_and_no_second_one():
    sides = [
        plausible.result("h100", runs=3, seconds=12.8 - 0.4 * number, seed=number, device_name=f"NVIDIA GPU {number}")
        for number in range(6)
    ]
    text = shown(comparison_of(*sides, by="gpu"))
    assert "higher is better" in text
    assert "Candidate" not in text
    ratios = [
        line.split()[2] for line in text.splitlines() if line.strip().startswith("GPU ") and "x" in line.split()[2]
    ]
    assert len(ratios) == 6
    assert ratios == sorted(ratios, key=lambda ratio: -float(ratio.rstrip("x")))


def test_a_number_its_interval_and_its_percent_sign_are_on_one_line():
    sides = [plausible.result(machine) for machine in ("h100", "mi300x")]
    ranked = [plausible.result("h100", runs=3, seed=seed, device_name=f"NVIDIA GPU {seed}") for seed in range(4)]
    comparisons = [
        comparison_of(*sides, assume_run_cv=0.02, assume_host_cv=0.01),
        comparison_of(*sides),
        comparison_of(*ranked, by="gpu"),
    ]
    for comparison, width in product(comparisons, range(60, 121, 5)):
        for line in shown(comparison, width).splitlines():
            assert not line.strip().startswith(("%", "±")), (width, line)


def test_a_time_to_train_has_no_remark_about_the_clock_that_it_is_read_from():
    audit = Audit(clock="run_start to run_stop", ratio=1.07, explained_by=("evaluation 39 s",))
    task = Reported(benchmark="llama31_8b", quality_target=3.3)
    sides = []
    for machine, seconds in (("h100", 5000.0), ("mi300x", 4000.0)):
        one = plausible.result(machine, global_batch_size=16 if machine == "h100" else 32)
        metrics = one.performance_metrics.model_copy(update={"reported": task})
        runs = tuple(run.model_copy(update={"time_to_train_seconds": seconds}) for run in one.runs)
        sides.append(one.model_copy(update={"performance_metrics": metrics, "runs": runs, "audit": audit}))
    (pair,) = comparison_of(*sides).pairs
    assert pair.ratio.metric == "time_to_train"
    assert "the rate by" not in str(formatting.headline(pair))
    rates = comparison_of(*(plausible.result(m).model_copy(update={"audit": audit}) for m in ("h100", "mi300x")))
    off = "the rate of MI300X is 7.0 % above the rate by the log's clock 'run_start to run_stop'"
    assert off in str(formatting.headline(rates.pairs[0]))


def test_a_warning_names_its_subject_in_words():
    warned = [
        plausible.result(machine).model_copy(update={"warnings": (Notice("memory_unknown", "memory_metrics"),)})
        for machine in ("h100", "mi300x")
    ]
    assert f"both sides: memory: {warned[0].remarks[0].text}" in shown(comparison_of(*warned))


def test_the_page_of_many_sides_folds_the_pairs_away():
    sides = [
        plausible.result("h100", runs=3, seconds=12.8 - 0.4 * number, seed=number, device_name=f"NVIDIA GPU {number}")
        for number in range(4)
    ]
    page = html.render(comparison_of(*sides, by="gpu"))
    folded = page[page.index('<details class="pairs">') :]
    assert "Each side against its baseline (3)" in folded
    assert page.index('<details class="pairs">') < page.index("<article")
    assert '<details class="pairs">' not in html.render(comparison_of(*sides[:2], by="gpu"))


def test_an_impossible_figure_names_its_side_where_sides_share_a_device():
    slow, fast = plausible.result("mi300x", runs=3), plausible.result("mi300x", runs=3, seconds=3.0, seed=1)
    loaded = [
        Loaded(path=Path(f"{name}.json"), result=one, side=name) for name, one in (("slow", slow), ("fast", fast))
    ]
    (error,) = compare(loaded).errors
    assert error.startswith("fast, AMD Instinct MI300X: ")
    (error,) = comparison_of(plausible.result("h100"), fast).errors
    assert error.startswith("AMD Instinct MI300X: ")


def test_the_remedy_names_every_flag_that_is_missing():
    def silent(one):
        bare = one.training_config.model_copy(update={"sequence_length": None})
        return one.model_copy(update={"training_config": bare, "model": Model()})

    (pair,) = comparison_of(silent(plausible.result("h100")), silent(plausible.result("mi300x"))).pairs
    assert pair.fairness.remedy == "Comparable with --shape and --sequence-length."


def test_a_notice_that_every_run_has_alike_is_one_line_with_sides_of_one_run():
    few = [
        plausible.result(machine, runs=len(runs)).changed(
            warnings=tuple(Notice("few_rows", "steps", run=run, rows=6, others="") for run in runs)
        )
        for machine, runs in (("h100", (1, 2)), ("mi300x", (None,)))
    ]
    lines = [line.text for line in notices.grouped_notices(comparison_of(*few)) if "too few" in line.text]
    assert lines == [f"both sides: {few[1].warnings[0]}"]


def test_an_average_is_shown_with_a_peak_that_differs_from_it():
    texts = {}
    for average in (40.0, 42.75):
        one = plausible.result("h100")
        memory = one.memory_metrics.changed(avg_memory_allocated_gb=average, peak_memory_allocated_gb=42.75)
        comparison = comparison_of(one.changed(memory_metrics=memory))
        drawn = bars.panels(comparison.sides, bars.looks_of(comparison.sides), comparable=False)
        [texts[average]] = {(bar.text, bar.mark) for bar in drawn[-1].bars if bar.group == "allocated"}
    assert texts == {40.0: ("42.75 GB (average 40.00 GB)", 40.0), 42.75: ("42.75 GB", None)}


def test_warnings_that_differ_in_numbers_alone_are_reported_once():
    whens = [f"{when} run {run}" for run in (1, 2, 3) for when in ("before", "after")]
    noise = [Notice("highest_clock_moved", "noise", when=when, gpu=0) for when in whens]
    busy = plausible.result("h100", runs=2).changed(warnings=(*noise, "noise: before run 1 a lid was closed"))
    (line,) = [one.text for one in notices.grouped_notices(comparison_of(busy)) if ": noise: " in one.text]
    assert line.endswith(f": {noise[0]} (5 more like this); before run 1 a lid was closed")


def test_one_figure_that_differs_on_several_sides_is_one_line_with_its_range():
    sides = []
    for seed, (machine, tflops) in enumerate((("h100", 408), ("mi300x", 412))):
        told = {"computed": 400, "convention": "palm", "reported": tflops, "off": tflops / 400 - 1}
        sides.append(
            plausible.result(machine, seed=seed).changed(warnings=(Notice("flops_differ", "tflops_per_gpu", **told),))
        )
    (line,) = [one for one in notices.grouped_notices(comparison_of(*sides)) if "differs from ours" in one.text]
    assert "on 2 sides (2 % to 3 %)" in line.text
    assert (line.text.startswith("both sides: "), line.severity) == (True, "info")


def test_warnings_that_a_report_does_not_show_are_counted_and_all_in_the_json_document(monkeypatch):
    monkeypatch.setattr(notices, "_MOST_LINES", 3)
    of_side = tuple(f"{letter}: the clock was odd" for letter in "vwxyz")
    comparison = replace(
        comparison_of(plausible.result("h100").model_copy(update={"warnings": of_side})),
        warnings=("the first of the comparison", "the second of the comparison"),
    )
    *_, last = notices.grouped_notices(comparison)
    assert last.text == "… and 4 more; --json lists all"
    listed = json.comparison_document(comparison)["warnings"]
    assert len(listed) == 7
    assert set(comparison.warnings) <= set(listed)
    assert all(any(line.endswith(warning) for line in listed) for warning in of_side)


def test_a_tiny_ratio_and_its_interval_have_the_same_decimals():
    sides = [plausible.result(machine, runs=3, seconds=s) for machine, s in (("h100", 12.8), ("mi300x", 640.0))]
    (pair,) = comparison_of(*sides).pairs
    decimals = {len(figure.split(".")[1]) for figure in re.findall(r"(0\.\d+)x", formatting.headline(pair).finding)}
    assert len(decimals) == 1
    assert decimals.pop() >= 3


def test_long_names_that_differ_at_their_ends_differ_in_every_picture():
    start = "experiment-2026-11-22-llama3.1-8b-bf16-tp1-pp1-cp1-mbs1-gbs128-flash-attention-run-"
    sides = [
        Loaded(path=Path(name), result=plausible.result(machine, runs=3), side=start + name)
        for machine, name in (("h100", "one"), ("mi300x", "two"))
    ]
    text = shown(compare(sides))
    scale = text[text.index("Multiple of") : text.index("Same work")]
    assert "run-one (higher is better)" in " ".join(scale.split())
    marks = [line.split()[0] for line in scale.splitlines() if "1x" in line or "x to" in line]
    assert len(set(marks)) == 2
    for width, lines in ((26, 2), (22, 3), (48, 1)):
        labels = [canvas.folded(item.side, width, lines) for item in sides]
        assert len(set(labels)) == 2
        assert all(len(label.splitlines()) <= lines for label in labels)
        assert all(len(line) <= width for label in labels for line in label.splitlines())


def of_one_task(*, number=3, assume_run_cv=None, **config):
    """Return H100 and MI300X with times and samples to one quality target; config: of the second, in `number` runs."""
    task = Reported(benchmark="llama31_8b", quality_target=3.3)
    sides = []
    for machine, times, samples in (("h100", (5000, 5100, 5200), 1000), ("mi300x", (3900, 4000, 4100), 1200)):
        one = plausible.result(machine, runs=number, **(config if sides else {}))
        runs = tuple(
            run.model_copy(update={"time_to_train_seconds": float(time), "samples_to_train": float(samples)})
            for run, time in zip(one.runs, times[:number], strict=True)
        )
        metrics = one.performance_metrics.model_copy(update={"reported": task})
        sides.append(one.model_copy(update={"performance_metrics": metrics, "runs": runs}))
    (pair,) = comparison_of(*sides, assume_run_cv=assume_run_cv).pairs
    return pair


@in_each(
    ("config", "named"),
    [
        ({}, "MI300X takes 0.784x the time of H100 to"),
        ({"num_gpus": 64, "num_nodes": 8}, "MI300X (64 GPUs) takes 0.784x the time of H100 (8 GPUs) to"),
        ({"num_gpus": None, "num_nodes": 8}, "MI300X (8 nodes) takes 0.784x the time of H100 (1 node) to"),
    ],
)
def test_a_time_to_train_names_the_sizes_of_unlike_systems(config, named):
    assert formatting.headline(of_one_task(**config)).finding.startswith(named)


def test_a_time_to_train_states_time_rate_and_samples_each_by_its_name():
    headline = formatting.headline(of_one_task())
    time = (3900 * 4000 * 4100) ** (1 / 3) / (5000 * 5100 * 5200) ** (1 / 3)
    assert headline.finding.startswith(
        f"MI300X takes {time:.3f}x the time of H100 to the quality target (95 % interval "
    )
    assert headline.limits[0] == f"it runs at {1.2 / time:.3f}x the rate and needs 1.200x the samples"
    low, high = (float(end) for end in re.search(r"of the time ([\d.]+)x to ([\d.]+)x", headline.finding).groups())
    assert low < time < high


def test_the_interval_under_another_assumption_is_of_times_to_train_like_the_headline():
    sentence = str(formatting.headline(of_one_task(number=1, assume_run_cv=0.02)))
    said = re.search(r"takes ([\d.]+)x the time .*4 % instead, [a-z ]+ \(times ([\d.]+)x to ([\d.]+)x\)", sentence)
    ratio, low, high = map(float, said.groups())
    assert low < ratio < high < 1


@pytest.mark.parametrize(("seconds", "word"), [((11.0, 10.2, 9.0), "faster"), ((14.0, 12.0, 13.0), "slower")])
def test_the_mean_over_models_is_stated_as_percent_faster_or_slower(seconds, word):
    models = (("llama", 12.8, seconds[0]), ("qwen", 11.0, seconds[1]), ("mistral", 10.5, seconds[2]))
    sides = [
        plausible.result(machine, model=model, seconds=pace, runs=3, seed=number)
        for number, (model, *paces) in enumerate(models)
        for machine, pace in zip(("h100", "mi300x"), paces, strict=True)
    ]
    comparison = comparison_of(*sides)
    ratios = [pair.ratio.estimate.value for pair in comparison.pairs]
    mean = math.prod(ratios) ** (1 / 3)
    sentence = formatting.mean_headline(comparison).finding
    percent = 100 * abs(mean - 1)
    assert sentence.startswith(f"MI300X is {percent:.1f} % {word} than H100 on average over 3 models (95 % interval ")
    low, high = (float(end) for end in re.search(r"interval ([\d.]+) to ([\d.]+) %", sentence).groups())
    assert low <= percent <= high


def test_a_side_that_is_in_no_ratio_is_named():
    slow, fast = plausible.result("h100"), plausible.result("h100", seconds=9.0, seed=1)
    comparison = comparison_of(slow, fast, plausible.result("mi300x"))
    (pair,) = comparison.pairs
    (alone,) = {side.label for side in comparison.sides} - {pair.baseline.label, pair.candidate.label}
    assert any(text.startswith(f"{alone}: not compared") for text in comparison.warnings)
    assert not any(
        "not compared, because each side is compared with" in text
        for text in comparison_of(slow, plausible.result("mi300x")).warnings
    )


def test_no_note_contradicts_the_direction_of_a_time_to_train():
    task = Reported(benchmark="llama31_8b", quality_target=3.3)
    loaded = []
    for name, machine, times in (
        ("a", "h100", (50.0, 51.0)), ("b", "mi300x", (60.0, 61.0)), ("c", "mi300x", (70.0, 71.0)),
    ):  # fmt: skip
        one = plausible.result(machine, runs=2)
        runs = tuple(
            run.model_copy(update={"time_to_train_seconds": 100 * time})
            for run, time in zip(one.runs, times, strict=True)
        )
        metrics = one.performance_metrics.model_copy(update={"reported": task})
        reached = one.model_copy(update={"performance_metrics": metrics, "runs": runs})
        loaded.append(Loaded(path=Path(name), result=reached, side=name))
    comparison = compare(loaded)
    text = " ".join(shown(comparison).split())
    assert "time to the quality target of a (lower is better)" in text
    assert "above 1" not in text
    note = sections.verdicts(comparison.pairs).note
    assert "more work" not in note
    assert "the inverse of the ratio of times" in note


def test_labels_name_parallel_sizes_by_their_symbols_and_ratios_to_unlike_baselines_are_not_ranked():
    sides = [
        plausible.result("h100", runs=3, precision=how, tensor_model_parallel_size=size, seconds=12.8 - 0.4 * number)
        for number, (how, size) in enumerate((("bf16", 1), ("fp8", 1), ("bf16", 4), ("fp8", 4)))
    ]
    one_baseline, several = comparison_of(*sides), comparison_of(*sides, by="precision")
    assert [side.label for side in one_baseline.sides] == [
        "H100 · BF16 (TP 1)", "H100 · FP8 (TP 1)", "H100 · BF16 (TP 4)", "H100 · FP8 (TP 4)"
    ]  # fmt: skip
    [answer] = forest.answers(one_baseline)
    assert answer.finding.startswith("H100 · FP8 (TP 4) is faster")
    assert answer.limits[0] == "best of 4 sides by the measured ratios"
    [answer] = forest.answers(several)
    assert answer.finding.startswith("FP8 (TP ")
    assert answer.limits[0] == "largest of 2 ratios, each to its own baseline"


def on_one_task(times, **of_runs):
    """Return a result whose runs reached one quality target after these seconds, None for a miss."""
    one = plausible.result("h100", runs=len(times))
    runs = tuple(
        run.model_copy(
            update={"time_to_train_seconds": seconds} | {name: value(run.index) for name, value in of_runs.items()}
        )
        for run, seconds in zip(one.runs, times, strict=True)
    )
    reported = Reported(benchmark="llama31_8b", quality_target=3.3)
    metrics = one.performance_metrics.model_copy(update={"reported": reported})
    return one.model_copy(update={"performance_metrics": metrics, "runs": runs})


def named_sides(*results):
    return [Loaded(path=Path(name), result=one, side=name) for name, one in zip("abcdef", results, strict=False)]


def test_a_pair_of_runs_of_which_one_missed_its_target_is_compared_without_pairing():
    sides = [
        on_one_task(times, pair=lambda number: f"pair {number}")
        for times in ([5000.0, None, 5100.0], [4000.0, 4100.0, 4050.0])
    ]
    (pair,) = compare(named_sides(*sides)).pairs
    assert pair.ratio.estimate.rests_on == "3 runs against 2 runs"
    assert pair.ratio.estimate.low < pair.ratio.estimate.high
    (whole,) = compare(named_sides(sides[1], sides[1])).pairs
    assert whole.ratio.estimate.rests_on == "3 runs against 3 runs, in pairs"


def test_runs_in_pairs_without_any_step_of_theirs_are_not_compared_in_pairs():
    sides = []
    for machine in ("h100", "mi300x"):
        one = plausible.result(machine)
        pairs = tuple(one.runs[0].model_copy(update={"index": number, "pair": f"{number}"}) for number in range(2))
        sides.append(one.model_copy(update={"runs": pairs}))
    (pair,) = comparison_of(*sides, assume_run_cv=0.02).pairs
    assert pair.ratio.estimate.rests_on == "1 run against 1 run"


def test_a_run_without_the_figure_is_the_reason_for_no_interval_where_each_side_has_two_runs():
    whole = plausible.result("h100", runs=2, steps=20)
    kept = (whole.steps.column("run") == 0) | (whole.steps.column("index") <= 3)  # the second ends within its warm-up
    cut = summarise(whole.model_copy(update={"steps": whole.steps.take(kept)}))
    other = plausible.result("mi300x", runs=2, seconds=12.0)
    (pair,) = comparison_of(cut, other).pairs
    assert pair.ratio.estimate.no_interval_because == "H100: not every run has this figure"
    limits = gate.Limits(slowdown=0.03)
    report = gate.gate(named_sides(cut), named_sides(other), limits, StatedScatter(run_cv=None, confidence=0.95))
    assert report.checks[0].sentence.startswith("baseline: not every run has this figure; leave such runs out")


def test_step_times_of_two_batches_are_not_said_to_need_the_same_number_of_gpus():
    sides = []
    for machine, batch in (("h100", 128), ("mi300x", 256)):
        config = TrainingConfig(num_gpus=8, global_batch_size=batch, sequence_length=8192, peft="none")
        means = plausible.means_only(machine)
        sides.append(means.model_copy(update={"training_config": config, "model": plausible.result(machine).model}))
    (pair,) = comparison_of(*sides).pairs
    assert pair.fairness.remedy == "Comparable with the same global batch on both sides, or with tokens/s/GPU of both."


def test_a_loss_that_is_nan_in_one_row_is_not_said_to_be_nan_from_there_on():
    one = plausible.result("h100")
    once, for_good = "is nan in 1 row, the first at step 8.", "is nan from step 8 on."
    for rows, ending in ((slice(7, 8), once), (slice(7, None), for_good)):
        loss = one.steps.column("loss").copy()
        loss[rows] = math.nan
        columns = {name: one.steps.column(name) for name in one.steps.seen} | {"loss": loss}
        steps = Steps(columns, logged_nan={"loss": np.isnan(loss)})
        spoilt = summarise(one.model_copy(update={"steps": steps}))
        assert losses.failed_to_learn(spoilt).endswith(ending)
        (warning,) = [text for text in spoilt.warnings if text.startswith("loss: ")]
        assert ("on;" in warning) == (rows.stop is None)


def test_every_interval_is_named_after_the_confidence_that_it_was_computed_with():
    sides = [plausible.result(machine, runs=3, seed=seed) for seed, machine in enumerate(("h100", "mi300x"))]
    comparison = comparison_of(*sides, confidence=0.9)
    assert "90 % interval" in [column.title for column in sections.analysis(comparison).columns]
    page = html.render(comparison).replace("\N{NO-BREAK SPACE}", " ")
    assert page.count("with 90 % intervals") == 2
    assert "95 %" not in page
    assert "95 %" not in markdown.render(comparison)


def texts_of_enhanced_plot(comparison):
    """Return the texts of enhanced_plot.svg in one string."""
    svg = plots.metrics(comparison, ("svg",))["svg"].decode()
    return " ".join(re.findall(r"<!-- (.*?) -->", svg))


def test_no_cost_of_one_model_is_better_than_that_of_another():
    sides = [plausible.result("h100", runs=3), plausible.result("mi300x", model="qwen", runs=3, seconds=8.0)]
    comparison = comparison_of(*sides, by="platform")
    assert not comparison.pairs
    drawn = texts_of_enhanced_plot(comparison)
    assert "Time to 1 T tokens" in drawn
    assert "is better" not in drawn


@in_each(("seconds", "unit"), [(0.1, "hours"), (12.8, "days"), (60.0, "years")])
def test_the_axis_of_a_long_time_has_the_unit_of_its_labels(seconds, unit):
    drawn = texts_of_enhanced_plot(comparison_of(plausible.result("h100", runs=3, seconds=seconds)))
    assert f"{unit} on all GPUs of a side" in drawn
    assert re.search(rf"\d {unit}(?! on)", drawn)


def test_plot_and_page_draw_no_cost_where_a_side_cannot_be_compared_and_say_so():
    sides = [plausible.result("h100", runs=3, seconds=seconds, seed=round(seconds)) for seconds in (12.8, 11.0, 0.003)]
    paths = [Path(f"{name}.json") for name in "abc"]
    loaded = [Loaded(path=path, result=one, side=path.stem) for path, one in zip(paths, sides, strict=True)]
    comparison = compare(loaded)
    assert [pair.fairness.level.comparable for pair in comparison.pairs] == [True, False]
    drawn = texts_of_enhanced_plot(comparison)
    assert "Not all sides can be compared, so only MFU and model FLOP/s are drawn." in drawn
    assert "different work" not in drawn
    for titles in (drawn, html.render(comparison).partition("<script")[0]):
        assert "Model FLOP/s per GPU" in titles
        assert "Time to 1 T tokens" not in titles
        assert "per GPU (higher is better)" not in titles


def test_a_group_of_bars_of_one_side_is_named_once():
    with_memory = [plausible.result("h100", runs=2, seed=seed, device_name=f"GPU {seed}") for seed in (1, 2)]
    without = plausible.result("cpu", runs=2, seed=3).model_copy(update={"host_memory_peak_gb": None})
    page = html.render(comparison_of(*with_memory, without, by="gpu"))
    assert '<p class="group">allocated</p>' in page
    assert '<p class="group">Xeon' not in page
    assert "not measured" in page


def test_the_answer_counts_the_sides_that_cannot_be_compared():
    one, equal = plausible.result("h100", runs=3), plausible.result("h100", runs=3, seed=4, seconds=12.9)
    fast = plausible.result("h100", runs=3, seed=5, seconds=11.0)
    other = plausible.result("h100", runs=3, sequence_length=4096)
    [answer] = forest.answers(compare(named_sides(one, equal, other)))
    assert answer.finding.startswith(("~ No difference", "b is slower"))
    assert answer.limits[-1] == "1 more side cannot be compared"
    [answer] = forest.answers(compare(named_sides(one, equal, fast, other, other)))
    assert answer.finding.startswith("c is faster than a: ")
    assert answer.limits[0] == "best of 3 sides by the measured ratios"
    assert answer.limits[-1] == "2 more sides cannot be compared"
    [answer] = forest.answers(compare(named_sides(fast, equal, one, other)))
    assert answer.limits[0].startswith("best of 3 sides by the measured ratios is the baseline, a; next is ")
    assert answer.limits[-1] == "1 more side cannot be compared"
    assert "cannot be compared" not in str(forest.answers(compare(named_sides(one, equal, fast)))[0])


def test_the_badge_of_the_answer_is_of_the_pair_that_its_headline_names():
    one, equal = plausible.result("h100", runs=3), plausible.result("h100", runs=3, seed=4, seconds=12.9)
    fast = plausible.result("h100", runs=3, seed=5, seconds=9.0, precision="fp8")
    page = html.render(compare(named_sides(one, equal, fast)))
    answer = page[page.index('aria-label="Answer"') :].partition("</section>")[0]
    assert re.findall("badge level-([a-z_]+)", answer) == ["same_work"]
    assert "c · FP8 is faster than a · BF16" in answer


def test_a_page_of_several_models_does_not_speak_of_one_side():
    sides = [plausible.result("h100", runs=3), plausible.result("mi300x", model="qwen", runs=3, seconds=8.0)]
    page = html.render(comparison_of(*sides, by="platform"))
    assert "One side of each model: nothing to compare it with yet" in page
    assert "One side only: nothing to compare it with yet" in html.render(comparison_of(sides[0]))


def test_the_document_names_the_pair_of_every_level_and_every_difference():
    sides = [plausible.result("h100", runs=3, seed=seed, seconds=12.8 - 0.3 * seed) for seed in range(3)]
    several = markdown.render(compare(named_sides(*sides)))
    for name in "bc":
        assert f"**Llama-3.1-8B, a and {name}**" in several
        before, _, after = several.rpartition(f"\n**{name} is faster than a: ")
        assert after.split("\n\n")[1].startswith("*Level: identical work and configuration.* Same work")
        assert before
    one = markdown.render(compare(named_sides(*sides[:2])))
    assert "**Llama-3.1-8B**" in one


def test_the_digits_of_a_ratio_show_the_difference_that_its_verdict_states():
    estimate = Estimate(value=1.016, low=1.004, high=1.03, rests_on="")
    found = [Ratio(metric="mfu", estimate=estimate, verdict=verdict) for verdict in ("faster", "unsettled")]
    texts = [formatting.ratio_in_words(ratio) for ratio in found]
    assert ["1.004x to 1.030x" in texts[0], "1.00x to 1.03x" in texts[1]] == [True, True]
