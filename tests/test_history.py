"""`tprimat history`: series per machine and model, and the changes in them."""

import csv
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from plausible import means_only, result

from tensorprimat.analysis.history import metric_history
from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.core.provenance import Source
from tensorprimat.reports.plots.comparison import history_plot
from tensorprimat.storage.store import Loaded, to_json


def on_day(day, **options):
    """Return a benchmark of one day of a November."""
    one = result("h100", **{"runs": 3, "seed": day, **options})
    stamps = [f"2025-11-{day:02}T{10 + run.index}:00:00+00:00" for run in one.runs]
    runs = tuple(run.model_copy(update={"started_at": stamp}) for run, stamp in zip(one.runs, stamps, strict=True))
    return one.model_copy(update={"timestamp": stamps[0], "runs": runs})


def files(results):
    return [Loaded(path=Path(f"{number:02}.json"), result=one) for number, one in enumerate(results)]


def changes(results, **options):
    (series,), _ = metric_history(files(results), **options)
    return [entry.change for entry in series.entries]


def test_a_named_file_that_cannot_be_read_is_reported_beside_results(tmp_path, capsys):
    folder = tmp_path / "results"
    (folder / "history").mkdir(parents=True)
    (folder / "history" / "one.json").write_text(to_json(on_day(1)))
    (tmp_path / "broken.json").write_text("{")
    flags = ("--no-plot", "--output-dir", str(tmp_path / "out"))
    assert main(["history", str(folder), *flags]) == 0
    assert "left out" not in capsys.readouterr().err, "its history holds what the folder lacks"
    assert main(["history", str(folder), str(tmp_path / "broken.json"), str(tmp_path / "absent"), *flags]) == 0
    complaints = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out: ")]
    assert ["broken.json" in complaints[0], "absent" in complaints[1], len(complaints)] == [True, True, 2]


def test_a_steady_machine_shows_no_change():
    assert changes([on_day(day) for day in range(1, 15)]) == [None] * 14


def test_a_result_without_the_copy_of_its_first_run_stands_at_its_next_run():
    whole = on_day(3)
    later = tuple(
        run.model_copy(update={"started_at": f"2025-11-0{4 + run.index}T10:00:00+00:00"}) for run in whole.runs
    )
    pooled = whole.model_copy(update={"runs": (whole.runs[0], *later[1:])})
    alone = result("h100", runs=1, seed=3)
    alone = alone.model_copy(update={"runs": (alone.runs[0].model_copy(update={"started_at": whole.timestamp}),)})
    (series,), warnings = metric_history(files([alone, pooled, on_day(4)]))
    assert any("counted once" in warning for warning in warnings)
    assert [entry.at[:10] for entry in series.entries] == ["2025-11-03", "2025-11-04", "2025-11-05"]


def test_a_slowdown_is_shown_where_it_happens_and_only_there():
    found = changes([on_day(day, seconds=12.8 if day < 8 else 13.5) for day in range(1, 15)])
    assert [place for place, change in enumerate(found) if change is not None] == [7]
    assert found[7] == pytest.approx(-0.052, abs=0.005)


def test_a_change_after_seven_single_runs_is_shown_where_it_happens():
    found = changes([on_day(day, runs=1, seconds=12.8 if day < 8 else 13.5) for day in range(1, 12)])
    assert [place for place, change in enumerate(found) if change is not None] == [7]


def test_days_that_differ_more_than_runs_do_are_not_changes():
    random = np.random.default_rng(2)
    alarms = sum(
        change is not None
        for _ in range(20)
        for change in changes(
            [
                on_day(day, runs=2, steps=8, seconds=12.8 * (1 + 0.02 * random.standard_normal()), losses=False)
                for day in range(1, 12)
            ]
        )
    )
    assert alarms <= 10  # of 200; judged by the scatter of runs, a tenth of that of days, nearly all would alarm


def test_benchmarks_are_in_the_order_of_time_whatever_their_file_is_called():
    (series,), _ = metric_history(files([on_day(9), on_day(3), on_day(6)]))
    assert [entry.at[:10] for entry in series.entries] == ["2025-11-03", "2025-11-06", "2025-11-09"]


def test_benchmarks_of_two_time_zones_are_in_the_order_of_time():
    moments = ["2026-01-01T15:00:00+00:00", "2026-01-01T23:00:00+09:00", "2026-01-01T14:30:00"]
    days = [on_day(1, seed=seed, runs=1) for seed in range(3)]
    results = [
        day.changed(timestamp=moment, runs=tuple(run.changed(started_at=moment) for run in day.runs))
        for day, moment in zip(days, moments, strict=True)
    ]
    (series,), _ = metric_history(files(results))
    assert [entry.at for entry in series.entries] == [moments[1], moments[2], moments[0]]


