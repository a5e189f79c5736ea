"""GPUs compared by MLPerf Training: time to one target, several submitters, scaling and rounds over time."""

import dataclasses
import json
import math
import random
import re
from pathlib import Path

import pytest
from each import in_each
from matplotlib import image
from matplotlib.figure import Figure

from tensorprimat.analysis import scaling_laws
from tensorprimat.analysis.stats import LogEstimate
from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.mlperf import compare as mlperf_compare
from tensorprimat.mlperf import comparison_report as mlperf_comparison
from tensorprimat.mlperf import library as mlperf_library
from tensorprimat.mlperf import plot as mlperf_plot
from tensorprimat.mlperf import report as mlperf_report
from tensorprimat.mlperf import scaling as mlperf_scaling
from tensorprimat.mlperf.library import Entry, LibraryRun, bundled
from tensorprimat.mlperf.score import Scored


def entry(gpu: str, submitter: str, minutes: float, *, gpus: int = 8, round: str = "v9.1", **facts: object) -> Entry:
    """Return ten runs around a time to train, of which nine tenths are training."""
    times = [60 * minutes * (1 + 0.01 * (number - 4.5)) for number in range(10)]
    runs = tuple(
        LibraryRun(
            file=f"{number}", sha256="", status="success", seconds=time, training_seconds=0.9 * time, samples=1000.0
        )
        for number, time in enumerate(times)
    )
    config = {"division": "closed", "benchmark": "llama31_8b", "sequence_length": 8192, "global_batch_size": 16}
    return Entry(round=round, submitter=submitter, system=f"{gpu}-{gpus}", gpu=gpu, num_gpus=gpus, runs=runs,
                 **{**config, **facts})  # fmt: skip


def test_the_factors_multiply_to_the_ratio_of_minutes():
    whole = [entry for entry in bundled().entries if entry.round == "v5.1"]
    for one in mlperf_compare.compare_gpus(whole, "MI355X", "B200"):
        parts = one.parts
        product = parts["samples"] / parts["rate"] * parts["evaluation_and_set_up"] * parts["scaling"]
        assert product == pytest.approx(math.exp(one.ratio.log), rel=1e-9)


def test_without_the_training_time_of_an_entry_the_rate_includes_evaluation_and_the_factors_still_multiply():
    [one] = mlperf_compare.compare_gpus(
        [entry for entry in bundled().entries if entry.num_gpus == 8], "MI355X", "B300"
    )[-1:]
    assert not any(run.training_seconds for run in one.sides[1].scored[0].entry.runs)
    product = one.parts["samples"] / one.parts["rate_with_evaluation"] * one.parts["scaling"]
    assert product == pytest.approx(math.exp(one.ratio.log), rel=1e-9)


def test_a_side_with_one_submitter_has_a_warning():
    [one] = mlperf_compare.compare_gpus([entry("A", "X", 100), entry("B", "Y", 80)], "A", "B")
    assert math.exp(one.ratio.log) == pytest.approx(1.25)
    assert sum(warning.kind == "one submitter" for warning in one.warnings) == 2
    assert one.level.name == "same_task"


def test_differences_between_submitters_widen_the_interval():
    alone = mlperf_compare.side([entry("A", "X", 100)], "A", "v9.1")
    several = mlperf_compare.side(
        [entry("A", name, at) for name, at in (("X", 100), ("Y", 110), ("Z", 120))], "A", "v9.1"
    )
    assert several.over_submitters == pytest.approx(0.09, abs=0.02)
    assert several.estimate.half_width(0.95) > 3 * alone.estimate.half_width(0.95)
    assert several.minutes == pytest.approx(109.7, rel=0.01)


def test_a_submitter_with_many_systems_has_the_weight_of_one():
    many = [entry("A", "X", 100 + number / 100) for number in range(9)]
    one = mlperf_compare.side([*many, entry("A", "Y", 121)], "A", "v9.1")
    assert one.minutes == pytest.approx(110, rel=0.01)
    assert set(one.weights) == {"X", "Y"}


