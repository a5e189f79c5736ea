"""One row of a console log, or a block of lines, for each framework of data/dialects.toml."""

from __future__ import annotations

from collections.abc import Callable


def automodel(n: int, tps: float = 131072.0, rest: str = " | num_label_tokens 260000") -> str:
    rates = f"tps {tps:.2f}({tps / 8:.2f}/gpu)"
    return (
        f"2026-01-05 08:00:{n:02} | INFO | root | step {n} | epoch 0 | loss 2.3100 | grad_norm 1.2000 | lr 1.00e-05"
        f" | mem 40.20 GiB | {rates}{rest}"
    )


def nanotron(n: int) -> str:
    return (
        f"01/16/2026 07:32:24 [INFO|DP=0|PP=0|TP=0|ip-10]: iteration: {n} / 50 | consumed_tokens: {4.19 * n:.3g}M"
        " | time_per_iteration_ms: 1.05K | tokens_per_sec: 499K | tokens_per_sec_per_gpu: 62.4K | grad_norm: 1.1"
        " | global_batch_size: 524K | lm_loss: 10.9 | lr: 0.0003 | model_tflops_per_gpu: 420 | eta: 0:01:00"
    )


def composer(n: int, seconds: float = 2.0, tokens: int = 65536) -> str:
    return (
        f"[batch={n}/50]:\n\t Train time/batch: {n - 1}\n\t Train time/token: {(n - 1) * tokens}\n"
        f"\t Train throughput/tokens_per_sec: {tokens / seconds:.4f}\n"
        f"\t Train throughput/device/tokens_per_sec: {tokens / seconds / 8:.4f}\n"
        "\t Train memory/peak_allocated_mem: 20.1000\n\t Train loss/train/total: 9.5000\n"
        f"\t Train time/secs_per_step: {seconds:.4f}"
    )


def torchtune(n: int, rate: float = 16384.5) -> str:
    return (
        f"Step {n} | loss:1.9000381 lr:2e-05 tokens_per_second_per_gpu:{rate} peak_memory_active:20.25"
        " peak_memory_alloc:20.125 peak_memory_reserved:24.5 "
    )


def verl(n: int, seconds: float = 25.0) -> str:
    return (
        f"(TaskRunner pid=4711) step:{n} - actor/pg_loss:np.float64(-0.25) - perf/max_memory_allocated_gb:50.5"
        f" - timing_s/gen:12.5 - timing_s/step:{seconds} - perf/total_num_tokens:1000000"
        f" - perf/time_per_step:{seconds} - perf/throughput:{1e6 / seconds / 8!r}"
    )


def slime(n: int, seconds: float = 30.0) -> str:
    return (
        f"[36m(MegatronTrainRayActor pid=71)[0m train_metric_utils.py:47 - perf {n}: {{'perf/train_wait_time': "
        f"{seconds / 2}, 'perf/train_time': {seconds / 2}, 'perf/step_time': {seconds}, 'perf/wait_time_ratio': 0.5}}"
    )


def colossalai(n: int, seconds: float = 22.9) -> str:
    return (
        f"[08/30/23 10:{n % 60:02}:11] INFO     colossalai - train_gpt_demo.py:331 main\n"
        f"                    INFO     colossalai - colossalai - INFO: [{n}/20] Loss:{10.5 - n / 50:.3f}, Step time: "
        f"{seconds:.3f}s, TFLOPS: 33.412, FWD time: 5.100s, BWD time: 15.200s, OPTIM time: 2.600s"
    )


def tinygrad(n: int, seconds: float = 4.25) -> str:
    return f"{n:5} {seconds:.2f} s run, 11.8750 loss, 0.000000000002 LR, 1454.57 GB used, {1.7e6 / seconds:9.2f} GFLOPS"


def nemo_rl(n: int, seconds: float = 2.0) -> str:
    return (
        f"\n========================= Step {n}/100 =========================\n▶ Taking a training step...\n"
        f"\n📊 Training Results:\n  • Loss: 0.2500\n\n⏱️  Timing:\n  • Total step time: {seconds:.2f}s\n"
        "  • policy_training: 1.50s (75.0%)\n    - E2E (Tokens/sec/gpu): 4096.00\n    - E2E (Tokens/sec): 32768.00"
    )


