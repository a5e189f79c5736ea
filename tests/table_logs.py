"""Logs of jobs whose rows a table of the package describes: dialects, tables of metrics, printed timestamps."""

from __future__ import annotations

import json
from collections.abc import Callable

from job_logs import JOBS, Job


def automodel(job: Job) -> list[str]:
    tokens = job.batch * job.length
    return job.log(
        lambda number, seconds, now: (
            f"{now:%Y-%m-%d %H:%M:%S} | INFO | root | step {number} | epoch 0 | loss {job.loss - number / 100:.4f} | "
            f"grad_norm 1.2 | lr 1.00e-05 | mem 40.20 GiB | tps {tokens / seconds:.2f}"
            f"({tokens / seconds / job.gpus:.2f}/gpu) | num_label_tokens {tokens}"
        ),
        banner=[
            f"World size: {job.gpus}",
            f"  global_batch_size: {job.batch}",
            f"  local_batch_size: {job.batch // job.gpus}",
        ],
    )


def nanotron(job: Job) -> list[str]:
    tokens = job.batch * job.length
    return job.log(
        lambda number, seconds, now: (
            f"{now:%m/%d/%Y %H:%M:%S} [INFO|DP=0|PP=0|TP=0]: iteration: {number} / 500 | consumed_tokens: "
            f"{number * tokens / 1e6:.3g}M | time_per_iteration_ms: {seconds:.4g}K | tokens_per_sec: "
            f"{tokens / seconds / 1e3:.4g}K | tokens_per_sec_per_gpu: {tokens / seconds / job.gpus / 1e3:.4g}K | "
            f"global_batch_size: {tokens / 1e3:.4g}K | lm_loss: {job.loss - number / 100:.3g} | lr: 0.0003 | "
            f"model_tflops_per_gpu: {job.tflops(seconds):.4g} | grad_norm: 1.1"
        ),
        banner=[
            f"tokens=TokensArgs(sequence_length={job.length}, micro_batch_size={job.batch // job.gpus},",
            " batch_accumulation_per_replica=1,",
            f"parallelism=ParallelismArgs(dp={job.gpus},",
        ],
    )


def composer(job: Job) -> list[str]:
    lines = []
    if job.banner:
        lines += [f"max_seq_len: {job.length}", f"global_train_batch_size: {job.batch}", f"n_gpus: {job.gpus}"]
    tokens, clock = job.batch * job.length, 0.0
    for number, seconds, _ in job.steps():
        clock += seconds
        lines += [
            f"[batch={number}/500]:",
            f"\t Train time/token: {number * tokens}",
            f"\t Train loss/train/total: {job.loss - number / 100:.4f}",
            f"\t Train throughput/batches_per_sec: {1 / seconds:.4f}",
            f"\t Train throughput/tokens_per_sec: {tokens / seconds:.4f}",
            f"\t Train throughput/device/tokens_per_sec: {tokens / seconds / job.gpus:.4f}",
            f"\t Train time/train: {clock / 3600:.4f}",
        ]
    return lines


def torchtune(job: Job) -> list[str]:
    return job.log(
        lambda number, seconds, _: (
            f"Step {number} | loss:{job.loss - number / 100:.4f} lr:2e-05 tokens_per_second_per_gpu:"
            f"{job.tokens_per_gpu * job.seconds / seconds:.4f} peak_memory_alloc:20.25 grad_norm:1.5 "
        ),
        banner=["max_steps_per_epoch: 500", "gradient_accumulation_steps: 1"],
    )


def verl(job: Job) -> list[str]:
    tokens = job.batch * job.length
    return job.log(
        lambda number, seconds, _: (
            f"(TaskRunner pid=71) step:{number} - actor/pg_loss:{job.loss - number / 100:.3f} - perf/time_per_step:"
            f"{seconds:.4f} - perf/total_num_tokens:{tokens} - perf/throughput:{tokens / seconds / job.gpus:.4f}"
        )
    )


def nemo_rl(job: Job) -> list[str]:
    tokens = job.batch * job.length
    return job.log(
        lambda number, seconds, _: (
            f"========== Step {number}/500 ==========\n"
            f"  • Loss: {job.loss - number / 100:.4f}\n"
            f"  • Total step time: {seconds:.3f}s\n"
            f"    - E2E (Tokens/sec/gpu): {tokens / seconds / job.gpus:.2f}\n"
            f"    - E2E (Tokens/sec): {tokens / seconds:.2f}"
        )
    )


def metrics_table(job: Job) -> list[str]:
    return job.log(
        lambda number, seconds, _: (
            f"{number},{number * job.batch * job.length},{seconds:.5f},{job.loss - number / 100:.4f}"
        ),
        banner=["step,total_tokens,step_time,train/loss"],
    )


def metrics_rows(job: Job) -> list[str]:
    tokens = job.batch * job.length
    return [
        json.dumps(
            {
                "_step": number,
                "_timestamp": now.timestamp(),
                "train/loss": job.loss - number / 100,
                "tokens_per_sec": round(tokens / seconds, 2),
                "num_tokens_per_step": tokens,
            }
        )
        for number, seconds, now in job.steps()
    ]


def timestamps(job: Job) -> list[str]:
    return [
        f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d} INFO step {n}/999 "
        f"loss {job.loss - n / 100:.4f} lr 1e-05"
        for n, _, now in job.steps()
    ]


def loop(job: Job) -> list[str]:
    return job.log(
        lambda number, seconds, _: (
            f"step {number:5d}/500 | loss {job.loss - number / 100:.4f} | lr 1.00e-04 | "
            f"step time {seconds * 1000:.1f} ms | tok/s {job.batch * job.length / seconds:,.0f}"
        )
    )


ALL_JOBS: dict[str, Callable[[Job], list[str]]] = {
    **JOBS,
    "automodel": automodel,
    "nanotron": nanotron,
    "composer": composer,
    "torchtune": torchtune,
    "verl": verl,
    "nemo_rl": nemo_rl,
    "metrics table": metrics_table,
    "metrics rows": metrics_rows,
    "loop": loop,
    "timestamps": timestamps,
}
"""JOBS, and jobs whose logs state few settings."""
