"""Tests of the reports of a plausible comparison: console, Markdown, HTML, JSON and CSV."""

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

from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.records import Estimate, Ratio
from tensorprimat.core.provenance import Audit
from tensorprimat.core.result import PerformanceMetrics
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import pool, summarise
from tensorprimat.facts.devices import short_device
from tensorprimat.reports import (
    bars,
    console,
    csv,
    efficiency,
    facts,
    forest,
    formatting,
    html,
    json,
    markdown,
    sections,
)
from tensorprimat.reports.tables import Column, Table, table_of, text_cell
from tensorprimat.storage.store import Loaded

HOSTILE = "\x1b[31m<script>alert(1)</script>|$x$ =HYPERLINK(1) [x](javascript:1) {{7*7}} `rm`"


def comparison_of(*results, **options):
    return compare(
        [Loaded(path=Path(f"benchmark_{number}.json"), result=result) for number, result in enumerate(results)],
        **options,
    )


@pytest.fixture(scope="module")
def two():
    """Two machines, five runs each, identical work: MI300X is faster."""
    return comparison_of(
        plausible.result("h100", runs=5), plausible.result("mi300x", seconds=11.0, runs=5, seed=1, noise=0.005)
    )


@pytest.fixture(scope="module")
def incomparable():
    """The known case: GBS 8, sequence 8192, TP 4, FP8 against GBS 128, sequence 2048, TP 1, BF16."""
    return comparison_of(
        plausible.result(
            "h100", seconds=2.2, runs=3, precision="fp8", global_batch_size=8, tensor_model_parallel_size=4
        ),
        plausible.result("mi300x", seconds=9.7, runs=3, sequence_length=2048),
    )


@pytest.fixture(scope="module")
def tiny():
    return comparison_of(plausible.result("cpu", preset="tiny", seconds=0.21, noise=0.05, runs=3))


@pytest.fixture(scope="module")
def three_models():
    return comparison_of(
        *(
            plausible.result(machine, model=model, seconds=seconds * factor, runs=3, seed=seed)
            for seed, (model, factor) in enumerate((("llama", 1.0), ("qwen", 0.93), ("mistral", 0.9)))
            for machine, seconds in (("h100", 12.8), ("mi300x", 11.0))
        )
    )


def on_terminal(comparison, width=80, **options):
    terminal = Console(file=io.StringIO(), width=width, highlight=False, **options)
    console.print_summary(comparison, terminal)
    return terminal.file.getvalue()


def one_line(text):
    """Return a text without the line breaks of a terminal."""
    return " ".join(text.split())


def every_text(comparison):
    return {
        "console": one_line(on_terminal(comparison)),
        "markdown": markdown.render(comparison, pictures=["comparison_plot.png"]),
        "html": html.render(comparison),
        "json": json.render(comparison),
        "csv": csv.render(comparison),
    }


# Words


def test_every_report_opens_with_the_sentence_the_scale_and_the_level(two):
    texts = every_text(two)
    (pair,), (scale,) = two.pairs, forest.forests(two)
    for name in ("console", "markdown", "html"):
        answer = texts[name].index("MI300X is faster than H100")
        drawn = texts[name].index(scale.title.split(" (")[0])
        level = texts[name].index(pair.fairness.sentence[:30])
        results = texts[name].index("Runs × steps") if name != "console" else texts[name].index("tokens/s/GPU", level)
        assert answer < drawn < level < results, name


def test_a_contradiction_of_the_logs_clock_is_above_the_figures_and_in_the_headline():
    off = Audit(clock="train_runtime", work=1.0, clock_seconds=110.0, ratio=1.1, unexplained_seconds=10.0)
    warning = "audit: 100 steps take 100 s at the measured pace, but 110 s by train_runtime: 10 s (9 %) are unexplained"
    doubtful = plausible.result("h100", runs=5).model_copy(update={"audit": off, "warnings": (warning,)})
    comparison = comparison_of(doubtful, plausible.result("mi300x", seconds=11.0, runs=5, seed=1, noise=0.005))
    for name in ("console", "markdown", "html"):
        printed = every_text(comparison)[name].replace("\N{NO-BREAK SPACE}", " ")
        reason = printed.index("10.0 % above the rate by the log")
        assert printed.index("100 steps take 100 s") < reason < printed.index("12.8", reason), name


