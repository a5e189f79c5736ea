#!/usr/bin/env python3
"""Coverage-guided fuzzing of every log reader: no input crashes or hangs one, whatever it holds.

    perf/fuzz_readers.py --seconds 60              # a minute for every reader
    perf/fuzz_readers.py --seconds 600 --reader megatron --reader excel
    perf/fuzz_readers.py --splices 3000            # pairs of logs joined at random lines; needs no atheris

Each reader runs in a process of its own under atheris (libFuzzer for Python), from seeds that this script makes. An
input passes if it becomes a result or one of the tool's own errors within HANG_SECONDS and MOST_MEGABYTES. Inputs that
do not are kept under --keep. --splices joins two logs of one format that differ in their settings and checks that no
figure mixes facts of both without a warning or a refusal. Exit code 0, 1 where a reader failed, 2 where atheris is not
installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

HANG_SECONDS = 10  # a reader takes milliseconds for a file of a few kilobytes
MOST_MEGABYTES = 2048
LONGEST_INPUT = 8192  # bytes; the smallest workbook has six thousand

MEGATRON = (
    "[20260116 07:32:0{0}][rank-7/8][INFO ] [---trainer.py:2560] : iteration {0:8d}/    5000 |"
    " consumed samples: {0}28 | elapsed time per iteration (ms): 270{0}.3/2712.7 |"
    " compute per GPU (TFLOP/s/GPU): 615.5 (avg 600.1)  | tokens/s/GPU inst/harmonic mean: 11941.8/1.0 |"
    " global batch size:   128 | lm loss: 1.15E+01 | grad norm: 1.2 |"
    " hip mem usage/free/total/usage_ratio: 227.35GB/28.63GB/255.98GB/88.81%"
)
CONFIGURATION = "  seq_length ............... 8192\n  num_layers: ${{LAYERS:32}}\n"
BRIDGE = "Step Time : 4.1{0}s GPU utilization: 1253.0MODEL_TFLOP/s/GPU"
MLLOG = ':::MLLOG {{{{"time_ms": 170000000{0}000, "key": "{1}", "value": {2}, "metadata": {{{{"step": {0}}}}}}}}}'

ROWS: Mapping[str, Sequence[str]] = {
    "megatron": (CONFIGURATION + MEGATRON, BRIDGE, MEGATRON.replace("[20260116", "\x1b[32m[20260116")),
    "nemo": (
        "Training epoch 0, iteration {0}/99 | lr: 3e-07 | reduced_train_loss: 6.4 | train_step_timing in s: 1.{0}0 |"
        " global_batch_size: 8 | max_memory_reserved: 127785762816 | consumed_samples: {0}6",
        "[NeMo I 2026-01-05 08:00:0{0} perf_metrics_utils:42] train_step_timing in s: [9.{0}8, 7.1{0}, nan, 7.13]",
    ),
    "torchtitan": (
        "[titan] 2026-01-05 08:01:0{0},500 - root - INFO - \x1b[31mstep: {0:2}  loss:  7.1  memory: 38.50GiB(48.67%)"
        "  tps: 1,00{0}  tflops: 1,000.13  mfu: N/A\x1b[39m",
    ),
    "maxtext": (
        "completed step: {0}, seconds: 5.40{0}, TFLOP/s/device: 141.5, Tokens/s/device: 9098.1, loss: 11.3",
        "Config param max_target_length: 2048\nper train step: step {0}",
    ),
    "huggingface": (
        "{{'loss': '2.5', 'grad_norm': 1.0, 'learning_rate': 1e-05, 'global_step/max_steps': '{0}/99'}}",
        "\r {0}0%|###   | {0}/40 [00:0{0}<01:00,  1.2s/it]{{'loss': 1.2, 'epoch': 0.5, 'train_runtime': 9.{0}}}",
        "{{'train_runtime': 836.4, 'train_samples_per_second': 1.196, 'train_steps_per_second': 0.005}}",
        '{{"loss": 1.5, "train_speed(s/it)": 1.25, "global_step/max_steps": "{0}/100", "elapsed_time": "{0}m 3s"}}',
    ),
    "nanogpt": (
        "iter {0}: loss 4.2082, time 143{0}.27ms, mfu 1.01%",
        "step {0:05d}/16704 (0.06%) | loss: 2.8 | lrm: 1.00 | dt: 64{0}.81ms | tok/sec: 808,077 | mfu: 50.51",
        "step:{0}/1670 train_loss:3.2 train_time:{0}849ms step_avg:141.57ms",
        "step {0}/18865 | loss 3.2 (+1.2z)| norm 1.0 | lr 6e-04 | 354.65 ms | 58.1% bf16 MFU | 1478276 tok/s",
    ),
    "olmo": (
        "2026-01-05 08:00:00.9 INFO [step={0}/99,epoch=0]\n    train/CrossEntropyLoss=2.9\n"
        "    throughput/device/tokens_per_second=105,37{0}",
    ),
    "deepspeed": (
        "[2026-01-05 08:01:0{0},250] [INFO] [timer.py:199:stop] epoch=0/micro_step={0}/global_step={0},"
        " RunningAvgSamplesPerSec=9.9, CurrSamplesPerSec=171.{0}, MemAllocated=3.5GB, MaxMemAllocated=20.25GB",
        "steps: {0} loss: 12.8 iter time (s): 145.2{0} samples/sec: 7.052",
        "|E2E latency=3.7{0}s |Gather latency=0.1s |CurSamplesPerSec=10.9 |AvgSamplesPerSec=10.92",
    ),
    "litgpt": (
        "Epoch 1 | iter {0} step {0} | loss train: 9.1, val: n/a | iter time: 50{0}.40 ms (step) remaining time: 0:12",
        "{{'devices': 4, 'train': TrainArgs(global_batch_size=16, micro_batch_size=4, max_seq_length=1024)}}",
    ),
    "xtuner": (
        "[XTuner][RANK {0}][2026-01-05 08:00:0{0}][INFO] Epoch 1 Step {0}/100 data_time: 0.0{0}1 lr: 6.0e-05 "
        "time: 0.5{0}2 text_tokens: 4054.0 reduced_consumed_tokens: {0}054 reduced_llm_loss: 9.1 grad_norm: 1.5 "
        "max_memory: 5.36 GB reserved_memory: 7.05 GB tgs: 8000.{0} e2e_tgs: 7900.0 est_global_batch_tokens: 4054.0 ",
        "[XTuner][2026-01-05 08:00:00][INFO] grad_accumulation_steps: {0}",
    ),
    "lightning": (
        "epoch,step,train/time,train_loss,train_step_timing in s\n0,{0},{0}.5,9.1,0.5",
        "Epoch 0:  50%|#####     | {0}/10 [00:0{0}<00:05,  2.00it/s, loss=1.2]",
    ),
    "mlperf": (
        MLLOG.format("{0}", "tracked_stats", '{{"train_step_time": 0.5, "reduced_train_loss": 9.1}}'),
        MLLOG.format("{0}", "tracked_stats", '{{"throughput": 30.15}}'),
        MLLOG.format("{0}", "run_start", "null"),
        MLLOG.format("{0}", "global_batch_size", "16"),
    ),
    "automodel": (
        "2026-01-05 08:00:0{0} | INFO | root | step {0} | epoch 0 | loss 2.31 | grad_norm 1.2 | lr 1.00e-05 | mem 40.20"
        " GiB | tps 13107{0}.00(16384.00/gpu) | num_label_tokens 99",
        'tp_size: 2\n[val] name "a" | step {0} | epoch 0 | loss 2.2\nstep {0} | epoch 0 | loss 2.1 | time 1.2{0}s',
    ),
    "nanotron": (
        "iteration: {0} / 50 | consumed_tokens: {0}.19M | time_per_iteration_ms: 2.0{0}K | tokens_per_sec: 524K |"
        " tokens_per_sec_per_gpu: 65.5K | global_batch_size: 1.05M | lm_loss: 10.9 | model_tflops_per_gpu: 420",
        "tokens=TokensArgs(sequence_length=4096, micro_batch_size={0}),\niteration: {0} / 9 | tokens_per_sec: 1.5E+05 |"
        " elapsed_time_per_iteration_ms: 20{0}.5",
    ),
    "lingua": (
        "0: INFO    26-01-05 18:46:5{0}.5 - 0:00:0{0} - step: {0}  acc: 0  loss:  9.1234  grad: 1.06e+01  "
        "flops: 1.97e+14  wps: 1.8{0}e+04  iter:  0.89  data: 0.001  lr: 6.00e-07  mem: 59%  pow: 392.9 W",
        "Running on dp size : {0}",
    ),
    "picotron": (
        "[default0]:[rank 0] Step: {0}     | Loss: 9.1234 | Global batch size: 524.29K | Tokens/s: 499.3{0}K | "
        "Tokens/s/GPU:  62.42K | Tokens: {0}.52M | MFU: 42.45% | Memory usage:  60.10GB",
        "[rank 0] Step: {0}, Loss: 9.1234, Global batch size: 1.05M, Tokens/s: 998.6{0}K, Tokens/s/GPU: 124.83K, "
        "Tokens: {0}.05M/10.00B, Memory usage: 23.45GB",
    ),
    "internevo": (
        "2026-01-05T08:00:0{0}.225+08:00 INFO - pid=6794 : tflops=181.5 step={0} loss=9.12 tgs (tokens/gpu/second)="
        "409{0}.25 tgs/last_tgs_1=99.0 lr=4e-07 grad_norm={{'0_default': 6.5}} micro_num=4 num_consumed_tokens={0}000 ",
        "tflops=189.65,step={0},loss=10.149,tgs (tokens/gpu/second)=427{0}.52,lr=1.2e-06,num_consumed_tokens={0}72,\n"
        "-- Distributed environment is initialized, data parallel size: 4, pipeline parallel size: 1, tensor parallel "
        "size: 2",
    ),
    "paddle": (
        "[2026-01-05 08:00:0{0},139] [    INFO] - loss: 9.12340117, learning_rate: 4.583e-05, global_step: {0}, "
        "max_memory_reserved: 16.5, interval_runtime: 2.0{0}48, interval_tokens_per_second_per_device: 8000.5, "
        "interval_steps_per_second: 0.4878, progress_or_epoch: 0.01",
        "loss: 3.25, learning_rate: 2e-05, global_step: {0}0, interval_runtime: 2.2{0}, interval_samples_per_second: "
        "3.5, interval_steps_per_second: 4.4{0}, epoch: 0.02\n[2026-01-05 08:00:01,006] [    INFO] - ***** Running "
        "Evaluation *****\n -   Total train batch size (w. parallel, distributed & accumulation) = 8",
    ),
    "mindformers": (
        "2026-01-05 08:00:0{0},308 - INFO - {{ Epoch:[  1/  2], step:[    {0}/   19], loss: 10.633, per_step_time: "
        "175{0}ms, lr: 1e-05, overflow cond: False, loss_scale: 1.0, global_norm: [10.5], train_throughput_per_npu: "
        "170.738T\n - INFO -    0.6% |██  | 0.5710{0} samples/s/p  0:12:34 }}",
        "{{ Epoch:[  {0}/  2], step:[    1/    1], loss:[ 9.123/ 9.456], per_step_time: 200{0}ms, lr: [1.e-05], "
        "overflow cond: False\nglobal_batch_size = per_batch_size * data_parallel = 4 * 8 = 3{0}",
    ),
    "composer": (
        "[batch={0}/50]:\n\t Train time/token: {0}000\n\t Train throughput/device/tokens_per_sec: 3276{0}.0\n"
        "\t Train time/secs_per_step: 2.{0}",
        "[epoch={0}][batch={0}/9]:\n\t Train throughput/tokens_per_sec: 99{0}.5\nmax_seq_len: 2048",
    ),
    "torchtune": (
        "Step {0} | loss:1.9 lr:2e-05 tokens_per_second_per_gpu:1638{0}.5 peak_memory_alloc:20.25 grad_norm:1.5 ",
        "Step {0} | loss:tensor(1.{0}, device='cuda:0') tokens_per_second_per_gpu:np.float64(99.5) ",
    ),
    "verl": (
        "(TaskRunner pid=71) step:{0} - actor/pg_loss:np.float64(-0.2) - timing_s/gen:1.5 - perf/time_per_step:2{0}.5 -"
        " perf/total_num_tokens:100000 - perf/throughput:408.1",
        "step:{0} - train/loss:2.5 - train/lr(1e-3):0.02 - train/time(s):1.2{0}",
    ),
    "slime": (
        "train_metric_utils.py:47 - perf {0}: {{'perf/train_time': 1.5, 'perf/step_time': 3.{0}, "
        "'perf/wait_time_ratio': 0}}",
    ),
    "tinygrad": ("    {0} 4.3{0} s run, 11.8750 loss, 0.000000000002 LR, 1454.57 GB used, 401488.40 GFLOPS",),
    "colossalai": (
        "INFO     colossalai - INFO: [{0}/20] Loss:10.4{0}, Step time: 22.8{0}s, TFLOPS: 33.412, FWD time: 5.1s",
        "INFO     colossalai - colossalai - INFO: Step time: 2{0}.885  ",
        "Throughput: 3.{0}9 samples/sec, TFLOPS per GPU by Megatron: 175.25, TFLOPS per GPU: 163.0{0}",
    ),
    "levanter": (
        "INFO :: Progress on:train {0}.00it/9.00kit rate:76.8s/it remaining:10:00 elapsed:0{0}:30 postfix:loss=9.{0}",
        "Progress on:train {0}.99kit/10.0kit rate:1,204.8it/s remaining:? elapsed:{0}:31:40 postfix:loss=nan",
    ),
    "nemo_rl": (
        "========== Epoch 1/2 ==========\n========== Step {0}/99 ==========\n  • Loss: 0.25\n"
        "  • Total step time: 2.0{0}s\n    - E2E (Tokens/sec/gpu): 4096.00",
    ),
    "fairseq": (
        "2026-01-05 08:00:0{0} | INFO | train_inner | epoch 001:   {0}00 / 160368 loss=9.123, wps=13943{0}, "
        "ups=2.13, wpb=65536, bsz=128, num_updates={0}00, lr=2.8e-05, gnorm=3.23, train_wall=46, wall=10{0}",
        '2026-01-05 08:00:0{0} | INFO | train_inner | {{"epoch": 1, "update": 0.1, "loss": "9.1", "wps": "13943{0}", '
        '"ups": "2.1", "wpb": "65536", "bsz": "128", "num_updates": "{0}00", "lr": "2.8e-05", "wall": "10{0}"}}\n'
        "2026-01-05 08:00:00 | INFO | fairseq_cli.train | training on {0} devices (GPUs/TPUs)",
    ),
    "fms_fsdp": (
        "step: {0}00\nloss: 2.5\nLR: 0.0003\ntokens seen: 4{0}0000\ngradient norm: 0.5\nreserved memory: 7{0}0000000\n"
        "current step time: 4.5{0}\ncurrent token per gpu per sec: 728{0}",
        "step: {0}0\nloss: 2.5\nallocated memory: 4{0}.50 GiB\ncurrent step time: 0.5{0}\nCheckpoint saved in out",
    ),
    "neuronx": (
        "step {0} step_time 24{0}.819584608078s throughput 4.018679872757218 seq/s step loss 13.4{0} grad norm None",
        "LOG Mon Jan  5 08:00:0{0} 2026 - (0, {0}) step_loss : 10.4{0}00 learning_rate : 1.00e-05 throughput : 12{0}.25"
        " seq/s grad-norm : 2.1",
    ),
    "aws": (
        "0: 2026-01-05 08:00:0{0} I [train.py:103] Batch {0} Loss: 7.06632, Speed: 9.4{0} samples/sec, lr: 0.000010",
        "Batch {0} Loss: 7.1, Speed: 9.4{0} samples/sec, Tokens/s: 771{0}, TFLOPS/GPU: 28.6, MFU: 0.029, lr: 0.000010",
    ),
    "t5x": (
        "I0105 08:00:0{0}.250000 139812 logging_writer.py:48] [{0}0] collection=train accuracy=0.25, "
        "loss_per_all_target_tokens=9.{0}, timing/seconds=20.{0}, timing/steps_per_second=0.4{0}, "
        "timing/target_tokens_per_second=64000.{0}, timing/target_tokens_per_second_per_core=8000.0",
    ),
    "mlx": (
        "Iter {0}: Train loss 2.5{0}, Learning Rate 1.0e-05, It/sec 2.0, Tokens/sec 8192.0, Trained Tokens 40{0}, "
        "Peak mem 12.3 GB",
        "    {0}    2.5{0}0 ▼    8,192    4{0}.0k",
    ),
    "metrics": (
        '{{"_step": {0}, "_runtime": 3{0}.5, "train/loss": 2.5, "step_time_ms": 12{0}.5}}',
        "step,epoch,step_time,tokens_per_sec,loss\n{0},0,0.2{0},99.5,2.5",
        "step;step_time;tokens_per_sec;loss\n{0};0,2{0};15.{0}45;2,5",
        '{{"step": {0}, "loss": 2.5, "tps": 131.5, "num_tokens_per_step": 26{0}, "mem": 4{0}.5}}',
        '10:00:0{0} INFO :: {{"tracker": "json_logger", "event": "log", "step": {0}, "metrics": '
        '{{"throughput/duration": 0.2{0}, "train/loss": 2.5}}}}',
    ),
    "mlflow": ("170000000{0}500 {0}.25e-3 {0}",),
    "madengine": (
        "model,n_gpus,nnodes,training_precision,machine_name,gpu_architecture,performance,metric,status\n"
        "llama_{0},8,1,bf16,node,gfx942,12{0}.5,tokens/s/gpu,SUCCESS",
        "model,performance,metric,precision,device\nLlama-3.1-8B,12{0}.5,tok_per_s_per_gpu,BF16,MI300X\n"
        "Llama-3.1-8B,41{0}.5,TFLOPS_per_gpu,BF16,MI300X\nLlama-3.1-8B,8{0},GPU_memory_usage,BF16,MI300X",
    ),
    "loop": (
        "step {0:5d}/500 | loss 9.{0:02} | lr 1.00e-04 | step time 20{0:02}.0 ms | tok/s 65,5{0:02}",
        "Step [{0}/500] Loss: 9.{0:02} (0.5{0:02} s/step) 15.{0}k tokens/s",
    ),
    "timestamps": (
        "2026-01-05 08:0{0}:00,123 INFO step {0}/99 loss 2.{0} lr 1e-05",
        "0{0}/11/2026, 11:5{0}:00 PM step {0}/99 loss 2.{0}",
        "1{0}.11.2026 08:0{0}:00 step {0}/99 loss 2.{0}",
        "I0116 07:3{0}:24.123456 9 a.py:9] global_step={0} train loss: 2.5{0}\nrunning validation",
    ),
}
"""Reader → rows of its formats, with a place for the number of the step."""
DOCUMENTS: Mapping[str, Sequence[bytes]] = {
    "huggingface": (
        b'{"global_step": 9, "log_history": [{"loss": 1.2, "step": 1, "learning_rate": 0.1, "epoch": 0.5}]}',
        b'{"train_runtime": 836.4, "train_samples_per_second": 1.196, "train_loss": 2.5}',
    ),
    "metrics": (
        b'[{"_step": 1, "_runtime": 5.5, "train/loss": 2.5}, {"_step": 2, "_runtime": 7.5, "train/loss": 2.4}]',
        b'{"_step": 9, "_runtime": 5.5, "throughput/tokens_per_sec": 99.5, "_wandb": {"runtime": 5}}',
    ),
    "result": (
        b'{"platform": "cuda", "performance_metrics": {"total_steps": 3, "tokens_per_second": 9.5},'
        b' "raw_step_times": [0.5, 0.5, 0.5], "training_config": {"global_batch_size": 8}}',
        b'{"platform": "nvd", "gpu_info": {"device_name": "NVIDIA H100"}, "performance_metrics": {"total_steps": 2},'
        b' "step_times": [0.5, 0.5], "loss_values": [2.5, "nan"], "parallelism_config": {"tensor": 8}}',
        b'{"schema_version": 3, "platform": "amd", "gpu_info": {}, "model": {"name": "llama"}, "training_config": {},'
        b' "performance_metrics": {}, "raw_step_times": [1.5, null], "step_metrics": {"loss": ["nan", 2.5],'
        b' "index": [1, 2], "interrupted_by": [null, "validation"]}, "runs": [{"index": 0}], "warnings": ["a: b"]}',
    ),
}
"""Reader → whole files."""


def cells(text: bytes) -> bytes:
    """Return a workbook whose sheets are the paragraphs of a text: name, then rows of cells with commas between."""
    import io

    import openpyxl

    book = openpyxl.Workbook()
    for paragraph in text.decode("utf-8", "replace").split("\n\n")[:8]:
        name, *rows = paragraph.split("\n")
        sheet = book.create_sheet(re.sub(r"[^\w ]", "", name)[:30] or "sheet")
        for row in rows[:50]:
            sheet.append([_value(cell) for cell in re.sub(r"[\x00-\x1f]", "", row).split(",")[:20]])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def _value(cell: str) -> str | float:
    with suppress(ValueError):
        return float(cell)
    return cell


def events(text: bytes) -> bytes:
    """Return an event file of scalars: one per line, as step, time, value and tag."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    found = [Event(wall_time=1.7e9, file_version="brain.Event:2")]
    for line in text.decode("utf-8", "replace").split("\n")[:200]:
        step, _, rest = line.partition(" ")
        time, _, rest = rest.partition(" ")
        value, _, tag = rest.partition(" ")
        with suppress(ValueError, OverflowError):
            scalar = Summary.Value(tag=tag, simple_value=float(value))
            found.append(Event(step=int(step), wall_time=float(time), summary=Summary(value=[scalar])))
    records = (event.SerializeToString() for event in found)
    return b"".join(framed(record, len(record)) for record in records)


