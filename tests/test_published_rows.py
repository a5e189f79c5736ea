"""Tests of published results next to measured ones: their order, their limit, their level."""

import io
import re
from dataclasses import replace
from json import loads
from pathlib import Path

import plausible
import pytest
from each import in_each
from rich.console import Console

from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.levels import LEVELS
from tensorprimat.cli import main
from tensorprimat.core import quantities
from tensorprimat.facts import catalogue
from tensorprimat.mlperf.library import EntryChoice, bundled
from tensorprimat.models import flops
from tensorprimat.reports import console, csv, html, json, markdown, published
from tensorprimat.reproduce.published import as_result, baselines, choose_baselines, near_published, with_published
from tensorprimat.storage.store import Loaded


def comparison_of(*results):
    return compare([Loaded(path=Path(f"{number}.json"), result=result) for number, result in enumerate(results)])


def every_text(comparison):
    terminal = Console(file=io.StringIO(), width=100)
    console.print_summary(comparison, console=terminal)
    return {
        "console": terminal.file.getvalue(), "markdown": markdown.render(comparison), "html": html.render(comparison),
        "json": json.render(comparison), "csv": csv.render(comparison),
    }  # fmt: skip


def test_published_results_are_shown_marked_and_without_a_verdict():
    comparison = comparison_of(plausible.result("h100", runs=2))
    comparison = replace(comparison, published=near_published(comparison.sides))
    for name, text in every_text(comparison).items():
        if name != "csv":
            assert "Published, not measured here" in text or '"published"' in text, name
        assert not re.search("faster|slower", text), name
    rows = json.comparison_document(comparison)["published"]
    assert all(row["model"] == "llama" and row["source"] for row in rows)
    alike = [row for row in rows if row["measured_here"][0]["ratio"] is not None]
    assert 0 < len(alike) < len(rows)
    assert {row["sequence_length"] for row in alike} == {8192}
    levels = {(row["global_batch_size"] == 128, row["measured_here"][0]["fairness"]) for row in alike}
    assert levels == {(True, "same_work"), (False, "same_work_per_token")}


@in_each(("gpu", "count"), [("h100", 8), ("mi300x", 8), ("h100", 64)])
def test_published_results_are_listed_nearest_first(gpu, count):
    """Comparable first, then the same GPU, then the same number of GPUs, then the better level."""
    rows = near_published(comparison_of(plausible.result(gpu, num_gpus=count)).sides)
    name = {"h100": "H100 SXM", "mi300x": "MI300X"}[gpu]
    order = [
        (
            row.against[0].ratio is None,
            row.published.gpu != name,
            row.published.num_gpus != count,
            list(LEVELS).index(row.against[0].fairness.verdict),
        )
        for row in rows
    ]
    assert order == sorted(order)
    assert len(set(order)) > 3


def test_a_report_states_how_many_farther_published_results_it_leaves_out():
    comparison = comparison_of(plausible.result("h100", runs=2))
    every, near = near_published(comparison.sides), with_published(comparison)
    assert near.published == every[:12]
    assert near.published_left_out == {"llama": len(every) - 12}
    texts = every_text(near)
    for name, shown in (("console", 6), ("markdown", 12), ("html", 12)):
        assert f"{len(every) - shown} more rows are left out" in " ".join(texts[name].split()), name
    assert all("H100 / published" in texts[name] for name in ("markdown", "html"))
    assert json.comparison_document(near)["published_left_out"] == {"llama": len(every) - 12}


def test_many_sides_leave_the_terminal_one_line_per_published_result():
    six = comparison_of(*(plausible.result("h100", seed=seed, precision=f"fp{seed}") for seed in range(6)))
    shown = every_text(with_published(six))["console"].partition("Published, not measured here")[2].splitlines()
    assert len([line for line in shown if "same work" in line and "H100 SXM" in line]) == 6
    assert not any("/ published" in line for line in shown)


def test_the_level_of_a_published_row_is_that_of_the_sides_with_a_ratio():
    near = with_published(comparison_of(plausible.result("h100"), plausible.result("mi300x", sequence_length=2048)))
    row = published.published(near).rows[0]
    assert [cell.text for cell in row[6:9]][1:] == ["no ratio", "same work"]


def test_the_sentence_of_a_published_row_names_the_side_it_is_about_where_sides_differ():
    near = with_published(comparison_of(plausible.result("h100"), plausible.result("mi300x", sequence_length=2048)))
    sentence = published.published(near).rows[0][-2].text
    assert sentence.startswith("H100")
    assert "; MI300X: sequence length 8192 against 2048" in sentence


def test_a_tiny_model_is_never_compared_with_published_figures_of_the_real_one():
    tiny = comparison_of(plausible.result("cpu", preset="tiny", seconds=0.21, noise=0.05, runs=3)).sides
    ratios = [against.ratio for row in near_published(tiny) for against in row.against]
    assert ratios
    assert set(ratios) == {None}


