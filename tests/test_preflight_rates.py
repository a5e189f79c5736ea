"""Rates that a preflight measures: matrix products, memory, and exchange between processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from each import in_each
from preflights import made

from tensorprimat.core.quantities import UNMEASURED
from tensorprimat.measure import collectives, matmul, preflight
from tensorprimat.reports.preflight import preflight_tables
from tensorprimat.storage.preflight import Collective

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("short_preflight")


def test_an_interval_covers_more_calls_of_short_work():
    calls = []
    seconds = matmul.intervals(lambda: calls.append(1), CPU, repeats=3)
    assert len(seconds) == 3
    assert len(calls) > 5


def test_matrices_are_random_never_zeros(monkeypatch):
    seen = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda left, right, out: (seen.append(left), multiply(left, right, out=out)))
    matmul.matmul_rate(32, "fp32", CPU)
    assert seen[0].std() > 0.5


def test_one_process_measures_no_exchange(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with collectives.group(CPU) as (backend, processes):
        assert (backend, processes) == (None, 1)
        assert collectives.measure_collectives(CPU, processes) == []


@pytest.mark.usefixtures("warm")
def test_two_processes_measure_their_exchange():
    script = (
        "import json, torch\n"
        "from tensorprimat.measure import collectives\n"
        "collectives.COLLECTIVE_SIZES = {'cpu': (4096,)}\n"
        "reduce, sums = collectives.dist.all_reduce, {}\n"
        "def reduced(values, op):\n"
        "    before = values.clone()\n"
        "    reduce(values, op=op)\n"
        "    sums[str(values.dtype)] = sums.get(str(values.dtype), True) and torch.equal(values, 2 * before)\n"
        "collectives.dist.all_reduce = reduced\n"
        "torch.manual_seed(0)\n"
        "with collectives.group(torch.device('cpu')) as (backend, processes):\n"
        "    found = collectives.measure_collectives(torch.device('cpu'), processes)\n"
        "    ranks = collectives.gathered(collectives.dist.get_rank(), processes)\n"
        "print(json.dumps([[one.model_dump() for one in found], backend, processes, ranks, sums]))\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    found, backend, processes, ranks, sums = json.loads(outputs[0])
    assert (backend, processes, ranks) == ("gloo", 2, [0, 1])
    assert [(one["kind"], one["dtype"], one["size_bytes"]) for one in found] == [
        ("all_reduce", "float32", 4096), ("all_reduce", "bfloat16", 4096),
        ("all_gather", "float32", 4096), ("reduce_scatter", "float32", 4096),
    ]  # fmt: skip
    assert sums == {"torch.float32": True, "torch.bfloat16": True, "torch.float64": False}, "times: the slowest counts"
    assert all(one["seconds"] > 0 and one["bus_bytes_per_second"] > 0 for one in found)


def test_bus_bandwidth_counts_what_a_link_carries():
    found = Collective(kind="all_reduce", dtype="bfloat16", size_bytes=2**20, seconds=1.0, bus_bytes_per_second=2**20)
    table = preflight_tables(made(collectives=(found,), world_size=2, collective_backend="nccl"))[2]
    assert table.title == "Exchange between 2 processes (nccl)"
    assert [cell.text for cell in table.rows[0]] == ["all-reduce", "bf16", "1 MiB", "1.000 s", "0.001049"]
    older = preflight_tables(made(collectives=(found.changed(dtype=None),), world_size=2, collective_backend="nccl"))[2]
    assert older.rows[0][1].text == UNMEASURED


def test_all_reduce_sums_and_small_messages_are_timed_over_many_calls(monkeypatch):
    requested = []
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda _values, op: requested.append(op))
    monkeypatch.setattr(collectives.dist, "barrier", lambda: None)
    found = collectives._timed("all_reduce", torch.float32, 4096, CPU, 2)
    sums = requested.count(collectives.dist.ReduceOp.SUM)
    assert sums == 1 + collectives.COLLECTIVE_REPEATS * collectives.CALLS_OF_SMALL
    assert (
        requested.count(collectives.dist.ReduceOp.MAX) == collectives.COLLECTIVE_REPEATS
    )  # of the times, over the processes
    assert 0 < found.seconds < 0.01


def test_fp8_products_are_e4m3_with_a_scale_each_and_give_bf16(monkeypatch):
    requested = []
    real = torch._scaled_mm

    def noting(left, right, **options):
        requested.append((left.dtype, right.dtype, options["out_dtype"], bool((left.float() == 0).all())))
        return real(left, right, **options)

    monkeypatch.setattr(torch, "_scaled_mm", noting)
    best, typical = matmul.matmul_rate(64, "fp8", CPU, repeats=2)
    assert 0 < typical <= best
    assert set(requested) == {(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16, False)}


@in_each(("arch", "kind"), [("gfx942:sramecc+", "fnuz"), ("gfx950:sramecc+", "fn"), ("", "fn")])
def test_the_fp8_type_is_that_of_the_matrix_units(monkeypatch, arch, kind):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("P", (), {"gcnArchName": arch})())
    assert matmul.fp8_type(torch.device("cuda", 0)) == getattr(torch, f"float8_e4m3{kind}")


@in_each(
    ("device", "measured"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-80GB", False), ("NVIDIA X1", False)]
)
def test_fp8_is_measured_where_the_gpu_is_known_to_have_it(monkeypatch, device, measured):
    monkeypatch.setattr(matmul, "matmul_rate", lambda *_, **__: (5e14, 4e14))
    gpu = preflight.catalogue.find_gpu(device)
    rows = preflight.matrix_rates(torch.device("cuda", 0), (4096,), gpu)
    assert ("fp8" in {row.precision for row in rows}) == measured


def test_products_are_shown_with_the_best_that_others_measured_and_its_source(monkeypatch):
    monkeypatch.setattr(matmul, "matmul_rate", lambda *_, **__: (7e14, 6e14))
    gpu = preflight.catalogue.find_gpu("NVIDIA H100 80GB HBM3")
    rows = preflight.matrix_rates(torch.device("cuda", 0), (8192,), gpu)
    [bf16] = [row for row in rows if row.precision == "bf16"]
    assert bf16.achieved_flops_per_second == gpu.achievable_tflops["bf16"].value * 1e12
    matrix = preflight_tables(made(matmul=tuple(rows)))[0]
    assert "stas00/ml-engineering" in matrix.note
    assert f"{gpu.achievable_tflops['bf16'].value:,.1f}" in {row[4].text for row in matrix.rows}


def test_memory_bandwidth_counts_every_array_that_is_read_or_written(monkeypatch):
    monkeypatch.setattr(matmul, "intervals", lambda *_: [2.0, 1.0, 4.0])
    size = 2**16
    rates = preflight.memory_rates(CPU, size, None)
    assert {row.kind: row.best_bytes_per_second for row in rates} == {"copy": 2 * size, "read": size, "triad": 3 * size}
    assert {row.kind: row.typical_bytes_per_second for row in rates} == {
        "copy": size, "read": size / 2, "triad": 1.5 * size,
    }  # fmt: skip
