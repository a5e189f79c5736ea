"""Traces of Nsight Systems and rocprofv3, and folders of ranks."""

import contextlib
import json
import os
import sqlite3
from pathlib import Path

import numpy as np
import plausible
import preflights
import pytest
from chrome_traces import GEMM, training
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.storage import preflight, store
from tensorprimat.traces.ledger import Ledger, with_clock_of
from tensorprimat.traces.sides import find_trace, ledger_at, trace_facts
from tensorprimat.traces.work import TraceFacts, rates_of

ADAM = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>"
STEPS = [(GEMM, 100, 400), ("ncclDevKernel_AllReduce_Sum", 350, 500), (ADAM, 500, 600)]
"""Kernels of a step with their times in microseconds; each step follows the last one after 700."""


def kernels():
    for step in range(3):
        for number, (name, start, end) in enumerate(STEPS):
            yield 10 * step + number + 1, name, 1000 * (start + 700 * step), 1000 * (end + 700 * step)


def nsys(path: Path) -> None:
    with sqlite3.connect(path) as database:
        names = dict(enumerate(dict.fromkeys(name for _, name, *_ in kernels())))
        names |= {90: "cudaLaunchKernel_v7000", 91: "aten::mm, seq = 5, op_id = 7"}
        ids = {name: key for key, name in names.items()}
        database.execute("CREATE TABLE StringIds (id, value)")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", names.items())
        database.execute("CREATE TABLE TARGET_INFO_GPU (id, name)")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100')")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)")
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, globalPid, correlationId, "
            "demangledName, gridX, gridY, gridZ)"
        )
        database.execute("CREATE TABLE NVTX_EVENTS (start, end, globalTid, text, textId, eventType)")
        for key, name, start, end in kernels():
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,90)", (start - 9, start, 5, key))
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,7,0,?,?,1,1,1)", (start, end, key, ids[name])
            )
            if name == GEMM:
                database.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,5,NULL,91,59)", (start - 20, start))


def rocpd(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE rocpd_info_agent (absolute_index, product_name)")
        database.execute("INSERT INTO rocpd_info_agent VALUES (2, 'AMD Instinct MI300X')")
        database.execute("CREATE TABLE kernels (start, end, agent_abs_index, stream_id, stack_id, name)")
        database.execute("CREATE TABLE regions (category, name, tid, start, end, stack_id)")
        for key, name, start, end in kernels():
            database.execute("INSERT INTO kernels VALUES (?,?,2,0,?,?)", (start, end, key, name))
            database.execute(
                "INSERT INTO regions VALUES ('HIP_API','hipLaunchKernel',1,?,?,?)", (start - 9, start, key)
            )


def rocprof_json(path: Path) -> None:
    def times(key: int, start: int, end: int) -> dict:
        return {"start_timestamp": start, "end_timestamp": end, "correlation_id": {"internal": key}, "kind": 3,
                "operation": 1, "thread_id": 1}  # fmt: skip

    symbols = {name: number for number, (name, *_) in enumerate(STEPS)}
    dispatched = [
        {**times(key, start, end), "dispatch_info": {"agent_id": {"handle": 9}, "queue_id": {"handle": 1},
                                                     "kernel_id": symbols[name]}}
        for key, name, start, end in kernels()
    ]  # fmt: skip
    tool = {
        "agents": [{"id": {"handle": 9}, "product_name": "AMD Instinct MI300X"}],
        "kernel_symbols": [{"kernel_id": number, "kernel_name": name} for name, number in symbols.items()],
        "strings": {"buffer_records": [{"kind": 3, "operations": ["none", "hipLaunchKernel"]}]},
        "buffer_records": {
            "kernel_dispatch": dispatched,
            "hip_api": [times(key, start - 9, start) for key, _, start, _ in kernels()],
        },
    }
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))


def rocprof_csv(path: Path) -> None:
    rows = ['"Agent_Id","Queue_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"']
    rows += [f'"Agent 2",1,"{name}",{key},{start},{end}' for key, name, start, end in kernels()]
    path.write_text("\n".join(rows))
    calls = ['"Function","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"']
    calls += [f'"hipLaunchKernel",1,{key},{start - 9},{start}' for key, _, start, _ in kernels()]
    path.with_name(path.name.replace("kernel_trace", "hip_api_trace")).write_text("\n".join(calls))


WRITERS = {"a.sqlite": nsys, "a_results.db": rocpd, "a_results.json": rocprof_json, "1_kernel_trace.csv": rocprof_csv}


def shown(found: Ledger) -> dict[str, float]:
    return {name: round(1e6 * seconds, 3) for name, seconds in found.classes.items()}


@in_each("name", WRITERS)
def test_every_format_gives_the_same_ledger(tmp_path, name):
    WRITERS[name](tmp_path / name)
    found = ledger_at(tmp_path / name)
    times = shown(found)
    assert len(found.by_step) == 3
    assert (times["products_bf16"], times["communication_all_reduce"], times["optimizer"]) == (300, 100, 100)
    assert times["gap_launch"] == pytest.approx(400 / 3, abs=0.001)
    assert found.trace.device in ("NVIDIA H100", "AMD Instinct MI300X", None)