def mlx(n: int, tokens: int = 4096, seconds: float = 0.5) -> str:
    return (
        f"Iter {n}: Train loss 2.250, Learning Rate 1.000e-05, It/sec {1 / seconds:.3f}, "
        f"Tokens/sec {tokens / seconds:.3f}, Trained Tokens {n * tokens}, Peak mem 12.345 GB"
    )


def lingua(n: int, wps: float = 18400.0) -> str:
    return (
        f"0: INFO    26-01-05 08:{n // 60:02}:{n % 60:02}.509680 - 0:00:{n % 60:02} - step: {n}  acc: 0  loss: "
        f"{12 - n / 1000:>7}  grad: 1.06e+01  flops: 1.97e+14  wps: {wps:.2e}  iter:  0.8908  data: 0.001  "
        "lr: 6.00e-07  mem: 59%  pow: 392.956 W"
    )


def picotron(n: int, rate: str = "499.32K", per_gpu: str = " 62.42K") -> str:
    return (
        f"[default7]:[rank 7] Step: {n:<5d} | Loss: 9.1234 | Global batch size: 524.29K | Tokens/s: {rate:>7s} | "
        f"Tokens/s/GPU: {per_gpu:>7s} | Tokens: {n * 0.52429:6.2f}M | MFU: 42.45% | Memory usage:  60.10GB"
    )


def internevo(n: int, tgs: float = 4096.25) -> str:
    return (
        f"2026-01-05T08:{4 * n // 60:02}:{4 * n % 60:02}.225+08:00 INFO [training_internlm.py, line 413, in "
        f"record_current_batch_training_metrics] - pid=6794 : tflops=181.5 step={n} loss=9.1234 tgs "
        f"(tokens/gpu/second)={tgs} tgs/last_tgs_1=99.0 tgs/tgs_all=98.0 lr=4e-07 loss_scale=65536.0 grad_norm="
        f"{{'0_default': 6.5, '1_fp32': 0.0}} micro_num=4 num_consumed_tokens={131072 * (n + 1)} fwd_bwd_time=3.87 "
    )


def paddle(n: int, seconds: float = 2.048) -> str:
    """Return the row of steps 10 n - 9 to 10 n of PaddleFormers."""
    return (
        f"[2026-01-05 08:{n // 3:02}:{20 * (n % 3):02},139] [    INFO] - loss: 9.12340117, learning_rate: 4.583e-05, "
        f"global_step: {n}, current_memory_allocated: 7.5491702556, max_memory_allocated: 12.25, max_memory_reserved: "
        f"16.5, interval_runtime: {10 * seconds:.4f}, interval_samples_per_second: {32 / seconds:.4f}, "
        f"interval_tokens_per_second_per_device: {32 * 4096 / seconds / 8:.4f}, interval_hardware_tflops_per_device: "
        f"400.0, interval_steps_per_second: {1 / seconds:.4f}, progress_or_epoch: 0.01, cpu_used_memory: 0.67"
    )


def mindformers(n: int, milliseconds: int = 1750) -> str:
    source = "mindformers[mindformers/core/callback/callback.py:529] - INFO - "
    return (
        f"2026-01-05 08:00:{n:02},308 - {source}{{ Epoch:[  1/  2], step:[{n:5}/  100], loss: 11.900, per_step_time: "
        f"{milliseconds}ms, lr: 9.98e-06, overflow cond: False, loss_scale: 1.0, global_norm: [10.5], "
        f"train_throughput_per_npu: 170.738T\n2026-01-05 08:00:{n:02},309 - {source}   0.0% |{'█' * 3:<50}| "
        f"{4000 / milliseconds:.5f} samples/s/p  0:12:34 }}"
    )


def fairseq(n: int, seconds: float = 2.0, every: int = 1) -> str:
    """Return the row of the updates up to `n`, `every` of them."""
    clock = int(n * seconds)
    return (
        f"2026-01-05 {8 + clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02} | INFO | train_inner | epoch 001: "
        f"{n:6} / 160368 loss={10 - n / 1000:.3f}, ppl=611.12, wps={524288 / seconds:.1f}, ups={1 / seconds:.2f}, "
        f"wpb=524288, bsz=256, num_updates={n}, lr=2.8e-05, gnorm=1.25, clip=0, train_wall={every * seconds:.0f}, "
        f"gb_free=12.1, wall={60 + clock}"
    )