def test_the_interval_over_submitters_covers_the_mean_at_its_confidence():
    chance = random.Random(7)
    hits = 0
    for _ in range(600):
        means = []
        for _ in range(5):
            error = chance.choice((0.005, 0.01, 0.03))
            log = chance.gauss(0.0, 0.04) + chance.gauss(0.0, error)
            means.append(LogEstimate(log=log, variance=error**2, degrees=7))
        estimate, weights, _ = mlperf_compare._over_submitters(means)
        assert sum(weights) == pytest.approx(1)
        hits += abs(estimate.log) <= estimate.half_width(0.95)
    assert 0.93 <= hits / 600 <= 0.98


def test_runs_that_stop_at_the_same_evaluation_do_not_make_an_interval_narrow():
    equal = entry("A", "X", 100)
    runs = tuple(
        dataclasses.replace(run, seconds=seconds)
        for run, seconds in zip(equal.runs, [5400, *[6000] * 8, 6600], strict=True)
    )
    others = [entry("A", name, at) for name, at in (("Y", 103), ("Z", 96))]
    one = mlperf_compare.side([dataclasses.replace(equal, runs=runs), *others], "A", "v9.1")
    assert one.estimate.half_width(0.95) > 0.02
    assert max(one.weights.values()) < 0.5


def test_open_division_entries_are_not_compared():
    entries = [entry("A", "X", 100), entry("A", "Y", 10, division="open"), entry("B", "Z", 80)]
    [one] = mlperf_compare.compare_gpus(entries, "A", "B")
    assert [scored.entry.submitter for scored in one.sides[0].scored] == ["X"]


def test_gpus_without_a_common_task_are_refused_with_the_tasks_of_each():
    with pytest.raises(UsageError, match=r"A: v9.1 llama31_8b × 8; B: v9.1 llama31_8b × 16"):
        mlperf_compare.compare_gpus([entry("A", "X", 100), entry("B", "Y", 80, gpus=16)], "A", "B")


def test_a_refusal_names_the_round_only_where_another_round_can_help():
    entries = [entry("A", "X", 100), entry("B", "Y", 80, gpus=16)]
    with pytest.raises(UsageError, match=r"in one round \(A: .*; choose rounds with GPU@ROUND"):
        mlperf_compare.compare_gpus(entries, "A", "B")
    with pytest.raises(UsageError, match=r"number of GPUs \(A@v9.1: .*16\)$"):
        mlperf_compare.compare_gpus(entries, "A@v9.1", "B@v9.1")


def test_a_gpu_of_open_entries_alone_is_refused_as_such():
    entries = [entry("A", "X", 100, division="open"), entry("B", "Y", 80, division="open")]
    with pytest.raises(UsageError, match="A: no closed entry of this GPU; there are none"):
        mlperf_compare.compare_gpus(entries, "A", "B")


def test_a_gpu_is_not_compared_with_itself(capsys):
    assert main(["mlperf", "compare", "B200", "NVIDIA B200"]) == 2
    assert "are the same entries; choose a round with GPU@ROUND" in capsys.readouterr().err


def test_the_newest_round_that_holds_both_is_compared_unless_a_round_is_named():
    entries = [entry("A", "X", 100, round="v9.1"), entry("A", "X", 90, round="v10.0"), entry("B", "Y", 80)]
    [one] = mlperf_compare.compare_gpus(entries, "A", "B")
    assert one.sides[0].round == "v9.1"
    [one] = mlperf_compare.compare_gpus(entries, "A@v10.0", "B")
    assert one.sides[0].round == "v10.0"
    assert any("so the software differs" in warning.text for warning in one.warnings)