def test_a_headline_names_the_faster_side_the_ratio_and_its_certainty(two):
    headline = formatting.headline(two.pairs[0])
    assert re.fullmatch(
        r"MI300X is faster than H100: 1\.16\d*x the tokens/s/GPU \(95 % interval [\d.]+x to [\d.]+x\)", headline.finding
    )
    assert headline.limits == ("one machine per side; other machines may differ",)


def test_the_precision_is_part_of_the_headline_where_it_differs():
    comparison = comparison_of(
        plausible.result("h100", runs=3, precision="fp8", seconds=9.0), plausible.result("mi300x", runs=3, seed=1)
    )
    headline = formatting.headline(comparison.pairs[0])
    assert "MI300X · BF16 is slower than H100 · FP8" in headline.finding


def test_sides_that_are_not_comparable_get_no_ratio_and_no_statement_of_speed(incomparable):
    for name, text in every_text(incomparable).items():
        assert not re.search("faster|slower|fast|slow", text, re.IGNORECASE), name
        assert not re.search(r"\d\.\d+x\b", text), f"{name} prints a ratio"
    document = json.comparison_document(incomparable)
    assert document["verdict"] == "not_comparable"
    assert document["ratio"] is None


def test_sides_that_are_not_comparable_still_show_the_use_of_their_own_devices(incomparable):
    texts = every_text(incomparable)
    for name in ("console", "markdown", "html"):
        assert "model TFLOP/s per GPU" in texts[name], name
    assert json.comparison_document(incomparable)["sides"][0]["efficiency"]["mfu"]["value"] > 0


def test_one_run_a_side_names_the_number_of_runs_that_would_decide():
    comparison = comparison_of(plausible.result("h100"), plausible.result("mi300x", seed=1, seconds=11.0))
    text = one_line(on_terminal(comparison))
    assert "One run each cannot confirm it." in text
    assert re.search(r"about \d+ runs of each side \(for ±1 %\)", text)
    assert "--assume-run-cv 2%" in text


def test_an_assumption_is_printed_with_the_verdict_that_rests_on_it():
    comparison = comparison_of(
        plausible.result("h100"), plausible.result("mi300x", seed=1, seconds=8.0), assume_run_cv=0.02
    )
    for name, text in every_text(comparison).items():
        if name != "csv":
            assert "assum" in text.lower(), name


def test_a_tiny_model_is_never_shown_as_the_real_one(tiny):
    for name, text in every_text(tiny).items():
        assert "Llama-3.1 tiny" in text, name
        assert "-8B" not in text, name


def test_a_tiny_side_next_to_a_full_one_is_named_in_its_row():
    comparison = comparison_of(plausible.result("h100"), plausible.result("cpu", preset="tiny", seconds=0.2))
    text = one_line(on_terminal(comparison, width=140))
    assert "Llama-3.1-8B and Llama-3.1 tiny" in text
    assert "Not comparable" in text


@in_each(("low", "high"), [(0.5, math.inf), (0.0, 5e-324), (1.0, 1.0), (1e-310, 2e-310)])
def test_a_ratio_with_an_interval_that_no_machine_has_is_still_shown(low, high):
    estimate = Estimate(value=1.0, low=low, high=high, rests_on="5 runs")
    ratio = Ratio(metric="tokens_per_second", estimate=estimate, verdict="no_difference_shown")
    assert re.match(r"1\.0+x the tokens/s", formatting.ratio_in_words(ratio))


@in_each("digits", [0.5, 0.012345, 1.0, 1.00049, 1.5, 9.99, 12.0, 4e7])
def test_both_ends_of_an_interval_of_a_ratio_can_be_distinguished(digits):
    ratio = Ratio(
        metric="tokens_per_second",
        estimate=Estimate(value=digits, low=digits * 0.997, high=digits * 1.003, rests_on="5 runs"),
        verdict="no_difference_shown",
    )
    assert formatting.ratio_in_words(ratio).count("x") >= 3
    if 0.1 <= digits < 10:
        low, high = re.search(r"interval (\S+)x to (\S+)x", formatting.ratio_in_words(ratio)).groups()
        assert float(low) < digits < float(high)


# One side, means only, memory kinds