def run_file(text: bytes) -> bytes:
    """Return a run file of Weights & Biases: one call of wandb.log per line, as `name value` pairs."""
    calls = []
    for line in text.decode("utf-8", "replace").split("\n")[:200]:
        words = line.split(" ")
        calls.append(protobuf(HISTORY, protobuf_items(dict(zip(words[::2], words[1::2], strict=False)))))
    return run_file_of(calls)


def run_file_of(records: Sequence[bytes]) -> bytes:
    """Return records of Protocol Buffers in the blocks of a run file, long ones in fragments."""
    from tensorprimat.logs.files import WANDB_OPENING
    from tensorprimat.logs.wandb_run import (
        FIRST_FRAGMENT,
        LAST_FRAGMENT,
        MIDDLE_FRAGMENT,
        WANDB_BLOCK_BYTES,
        WANDB_HEADER_BYTES,
        WHOLE_FRAGMENT,
    )

    written = bytearray(WANDB_OPENING)
    for record in records:
        rest, begins = record, True
        while begins or rest:
            room = WANDB_BLOCK_BYTES - len(written) % WANDB_BLOCK_BYTES
            if room < WANDB_HEADER_BYTES:
                written += bytes(room)
                room = WANDB_BLOCK_BYTES
            part, rest = rest[: room - WANDB_HEADER_BYTES], rest[room - WANDB_HEADER_BYTES :]
            kind = bytes(
                [(FIRST_FRAGMENT if rest else WHOLE_FRAGMENT) if begins else MIDDLE_FRAGMENT if rest else LAST_FRAGMENT]
            )
            written += struct.pack("<IH", zlib.crc32(part, zlib.crc32(kind)), len(part)) + kind + part
            begins = False
    return bytes(written)