def test_linear_scaling_has_the_exponent_one_and_does_not_stop():
    entries = [entry("A", "X", 100 * 8 / count, gpus=count) for count in (8, 16, 32, 64)]
    [one] = mlperf_scaling.strong_scalings(entries, 0.95)
    assert one.rate.exponent == pytest.approx(1.0)
    assert [point.efficiency for point in one.points] == pytest.approx([1, 1, 1, 1])
    assert one.stops_at is None


def test_scaling_stops_at_the_number_of_gpus_whose_rate_is_far_below_the_law():
    times = {8: 100.0, 16: 51.0, 32: 26.2, 64: 13.4, 128: 11.0}
    [one] = mlperf_scaling.strong_scalings([entry("A", "X", at, gpus=count) for count, at in times.items()], 0.95)
    assert one.stops_at == 128


@in_each(
    ("times", "end"),
    [
        ({8: 100.0, 16: 70.0, 32: 65.0}, "Three numbers of GPUs are too few to tell whether scaling stops."),
        ({8: 100.0, 16: 51.0, 32: 26.2, 64: 13.4}, "No sign that scaling stops up to 64 GPUs."),
        (
            {8: 100.0, 16: 51.0, 32: 26.2, 64: 13.4, 128: 11.0},
            "Scaling stops at 128 GPUs: all rates there are below the interval predicted from fewer GPUs.",
        ),
    ],
)
def test_the_text_says_where_scaling_stops_or_that_too_few_numbers_of_gpus_tell(times, end):
    found = mlperf_scaling.strong_scalings([entry("A", "X", at, gpus=count) for count, at in times.items()], 0.95)
    assert f" {end}\n" in mlperf_comparison.gpu_text(found, (), 0.95, {})


def test_the_law_that_fits_better_is_taken_with_an_interval_that_holds_the_truth():
    counts = (8, 16, 32, 64, 128)
    noise = (1.01, 0.99, 1.0, 1.012, 0.991)
    for kind, truth, rate in (("power", 0.8, lambda n: n**0.8), ("amdahl", 0.01, lambda n: n / (1 + 0.01 * (n - 1)))):
        law = scaling_laws.best([(n, 3 * rate(n) * e) for n, e in zip(counts, noise, strict=True)], 0.95)
        assert law.kind == kind
        assert law.low < truth < law.high
        assert law.high - law.low < truth
        assert law.at(32) == pytest.approx(3 * rate(32), rel=0.03)
    assert scaling_laws.best([(8, 1.0), (16, 2.0)], 0.95) is None


def test_amdahls_share_of_exact_points_is_found_and_linear_scaling_has_none():
    exact = [(n, 5 * n / (1 + 0.02 * (n - 1))) for n in (4, 8, 16, 64)]
    law = scaling_laws.amdahl(exact, 0.95)
    assert (law.parameter, law.scale) == (pytest.approx(0.02, rel=1e-6), pytest.approx(5, rel=1e-6))
    linear = scaling_laws.amdahl([(n, 5.0 * n) for n in (4, 8, 16)], 0.95)
    assert linear.parameter < 1e-6
    assert linear.low == 0


def test_the_newer_round_of_one_gpu_is_compared_with_the_older_one():
    entries = [entry("A", "X", 100, round="v9.1"), entry("A", "X", 90, round="v10.0")]
    [one] = mlperf_scaling.over_rounds(entries)
    assert (one.sides[0].round, math.exp(one.ratio.log)) == ("v10.0", pytest.approx(0.9))


def test_rounds_over_time_are_listed_from_the_fewest_gpus():
    entries = [entry("A", "X", 100, gpus=gpus, round=round) for gpus in (512, 16, 8) for round in ("v9.1", "v10.0")]
    assert [one.task.num_gpus for one in mlperf_scaling.over_rounds(entries)] == [8, 16, 512]


def test_runs_that_were_submitted_twice_are_not_a_gain_of_software(capsys):
    assert main(["mlperf", "compare", "H200", "--benchmark", "llama31_405b"]) == 0
    assert "v5.1/Nebius/nebius_h200_n64/llama31_405b shares runs with the other side" in capsys.readouterr().out