def test_operators_of_nvtx_are_those_of_the_profiler(tmp_path):
    nsys(tmp_path / "a.sqlite")
    found = ledger_at(tmp_path / "a.sqlite")
    assert {one.operator.name for one in found.members["products_bf16"]} == {"aten::mm"}


def test_a_graph_without_its_kernels_is_named_as_a_whole(tmp_path):
    nsys(tmp_path / "a.sqlite")
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        columns = "start, end, deviceId, streamId, globalPid, correlationId"
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns})")
        for start in range(10_000, 2_000_000, 700_000):
            row = (start, start + 80_000)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,0,7,0,900)", row)
    assert shown(ledger_at(tmp_path / "a.sqlite"))["graph"] == 80


def test_gaps_of_a_trace_without_calls_of_the_host_have_no_reason(tmp_path):
    rocprof_csv(tmp_path / "1_kernel_trace.csv")
    (tmp_path / "1_hip_api_trace.csv").unlink()
    found = ledger_at(tmp_path / "1_kernel_trace.csv")
    assert shown(found)["gap_unexplained"] > 0
    assert [notice.code for notice in found.notices] == ["trace_without_calls"]


def test_an_export_of_one_process_may_lack_its_number(tmp_path):
    nsys(tmp_path / "a.sqlite")
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
    assert shown(ledger_at(tmp_path / "a.sqlite"))["products_bf16"] == 300


DAMAGED_COLUMNS = (
    "StringIds SET value = 5", "NVTX_EVENTS SET start = 'x'", "CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 77", "CUPTI_ACTIVITY_KIND_KERNEL SET end = 0",
)  # fmt: skip


@in_each(("number", "change"), enumerate(DAMAGED_COLUMNS))
def test_a_damaged_column_is_read_or_refused(tmp_path, number, change):
    nsys(tmp_path / f"{number}.sqlite")
    with sqlite3.connect(tmp_path / f"{number}.sqlite") as database:
        database.execute(f"UPDATE {change}")
    with contextlib.suppress(InputError):
        ledger_at(tmp_path / f"{number}.sqlite")


DAMAGED_VALUES = [("correlation", [1]), ("correlation", {}), ("device", [0]), ("Input Dims", 3), ("dur", -5),
                  ("Input Dims", [3, None]), ("Input type", 7), ("Concrete Inputs", 1)]  # fmt: skip


@in_each(("place", "value"), DAMAGED_VALUES)
def test_a_damaged_value_of_an_event_is_left_out_or_refused(tmp_path, place, value):
    made = training()
    for event in made.events[::3]:
        (event if place == "dur" else event["args"])[place] = value
    with contextlib.suppress(InputError):
        found = ledger_at(made.write(tmp_path / "a.json"))
        rates_of(found, TraceFacts())
        for step, (start, end) in zip(found.by_step, found.steps.windows, strict=True):
            assert sum(step.values()) == pytest.approx(end - start)


def test_a_report_of_nsight_systems_is_exported_by_its_own_program(tmp_path, monkeypatch, capsys):
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"QUADD")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["explain", str(report)]) == 2
    assert capsys.readouterr().err.strip().endswith("convert it with nsys export --type sqlite where nsys is installed")
    nsys(tmp_path / "made.sqlite")
    program = tmp_path / "nsys"
    program.write_text(f'#!/bin/sh\n[ "$1 $2 $3 $4" = "export -t sqlite -o" ] && /bin/cp {tmp_path}/made.sqlite "$5"\n')
    program.chmod(0o755)
    found = ledger_at(report)
    assert shown(found) == shown(ledger_at(tmp_path / "made.sqlite"))
    assert found.trace.path == str(report)
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(InputError, match="nsys export made nothing of it"):
        ledger_at(report)
    (tmp_path / "made.sqlite").rename(tmp_path / "a.sqlite")
    os.utime(tmp_path / "a.sqlite")
    assert shown(ledger_at(report)) == shown(found)
    assert not ledger_at(tmp_path).notices, "a report and its export are not two ranks"


def test_a_database_of_another_program_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE songs (title)")
    with pytest.raises(InputError, match="no trace of Nsight Systems or rocprofv3"):
        ledger_at(tmp_path / "other.sqlite")
    (tmp_path / "a.pftrace").write_bytes(b"\n\x00\x01")
    with pytest.raises(InputError, match="--output-format json or csv"):
        ledger_at(tmp_path / "a.pftrace")


def test_of_a_folder_of_ranks_the_median_is_shown_and_the_slowest_named(tmp_path):
    for rank, product in enumerate((500, 600, 900)):
        made = training(product=product)
        made.document["distributedInfo"] = {"rank": rank, "world_size": 3}
        made.write(tmp_path / f"rank{rank}.json.gz")
    found = ledger_at(tmp_path)
    (notice,) = [one for one in found.notices if one.code == "trace_ranks"]
    assert (found.trace.rank, notice.values["slowest"]) == (1, 2)
    assert ledger_at(tmp_path, 2).trace.rank == 2
    with pytest.raises(UsageError, match="--rank 7"):
        ledger_at(tmp_path, 7)