def protobuf(field: int, content: bytes) -> bytes:
    """Return a field of a message: its number, length and content."""

    def varint(number: int) -> bytes:
        return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)

    return varint(field << 3 | 2) + varint(len(content)) + content


def protobuf_items(values: Mapping[str, str]) -> bytes:
    """Return the items of a history or configuration, from values in JSON by name."""
    return b"".join(
        protobuf(1, protobuf(1, name.encode("utf-8", "replace")) + protobuf(16, value.encode("utf-8", "replace")))
        for name, value in values.items()
    )


def framed(record: bytes, length: int) -> bytes:
    """Return a record of an event file with its length and both checksums."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    head = struct.pack("<Q", length)
    return head + struct.pack("<I", masked_crc32c(head)) + record + struct.pack("<I", masked_crc32c(record))


HISTORY = 2  # field of a record with a call of wandb.log
CALLS = "\n".join(
    f"train/global_step {n} train/loss 2.{n} _step {n} _timestamp {1.76e9 + n} train/tokens_per_second 99{n}"
    for n in range(1, 12)
).encode()

SHEETS = b"""gpu_timeline
type,time ms,percent
computation_time,60.0,60
idle_time,19.0,19
total_time,100.0,100

ops_summary_by_category
op category,Count,total_direct_kernel_time_ms
GEMM,10,40.0