def test_the_latest_file_and_its_copy_are_one_benchmark():
    (series,), left_out = metric_history(files([on_day(1), on_day(2), on_day(2)]))
    assert len(series.entries) == 2
    assert len(left_out) == 1


def test_a_result_of_a_log_without_dates_and_its_copy_are_one_benchmark():
    log = Source(file="a.log", size_bytes=9, sha256="0" * 64)
    undated = on_day(1).changed(timestamp=None)
    undated = undated.changed(
        runs=tuple(run.changed(started_at=None) for run in undated.runs),
        provenance=undated.provenance.changed(sources=(log,)),
    )
    other = undated.changed(provenance=undated.provenance.changed(sources=(log.changed(sha256="1" * 64),)))
    (series,), left_out = metric_history(files([undated, undated, other]))
    assert (len(series.entries), len(left_out)) == (2, 1)


def test_configurations_and_models_are_series_of_their_own_but_versions_are_not():
    upgraded = on_day(2)
    gpu = upgraded.gpu_info.model_copy(update={"software_version": "13.0"})
    upgraded = upgraded.model_copy(update={"gpu_info": gpu})
    series, _ = metric_history(files([on_day(1), upgraded, on_day(3, precision="fp8"), on_day(4, model="qwen")]))
    assert [(one.label, len(one.entries)) for one in series] == [
        ("H100 · llama · BF16", 2),
        ("H100 · llama · FP8", 1),
        ("H100 · qwen", 1),
    ]


def test_the_version_of_a_framework_follows_the_library_that_has_it(tmp_path, capsys):
    one = on_day(1)
    config = {"framework": "transformers on Lightning", "framework_version": "5.23.0"}
    trained = one.model_copy(update={"training_config": one.training_config.model_copy(update=config)})
    (tmp_path / "one.json").write_text(to_json(trained))
    assert main(["history", str(tmp_path), "--no-plot", "--output-dir", str(tmp_path / "out")]) == 0
    assert "transformers 5.23.0 on Lightning" in " ".join(capsys.readouterr().out.split())


def test_a_metric_that_nothing_has_is_an_error():
    silent = result("h100", global_batch_size=None, sequence_length=None)
    with pytest.raises(InputError, match="samples_per_second"):
        metric_history(files([silent]), metric="samples_per_second")


@cache
def ten_days():
    """Return the texts of the results of ten days, of which the last five are slower."""
    return [to_json(on_day(day, seconds=12.8 if day < 6 else 14.0)) for day in range(1, 11)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "history").mkdir()
    for day, text in enumerate(ten_days(), start=1):
        (tmp_path / "history" / f"benchmark_cuda_llama_{day:02}.json").write_text(text)
    (tmp_path / "benchmark_cuda_llama.json").write_text(text)
    return tmp_path