def test_sides_of_a_model_that_lacks_the_named_baseline_are_not_called_one_side():
    results = [plausible.result("h100"), plausible.result("mi300x", seed=1)]
    results += [plausible.result("mi300x", model="qwen"), plausible.result("cpu", model="qwen", seed=1)]
    loaded = [Loaded(path=Path(f"{number}.json"), result=one) for number, one in enumerate(results)]
    texts = every_text(compare(loaded, baseline="h100"))
    for name in ("console", "markdown", "html"):
        assert "None of these sides is compared" in texts[name], name
        assert "One side only" not in texts[name], name


def test_a_side_that_knows_only_its_samples_has_an_interval_from_them():
    known = plausible.result("h100", runs=3)
    columns = {name: known.steps.column(name) for name in ("index", "run")}
    steps = Steps({**columns, "reported_samples_per_second": 128 / known.steps.column("seconds")})
    config = known.training_config.changed(sequence_length=None, global_batch_size=None)
    result = summarise(known.changed(training_config=config, steps=steps, performance_metrics=PerformanceMetrics()))
    assert result.performance_metrics.avg_step_time_seconds is None
    (row,) = sections.analysis(comparison_of(result)).rows
    assert [cell.text for cell in row[1:3]] == ["3 runs", "±0.1 %"]


def test_one_side_alone_is_reported_alone(tiny):
    texts = every_text(tiny)
    for name in ("console", "markdown", "html"):
        assert "One side only: nothing to compare it with yet." in texts[name], name
    assert json.comparison_document(tiny)["verdict"] is None
    assert json.comparison_document(tiny)["pairs"] == []


def test_a_result_of_means_only_is_shown_as_reported_without_interval():
    comparison = comparison_of(plausible.means_only("h100"), plausible.result("mi300x"))
    text = one_line(on_terminal(comparison, width=120))
    assert "means only" in text
    assert "9.800 s" in text
    report = html.render(comparison)
    assert "taken from the file, which states it for the whole run; no steps support it" in report
    assert json.comparison_document(comparison)["sides"][0]["tokens_per_second"]["value"] is None


def test_an_added_section_appears_in_every_document(two):
    def colours(comparison):
        return table_of("colours", "Colours", [{"Side": f"<{side.label}>"} for side in comparison.sides])

    for report in (sections.COMPARISON, sections.ENHANCED):
        more = replace(report, sections=(*report.sections, colours))
        terminal = Console(file=io.StringIO(), width=100)
        console.print_summary(two, terminal, report=more)
        assert ("<H100>" in terminal.file.getvalue()) == report.of_metrics  # compare prints verdicts and results only
        document, page = markdown.render(two, more), html.render(two, more)
        assert "## Colours\n\n| Side |" in document
        assert "&lt;H100&gt;" in page
        assert page.index(">Colours</summary>") < page.index(">Provenance</summary>")


def test_peak_memory_names_its_kind(two):
    printed = sections.results(two.sides).note
    assert re.search(
        r"different kinds cannot be compared\. H100: 6\d\.\d+ GB allocated and 6\d\.\d+ GB reserved; "
        r"MI300X: 148\.\d+ GB device used\.$",
        printed,
    )
    for name, text in every_text(two).items():
        assert ("peak_memory" if name in ("json", "csv") else "Peak memory of different kinds") in text, name


def test_memory_of_unlike_kinds_is_never_shown_side_by_side(two):
    assert "Peak memory" not in [column.title for column in sections.results(two.sides).columns]
    memory = efficiency.of_section("Memory", two)
    rows = [[cell.text for cell in row] for row in memory.rows if "utilisation" in row[0].text]
    assert [row[0].split(", ")[1] for row in rows] == ["the allocator's pool", "whole device"]
    assert [[cell == "–" for cell in row[1:]] for row in rows] == [[False, True], [True, False]]
    titles = [panel.title for panel in bars.panels(two.sides, bars.looks_of(two.sides), comparable=True)]
    assert not any("emory" in title for title in titles)


def test_the_kind_of_memory_that_all_sides_have_is_shown():
    h100 = plausible.result("h100")
    other = plausible.result("h100", device_name="NVIDIA H200")
    other = summarise(other.model_copy(update={"steps": other.steps.replace(memory_allocated_bytes=np.nan)}))
    comparison = comparison_of(h100, other)
    table = sections.results(comparison.sides)
    column = [column.title for column in table.columns].index("Peak memory")
    assert {row[column].text.split(" GB ")[1] for row in table.rows} == {"reserved"}