nccl_summary_implicit_sync
Collective name,dtype,In msg nelems,Group size,count,dur_sum,comm_latency_mean
allreduce,BFloat16,1048576,8,10,5.0,0.5"""
SCALARS = b"""1 1700000000.5 0.5 iteration-time
1 1700000000.5 9.5 lm loss
2 1700000001.0 0.5 iteration-time
3 1700000002 0.5 train_step_timing in s
4 1700000003 1.5 train/loss"""


def _same(text: bytes) -> bytes:
    return text


@dataclass(frozen=True, kw_only=True)
class Target:
    """The reader to fuzz, with its seeds."""

    format: str
    """Empty where the reader is to be found by detection."""
    seeds: Callable[[], list[bytes]]
    """Made on request: some need packages that are slow to import."""
    dress: Callable[[bytes], bytes] = _same
    """Function that makes a file of fuzzed bytes."""


def _rows_and_documents(name: str) -> list[bytes]:
    logs = ["\n".join(row.format(step) for step in range(1, 9)).encode() for row in ROWS.get(name, ())]
    return [*logs, *DOCUMENTS.get(name, ())]


def targets() -> dict[str, Target]:
    """Return every reader by its format's name, and "any", which detects the format.

    Binary formats are there a second time, with fuzzed contents in files of the right shape.
    """
    found = {
        name: Target(format=name, seeds=partial(_rows_and_documents, name))
        for name in dict.fromkeys((*ROWS, *DOCUMENTS))
    }
    if importlib.util.find_spec("openpyxl"):
        found["excel"] = Target(format="excel", seeds=lambda: [cells(SHEETS)])
        found["excel cells"] = Target(format="excel", seeds=lambda: [SHEETS], dress=cells)
    if importlib.util.find_spec("tensorboard"):
        found["tensorboard"] = Target(format="tensorboard", seeds=lambda: [events(SCALARS)])
        found["tensorboard scalars"] = Target(format="tensorboard", seeds=lambda: [SCALARS], dress=events)
    found["wandb"] = Target(format="wandb", seeds=lambda: [run_file(CALLS)])
    found["wandb calls"] = Target(format="wandb", seeds=lambda: [CALLS], dress=run_file)
    text = [name for name in found if name in ROWS or name in DOCUMENTS]
    found["any"] = Target(format="", seeds=lambda: [seed for name in text for seed in found[name].seeds()])
    return found


def fuzz(target: str, seconds: int, kept: Path) -> None:
    """Fuzz one target in this process; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["tensorprimat"]):
        from tensorprimat import logs
        from tensorprimat.core.errors import TensorPrimatError
    chosen = targets()[target]
    with tempfile.TemporaryDirectory(prefix="tprimat_fuzz_") as folder:
        corpus, file = Path(folder) / "corpus", Path(folder) / "a.log"
        corpus.mkdir()
        for number, seed in enumerate(chosen.seeds()):
            (corpus / str(number)).write_bytes(seed)

        def once(content: bytes) -> None:
            file.write_bytes(chosen.dress(content))
            with suppress(TensorPrimatError):
                logs.read(file, format=chosen.format or None)

        limits = (f"-max_total_time={seconds}", f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MOST_MEGABYTES}")
        keeping = (f"-max_len={LONGEST_INPUT}", f"-artifact_prefix={kept}/{target.replace(' ', '_')}-")
        atheris.Setup([sys.argv[0], *limits, *keeping, "-print_final_stats=1", str(corpus)], once)
        atheris.Fuzz()