def test_runs_with_equal_times_in_two_rounds_are_shared_although_their_files_differ(capsys):
    assert main(["mlperf", "compare", "H200", "--benchmark", "llama2_70b_lora", "--gpus", "8"]) == 0
    assert "v5.1/Dell/1xXE9680x8H200-SXM-141GB/llama2_70b_lora shares runs with the other side" in (
        capsys.readouterr().out
    )


def test_an_entry_that_repeats_the_runs_of_another_counts_once_in_every_statistic():
    again = dataclasses.replace(entry("A", "X", 100), system="A-8-POWER")
    once = [
        entry("A", "X", 100),
        entry("A", "X", 108, benchmark="llama31_8b", sequence_length=4096),
        entry("A", "Y", 90),
    ]
    alone, twice = (mlperf_compare.side(some, "A", "v9.1") for some in (once, [again, *once]))
    assert (alone.estimate, alone.over_runs, alone.weights) == (twice.estimate, twice.over_runs, twice.weights)
    assert [one.entry.system for one in twice.repeats] == ["A-8-POWER"]
    others = [entry("A", "X", 60, gpus=16), entry("A", "X", 40, gpus=32)]
    [short], [long] = (mlperf_scaling.strong_scalings([*some, *others], 0.95) for some in (once, [again, *once]))
    assert short.rate == long.rate
    assert [one.entry.system for one in long.repeats] == ["A-8-POWER"]
    assert "A-8-POWER/llama31_8b has the same runs as" in mlperf_comparison.gpu_text([long], [], 0.95, {})


def test_entries_of_the_library_that_repeat_runs_are_named_where_they_are_left_out(capsys):
    said = (
        "v4.1/Dell/8xXE9680x8H100-SXM-80GB-POWER/llama2_70b_lora has the same runs as "
        "v4.1/Dell/8xXE9680x8H100-SXM-80GB/llama2_70b_lora"
    )
    chosen = ["--benchmark", "llama2_70b_lora"]
    for gpu_or_vendor in ("H100", "NVIDIA"):
        assert main(["mlperf", "compare", gpu_or_vendor, *chosen, "--round", "v4.1", "--submitter", "Dell"]) == 0
        assert said in capsys.readouterr().out
    for form in ([], ["--json"]):
        assert main(["project", *chosen, *form]) == 0
        assert said in capsys.readouterr().out


def test_compare_prints_the_sentence_and_its_json_holds_the_same_figures(capsys):
    arguments = ["mlperf", "compare", "MI355X", "B200", "--round", "v5.1", "--benchmark", "llama31_8b", "--gpus", "8"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)
    assert one["sentence"] in printed
    assert one["level"] == "same_task"
    assert one["low"] < one["ratio"] < one["high"]
    assert one["sides"][0]["entries"]["v5.1/AMD/MI355X_EPYC_9575F_pytorch/llama31_8b"] == pytest.approx(
        99.7085, abs=1e-3
    )
    assert "not verified by MLCommons" in printed


def test_both_ends_of_an_interval_have_as_many_digits(capsys):
    assert main(["mlperf", "compare", "H100 SXM@v5.1", "B200@v5.1", "--gpus", "64"]) == 0
    assert "mean 4.45 min (4.20 to 4.73)" in capsys.readouterr().out