def test_ranks_are_compared_by_the_steps_that_all_of_them_have(tmp_path):
    for rank, steps in enumerate((3, 4, 2)):  # each step is longer than the last one
        made = training(steps)
        made.document["distributedInfo"] = {"rank": rank, "world_size": 3}
        made.write(tmp_path / f"{rank}.json")
    found = ledger_at(tmp_path)
    assert found.steps.marks == ("ProfilerStep#0", "ProfilerStep#1")
    assert found.notices[0].values["off"] == 0


def test_the_whole_trace_can_be_one_step(tmp_path):
    found = ledger_at(training().write(tmp_path / "a.json"), whole=True)
    assert (len(found.by_step), found.steps.by) == (1, "whole")
    assert sum(found.classes.values()) == pytest.approx(found.step_seconds)


def test_traces_that_nobody_here_made_agree_with_their_own_kernels(shared):
    """Sums of kernels of one stream are the sums of classes, whoever counts."""
    found = ledger_at(shared / "gpu" / "h100_every_second_layer_recomputed.trace.json.gz")
    kernels_alone = sum(kernel.end - kernel.start for kernel in found.trace.kernels) / 3
    assert sum(time for name, time in found.classes.items() if "gap" not in name and name != "data_wait") == (
        pytest.approx(kernels_alone, rel=0.001)
    )


STAMP = "20261128_012917_213582"


def profiled(folder: Path, machine: str = "h100", stamp: str = STAMP) -> Path:
    """Write the files of benchmark.py --profile torch, and the latest result; return the path of that."""
    result = plausible.result(machine)
    result = result.changed(provenance=result.provenance.changed(host="node1"))
    latest = store.save(result, folder, stamp="1")
    stem = folder / "history" / f"{latest.stem}_{stamp}"
    store.write(result, Path(f"{stem}_profiled.json"))
    training().write(Path(f"{stem}_torch.trace.json.gz"))
    return latest


def test_a_result_and_an_output_folder_lead_to_the_latest_trace(tmp_path):
    latest = profiled(tmp_path)
    profiled(tmp_path, stamp="20261128_022917_213582")
    history = tmp_path / "history"
    for path in (latest, tmp_path):
        found = find_trace(path)
        assert found.trace.name == f"{latest.stem}_20261128_022917_213582_torch.trace.json.gz"
        assert found.result is not None
    assert find_trace(history / f"{latest.stem}_{STAMP}_profiled.json").trace.name.startswith(f"{latest.stem}_{STAMP}_")
    assert find_trace(found.trace).result is None
    profiled(tmp_path, "mi300x")
    with pytest.raises(InputError, match="profiles of 2 benchmarks"):
        find_trace(tmp_path)
    next(history.glob("*mi300x*trace.json.gz"), next(history.glob("*rocm*trace.json.gz"))).unlink()
    with pytest.raises(InputError, match="no trace belongs to it; make one with benchmark"):
        find_trace(next(tmp_path.glob("*rocm*.json")))


def test_a_result_states_the_work_of_one_gpu(tmp_path):
    (facts,) = trace_facts([find_trace(profiled(tmp_path))], model=None, sequence_length=None, sequences=1, clocks=())
    config = plausible.result("h100").training_config
    assert facts.sequence_length == config.sequence_length
    assert facts.sequences == config.global_batch_size / config.num_gpus


@in_each(("factor", "told"), [(1.0, []), (1.02, ["trace_not_closed"])])
def test_without_marks_the_result_is_the_clock_of_the_steps(factor, told, tmp_path):
    found = ledger_at(training(marked=False).write(tmp_path / "a.json"))
    result = plausible.result("h100", steps=40)
    seconds = np.full(len(result.steps), factor * found.step_seconds)
    timed = with_clock_of(found, result.changed(steps=result.steps.replace(seconds=seconds)))
    assert timed.closure == pytest.approx(1 / factor - 1, abs=1e-6)
    assert [one.code for one in timed.notices if one.code == "trace_not_closed"] == told
    interrupted = result.steps.replace(interrupted_by=np.ones(len(result.steps)))
    assert with_clock_of(found, result.changed(steps=interrupted)).closure is None
    assert with_clock_of(found, None).closure is None


def test_the_preflight_of_a_sides_machine_is_found_beside_its_result(tmp_path):
    side = find_trace(profiled(tmp_path))
    for host in ("node1", "another"):
        preflight.save(preflights.made(host=host, device_name=side.result.gpu_info.device_name), tmp_path)
    (facts,) = trace_facts([side])
    assert facts.preflight.host == "node1"


def test_comparing_two_sides_with_traces_draws_the_difference_and_names_the_command(tmp_path, capsys):
    sides = [str(profiled(tmp_path / machine, machine)) for machine in ("h100", "mi300x")]
    assert main(["compare", *sides, "--output-dir", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "comparison_report.html").read_text()
    assert "<svg" in page.partition(">Parts of the difference</h2>")[2]
    assert f"Why: tprimat explain {sides[0]} {sides[1]}" in capsys.readouterr().err
    assert main(["explain", *sides]) == 0
    assert "no difference" in capsys.readouterr().out
