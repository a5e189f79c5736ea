"""Figures of a log, explained by formula, numbers and lines."""

# ruff: noqa: F811  # `primus` is a fixture of test_extract

import json
import re

import numpy as np
import plausible
import pytest
from each import in_each
from test_extract import extract, primus  # noqa: F401  # fixtures

from tensorprimat.cli import main
from tensorprimat.core.provenance import Provenance, Source
from tensorprimat.core.result import TrainingConfig
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import pool, summarise
from tensorprimat.session.explain import explain, one_liner


def test_explain_shows_formula_numbers_and_lines(primus, capsys):
    assert extract(primus, "--explain", "tokens_per_second_per_gpu") == 0
    printed = capsys.readouterr().out
    assert "128 sequences × 8192 tokens × 19 steps" in printed
    assert "/ 8 GPUs" in printed
    assert "primus.log: 19 lines from 3 to 21" in printed
    assert "SHA-256" in printed
    assert extract(primus, "--explain", "max_step_time_seconds") == 0
    assert "line 3" in capsys.readouterr().out
    assert extract(primus, "--explain", "peak_memory_allocated_gb") == 0
    assert "unknown" in capsys.readouterr().out


def test_explain_shows_the_basis_of_counts_and_of_reported_figures(primus, capsys):
    def explained(field):
        assert extract(primus, "--explain", field) == 0
        return capsys.readouterr().out

    assert "20 of 20 rows, 20 lines from 2 to 21" in explained("total_steps")
    assert "19 steps, 19 rows" in explained("measured_steps")
    assert "work over measured step times" in explained("basis")
    reported = explained("reported.tokens_per_second_per_gpu")
    assert reported.startswith("reported.tokens_per_second_per_gpu = 13,107.2\n")
    assert "reported_tokens_per_second_per_gpu of 19 rows" in reported
    assert "tflops_per_gpu is unknown" in explained("tflops_per_gpu")
    assert "Σ tokens / Σ seconds / GPUs" in explained("tokens_per_second_per_gpu")


def test_the_result_names_the_line_of_each_setting_also_of_standard_input(primus, capsys, monkeypatch):
    assert extract(primus, "--json", "--num-gpus", "4") == 0
    cited = json.loads(capsys.readouterr().out)["provenance"]["citations"]
    assert cited["sequence_length"] == "primus.log:1"
    assert cited["global_batch_size"] == "primus.log:2"
    assert "num_gpus" not in cited  # a flag says it
    with primus.open() as text:
        monkeypatch.setattr("sys.stdin", text)
        assert extract("-", "--explain", "sequence_length") == 0
    assert capsys.readouterr().out == "sequence_length = 8192\n  standard input:1\n"


@in_each("field", ["total_steps", "avg_step_time_seconds", "tokens_per_second_per_gpu", "basis"])
def test_explain_never_counts_rows_without_a_time_as_timed(tmp_path, capsys, field):
    row = "step: {0}  loss:  5.7  memory: 1.0GiB(1.0%)  tps: 1,00{0}  tflops: 9.5  mfu: N/A\n"
    (tmp_path / "a.log").write_text("".join(map(row.format, range(1, 9))))
    assert extract(tmp_path / "a.log", "--explain", field) == 0
    printed = capsys.readouterr().out
    assert "0 s" not in printed
    assert "taken from the file" not in printed


def test_explain_shows_the_lines_that_state_a_setting_or_the_flag(primus, capsys):
    def explained(*arguments):
        assert extract(primus, *arguments) == 0
        return capsys.readouterr().out

    assert f"sequence_length = 8192\n  {primus}:1: seq_length ............... 8192" in explained(
        "--explain", "sequence_length"
    )
    assert f"  {primus}:2: " in explained("--explain", "global_batch_size")
    assert f"  {primus}:2: " in explained("--explain", "num_gpus")
    assert "from --num-gpus, not from the log" in explained("--explain", "num_gpus", "--num-gpus", "4")
    assert "precision is unknown\n  no log states it; --precision states it" in explained("--explain", "precision")


def test_a_model_that_flags_state_is_explained_by_the_flags_and_not_by_the_log(tmp_path, capsys):
    log = tmp_path / "titan.log"
    row = (
        "[titan] 2026-05-19 19:31:{0:02d},000 - root - INFO - step: {0}  loss:  5.7  memory: 1.0GiB(1.0%)  tps: 1,000\n"
    )
    named = "[titan] 2026-05-19 19:30:59,000 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters\n"
    log.write_text(named + "".join(map(row.format, range(1, 20))))

    def explained(*arguments):
        assert extract(log, *arguments) == 0
        return capsys.readouterr().out.splitlines()[1:]

    assert explained("--explain", "model.name")[0].startswith(f"  {log}:1: ")
    for field in ("name", "shape"):
        flags = ("--model-name", "Qwen2.5-7B", "--shape", "Qwen2.5-7B")
        (line,) = explained("--explain", f"model.{field}", *flags)
        assert re.fullmatch(r"  from --(model-name|shape Qwen2.5-7B), not from the log", line)
    assert explained("--explain", "parameters", "--shape", "Qwen2.5-7B")[0].startswith(f"  {log}:1: ")