def test_a_precision_of_a_configuration_file_is_marked_where_it_is_shown(capsys):
    only = ["--benchmark", "llama31_8b", "--gpus", "8"]
    star = "* from a configuration file of the submission; its logs do not state the precision."
    for arguments in (["list"], ["list", "--published"], ["compare", "MI355X", "GB200", "--round", "v5.1"]):
        assert main(["mlperf", *arguments, *only]) == 0
        printed = capsys.readouterr().out
        marked = [line for line in printed.splitlines() if "/MI355X_EPYC_9575F_pytorch" in line and "FP8*" in line]
        assert marked, arguments
        assert star in printed
    assert main(["mlperf", "show", "MI355X_EPYC_9575F_pytorch/llama31_8b"]) == 0
    assert "fp8, from a configuration file of the submission; its logs do not state" in capsys.readouterr().out
    assert main(["mlperf", "list", *only, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "train.py" in rows["v5.1/AMD/MI355X_EPYC_9575F_pytorch/llama31_8b"]["precision_source"]
    assert rows["v5.1/Dell/XE9785L_8xMI355X/llama31_8b"]["precision_source"] is None


def test_the_precisions_of_two_rounds_of_one_gpu_are_listed_by_round(capsys):
    assert (
        main(["mlperf", "compare", "MI300X@v5.0", "MI300X@v5.1", "--benchmark", "llama2_70b_lora", "--gpus", "8"]) == 0
    )
    warning = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: precision"))
    assert "MI300X v5.0: FP8 in 1 of 4" in warning
    assert "MI300X v5.1: FP8 in 1 of 4" in warning


def test_the_plot_of_two_rounds_of_one_gpu_names_the_round_of_every_entry():
    [one] = mlperf_compare.compare_gpus(
        [entry for entry in bundled().entries if entry.benchmark == "llama2_70b_lora" and entry.num_gpus == 8],
        "MI300X@v5.0",
        "MI300X@v5.1",
    )
    axes = Figure().subplots()
    mlperf_plot._entries(axes, one, 0.95)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert {name.split(",")[0] for name in names} == {"MI300X v5.0", "MI300X v5.1"}


def test_a_precision_that_the_logs_state_is_shown_without_a_mark():
    logged = entry("MI355X", "AMD", 99.0, precision="bf16")
    assert mlperf_report.precision_cell(Scored(logged)) == "BF16"


def test_the_page_shows_the_output_of_its_commands(capsys):
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "mlperf.md").read_text()
    shown = re.findall(r"```bash\ntprimat (mlperf compare [^\n]*)\n```\n\n```text\n(.*?)```", page, re.S)
    assert len(shown) == 3
    for line, text in shown:
        assert main(line.split()) == 0
        assert capsys.readouterr().out == text


@pytest.mark.parametrize(("name", "nodes"), [("nebius_b300_n1/llama2_70b_lora", "1 node"), ("", "2 nodes")])
def test_an_entry_states_its_nodes(name, nodes, capsys):
    name = name or next(one.name for one in bundled().entries if one.num_nodes == 2)
    assert main(["mlperf", "show", name]) == 0
    assert re.search(rf"GPUs .* on {nodes}\n", capsys.readouterr().out)


@in_each("gpu", ["MI300X", "B200", "H100"])
def test_one_gpu_shows_its_scaling(gpu, capsys):
    assert main(["mlperf", "compare", gpu]) == 0
    assert "strong scaling" in capsys.readouterr().out
    assert main(["mlperf", "compare", gpu, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scaling"]


def test_the_scaling_of_one_benchmark_is_drawn_with_its_law_and_batches(tmp_path, capsys):
    plot = tmp_path / "scaling.svg"
    assert main(["mlperf", "compare", "H200", "--benchmark", "llama2_70b_lora", "--plot", str(plot)]) == 0
    assert "Plot:" in capsys.readouterr().err
    drawn = re.findall(r"<!-- (.*?) -->", plot.read_text())
    assert "Strong scaling of H200 SXM on llama2_70b_lora" in drawn
    assert any("scaling stops at 512 GPUs" in text for text in drawn)
    assert "8/16" in drawn


@in_each(
    ("arguments", "named"),
    [
        (["H200"], "name it by --benchmark (llama2_70b_lora, llama31_405b)"),
        (["MI355X", "B200"], "select one with --benchmark and --gpus"),
        (["H200", "--benchmark", "llama31_405b", "--plot", "x.gif"], "must end in .png or .svg"),
    ],
)
def test_a_plot_of_several_tasks_is_refused_with_the_flag_that_names_one(tmp_path, capsys, arguments, named):
    plot = [] if "--plot" in arguments else ["--plot", str(tmp_path / "x.png")]
    assert main(["mlperf", "compare", *arguments, *plot]) == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_picture_of_the_readme_is_drawn_by_the_command_below_it(tmp_path):
    root = Path(__file__).parents[1]
    page = (root / "README.md").read_text()
    [(picture, line)] = re.findall(r"!\[[^\]]*\]\((docs/images/\S+)\)\n\n```bash\ntprimat ([^\n]*)\n```", page)
    command, _, place = line.partition(" --plot ")
    assert place == picture
    assert main([*command.split(), "--plot", str(tmp_path / "drawn.png")]) == 0
    shown, drawn = (image.imread(path) for path in (root / picture, tmp_path / "drawn.png"))
    assert shown.shape == drawn.shape
    assert float(abs(shown - drawn).mean()) < 0.02  # fonts differ by a pixel from version to version


def test_every_picture_of_the_documentation_is_on_a_page():
    docs = Path(__file__).parents[1] / "docs"
    pages = "".join(page.read_text() for page in docs.rglob("*.md"))
    assert {path.name for path in (docs / "images").iterdir()} == set(re.findall(r"\]\([./]*images/(\S+)\)", pages))


def test_the_sentence_below_the_readmes_picture_is_the_one_that_the_command_prints(capsys):
    page = " ".join((Path(__file__).parents[1] / "README.md").read_text().split())
    assert main(["mlperf", "compare", "MI355X", "B300", "--benchmark", "llama31_8b", "--gpus", "8"]) == 0
    assert capsys.readouterr().out.splitlines()[1] in page


@in_each("typed", ["0%", "30%", "100%", "150%"])
def test_a_confidence_without_an_interval_is_refused_as_it_was_typed(typed, capsys):
    assert main(["mlperf", "compare", "MI355X", "B200", "--confidence", typed]) == 2
    says = f"tprimat mlperf: --confidence {typed}: must be at least 50 % and below 100 %, such as 95%\n"
    assert capsys.readouterr().err == says


def like(one: Entry, submitter: str, minutes: float) -> Entry:
    """Return the entry of a submitter whose runs all took the same time."""
    runs = tuple(dataclasses.replace(run, seconds=60 * minutes, training_seconds=54 * minutes) for run in one.runs)
    return dataclasses.replace(one, submitter=submitter, runs=runs)


@in_each("submitters", [("X",), ("X", "Y"), ("X", "Y", "Z")])
def test_runs_with_equal_times_give_no_interval_rather_than_one_without_width(submitters):
    equal = [like(entry("A", name, 100), name, 100.1 + 0.3) for name in submitters]
    [one] = mlperf_compare.compare_gpus([*equal, entry("B", "W", 80)], "A", "B")
    assert math.isinf(one.sides[0].estimate.variance)
    assert math.isinf(one.ratio.variance)
    assert one.sides[0].minutes == pytest.approx(100.4)
    because = "A v9.1: no interval, because the runs of each entry have equal times, so their scatter is unknown"
    assert [warning.text for warning in one.warnings if warning.kind == "no interval"] == [because]
    assert "1.25x the time (no interval)" in mlperf_comparison.comparison_text([one], 0.95, {})
    assert (document := json.loads(mlperf_comparison.as_json([one], 0.95, {}))[0])["low"] is None
    assert document["sides"][0]["low"] is None
    assert all(Scored(one).estimate is None for one in equal)


def test_equal_minutes_of_submitters_whose_runs_scatter_have_an_interval():
    side = mlperf_compare.side([entry("A", name, 100) for name in ("X", "Y")], "A", "v9.1")
    assert side.estimate.half_width(0.95) > 0.05


def test_equal_minutes_without_a_known_scatter_of_runs_have_no_interval():
    unknown = LogEstimate(log=4.6, variance=math.inf, degrees=1)
    estimate, weights, between = mlperf_compare._over_submitters([unknown, unknown])
    assert (math.isinf(estimate.variance), weights, between) == (True, [0.5, 0.5], 0.0)
    estimate, _, _ = mlperf_compare._over_submitters([unknown, dataclasses.replace(unknown, log=4.7)])
    assert estimate.half_width(0.95) > 0.5


@in_each(
    ("field", "number"),
    [("scaling_factor", -1.0), ("scaling_factor", 0), ("scaling_factor", math.nan), ("scaling_factor", 1e300),
     ("num_gpus", -8), ("num_gpus", True), ("sequence_length", -5), ("global_batch_size", -3)],
)  # fmt: skip
def test_a_library_with_a_number_that_no_submission_has_is_refused_in_one_line(field, number, tmp_path, capsys):
    entries = tuple(dataclasses.replace(one, **{field: number}) for one in bundled().entries[:2])
    path = tmp_path / "library.jsonl"
    path.write_text(mlperf_library.dump(mlperf_library.Library(entries=entries)))
    assert main(["mlperf", "list", "--library", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"{path}:2: not an entry of a library of MLPerf results ({field}: Input should be " in err
    assert err.count("\n") == 1


def test_the_rounds_of_a_library_may_have_any_name():
    assert mlperf_compare.version("v\N{SUPERSCRIPT TWO}.1") == (0, 1)


def test_a_price_gives_the_dollars_of_a_training_and_their_ratio_with_its_interval(capsys):
    flags = ["--round", "v5.1", "--benchmark", "llama31_8b", "--gpus", "8", "--price", "MI355X=2.50,B200=4,L40S=1"]
    assert main(["mlperf", "compare", "MI355X", "B200", *flags, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "--price L40S=1: no entry is of this GPU\n"
    (document,) = json.loads(printed.out)
    for one, usd in zip(document["sides"], (2.5, 4.0), strict=True):
        assert one["cost_usd"] == pytest.approx(one["minutes"] / 60 * 8 * usd, rel=1e-3)
    for cost, time in (("cost_ratio", "ratio"), ("cost_low", "low"), ("cost_high", "high")):
        assert document[cost] == pytest.approx(document[time] * 2.5 / 4, rel=1e-2)
    assert main(["mlperf", "compare", "MI355X", "B200", *flags]) == 0
    says = (
        "A training costs $34.69 on MI355X ($2.50 per GPU-hour) and $46.16 on B200 ($4.00 per GPU-hour): 0.75x the cost"
    )
    assert says in capsys.readouterr().out


def test_a_price_gives_the_dollars_of_one_gpus_entries_and_of_a_vendors_and_no_other_action_takes_it(capsys):
    task = ["--benchmark", "llama2_70b_lora", "--gpus", "8"]
    assert main(["mlperf", "compare", "MI300X@v5.0", "MI300X@v5.1", *task, "--price", "2"]) == 0
    assert "on MI300X in v5.1 ($2.00 per GPU-hour)" in capsys.readouterr().out
    assert main(["mlperf", "compare", "AMD", "NVIDIA", *task, "--price", "GB300=6", "--json"]) == 0
    costs = {(one["gpu"], one["round"]): one["cost_usd"] for one in json.loads(capsys.readouterr().out)}
    assert costs["GB300", "v5.1"] == pytest.approx(5.97 / 60 * 8 * 6, rel=0.01)
    assert costs["MI355X", "v6.0"] is None
    assert main(["mlperf", "compare", "B200", "--benchmark", "llama31_8b", "--price", "4"]) == 0
    assert "   8     84.4  $45.00 " in capsys.readouterr().out
    assert main(["mlperf", "list", "--price", "4"]) == 2
    assert "--price belongs to compare, not to list" in capsys.readouterr().err
