"""Folded, cut and garbled lines: a number counts only if it is whole; no damage ends a command with a traceback."""

import json
import os
import re
import struct
import threading
import time
from itertools import cycle, islice

import plausible
import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.logs import fields, spelling
from tensorprimat.storage import store
from tensorprimat.system import regular

MEGATRON = (
    " [2026-01-05 10:00:{0:02d}] iteration {0:8d}/      40 | consumed samples: {0:12d} | elapsed time per iteration "
    "(ms): {1:.1f} | learning rate: 1.000000E-05 | global batch size:    64 | lm loss: 9.123456E+00 | grad norm: 1.2 |"
)
DEEPSPEED = (
    "[2026-01-05 08:01:{0:02d},250] [INFO] [timer.py:199:stop] epoch=0/micro_step={0}/global_step={0}, "
    "RunningAvgSamplesPerSec=99.9, CurrSamplesPerSec=171.5{0}, MemAllocated=3.5GB, MaxMemAllocated=20.25GB"
)
MEMORY = (
    "[Rank 0] (after {0} iterations) memory (MB) | allocated: {1} | max allocated: 2.5 | reserved: 3.5 "
    "| max reserved: {1}"
)


def megatron(count=30):
    return [MEGATRON.format(index, 1999.3 + index % 5) for index in range(1, count)]