def _survived(target: str, seconds: int, kept: Path) -> bool:
    """Fuzz one target in a process of its own and print a row of the table."""
    command = [sys.executable, __file__, "--inside", target, "--seconds", str(seconds), "--keep", str(kept)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    runs = re.search(r"number_of_executed_units: (\d+)", done.stdout)
    covered = re.findall(r"\bcov: (\d+)", done.stdout)
    outcome = "no crash, no hang" if done.returncode == 0 else f"FAILED, input kept under {kept}"
    print(f"{target:<20} {runs[1] if runs else '-':>9} inputs {covered[-1] if covered else '-':>6} edges  {outcome}")
    sys.stdout.flush()
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    return done.returncode == 0


def splice(cases: int) -> bool:
    """Join that many pairs of logs, of all formats that tests can write; return True if no figure mixes two trainings.

    Prints a row per format, and the smallest failing pair of lines where one fails.
    """
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    sys.path.insert(0, str(ROOT / "tests"))
    from table_logs import ALL_JOBS
    from test_segments import assert_nothing_is_mixed_silently, spliced

    share, failed = -(-cases // len(ALL_JOBS)), 0
    for name in ALL_JOBS:

        @settings(max_examples=share, deadline=None, database=None, suppress_health_check=[*HealthCheck])
        @given(data=st.data(), name=st.just(name))
        def once(data: st.DataObject, name: str) -> None:
            assert_nothing_is_mixed_silently(*data.draw(spliced(name)))

        outcome = "no figure of two trainings"
        try:
            once()
        except AssertionError as error:
            failed, outcome = failed + 1, f"FAILED: {error}"
        print(f"{name:<20} {share:>9} splices  {outcome}", flush=True)
    return failed == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader (default 60)")
    parser.add_argument("--reader", action="append", choices=[*targets()], help="only this one; may be repeated")
    parser.add_argument("--splices", type=int, help="join so many pairs of logs instead")
    parser.add_argument("--keep", type=Path, default=Path("fuzz_failures"), help="where failing inputs are kept")
    parser.add_argument("--inside", choices=[*targets()], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.splices:
        return 0 if splice(options.splices) else 1
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed; pip install atheris (Linux, Python 3.11 to 3.13)", file=sys.stderr)
        return 2
    options.keep.mkdir(parents=True, exist_ok=True)
    if options.inside:
        fuzz(options.inside, options.seconds, options.keep)
        return 0
    survived = [_survived(target, options.seconds, options.keep) for target in options.reader or targets()]
    with suppress(OSError):
        options.keep.rmdir()  # removed only if it is empty
    return 0 if all(survived) else 1


if __name__ == "__main__":
    sys.exit(main())
