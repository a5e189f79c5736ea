"""Every cell of every table, in every form of report, against text that was checked once by hand.

The two sides differ in every figure, so that an exchanged column, a wrong unit, the other side's value, another
statistic or other digits change the text. After an intended change: WRITE_GOLDEN=1 pytest tests/test_golden_tables.py,
then read the difference.
"""

import csv as csv_module
import html as html_module
import io
import json as json_module
import os
import re
from dataclasses import replace
from pathlib import Path

import plausible
import pytest
from rich.console import Console

from tensorprimat.analysis import gate as gates
from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.history import metric_history
from tensorprimat.analysis.metrics import MetricChoices
from tensorprimat.analysis.ratios import StatedScatter
from tensorprimat.core.result import MemoryMetrics, PowerMetrics, Reported, TrainingConfig
from tensorprimat.core.summary import summarise
from tensorprimat.reports import csv, efficiency, facts, forest, html, json, markdown, published, sections
from tensorprimat.reports import gate as gate_report
from tensorprimat.reports import history as history_report
from tensorprimat.reports.console import table as terminal_table
from tensorprimat.reproduce.published import with_published
from tensorprimat.storage.store import Loaded

GOLDEN = Path(__file__).parent / "golden"


def side(machine, number, **options):
    """Return a result that states everything, and nothing as the other side does."""
    options |= {"num_gpus": 8 * (1 + number), "steps": 50 + 10 * number, "warmup": 5 + number}
    one = plausible.result(machine, runs=2 + number, seed=number, **options)
    names = ("fp8_recipe", "compute_dtype", "parameter_dtype", "optimizer_dtype", "strategy", "attention_backend")
    names += ("attention_kernel", "fused_kernels", "optimizer", "data", "framework", "framework_version")
    counts = ("gradient_accumulation_steps", "tensor_model_parallel_size", "pipeline_model_parallel_size")
    counts += ("context_parallel_size", "expert_model_parallel_size", "data_parallel_size", "num_nodes")
    config = {name: f"{name}-{number}" for name in names}
    config |= {name: 10 * place + number + 2 for place, name in enumerate(counts)}
    config |= {"compile": bool(number), "learning_rate": 1e-4 * (number + 1), "seed": 77 + number}
    config |= {
        "recompute": ("none", "full")[number],
        "precision": ("bf16", "fp8")[number],
        "num_gpus": 8 * (1 + number),
    }
    config |= {"micro_batch_size": number + 3, "padded_vocabulary_size": 128_256 + 64 * number}
    stated = TrainingConfig.model_validate(one.training_config.model_dump() | config)
    known = {
        "device_count": 9 + number, "power_boundary": ("GPU", "module")[number],
        "total_memory_gb": 80.5 + number, "gpu_cores": 17_000 + number,
        "software_version": f"12.{number}", "pytorch_version": f"2.{number}", "power_limit_watts": 700.0 + number,
        "default_power_limit_watts": 710.0 + number, "max_clock_hertz": (2.0 + number / 10) * 1e9,
    }  # fmt: skip
    kinds = ("allocated", "reserved", "device_used")
    memory = {f"{what}_memory_{kind}_gb": 40 + 10 * place + offset + number
              for place, kind in enumerate(kinds) for what, offset in (("avg", 0.25), ("peak", 2.75))}  # fmt: skip
    reported = Reported(
        tokens_per_second_per_gpu=11_111.0 + number, tflops_per_gpu=555.5 + number, mfu=0.41 + number / 100
    )
    figures = one.performance_metrics.model_copy(update={"reported": reported, "excluded_steps": 3 + number})
    runs = tuple(
        run.model_copy(update={"host": f"node-{number}{run.index}", "final_loss": 2 + number + run.index / 10})
        for run in one.runs
    )
    origin = {
        "host": f"host-{number}", "command": f"command {number}", "tool_version": f"1.{number}",
        "engine": f"engine{number}",
        "format": f"format{number}", "timer": f"timer {number}", "assumed": {"num_gpus": f"--num-gpus {number}"},
    }  # fmt: skip
    return one.model_copy(
        update={
            "training_config": stated,
            "gpu_info": one.gpu_info.model_copy(update=known),
            "memory_metrics": MemoryMetrics.model_validate(memory),
            "power_metrics": PowerMetrics(
                avg_power_watts_per_gpu=610.0 + number,
                energy_joules_per_gpu=9e5 + 1e3 * number,
                sampled_energy_joules_per_gpu=9.2e5 + 1e3 * number,
                avg_clock_hertz=(1.7 + number / 10) * 1e9,
                avg_temperature_celsius=61.0 + number,
                max_temperature_celsius=71.0 + number,
                throttled_seconds=2.5 + number,
                slowdown_seconds=1.5 + number,
            ),
            "performance_metrics": figures,
            "runs": runs,
            "host_memory_peak_gb": 5.5 + number,
            "methodology": "agreed",
            "provenance": one.provenance.model_copy(update=origin),
            "timestamp": f"2025-11-0{3 + number}T14:12:09+00:00",
        }
    )


def loaded():
    results = side("h100", 0), side("mi300x", 1, seconds=5.3)
    return [Loaded(path=Path(f"result{number}.json"), result=one) for number, one in enumerate(results)]