def read(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return logs.read(path)


def folded(lines, width):
    return [line[at : at + width] for line in lines for at in range(0, len(line), width)]


@in_each("text", ["1.2.3", "1234,567", "2701,3", "1,2,3", "12,34", "0,512"])
def test_the_beginning_of_a_malformed_number_is_not_a_number(text):
    assert re.search(rf"(?<![\d.,]){fields.NUMBER}", text) is None


@in_each("text", ["1,234,567.5", "1.", "12", "-1.5e-07", "nan", "1.5, next", "7 ms", "9.5%", "3."])
def test_complete_numbers_of_every_spelling_are_read(text):
    assert re.match(fields.NUMBER, text)


def test_a_row_cut_inside_its_rate_gives_no_step_of_another_length(tmp_path):
    lines = [DEEPSPEED.format(index) for index in range(10, 40)]
    cut = [line[: line.index("CurrSamplesPerSec=1") + 19] if n % 3 == 1 else line for n, line in enumerate(lines)]
    result = read(tmp_path / "a.log", [" train_batch_size ............. 256", *cut])
    assert result.performance_metrics.max_step_time_seconds is None or (
        result.performance_metrics.max_step_time_seconds < 2
    )
    rates = result.steps.column("reported_samples_per_second")
    assert rates.min() > 171
    assert ("rows_truncated", 10) in [(one.code, one.values.get("rows")) for one in result.remarks]


def test_lines_folded_inside_numbers_are_a_warning_in_every_format(tmp_path):
    row = "iter {0}: loss 4.2082, time 143{0}.27ms, mfu 1.01%, step_avg 12345.678 of all that was seen"
    lines = [row.format(index) for index in range(1, 9)]
    result = read(tmp_path / "a.log", folded(lines, row.format(1).index("678")))
    assert "lines_folded" in [one.code for one in result.remarks]
    stamped = [f"25.11.2026 12:00:{n} step {n}/500 loss 2.{n} tok/s 8000" for n in range(10, 50)]
    for whole in (lines, stamped):
        assert "lines_folded" not in [one.code for one in read(tmp_path / "b.log", whole).remarks]


@in_each("garbled", ["1.2.3", "1..2", ".", "9" * 400, "1e999"])
def test_garbled_memory_and_learning_rates_are_left_out(tmp_path, garbled):
    extra = [MEMORY.format(2, garbled), f"  lr .............................. {garbled}"]
    assert read(tmp_path / "a.log", [*extra, *megatron()]).performance_metrics.total_steps == 29


@in_each("error", [OverflowError("int too large"), KeyError("step"), AttributeError("groupdict")])
def test_an_error_in_a_reader_names_file_and_format_and_the_other_logs_are_read(tmp_path, monkeypatch, capsys, error):
    def fail(log, *others, **named):
        if log.name.endswith("a.log"):
            raise error
        return join(log, *others, **named)

    join = logs.assemble.join
    (tmp_path / "a.log").write_text("\n".join(megatron()))
    (tmp_path / "b.log").write_text("\n".join(megatron()) + "\n")
    monkeypatch.setattr(logs.assemble, "join", fail)
    monkeypatch.delenv(regular.DEBUG)
    main(["analyze", str(tmp_path)])
    printed = capsys.readouterr()
    assert f"a.log: internal error in the reader of megatron ({type(error).__name__}" in printed.err + printed.out
    assert "b.log" in printed.out
    with pytest.raises(type(error)):
        main(["analyze", str(tmp_path), "--debug"])


EVIL = ("nan", 1e-320, 1e308, 10**400, [], {}, [[1]], "x", -1, 0, True, None)
PLACES = (
    ("performance_metrics", "tokens_per_second"), ("model", "shape"), ("gpu_info", "device_count"),
    ("training_config", "sequence_length"), ("training_config", "data_parallel_size"), ("runs",), ("warnings",),
    ("provenance", "sources"), ("raw_step_times",),
)  # fmt: skip


@in_each("place", PLACES)
def test_a_result_with_a_value_of_another_kind_is_read_or_named_by_every_command(tmp_path, place, capsys):
    good = tmp_path / "good.json"
    good.write_text(store.to_json(plausible.result("mi300x", runs=2, steps=12)))
    bad = tmp_path / "bad.json"
    commands = (["metrics", bad], ["gate", "--baseline", good, "--candidate", bad], ["verify", tmp_path])
    for value, words in zip(EVIL, islice(cycle(commands), PLACES.index(place), None), strict=False):
        document = json.loads(store.to_json(plausible.result("h100", runs=2, steps=12)))
        holder = document
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = value
        bad.write_text(json.dumps(document))
        main([*map(str, words)])
        assert "unexpected error" not in capsys.readouterr().err, (words[0], value)


@in_each("text", ["nan", "inf", "-Infinity"])
def test_a_figure_spelled_as_text_that_is_not_a_number_is_unmeasured(tmp_path, text):
    document = json.loads(store.to_json(plausible.result("h100", runs=2, steps=12)))
    document["gpu_info"]["power_limit_watts"] = text
    (tmp_path / "bad.json").write_text(json.dumps(document))
    assert store.load(tmp_path / "bad.json").gpu_info.power_limit_watts is None


CELL = {
    "model_size": "small", "mean_time_ms": 9.5, "context_length": 128, "d_model": 8, "std_time_ms": 0.5, "kind": "cell",
}  # fmt: skip


@in_each("key", [*CELL, "pass", "status", "trial_times_ms", "peak_memory_gb", "other"])
def test_a_cell_with_a_value_of_another_kind_is_left_out_with_the_reason(tmp_path, key, capsys):
    (tmp_path / "good.json").write_text(json.dumps(CELL))
    for number, value in enumerate(EVIL):
        (tmp_path / f"bad{number}.json").write_text(json.dumps({**CELL, key: value}))
    assert main(["aggregate", str(tmp_path)]) == 0
    assert "unexpected error" not in capsys.readouterr().err


def test_a_pipe_in_a_folder_hangs_no_command(tmp_path, capsys):
    store.write(plausible.result("h100", runs=2, steps=12), tmp_path / "good.json")
    store.write(plausible.result("mi300x", runs=2, steps=12), tmp_path / "other.json")
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "cell.json").write_text(json.dumps(CELL))
    out = ["--output-dir", str(tmp_path / "out")]
    commands = (
        ["compare", str(tmp_path), "--no-plot", *out], ["history", str(tmp_path), *out], ["aggregate", str(tmp_path)],
        ["gate", "--baseline", str(tmp_path), "--candidate", str(tmp_path)], ["analyze", str(tmp_path)],
        ["verify", str(tmp_path)], ["metrics", str(tmp_path / "pipe.json")],
        ["extract", "--log-file", str(tmp_path / "pipe.log")], ["aggregate", str(tmp_path / "pipe.json")],
    )  # fmt: skip
    for words in commands:
        done = threading.Thread(target=main, args=(words,), daemon=True)
        done.start()
        done.join(timeout=30)
        assert not done.is_alive(), words
    assert "a pipe or a device" in capsys.readouterr().err


def test_an_event_file_with_a_forged_length_is_damaged_and_takes_no_memory(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    length = struct.pack("<Q", 2**62)
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"x" * 100)
    with pytest.raises(InputError):
        logs.read(path)


def test_a_line_of_unfinished_meshes_is_read_in_linear_time():
    begun = time.process_time()
    pattern = logs.torchtitan._MESH
    assert pattern.search("Building 1-D device mesh with [" * 10_000) is None
    assert time.process_time() - begun < 2


def numbered(*lines):
    return list(enumerate(lines, start=1))