def test_a_ratio_is_the_rate_measured_here_over_the_published_one():
    (side,) = comparison_of(plausible.result("h100", runs=2)).sides
    compared = [row for row in near_published([side]) if row.against[0].ratio is not None]
    rates = [row.published.tokens_per_second_per_gpu for row in compared]
    ratios = [row.against[0].ratio for row in compared]
    assert ratios == pytest.approx([side.tokens_per_second_per_gpu.value / rate for rate in rates])
    assert max(ratios) != pytest.approx(1 / max(ratios))


@in_each("expected", [{"num_gpus": 8}, {"gpu": "H100 SXM"}, {"benchmark": "llama"}])
def test_baselines_that_are_chosen_meet_every_condition(expected):
    found = [one.row for one in choose_baselines(bundled(), EntryChoice(**expected)) if one.entry is None]
    every = [one.row for one in baselines() if one.entry is None]
    field, value = {"num_gpus": ("num_gpus", 8), "gpu": ("gpu", "H100 SXM"), "benchmark": ("model", "llama")}[
        next(iter(expected))
    ]
    assert {getattr(row, field) for row in found} == {value}
    assert len(found) == sum(getattr(row, field) == value for row in every)


def test_a_published_mfu_agrees_with_the_tflops_of_its_source_or_is_left_out():
    """The check of the sources by the two conventions that NVIDIA's tables have had, or by the one a row names."""
    kept = left_out = 0
    for one in baselines():
        row, result = one.row, None if one.entry or one.row is None else as_result(one.row)
        if result is None or not (row.tflops_per_gpu and row.tokens_per_second_per_gpu and row.sequence_length):
            continue
        if result.model.shape is None:
            assert one.mfu.value is None
            continue
        conventions = [row.flops_convention] if row.flops_convention else ["megatron", "full_attention"]
        done = [row.tokens_per_second_per_gpu * flops.charged_per_token(result, name) / 1e12 for name in conventions]
        if min(abs(tflops / row.tflops_per_gpu - 1) for tflops in done) > 0.02:
            assert (one.mfu.value, one.mfu.terms) == (None, None)
            assert "TFLOP/s that the source states" in one.mfu.because
            left_out += 1
        elif one.mfu.value is not None:
            assert f"{quantities.rate(row.tokens_per_second_per_gpu)} tokens/s/GPU × " in one.mfu.terms
            kept += 1
    assert kept > 40
    assert left_out > 10


@pytest.mark.parametrize(
    ("name", "peak_tflops"),
    [("Megatron-Bridge_26.08/qwen3-30b-a3b/8xGB300/fp8", 5000), ("NeMo_Automodel/gpt-oss-20b/8xH100_SXM/bf16", 989.4)],
)
def test_a_model_that_the_package_knows_by_name_has_a_published_mfu(name, peak_tflops):
    """Its source's own TFLOP/s over the peak."""
    found = [one for one in baselines() if name in one.name]
    assert found
    for one in found:
        assert one.mfu.value == pytest.approx(one.row.tflops_per_gpu / peak_tflops, rel=0.02)


def test_a_row_without_an_mfu_says_why_in_the_list_too(capsys):
    assert main(["mlperf", "list", "--published", "--json"]) == 0
    listed = loads(capsys.readouterr().out)
    for name, because in (
        (
            "26.04.01/gpt-oss-120b/64xH100_SXM",
            "190.5 TFLOP/s computed from its token rate differ by 20.6 % from the 158 TFLOP/s that the source states",
        ),
        ("kimi-k2", "the dimensions of kimi-k2 are not known"),
        ("Primus/qwen3-235b-a22b", "the source states no precision and no sequence length"),
    ):
        rows = [row for row in listed if name in row["name"]]
        assert rows
        for row in rows:
            assert (row["mfu"], row["mfu_computed_as"]) == (None, None)
            assert row["no_mfu_because"].startswith(because)


def test_every_row_of_megatron_bridge_since_26_04_01_states_its_recipe_and_its_environment():
    for row in catalogue.published_tables():
        if row.framework in ("Megatron-Bridge 26.04.01", "Megatron-Bridge 26.06"):
            assert all((row.recipe, row.environment)), row
            assert ("NVTE_USE_FAST_MATH" in row.environment) == (row.precision == "fp4"), row
            assert (row.environment.get("NCCL_P2P_NET_CHUNKSIZE") == "2097152") == (
                row.model.startswith("llama") and row.peft != "lora" and row.pipeline_model_parallel_size > 1
            ), row


def test_a_recipe_is_a_file_at_a_commit():
    recipes = [row.recipe for row in catalogue.published_tables() if row.recipe]
    assert len(recipes) > 40
    for recipe in recipes:
        assert re.search(r"\S+/\S+\.(py|yaml|toml|json) at [0-9a-f]{7,12}(,|$)", recipe), recipe