@in_each(
    ("origin", "shown"),
    [
        ("--num-gpus", "from --num-gpus, not from the log"),
        ("path runs/8gpu", "from path runs/8gpu, not from the log"),
        ("128 ranks that wrote init_start", "from 128 ranks that wrote init_start"),
    ],
)
def test_a_fact_that_a_line_of_the_log_gives_is_not_called_foreign_to_the_log(origin, shown):
    read = plausible.bare(
        training_config=TrainingConfig(num_gpus=8),
        steps=Steps.of(Step(index=number, seconds=1.0) for number in range(1, 9)),
        provenance=Provenance(timing="reported", assumed={"num_gpus": origin}),
    )
    assert explain(read, "num_gpus") == f"num_gpus = 8\n  {shown}"
    assert explain(summarise(read), "total_steps").endswith(f"\n  num_gpus 8: {shown}")


def test_rows_without_numbers_are_never_called_step_0():
    seconds, losses = np.full(20, 2.0), np.linspace(3.0, 2.0, 20)
    seconds[7], losses[10] = 9.0, np.nan
    columns = {"seconds": seconds, "loss": losses}
    read = summarise(plausible.bare(steps=Steps(columns, logged_nan={"loss": np.isnan(losses)})))
    told = {"nan": 1, "rows": 20, "span": "the first at row 11"}
    assert ("loss_nan", told) in [(one.code, one.values) for one in read.remarks]
    assert explain(read, "loss").splitlines()[2] == "  = 2, row 20 of 20"
    assert "step 0" not in " ".join((*read.warnings, explain(read, "max_step_time_seconds"), one_liner(read)))
    numbered = read.changed(steps=read.steps.replace(index=np.arange(21, 41)))
    assert explain(numbered, "loss").splitlines()[2] == "  = 2, step 40"
    assert one_liner(numbered).startswith("step 40 | ")


@in_each(
    ("field", "shown"),
    [
        ("device_name", "device_name is unknown\n  no log states it; --gpu states it"),
        ("model.name", "model.name is unknown\n  no log states it; --model-name states it"),
        ("shape", "model.shape is unknown\n  no log states it; --shape states it"),
        ("warmup_steps_dropped", "1 step, as the step times show"),
        ("measured_steps", "1 step, 1 row"),
        ("reported.mfu", "reported_mfu of 1 row, from 0.5 to 0.5"),
    ],
)
def test_an_unknown_fact_names_its_flag_and_one_step_is_not_in_the_plural(field, shown):
    read = plausible.bare(steps=Steps.of(Step(index=number, seconds=1.0, reported_mfu=0.5) for number in (1, 2)))
    assert shown in explain(summarise(read), field)


def test_the_steps_left_out_of_several_logs_are_counted_once():
    read = [
        summarise(
            plausible.bare(
                provenance=Provenance(sources=(Source(file=name, sha256=name[0] * 64),)),
                steps=Steps.of(Step(index=number, seconds=1.0, line=number) for number in range(1, 9)),
            )
        )
        for name in ("a.log", "b.log")
    ]
    assert explain(pool(read), "avg_step_time_seconds").splitlines()[3:] == [
        "  measured: a.log: 7 lines from 2 to 8",
        f"  file: a.log, SHA-256 {'a' * 64}",
        "  measured: b.log: 7 lines from 2 to 8",
        f"  file: b.log, SHA-256 {'b' * 64}",
        "  left out: 2 warm-up steps, 0 interrupted steps",
    ]


@pytest.mark.parametrize(
    ("declared", "shown"), [(None, "2 steps, as the step times show"), (3, "6 steps; declared for each run: 3")]
)
def test_a_declared_warm_up_is_not_said_to_follow_from_the_step_times(declared, shown):
    read = plausible.bare(
        training_config=TrainingConfig(warmup_steps=declared),
        steps=Steps.of(Step(index=number, seconds=1.0) for number in range(1, 9)),
    )
    lines = explain(pool([summarise(read), summarise(read)]), "warmup_steps_dropped").splitlines()
    assert lines[2] == f"  = {shown}"


def test_a_setting_of_a_live_run_is_explained_by_the_training_and_not_by_a_log():
    live = plausible.bare(
        platform="cpu",
        training_config=TrainingConfig(global_batch_size=8),
        provenance=Provenance(engine="torch", timing="measured"),
    )
    assert explain(live, "global_batch_size") == "global_batch_size = 8\n  the training process recorded it"
    assert explain(live, "seed") == "seed is unknown\n  the training process did not record it"
    assert " log" not in explain(live, "final_loss") + explain(live, "tokens_per_second")


def test_a_value_is_shown_where_its_line_states_it_as_a_whole_number(tmp_path, capsys):
    rows = [
        f" iteration {n:8d}/ 1000 | consumed samples: {4 * n:12d} | elapsed time per iteration (ms): 19932.4 | "
        "learning rate: 0.000E+00 | global batch size: 4 | loss scale: 1.0 | number of nan iterations: 0 |"
        for n in range(10, 40)
    ]
    (tmp_path / "a.log").write_text("\n".join(rows) + "\n")
    assert main(["extract", str(tmp_path / "a.log"), "--explain", "global_batch_size"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "a.log:" in line]
    assert "global batch size: 4 |" in line
    assert ": …" in line