def test_the_command_shows_a_table_and_writes_csv_and_a_picture(folder, capsys):
    assert main(["history", str(folder), "--output-dir", str(folder / "out")]) == 0
    shown = capsys.readouterr()
    assert "2025-11-06" in shown.out
    assert "−8." in shown.out
    assert "1 file not shown" in shown.err  # the latest file is also in the history
    with open(folder / "out" / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert [row["timestamp"][:10] for row in rows if row["change"]] == ["2025-11-06"]
    assert (folder / "out" / "history.png").read_bytes().startswith(b"\x89PNG")


def test_one_model_and_another_metric_can_be_chosen(folder, capsys):
    flags = ["--model", "LLAMA", "--metric", "avg_step_time_seconds", "--no-plot", "--output-dir", str(folder / "out")]
    assert main(["history", str(folder), *flags]) == 0
    assert "avg step time seconds" in capsys.readouterr().out
    assert not (folder / "out" / "history.png").exists()


def test_a_picture_that_is_named_is_drawn_or_says_what_it_needs(folder, capsys, monkeypatch):
    file = folder / "out.png"
    assert main(["history", str(folder), "--no-plot", "--output-dir", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["history", str(folder), "--output-dir", str(folder / "other.svg")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not (folder / "other.svg").exists()


@pytest.mark.parametrize("flags", [["--metric", "speed"], ["--model", "gpt"]])
def test_a_wrong_flag_is_named(folder, flags, capsys):
    assert main(["history", str(folder), *flags]) == 2
    assert flags[0] in capsys.readouterr().err


def test_a_folder_without_results_is_named(tmp_path, capsys):
    assert main(["history", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_result_without_steps_that_is_read_twice_is_one_benchmark():
    one = means_only("h100").changed(timestamp="2026-01-01T00:00:00")
    twice = [Loaded(path=Path(f"{name}.json"), result=one) for name in "ab"]
    other = one.changed(performance_metrics=one.performance_metrics.changed(avg_step_time_seconds=9.9))
    later = Loaded(path=Path("c.json"), result=other)
    [series], warnings = metric_history([*twice, later], metric="avg_step_time_seconds")
    assert len(series.entries) == 2
    assert warnings == ["b.json: left out, another file holds its runs"]


def test_the_plot_names_its_unit_and_interval_and_no_negative_rate():
    days = [on_day(1, seconds=0.05), on_day(2, runs=2, seconds=0.05, run_noise=0.3)]
    all_series, _ = metric_history(files(days))
    svg = history_plot(all_series, ("svg",))["svg"].decode()
    texts = re.findall(r"<!-- (.*?) -->", svg)
    assert {"tokens/s/GPU", "with 95 % intervals", "0"} <= set(texts)
    assert not [text for text in texts if text.startswith("\N{MINUS SIGN}")]
    assert any("," in text for text in texts)
    single, _ = metric_history(files([on_day(1, runs=1)]))
    assert b"intervals" not in history_plot(single, ("svg",))["svg"]


def with_host(one, host, commit):
    """Return a result of a machine, whose repository is at a commit where the machine's name is odd, else a package."""
    config = one.training_config.changed(versions={"nemo": f"2.1 (git {commit})"})
    own = f"a{commit[1:]}" if host.startswith("<") else None
    return one.changed(provenance=one.provenance.changed(host=host, commit=own), training_config=config)


@cache
def days_of_two_hosts():
    """Return the results of twelve days by the name of their file; one host gets slower after six days."""
    texts = {}
    for place, host in enumerate(("node-a", "<b>node")):
        for day in range(1, 13):
            seconds = 12.8 * (1.1 if day > 6 and not place else 1)
            one = with_host(on_day(day, seconds=seconds, seed=100 * place + day), host, f"{day:012x}")
            texts[f"{place}-{day:02}.json"] = to_json(one)
    return texts


@pytest.fixture
def page(tmp_path, capsys):
    """Return a function that writes the page of some arguments, and returns its text and JSON lines."""
    for name, text in days_of_two_hosts().items():
        (tmp_path / name).write_text(text)

    def write(*arguments):
        out = tmp_path / "out"
        code = main(["history", *map(str, arguments), "--html", "--no-plot", "--output-dir", str(out)])
        assert code == 0, capsys.readouterr().err
        return (out / "history.html").read_text(), (out / "history.jsonl").read_text()

    return write


def test_the_page_marks_changes_links_commits_and_keeps_machines_apart(page, tmp_path):
    text, lines = page(*sorted(tmp_path.glob("*.json")), "--commit-url", "https://host/c/{}")
    assert re.findall("<h2>(.*?)</h2>", text) == [
        f"{host} · NVIDIA H100 80GB HBM3" for host in ("node-a", "&lt;b&gt;node")
    ]
    assert len(re.findall('<line class="change slower"', text)) == 1
    assert re.search('<td class="number slower">−9[.]. %</td>', text.replace("\xa0", " "))
    assert '<a href="https://host/c/000000000007">000000000007</a>' in text
    assert '<a href="https://host/c/a00000000007">a00000000007</a>' in text
    assert "<script" not in text
    assert len(lines.splitlines()) == 24


def test_a_page_of_json_lines_shows_them_with_new_results_and_writes_the_same_lines(page, tmp_path):
    files_of = sorted(tmp_path.glob("*.json"))
    _, lines = page(*files_of)
    kept = tmp_path / "earlier.jsonl"
    kept.write_text(lines)
    assert page(kept)[1] == lines
    assert page(kept, *files_of)[1] == lines


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"series": "x"}', '{"machine": "a", "series": "b", "metric": "c", "value": "1"}']
)
def test_a_line_that_is_none_of_a_history_is_named(tmp_path, capsys, line):
    (tmp_path / "lines.jsonl").write_text(line + "\n")
    assert main(["history", str(tmp_path / "lines.jsonl"), "--html", "--output-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), "lines.jsonl:1: not a line of a history" in error) == (1, True)