def test_samples_are_shown_where_no_side_knows_its_tokens():
    images = [plausible.result(machine, sequence_length=None, model="llama") for machine in ("h100", "mi300x")]
    titles = [column.title for column in sections.results(comparison_of(*images).sides).columns]
    assert "samples/s" in titles
    assert "tokens/s" not in titles


def test_every_figure_of_the_results_has_its_source(two):
    table = sections.results(two.sides)
    for row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            if column.title not in ("Side", "Device", "GPUs", "Runs × steps"):
                assert cell.source, column.title
                assert column.title in ("MFU", sections.COST_TITLE) or "benchmark_" in cell.source


def test_a_figure_of_a_log_names_the_log(two):
    amd = two.sides[1]
    assert "read from training_llama.log" in facts.source_of(amd)


def test_unknown_settings_get_no_row(two):
    rows = {row[0].text for row in facts.configuration_table(two).rows}
    assert "Precision" in rows
    assert "FP8 recipe" not in rows


def test_a_value_given_by_hand_is_marked_in_its_source():
    result = plausible.result("h100")
    provenance = result.provenance.model_copy(update={"assumed": {"sequence_length": "--sequence-length"}})
    comparison = comparison_of(result.model_copy(update={"provenance": provenance}))
    rows = {row[0].text: row[1] for row in facts.configuration_table(comparison).rows}
    assert "origin: --sequence-length" in rows["Sequence length"].source


# Terminals


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(two, three_models, incomparable, width):
    for comparison in (two, three_models, incomparable):
        lines = on_terminal(comparison, width=width).splitlines()
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_figures_are_never_split_over_lines(two, width):
    text = on_terminal(two, width=width)
    for figure in ("tokens/s/GPU", "±0.", "5 × 50"):
        assert figure in text


def test_a_path_that_is_longer_than_the_terminal_stays_whole(two):
    path = "/home/someone/experiments/" + "-".join(["llama31-8b-mi300x"] * 6) + "/training.log"
    shown = on_terminal(replace(two, warnings=(f"{path}: left out, it holds no step of training",)))
    assert path in shown


def test_a_terminal_without_colour_gets_none(two):
    assert "\x1b" not in on_terminal(two, no_color=True)


def test_several_candidates_become_one_table_against_the_baseline():
    comparison = comparison_of(
        *(
            plausible.result("h100", runs=3, seconds=12.8 - number, seed=number, device_name=f"NVIDIA GPU {number}")
            for number in range(4)
        ),
        by="gpu",
    )
    text = on_terminal(comparison, width=120)
    assert text.count("Against GPU 0") == 1
    assert text.count("faster") == 1, "the sentence on top; the scale has a row for each"


def test_many_warnings_do_not_bury_the_verdict(two):
    loud = replace(two, warnings=tuple(f"file {number}: left out" for number in range(150)))
    assert len(on_terminal(loud).splitlines()) < 40
    assert markdown.render(loud).count("left out") >= 150


def test_a_side_that_does_not_learn_is_reported_with_its_speed():
    result = plausible.result("mi300x", seconds=9.0, runs=2, seed=1)
    flat = summarise(result.model_copy(update={"steps": result.steps.replace(loss=11.7)}))
    comparison = comparison_of(plausible.result("h100", runs=2), flat)
    texts = every_text(comparison)
    assert comparison.pairs[0].losses.verdict == "failed"
    for name in ("console", "markdown", "html"):
        assert "stays at 11.7" in texts[name].replace("\N{NO-BREAK SPACE}", " "), name
    assert json.comparison_document(comparison)["pairs"][0]["losses"]["verdict"] == "failed"


def test_every_report_says_the_condition_and_the_limits_of_a_ratio_and_a_page_says_them_once():
    silent = plausible.result("h100", runs=3)
    silent = silent.model_copy(update={"model": silent.model.model_copy(update={"shape": None, "preset": None})})
    comparison = comparison_of(silent, plausible.result("mi300x", runs=3, seconds=11.0, seed=1))
    (pair,) = comparison.pairs
    assert pair.fairness.title == "same work as far as stated"
    assert "holds only if the model shape matches" in formatting.headline(pair).limits
    for name, text in every_text(comparison).items():
        assert "model shape" in text, name
    pages = {"console": on_terminal(comparison, 120), "md": markdown.render(comparison)}
    for name, page in pages.items():
        text = " ".join(page.split())
        assert text.count("if the model shape matches") == 1, name
        assert text.count("does not state the model shape") == 1, name
        assert text.count("other machines may differ") == 1, name