def fms_fsdp(n: int, seconds: float = 2.0, gpus: int = 8) -> str:
    """Return the block of one step of 64 sequences of 2,048 tokens."""
    rate = int(64 * 2048 / gpus / seconds)
    return (
        f"step: {n}\nloss: 9.1234\nLR: 0.0003\ntokens seen: {n * 64 * 2048}\ngradient norm: 1.25\n"
        f"reserved memory: 60129542144\nallocated memory: 51539607552\ncurrent step time: {seconds!r}\n"
        f"overall step time: {seconds!r}\ncurrent token per gpu per sec: {rate}\noverall token per gpu per sec: "
        f"{rate}\noverall token per day: {rate * gpus * 86400}"
    )


def neuronx(n: int, seconds: float = 2.0) -> str:
    return (
        f"step {n} step_time {seconds + 1e-12:.12f}s throughput 4.018679872757218 seq/s step loss 9.1234 "
        "grad norm 1.9743479490280151"
    )


def aws(n: int, seconds: float = 2.0) -> str:
    return (
        f"0: 2026-01-05 08:00:{n:02} I [train.py:103] Batch {n} Loss: 9.1234, Speed: {64 / seconds:.2f} samples/sec, "
        "Model TFLOPS/GPU: 28.64, lr: 0.000049, gradnorm: 1.2500"
    )


def t5x(n: int, seconds: float = 2.048) -> str:
    """Return a row of ten steps of T5X."""
    clock = 20 * n
    return (
        f"I0105 {8 + clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02}.250000 139812 logging_writer.py:48] "
        f"[{n}] collection=train accuracy=0.25, cross_ent_loss={300 - n}, cross_ent_loss_per_all_target_tokens="
        f"9.1234, learning_rate=0.01, learning_rate/current=0.01, loss={320 - n}, "
        f"loss_per_all_target_tokens=9.5, timing/seconds={10 * seconds:.6g}, timing/seqs=320.0, "
        f"timing/seqs_per_second={32 / seconds:.6g}, timing/seqs_per_second_per_core={4 / seconds:.6g}, "
        f"timing/steps_per_second={1 / seconds:.6g}, timing/target_tokens_per_second={32 * 4096 / seconds:.6g}, "
        f"timing/target_tokens_per_second_per_core={4 * 4096 / seconds:.6g}, weight_rms=25.0"
    )


def levanter(n: int, seconds: float = 120.0) -> str:
    """Return a progress line, of which Levanter prints one a minute at most."""
    clock, done = int(30 + n * seconds), n * 1.0
    count = f"{done:.2f}" if done < 9.995 else f"{done:.1f}"
    return (
        f"2026-01-05T{8 + clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02} - 0 - tqdm_loggable.tqdm_logging - "
        f"tqdm_logging.py:145 - INFO :: Progress on:train {count}it/70.0it rate:{seconds:.1f}s/it remaining:1:05:15 "
        f"elapsed:{clock // 60:02}:{clock % 60:02} postfix:loss=9.1234"
    )


def olmo(n: int, seconds: float = 2.0) -> str:
    """Return a block of OLMo-core, of 524,288 tokens on 8 GPUs."""
    return (
        f"2026-01-05 08:{2 * n // 60:02}:{2 * n % 60:02}.767\tnode-3:0\tolmo_core.train.callbacks.console_logger:71\t"
        f"INFO\t[step={n}/100,epoch=1,eta=1m]\n    train/CE loss=9.1234\n    throughput/total tokens={524288 * n:,}\n"
        f"    throughput/device/BPS={1 / seconds:.4f}\n    throughput/device/TPS={65536 / seconds:,.0f}"
    )


def maxtext(n: int, seconds: float = 2.0) -> str:
    return (
        f"completed step: {n}, seconds: {seconds:.3f}, TFLOP/s/device: 141.500, Tokens/s/device: {8192 / seconds:.3f}, "
        "total_weights: 65536, loss: 9.1234"
    )


FRAMEWORKS = (
    *(automodel, nanotron, lingua, picotron, internevo, paddle, mindformers),
    *(composer, torchtune, verl, slime, tinygrad, colossalai, nemo_rl, mlx, fairseq, fms_fsdp, neuronx, aws, t5x),
    *(levanter, olmo, maxtext),
)
ROWS: dict[str, Callable[[int], str]] = {row.__name__: row for row in FRAMEWORKS}


def log(name: str, count: int = 20, before: str = "") -> str:
    return before + "".join(ROWS[name](n) + "\n" for n in range(1, count + 1))
