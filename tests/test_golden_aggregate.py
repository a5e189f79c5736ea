"""Golden text of every table that `tprimat aggregate` makes: each cell has a value that no other cell has."""

import json

from test_golden_tables import agrees, lines

from tensorprimat.analysis import aggregate
from tensorprimat.reports import aggregate as reports
from tensorprimat.reports.micro_tables import rows_csv
from tensorprimat.storage.cell_rows import load_rows

SIZES = {"small": (768, 12, 128_625_408), "medium": (1024, 24, 423_183_360)}


def cell(number, size, context, *, forward_only, precision="bf16", **more):
    """Return one cell with every column; its figures follow from its number and differ from those of all others."""
    width, layers, parameters = SIZES[size]
    mean = 10.0 * number + context / 8 + 0.25
    times = {
        "mean_time_ms": mean,
        "std_time_ms": mean / 40,
        "median_time_ms": mean - 0.75,
        "cv_percent": 2.5 + number / 10,
    }
    split = {
        "forward_time_ms": mean / 3, "backward_time_ms": mean / 2, "backward_std_ms": mean / 60,
        "backward_cv_percent": 3.5 + number / 10, "optimizer_time_ms": mean / 7, "launch_time_ms": mean / 8,
        "backward_forward_ratio": 1.5 + number / 100,
    }  # fmt: skip
    rates = {"tokens_per_second": 4000.0 * number + context, "flops_per_second": (3.0 + number) * 1e12,
             "mfu": 0.2 + number / 100, "peak_memory_gb": 7.0 + number, "fit_batch_size": 60 + number,
             "fit_context_length": 5000 + number}  # fmt: skip
    return {
        "model_size": size, "vocab": 10_000 + 1000 * (size == "medium"), "context_length": context, "d_model": width,
        "d_ff": 4 * width, "num_layers": layers, "num_heads": layers + 1, "batch_size": 4, "num_steps": 1,
        "num_warmups": 5, "num_trials": 2, "forward_only": forward_only, "device": "cuda",
        "device_name": "NVIDIA H100" if size == "small" else "NVIDIA A100", "precision": precision,
        "autocast": precision == "bf16", "compile": size == "small",
        "attention": "sdpa" if size == "small" else "eager",
        "num_parameters": parameters, "trial_times_ms": [mean - 1, mean + 1], **times,
        **({} if forward_only else split), **rates, **more,
    }  # fmt: skip


CELLS = [
    cell(1, "small", 128, forward_only=True),
    cell(2, "small", 128, forward_only=False),
    cell(3, "small", 256, forward_only=True),
    cell(4, "small", 256, forward_only=False),
    cell(5, "small", 512, forward_only=False),
    cell(6, "medium", 128, forward_only=True, precision="fp32"),
    cell(7, "medium", 128, forward_only=False, precision="fp32"),
    cell(8, "medium", 512, forward_only=False, precision="fp32", status="oom", mean_time_ms=None, std_time_ms=None,
         trial_times_ms=[]),
]  # fmt: skip


def rows_in(folder):
    for number, one in enumerate(CELLS):
        (folder / f"bench_{number}.json").write_text(json.dumps(one))
    rows, problems = load_rows(folder)
    assert problems == []
    return aggregate.sort(aggregate.with_columns(rows, ["throughput=1000/mean_time_ms"]))


def test_every_cell_of_aggregate_is_as_stored(tmp_path):
    rows = rows_in(tmp_path)
    pivots = aggregate.pivots(rows, rows="context_length", columns="model_size", values="mean_time_ms")
    fits = [fit for axis in ("num_parameters", "context_length") for fit in aggregate.size_scalings(rows, axis)]
    every = reports.aggregate_tables(rows, added=["throughput"], pivots=pivots, fits=fits)
    agrees("aggregate.txt", "\n".join(map(lines, every)))


def test_every_cell_of_the_csv_of_aggregate_is_as_stored(tmp_path):
    rows = rows_in(tmp_path)
    agrees("aggregate.csv.txt", rows_csv(rows))