def test_a_page_of_several_models_says_the_limits_of_their_ratios_once():
    """Also if they have a mean, which says them, or none because one model was not compared."""
    for other in ({}, {"sequence_length": 4096}):
        sides = [
            plausible.result(
                machine, model=model, runs=3, seed=seed, **(other if machine + model == "mi300xqwen" else {})
            )
            for seed, (machine, model) in enumerate(product(("h100", "mi300x"), ("llama", "qwen")))
        ]
        comparison = comparison_of(*sides, assume_host_cv=0.01)
        for page in (on_terminal(comparison, 120), markdown.render(comparison)):
            assert " ".join(page.split()).lower().count("assumed: machines vary by 1 %") == 1


def test_an_impossible_figure_is_an_error_above_every_headline():
    comparison = comparison_of(plausible.result("h100", runs=3), plausible.result("mi300x", runs=3, seconds=0.9))
    texts = every_text(comparison)
    for name in ("console", "markdown", "html"):
        assert texts[name].index("Error: AMD Instinct MI300X") < texts[name].index("No ratio of"), name
        assert not re.search(r"is (faster|slower) than", texts[name]), name
    assert json.comparison_document(comparison)["errors"]
    assert json.comparison_document(comparison)["verdict"] == "not_comparable"


@in_each("width", [80, 100, 120])
def test_four_sides_break_no_label_inside_a_word(width):
    names = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "AMD Instinct MI355X")
    sides = []
    for number, name in enumerate(names):
        one = plausible.result("h100" if name.startswith("NVIDIA") else "mi300x", seed=number)
        gpu = one.gpu_info.model_copy(update={"device_name": name})
        sides.append(Loaded(path=Path(f"{number}.json"), result=one.model_copy(update={"gpu_info": gpu})))
    comparison = compare(sides, by="gpu")
    screen = Console(width=width, record=True, file=io.StringIO())
    screen.print(console.summary(comparison, width=width))
    shown = screen.export_text()
    assert max(map(len, map(str.rstrip, shown.splitlines()))) <= width
    rows = shown.splitlines()
    shown_names = map(short_device, names) if width == 80 else names
    assert all(any(word in row for row in rows) for name in shown_names for word in name.split())
    assert "0GB" not in shown.split(), "the rest of a label that was cut"


def test_a_note_about_many_sides_is_not_cut():
    note = "; ".join(f"side {number} at $4.25 an hour" for number in range(60)) + "; the last <side>"
    content = Table(
        key="price", title="Price", columns=(Column(title="Side"),), rows=((text_cell("H100"),),), note=note
    )
    assert markdown.table(content).endswith("the last &lt;side&gt;")
    assert html._environment().from_string("{{ note|note }}").render(note=note).endswith("the last &lt;side&gt;")


LONG_NAMES = ("NVIDIA H100 80GB HBM3", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")


@pytest.mark.parametrize(("device", "most_lines"), [(LONG_NAMES[0], 2), (LONG_NAMES[1], 5)])
def test_runs_of_unlike_lengths_leave_room_for_the_device_on_80_columns(device, most_lines):
    sides = []
    for machine, named in (("h100", device), ("mi300x", "AMD Instinct MI300X")):
        lengths = enumerate([10_752, 11_520] * 5)
        both = pool([plausible.result(machine, steps=steps, losses=False, seed=seed) for seed, steps in lengths])
        sides.append(both.model_copy(update={"gpu_info": both.gpu_info.model_copy(update={"device_name": named})}))
    shown = on_terminal(comparison_of(*sides), width=80)
    lines = shown.partition("Llama-3.1-8B")[2].partition("Peak memory of")[0].splitlines()
    assert max(map(len, lines)) <= 80
    first = next(number for number, line in enumerate(lines) if "10 × 10,7" in line)
    second = next(number for number, line in enumerate(lines) if number > first and "10 × 10,7" in line)
    if lines[first].strip().startswith("Runs"):  # as a list: every figure on a line
        assert f"8 × {device}" in "\n".join(lines)
    else:
        assert second - first <= most_lines
        assert "to 11,5" in lines[first + 1]
