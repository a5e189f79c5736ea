"""`tprimat enhance` and `tprimat metrics`, their scripts at the top level, and what they write."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import plausible
import pytest

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, PowerMetrics, Result, TrainingConfig
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.models import presets
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]


def saved(folder, platform, device, step_seconds, *, stamp, model="llama", preset="full", **config):
    """Return a result file of 21 equal steps after a slow first one, with memory and, on AMD, measured power."""
    rows = np.arange(1, 23)
    seconds = np.where(rows == 1, 3 * step_seconds, step_seconds)
    columns = {"index": rows, "seconds": seconds, "memory_reserved_peak_bytes": np.full(len(rows), 70e9)}
    if platform == "amd":
        columns["power_watts_per_gpu"] = np.full(len(rows), 690.0)
    facts = {
        "global_batch_size": 128,
        "micro_batch_size": 1,
        "sequence_length": 8192,
        "num_gpus": 8,
        "precision": "bf16",
        **config,
    }
    result = Result(
        platform=platform,
        gpu_info=GpuInfo(device_name=device, device_count=8),
        timestamp="2026-11-20T10:00:00",
        model=Model(name=model, preset=preset, shape=presets.find_preset(model, preset).shape),
        training_config=TrainingConfig(**facts),
        performance_metrics=PerformanceMetrics(),
        power_metrics=PowerMetrics() if platform == "amd" else None,
        steps=Steps(columns),
        provenance=Provenance(engine="nemo", timing="measured"),
    )
    return store.save(summarise(result), folder, stamp=stamp)


@pytest.fixture
def results(tmp_path):
    """Llama on eight H100 and on eight MI300X: the same work."""
    folder = tmp_path / "results"
    folder.mkdir()
    saved(folder, "nvd", "NVIDIA H100 80GB HBM3", 10.0, stamp="1")
    saved(folder, "amd", "AMD Instinct MI300X", 12.5, stamp="2")
    return folder


def enhance(*arguments, picture=False):
    words = [*map(str, arguments), *([] if picture else ["--no-plot"])]
    return main(["enhance", *words], program="compare_with_enhanced_metrics.py")


def written(folder):
    return json.loads((folder / "enhanced_metrics.json").read_text())


def side(document, platform):
    return next(row for row in document["results"] if row["platform"] == platform)


def test_the_terminal_ends_with_the_headline_again(results, capsys):
    assert main(["enhance", str(results), "--output-dir", str(results / "report"), "--no-plot"]) == 0
    answer, *_, last = [part.strip() for part in capsys.readouterr().out.split("\n\n") if part.strip()]
    assert answer == last


def test_results_are_compared_side_by_side_and_written(results, tmp_path, capsys):
    assert enhance(results, "--output-dir", tmp_path / "report", picture=True) == 0
    shown = capsys.readouterr()
    assert "Llama-3.1-8B" in shown.out
    assert "H100" in shown.out
    assert "\x1b" not in shown.out  # plain when piped
    assert "Written to" in shown.err
    report = (tmp_path / "report" / "enhanced_report.md").read_text()
    assert "| MFU | 68.2 % | 41.3 % |" in report
    assert "| price | &#36;2.99/h | &#36;1.85/h |" in report  # a dollar sign would open mathematics
    assert "megatron convention, 989.4 TFLOP/s (dense bf16 peak)" in report
    assert "power per GPU: nameplate" in report
    assert "power per GPU: measured" in report
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "enhanced_report.md", "enhanced_report.html", "enhanced_metrics.json", "enhanced_metrics.csv",
        "enhanced_plot.png", "enhanced_plot.svg",
    }  # fmt: skip
    page = (tmp_path / "report" / "enhanced_report.html").read_text()
    for text in (page, report, shown.out):  # one comparison in every form: verdict, results, metrics
        assert "MI300X measured 0.80x the tokens/s/GPU" in " ".join(text.split())
        for title in (
            "Efficiency",
            "Memory",
            "Energy, cost and time",
            "Training on 1 T tokens",
            "Return on investment",
        ):
            assert title in text
        assert "power per GPU: nameplate" in text


def test_json_holds_flat_values_the_old_name_and_the_origin_of_each_figure(results, tmp_path):
    enhance(results, "--output-dir", tmp_path)
    h100 = side(written(tmp_path), "nvd")
    assert h100["tokens_per_dollar_hour"] == h100["tokens_per_dollar"] == pytest.approx(13_107.2 * 3600 / 2.99)
    mfu = h100["metrics"]["mfu"]
    assert mfu["value"] == h100["mfu"]
    assert [item["name"] for item in mfu["inputs"]] == ["tokens/s/GPU", "FLOPs per token", "dense bf16 peak"]
    assert mfu["inputs"][2]["value"] == 989.4
    assert h100["metrics"]["hfu"] == {
        "value": None,
        "unit": "fraction",
        "reason": "activation recomputation is not stated",
        "remark": None,
        "formula": "MFU with the FLOPs of recomputed activations",
        "inputs": h100["metrics"]["hfu"]["inputs"],
    }


def test_json_on_stdout_is_the_file(results, tmp_path, capsys):
    assert enhance(results, "--output-dir", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == written(tmp_path)


def test_prices_convention_and_budget_come_from_the_user(results, tmp_path):
    enhance(
        results, "--output-dir", tmp_path, "--price", "H100=2", "--price", "MI300X=1.5", "--flops", "PALM",
        "--budget-tokens", "15e12",
    )  # fmt: skip
    document = written(tmp_path)
    assert document["flops_convention"] == "palm"
    assert document["budget_tokens"] == 15e12
    h100, mi300x = side(document, "nvd"), side(document, "amd")
    assert (h100["price_usd_per_gpu_hour"], mi300x["price_usd_per_gpu_hour"]) == (2, 1.5)
    assert h100["budget_cost_usd"] == pytest.approx(15 * h100["cost_usd_per_trillion_tokens"])
    assert h100["flops_per_token"] == 61_066_469_376


def test_one_option_takes_several_prices(results, tmp_path):
    enhance(results, "--output-dir", tmp_path, "--price", "H100=2,MI300X=1.5")
    assert [side(written(tmp_path), one)["price_usd_per_gpu_hour"] for one in ("nvd", "amd")] == [2, 1.5]


@pytest.mark.parametrize("stated", [(), ("--price", "H100=2")])
def test_prices_of_unlike_sources_are_shown_and_give_no_winner(results, tmp_path, stated):
    enhance(results, "--output-dir", tmp_path, *stated, picture=True)
    document = written(tmp_path)
    (against,) = document["returns"]
    assert against["budget_saving_usd"] is None
    assert "different sources" in against["metrics"]["budget_saving_usd"]["reason"]
    assert all(side(document, one)["cost_usd_per_trillion_tokens"] for one in ("nvd", "amd"))
    svg = (tmp_path / "enhanced_plot.svg").read_text()
    assert "Cost of 1 T tokens (lower" not in svg


def test_break_even_is_the_price_at_which_a_token_costs_the_same(results, tmp_path):
    enhance(results, "--output-dir", tmp_path, "--price", "H100=2", "--price", "MI300X=1")
    document = written(tmp_path)
    (against,) = document["returns"]
    assert (against["baseline"], against["candidate"]) == ("H100", "MI300X")
    assert against["break_even_price_usd_per_gpu_hour"] == pytest.approx(2 * 10.0 / 12.5)
    h100, mi300x = side(document, "nvd"), side(document, "amd")
    assert against["budget_saving_usd"] == pytest.approx(h100["budget_cost_usd"] - mi300x["budget_cost_usd"])
    assert against["budget_saving_usd"] > 0


def test_results_of_different_work_have_no_break_even_price(results, tmp_path):
    saved(results, "amd", "AMD Instinct MI300X", 3.0, stamp="3", sequence_length=2048)
    enhance(results, "--output-dir", tmp_path)
    against = next(one for one in written(tmp_path)["returns"] if "2048" in one["candidate"])
    assert against["budget_saving_usd"] is None
    reason = against["metrics"]["break_even_price_usd_per_gpu_hour"]["reason"]
    assert reason.startswith("Not comparable: sequence length 8192 against 2048")


def test_a_saving_without_a_price_names_the_side_that_lacks_it(results, tmp_path):
    saved(results, "amd", "AMD Instinct MI355X", 6.0, stamp="3")
    enhance(results, "--output-dir", tmp_path)
    without = next(one for one in written(tmp_path)["returns"] if one["candidate"] == "MI355X")
    assert without["break_even_price_usd_per_gpu_hour"] is not None  # only the baseline's price is needed
    assert without["metrics"]["budget_saving_usd"]["reason"].startswith("MI355X: no price of MI355X")


def test_a_price_for_a_device_that_no_result_has_is_a_warning(results, tmp_path):
    assert enhance(results, "--output-dir", tmp_path, "--price", "L40S=1", "--price", "H100=2,MI300X=1") == 0
    assert written(tmp_path)["warnings"] == [
        "--price L40S=1: no side has this name, and no result is from such a device"
    ]


def test_a_tiny_model_is_never_called_by_the_real_ones_name(tmp_path, capsys):
    saved(tmp_path, "cpu", "Some CPU", 0.2, stamp="1", preset="tiny", num_gpus=1)
    assert enhance(tmp_path, "--output-dir", tmp_path / "report") == 0
    shown = capsys.readouterr().out
    assert "Llama-3.1 tiny" in shown
    assert "8B" not in shown
    assert "no peak FLOP/s is known for this CPU" in shown


def test_long_names_of_sides_leave_room_for_the_names_of_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for size in (1, 8):
        split = {"micro_batch_size": size, "gradient_accumulation_steps": 16 // size}
        saved(tmp_path, "amd", "AMD Instinct MI300X", 10.0, stamp=str(size), **split)
    assert enhance(tmp_path) == 0
    assert "tokens per watt-hour" in capsys.readouterr().out


def test_reasons_of_missing_figures_are_reported_once(results, tmp_path, capsys):
    saved(results, "nvd", "NVIDIA Rubin", 5.0, stamp="3", model="qwen")
    enhance(results, "--output-dir", tmp_path)
    report = (tmp_path / "enhanced_report.md").read_text()
    assert report.count("- no MFU, share of best matrix rate: NVIDIA Rubin is not in the catalogue of GPUs") == 1
    capsys.readouterr()


def test_untrusted_names_are_harmless_in_every_output(results, tmp_path, capsys):
    saved(results, "nvd", "H100\x1b[2J|<script>", 5.0, stamp="3", model="qwen")
    assert enhance(results, "--output-dir", tmp_path, "--explain", picture=True) == 0
    assert "\x1b" not in capsys.readouterr().out
    for name in ("enhanced_report.md", "enhanced_plot.svg"):
        text = (tmp_path / name).read_text()
        assert "\x1b" not in text
        assert "<script>" not in text
    assert "\x1b" not in (tmp_path / "enhanced_metrics.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--price", "H100"], '--price H100: write it like "H100=2.10"'),
        (["--price", "H100=-1"], '--price H100=-1: write it like "H100=2.10"'),
        (["--price", "H100=2,10"], '--price H100=2,10: write it like "H100=2.10,MI300X=1.85"'),
        (["--price", "=3"], '--price =3: write it like "H100=2.10"'),
        (["--price", "H100=nan"], '--price H100=nan: write it like "H100=2.10"'),
        (["--flops", "chinchilla"], "no FLOPs convention 'chinchilla'"),
        (["--budget-tokens", "many"], "--budget-tokens many: must be a number of tokens"),
        (["--budget-tokens", "0"], "--budget-tokens 0: must be a number of tokens"),
    ],
)
def test_a_wrong_flag_is_reported_in_one_line_and_nothing_is_written(arguments, message, results, tmp_path, capsys):
    assert enhance(results, "--output-dir", tmp_path / "report", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "report").exists()


def test_metrics_of_one_result_are_shown_with_their_inputs(results, capsys):
    file = next(results.glob("*rocm*.json"))
    assert main(["metrics", str(file), "--price", "1.85"]) == 0
    brief = capsys.readouterr().out
    assert "MI300X: figures" in brief
    assert "$1.85/h" in brief
    assert main(["metrics", str(file), "--price", "1.85", "--explain"]) == 0
    explained = capsys.readouterr().out
    assert "ml-engineering" in " ".join(explained.split())
    assert len(brief.splitlines()) < len(explained.splitlines()) / 2
    assert main(["metrics", str(file), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 1


def test_the_return_on_investment_uses_the_same_baseline_as_the_verdict(results, tmp_path):
    saved(results, "nvd", "NVIDIA H100 80GB HBM3", 21.0, stamp="3", global_batch_size=256)
    saved(results, "amd", "AMD Instinct MI300X", 25.0, stamp="4", global_batch_size=256)
    enhance(results, "--output-dir", tmp_path)
    against = {one["candidate"]: one["baseline"] for one in written(tmp_path)["returns"]}
    assert against == {f"MI300X (batch {n})": f"H100 (batch {n})" for n in (128, 256)}


def test_a_picture_without_any_metric_is_an_error(tmp_path, capsys):
    file = tmp_path / "money.png"
    result = store.save(plausible.means_only("cpu"), tmp_path, stamp="1")
    assert enhance(result, "--output-dir", file) == 2
    assert "nothing to draw" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("script", ["compare_with_enhanced_metrics.py --no-plot", "enhanced_metrics.py"])
def test_the_scripts_run_as_programs(script, results, tmp_path):
    script, *flags = script.split()
    file = next(results.glob("*cuda*.json"))
    ran = subprocess.run(
        [sys.executable, ROOT / script, file, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "Llama-3.1-8B" in ran.stdout
    assert (tmp_path / "output" / "enhanced_report.md").exists() == (script != "enhanced_metrics.py")


def test_functions_can_be_imported_from_the_script(results):
    sys.path.insert(0, str(ROOT))
    try:
        import enhanced_metrics
    finally:
        sys.path.remove(str(ROOT))
    assert all(hasattr(enhanced_metrics, name) for name in enhanced_metrics.__all__)
    per_token = enhanced_metrics.calculate_flops_per_token("llama", 8192)
    assert enhanced_metrics.calculate_mfu(10_000, per_token, 989.4) == pytest.approx(0.5202, abs=1e-4)
    assert enhanced_metrics.get_gpu_specs("NVIDIA L40S").peak("bf16").value == 362
    file = next(results.glob("*cuda*.json"))
    with pytest.raises(UsageError, match="must be more than 0"):
        enhanced_metrics.calculate_enhanced_metrics(file, usd_per_gpu_hour=-2.0)
    with pytest.raises(UsageError, match="sequence length of 0"):
        enhanced_metrics.calculate_flops_per_token("llama", 0)
    values = enhanced_metrics.calculate_enhanced_metrics(file, usd_per_gpu_hour=2.0)
    assert values["price_usd_per_gpu_hour"] == 2.0
    assert values["mfu"] == pytest.approx(0.6819, abs=1e-3)


def test_the_tables_of_the_enhanced_comparison_are_named_by_their_content(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for number, device in enumerate(("H100", "B200", "H200")):
        saved(tmp_path / device, "nvd", f"NVIDIA {device}", 10.0 + number, stamp=str(number))
    saved(tmp_path / "MI300X", "amd", "AMD Instinct MI300X", 10.0, stamp="9")
    folders = [str(tmp_path / name) for name in ("H100", "B200", "H200", "MI300X")]
    assert main(["enhance", *folders, "--no-plot", "--output-dir", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    lines = [line.strip() for line in shown.splitlines()]
    for title in ("Efficiency", "Memory", "Energy, cost and time"):
        assert title in lines
    assert max(map(len, shown.splitlines())) <= 80
    words = {word for line in lines for word in line.split()}
    assert {"utilisation,", "watt-hour", "tokens/s/GPU"} <= words, "no label breaks inside a word"
    report = (tmp_path / "out" / "enhanced_report.md").read_text()
    assert "Energy, cost and time" in report


IMPOSSIBLE = "MFU of 162 % (dense bf16 peak 989.4 TFLOP/s), which is impossible; check --sequence-length"


@pytest.mark.parametrize("command", ["enhance", "metrics"])
def test_a_figure_that_cannot_be_true_is_an_error_above_all_others(tmp_path, capsys, command):
    path = saved(tmp_path, "nvd", "NVIDIA H100 80GB HBM3", 4.2, stamp="20261120_100000_000000")
    output = ["--output-dir", str(tmp_path / "o"), "--no-plot"] if command == "enhance" else []
    assert main([command, str(path), *output]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Error: NVIDIA H100 80GB HBM3: ")
    assert IMPOSSIBLE in " ".join(printed.split())
    assert main([command, str(path), *output, "--json"]) == 0
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert IMPOSSIBLE in error
    if command == "enhance":
        report = (tmp_path / "o" / "enhanced_report.md").read_text()
        assert report.index("Error: ") < report.index("## Llama")


def test_named_arguments_are_the_sides_as_in_compare(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "old", "nvd", "NVIDIA H100", 5.0, stamp="1")
    saved(tmp_path / "new", "nvd", "NVIDIA H100", 4.0, stamp="2")
    assert main(["enhance", "before=old", "after=new", "--no-plot", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["label"] for result in results] == ["before", "after"]