def test_rows_are_found_cut_if_other_lines_end_at_the_same_column():
    banner = ["Loading the tokenizer of meta-llama/Llama-3.1", "Building device mesh with parallelism: pp=1, dp=8",
              "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10", "Compiling each TransformerBlock with torch.compile",
              "short"]  # fmt: skip
    rows = [f"step: {n:05} | loss {9.5 - n / 100:.2f} | tokens/s 262{n % 7}44.31" for n in range(1, 20)]
    cut = [line[:36] for line in (*banner, *rows)]
    cited = set(range(6, 25))
    assert spelling.cut_width(numbered(*cut), cited) == 36
    assert spelling.cut_width(numbered(*cut[4:]), {line - 4 for line in cited}) is None  # nothing tells
    assert spelling.cut_width(numbered(*banner, *rows), cited) is None


def test_a_last_number_that_gains_decimals_as_it_gets_shorter_is_found_cut():
    cut = [f"step: {n:05} | loss {10.35 - n / 20:.6f}"[:25] for n in range(1, 20)]
    assert spelling.cut_width(numbered(*cut), set(range(1, 20))) == 25
    four_digits = [f"step: {n:05} | loss {f'{10.36 - n / 20:.4g}':>7}" for n in range(1, 20)]
    assert spelling.cut_width(numbered(*four_digits), set(range(1, 20))) is None


def test_lines_that_a_logger_pads_to_the_terminal_are_not_cut():
    kinds = ("building the mesh", "loading the data", "compiling blocks", "starting to train", "writing the state")
    lines = [f"INFO  {kind:<40} trainer.py:{100 + n}" for n, kind in enumerate(kinds)]
    lines += [f"INFO  {f'step {n:05} loss {9.5 - n / 100:.4f}':<40} trainer.py:110" for n in range(1, 20)]
    assert spelling.cut_width(numbered(*lines), set(range(6, 25))) is None


def test_losses_without_any_decimal_are_a_sign_of_cut_lines(tmp_path):
    rows = [
        f"completed step: {n}, seconds: 5.{n}12, TFLOP/s/device: 141.512, Tokens/s/device: 9098.123, total_weights: "
        f"65536, loss: {11 - n / 10:.3f}"
        for n in range(1, 10)
    ]
    (tmp_path / "a.log").write_text("\n".join(row[: row.index("loss: ") + 7] for row in rows) + "\n")
    assert "losses_cut" in [one.code for one in logs.read(tmp_path / "a.log").remarks]
    (tmp_path / "a.log").write_text("\n".join(rows) + "\n")
    assert "losses_cut" not in [one.code for one in logs.read(tmp_path / "a.log").remarks]


@pytest.mark.parametrize("behind", ["mfu: 42.50%", "mfu: N/A"])
def test_a_torchtitan_rate_of_the_hardware_needs_the_text_after_it(tmp_path, behind):
    rows = [
        f"step: {n:2}  loss:  {9 - n / 100:.5f}  memory: 38.50GiB(48.67%)  tps: 8,1{n}  tflops: 400.13  {behind}"
        for n in range(10, 20)
    ]
    path = tmp_path / "a.log"
    path.write_text("\n".join(rows) + "\n")
    assert set(logs.read(path).steps.column("reported_tflops_per_gpu")) == {400.13}
    for width in range(rows[0].index("400.13") + 1, rows[0].index("400.13") + 7):
        path.write_text("\n".join(row[:width] for row in rows) + "\n")
        assert not logs.read(path).steps.has("reported_tflops_per_gpu")
    path.write_text("\n".join(row[:-1] for row in rows) + "\n")
    assert not logs.read(path).steps.has("reported_mfu")


def test_torchtitan_rows_that_all_end_with_their_rate_seem_cut(read_text):
    whole = (
        "[rank0]:2026-01-05 08:00:{0:02d},100 - root - INFO - step: {0:2d}  loss:  8.{0:02d}50  memory: 47.63GiB(60%)  "
    )
    ends = {"tps: 1,234": True, "tps: 1,234  tflops: 410.10  mfu: 41.5%": False, "wps: 1,234  mfu: 41.5%": False}
    for end, cut in ends.items():
        result = read_text("".join(whole.format(step) + end + "\n" for step in range(1, 13)))
        assert ("rows_cut" in [one.code for one in result.remarks]) == cut


def test_a_slow_step_whose_mfu_is_rounded_to_two_decimals_contradicts_nothing(read_text):
    row = (
        "step {0:05d}/00100 (41.56%) | loss: 0.3{0:05d} | lrm: 1.00 | dt: {1:.2f}ms | tok/sec: {2} |"
        " bf16_mfu: {3:.2f} | epoch: 1\n"
    )
    text = "".join(row.format(n, 300.0, 873_813, 0.30) for n in range(60))
    slow = row.format(30, 6_000.0, 43_690, 0.02)
    warnings = read_text(text.replace(row.format(30, 300.0, 873_813, 0.30), slow)).warnings
    assert not any("contradict" in warning for warning in warnings)