@pytest.fixture(scope="module")
def comparison():
    found = compare(loaded())
    found = replace(found, generated_at="2025-11-05T00:00:00+00:00")
    near = with_published(found)
    return replace(near, published=near.published[:2] + near.published[-1:])


def tables_of(comparison):
    yield sections.results(comparison.sides)
    for scale in forest.forests(comparison):
        yield forest.ratios_table(scale)
    yield sections.verdicts(comparison.pairs)
    yield from (sections.fairness(pair) for pair in comparison.pairs)
    of_sides = (
        facts.hardware, facts.configuration_table, facts.performance_table, facts.memory_table, facts.power_table,
        facts.provenance,
    )  # fmt: skip
    yield from (
        section(comparison) for section in (*of_sides, efficiency.short, sections.runs_table, sections.analysis)
    )
    yield published.published_table(comparison.published, left_out=5)


def tables_of_money():
    choices = MetricChoices(prices={"H100": 2.1, "MI300X": 1.85})
    for part in compare(loaded(), choices=choices).by_model:
        yield from (section(part) for section in sections.ENHANCED.sections)


def tables_of_ci():
    base = plausible.result("h100", runs=5)
    items = [Loaded(path=Path("base.json"), result=base)]
    slower = [Loaded(path=Path("new.json"), result=plausible.result("h100", runs=5, seed=1, seconds=13.4))]
    limits = gates.Limits(slowdown=0.03, memory_increase=0.02)
    report = gates.gate(items, slower, limits, StatedScatter(run_cv=None, confidence=0.95))
    yield gate_report.render_gate(report, confidence=0.95)
    later = summarise(slower[0].result.model_copy(update={"timestamp": "2025-12-03T14:12:09+00:00"}))
    (series, *_), _ = metric_history([*items, Loaded(path=Path("later.json"), result=later)])
    yield history_report.series_table(series)


def lines(table):
    """Write one table as a heading and one line per row."""
    if isinstance(table, str):
        return table
    heading = " | ".join(column.title for column in table.columns)
    rows = (" | ".join(cell.text for cell in row) for row in table.rows)
    below = filter(None, (table.note, *table.remarks))
    return "\n".join((f"[{table.key}] {table.title}", heading, *rows, *below)) + "\n"


def agrees(name, text):
    file = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_every_cell_of_a_comparison_is_as_stored(comparison):
    agrees("comparison.txt", "\n".join(map(lines, tables_of(comparison))))


def test_every_cell_of_cost_and_efficiency_is_as_stored():
    agrees("enhanced.txt", "\n".join(map(lines, tables_of_money())))


def test_every_cell_of_the_gate_and_the_history_is_as_stored():
    agrees("ci.txt", "\n".join(map(lines, tables_of_ci())))


def test_every_cell_of_the_csv_is_as_stored(comparison):
    records = csv_module.DictReader(io.StringIO(csv.render(comparison)))
    agrees(
        "comparison.csv.txt", "\n".join(f"{name} = {value}" for row in records for name, value in row.items()) + "\n"
    )


def test_every_figure_of_the_json_is_as_stored(comparison):
    document = json.comparison_document(comparison)
    kept = {name: document[name] for name in ("ratio", "verdict", "pairs", "sides") if name in document}
    agrees("comparison.json.txt", "\n".join(sorted(leaves(kept))) + "\n")


def leaves(value, path=""):
    """Yield every leaf as "path = value", figures with 6 digits; no steps."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value[:40]):
            yield from leaves(one, f"{path}[{place}]")
    else:
        yield f"{path} = {f'{value:.6g}' if isinstance(value, float) else json_module.dumps(value)}"


def cells(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_markdown_and_page_show_the_cells_of_the_tables(comparison):
    document, page = markdown.render(comparison), html.render(comparison)
    read = [
        [re.sub(r"\\(.)", r"\1", html_module.unescape(cell)).strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        for row in document.splitlines()
        if row.startswith("|")
    ]
    page = re.sub(r'<span class="visually-hidden">.*?</span>', "", page)
    of_page = [
        [
            html_module.unescape(re.sub(r"<[^>]+>", "", cell)).strip()
            for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.S)
        ]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.S)
    ]
    words_of_page = plain([html_module.unescape(re.sub(r"<[^>]+>", "", page))])[0]
    for table in tables_of(comparison):
        if table.key == "ranking":  # the page draws it
            assert all(text in words_of_page for row in cells(table) for text in plain(row[:3]))
            continue
        for row in cells(table) if table.key != "verdicts" else ():  # of a single pair there is no such table
            for rows, where in ((read, "Markdown"), (of_page, "page")):
                assert any(plain(row) == plain(shown) for shown in rows), f"{where} lacks a row of {table.key}: {row}"


def plain(row):
    return [re.sub(r"[\s*`]+", "", cell) for cell in row]


def test_the_terminal_shows_the_cells_of_the_tables_in_their_columns(comparison):
    for table in tables_of(comparison):
        console = Console(file=io.StringIO(), width=2000, highlight=False)
        console.print(terminal_table(table))
        shown = [re.split(r" {2,}", line.strip()) for line in console.file.getvalue().splitlines()]
        for row in cells(table):
            expected = [cell for cell in row if cell]
            assert any(plain(line) == plain(expected) for line in shown if line), f"{table.key}: {row}"
