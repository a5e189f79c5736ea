"""Spellings of console rows of `name value` pairs: data for `keyvalue`, one `Dialect` per framework.

Each table was written from the printing code of the framework's newest version and holds older spellings too. A
spelling is the text around a number, with `{}` in the place of the number. A number counts only if the text behind it
follows too; a blank at the end of a spelling also matches the end of the line, a comma a closing bracket.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tensorprimat.core.units import GIB

MILLISECOND = 1e-3


@dataclass(frozen=True, kw_only=True)
class Number:
    """One number of a row or of the configuration."""

    spelled: str
    means: str
    """Field of Step (of TrainingConfig for a setting), `total_tokens`: all tokens so far, `elapsed`: seconds
    of training so far, or `label_tokens`: tokens of the step that enter the loss."""
    scale: float = 1.0
    """Factor to the field's unit."""
    decimals: int = 0
    """Decimals that the framework always prints: with fewer, except a single zero, the number was cut. 0: any."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The rows of one framework."""

    name: str
    source: str
    """Program that wrote the log, in words."""
    reads: str
    looks_for: str
    row: str
    """Expression that a row (or the first line of a block) matches; it names `step`, and may name `last`, the number of
    the last planned step, and `epoch`, whose steps are counted from 1 again."""
    marks: tuple[str, ...]
    """Texts of which a row (of a block: one of its lines) contains one; a text without any of them contains no row."""
    numbers: tuple[Number, ...]
    """A row counts if it carries a time or a rate. Of two spellings of one field the first that is there counts."""
    block: bool = False
    """The numbers are on the lines below the first."""
    totals_before_step: bool = False
    """`total_tokens` leaves out the tokens of the row's own step."""
    averaged: bool = False
    """Numbers are means since the row before; else they are of the one step."""
    new_epoch: str | None = None
    """Expression of a line after which steps are counted from 1 again; it may name `epochs`, their number."""
    suffixes: bool = False
    """Numbers end in K, M, B, T, P (thousands, millions …); G means B."""
    interruptions: tuple[tuple[str, Literal["validation", "checkpoint"]], ...] = ()
    """Text that says what else the time of a row holds: on the row, or on a line since the row before."""
    clock: str = ""
    """Name of the clock that the rows state as `elapsed`."""
    clock_resolution: float = 0.0
    """Of that clock, in seconds."""
    bar: str = ""
    """Expression of a progress bar over all steps; it names `step`, steps done, and `elapsed`, as 1:02:03 or 02:03."""
    resumed_bar: str = ""
    """Expression of the first drawing of that bar in a process that does not begin at step 0."""
    total: str = ""
    """Expression of the line, with one group, that states the sum of all step times, as `clock` names it."""
    epochs: str = ""
    """Name of the setting that counts the epochs, where `max_steps` is of one epoch."""
    settings: tuple[Number, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    """Expression with one group → field of TrainingConfig, as a word."""
    products: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Field of TrainingConfig → settings whose product it is, where all are known."""
    decimals: int = 0
    """Digits behind the point to which times and rates are rounded; 0 where they are not."""
    samples_if: str = ""
    """Text on a row whose rates count samples instead of tokens."""
    rate_of_replicas: bool = False
    """The rate per GPU is the rate over all GPUs divided by the data- and context-parallel ranks only."""
    gpus_of_rates: bool = False
    """The rate over all GPUs divided by the rate per GPU is their number."""
    varies: bool = False
    """Steps hold different numbers of tokens, which a row does not always state."""
    notes: tuple[str, ...] = ()
    """Warnings that hold for every log of the framework."""
    notes_if: tuple[tuple[str, str], ...] = ()
    """Text on or between the rows → warning."""
    notes_without: tuple[tuple[str, str], ...] = ()
    """Field of Step that no row carries → warning."""

    @cached_property
    def numbers_by_opening(self) -> list[tuple[str, Number]]:
        """Return each number of a row with the text before it: to look for that takes a tenth of the expression."""
        return [(number.spelled.partition("{}")[0], number) for number in self.numbers]

    @cached_property
    def settings_by_opening(self) -> list[tuple[str, Number]]:
        """Return each setting with the text before it."""
        return [(number.spelled.partition("{}")[0], number) for number in self.settings]


NEMO_AUTOMODEL = Dialect(
    name="automodel",
    source="NeMo Automodel",
    reads="NeMo Automodel's console log",
    looks_for="'step N | epoch N | loss … | tps …(…/gpu)'",
    row=r"\bstep (?P<step>\d{1,15}) \| epoch \d{1,9} \| ",
    marks=(" | tps ", " | time "),
    numbers=(
        Number(spelled="| loss {} ", means="loss"),
        Number(spelled="| grad_norm {} ", means="gradient_norm"),
        Number(spelled="| lr {} ", means="learning_rate"),
        Number(spelled="| mem {} GiB", means="memory_allocated_peak_bytes", scale=GIB),
        Number(spelled="| tps {}(", means="reported_tokens_per_second"),
        Number(spelled="| tps {} ", means="reported_tokens_per_second"),
        Number(spelled="({}/gpu)", means="reported_tokens_per_second_per_gpu"),
        Number(spelled="| time {}s ", means="seconds"),
        Number(spelled="| num_label_tokens {} ", means="label_tokens"),
    ),
    interruptions=(("[val] ", "validation"), ("Saving checkpoint", "checkpoint")),
    settings=(
        Number(spelled="global_batch_size: {} ", means="global_batch_size"),
        Number(spelled="local_batch_size: {} ", means="micro_batch_size"),
        Number(spelled="max_steps: {} ", means="max_steps"),
        Number(spelled="tp_size: {} ", means="tensor_model_parallel_size"),
        Number(spelled="pp_size: {} ", means="pipeline_model_parallel_size"),
        Number(spelled="cp_size: {} ", means="context_parallel_size"),
        Number(spelled="World size: {} ", means="num_gpus"),
    ),
    varies=True,
    rate_of_replicas=True,
    notes=("tokens_per_second: NeMo Automodel leaves padding at the end of a sequence out",),
)

NANOTRON = Dialect(
    name="nanotron",
    source="nanotron",
    reads="nanotron's console log, with and without rounded numbers",
    looks_for="'iteration: N / N | consumed_tokens: … | time_per_iteration_ms: …'",
    row=r"\biteration: (?P<step>\d{1,15}) / (?P<last>\d{1,15}) \|",
    marks=("time_per_iteration_ms: ",),
    numbers=(
        Number(spelled="| time_per_iteration_ms: {} |", means="seconds", scale=MILLISECOND),
        Number(spelled="| elapsed_time_per_iteration_ms: {} |", means="seconds", scale=MILLISECOND),
        Number(spelled="| tokens_per_sec: {} |", means="reported_tokens_per_second"),
        Number(spelled="| tokens_per_sec_per_gpu: {} |", means="reported_tokens_per_second_per_gpu"),
        Number(spelled="| lm_loss: {} ", means="loss"),
        Number(spelled="| lr: {} ", means="learning_rate"),
        Number(spelled="| grad_norm: {} ", means="gradient_norm"),
        Number(spelled="| model_tflops_per_gpu: {} ", means="reported_tflops_per_gpu"),
        Number(spelled="| cuda_memory_allocated: {} ", means="memory_allocated_bytes"),
        Number(spelled="| cuda_max_memory_reserved: {} ", means="memory_reserved_peak_bytes"),
    ),
    suffixes=True,
    settings=(
        Number(spelled=" sequence_length={},", means="sequence_length"),
        Number(spelled="(sequence_length={},", means="sequence_length"),
        Number(spelled=" micro_batch_size={},", means="micro_batch_size"),
        Number(spelled=" batch_accumulation_per_replica={},", means="gradient_accumulation_steps"),
        Number(spelled="(dp={},", means="data_parallel_size"),
        Number(spelled=" dp={},", means="data_parallel_size"),
        Number(spelled=" tp={},", means="tensor_model_parallel_size"),
        Number(spelled=" pp={},", means="pipeline_model_parallel_size"),
        Number(spelled=" context_parallel_size={},", means="context_parallel_size"),
        Number(spelled=" expert_parallel_size={},", means="expert_model_parallel_size"),
    ),
    products=(("global_batch_size", ("micro_batch_size", "gradient_accumulation_steps", "data_parallel_size")),),
    gpus_of_rates=True,
    notes=(
        "steps: nanotron rounds every number to three digits, so a step time may be 0.5 % off, and smaller changes are "
        "not shown",
    ),
)

COMPOSER = Dialect(
    name="composer",
    source="Composer",
    reads="Composer and llm-foundry console logs",
    looks_for="'[batch=N/N]:' and below it 'Train throughput/…: …'",
    row=r"(?:\[epoch=(?P<epoch>\d{1,9})\])?\[batch=(?P<step>\d{1,15})(?:/(?P<last>\d{1,15}))?\]:?\s*$",
    marks=("Train throughput/", "Train time/secs_per_step"),
    numbers=(
        Number(spelled="Train time/secs_per_step: {} ", means="seconds", decimals=4),
        Number(spelled="Train time/token: {} ", means="total_tokens"),
        Number(spelled="Train time/train: {} ", means="elapsed", scale=3600.0),
        Number(spelled="Train throughput/tokens_per_sec: {} ", means="reported_tokens_per_second", decimals=4),
        Number(
            spelled="Train throughput/device/tokens_per_sec: {} ",
            means="reported_tokens_per_second_per_gpu",
            decimals=4,
        ),
        Number(spelled="Train throughput/samples_per_sec: {} ", means="reported_samples_per_second", decimals=4),
        Number(
            spelled="Train throughput/device/samples_per_sec: {} ",
            means="reported_samples_per_second_per_gpu",
            decimals=4,
        ),
        Number(
            spelled="Train throughput/device/flops_per_sec: {} ",
            means="reported_tflops_per_gpu",
            decimals=4,
            scale=1e-12,
        ),
        Number(spelled="Train throughput/device/mfu: {} ", means="reported_mfu", decimals=4),
        Number(spelled="Train loss/train/total: {} ", means="loss"),
        Number(spelled="Train l2_norm/grad/global: {} ", means="gradient_norm"),
        Number(spelled="Train memory/current_allocated_mem: {} ", means="memory_allocated_bytes", scale=1e9),
        Number(spelled="Train memory/peak_allocated_mem: {} ", means="memory_allocated_peak_bytes", scale=1e9),
        Number(spelled="Train memory/current_reserved_mem: {} ", means="memory_reserved_bytes", scale=1e9),
        Number(spelled="Train memory/peak_reserved_mem: {} ", means="memory_reserved_peak_bytes", scale=1e9),
    ),
    block=True,
    totals_before_step=True,
    clock="time/train",
    clock_resolution=0.36,  # hours with four decimals
    settings=(
        Number(spelled="max_seq_len: {} ", means="sequence_length"),
        Number(spelled="global_train_batch_size: {} ", means="global_batch_size"),
        Number(spelled="trainer/device_train_microbatch_size: {} ", means="micro_batch_size"),
        Number(spelled="num_nodes: {} ", means="num_nodes"),
        Number(spelled="n_gpus: {} ", means="num_gpus"),
    ),
    words=((r"^\s*precision: (?:amp_)?(bf16|fp16|fp8|fp32)\b", "precision"),),
    gpus_of_rates=True,
    notes_without=(
        (
            "seconds",
            "tokens_per_second_per_gpu: Composer's rates are means over a sliding window of batches; their spread is "
            "not that of single steps",
        ),
    ),
)

TORCHTUNE = Dialect(
    name="torchtune",
    source="torchtune",
    reads="torchtune's disk and console metrics: a rate of single steps, and no clock to check it by",
    looks_for="'Step N | loss:… tokens_per_second_per_gpu:…'",
    row=r"\bStep (?P<step>\d{1,15}) \| ",
    marks=("tokens_per_second_per_gpu:",),
    numbers=(
        Number(spelled="loss:{} ", means="loss"),
        Number(spelled=" lr:{} ", means="learning_rate"),
        Number(spelled=" grad_norm:{} ", means="gradient_norm"),
        Number(spelled="tokens_per_second_per_gpu:{} ", means="reported_tokens_per_second_per_gpu"),
        Number(spelled="peak_memory_alloc:{} ", means="memory_allocated_peak_bytes", scale=GIB),
        Number(spelled="peak_memory_reserved:{} ", means="memory_reserved_peak_bytes", scale=GIB),
    ),
    interruptions=(
        (" | val_loss:", "validation"),
        ("Validation loss: ", "validation"),
        ("Saving checkpoint", "checkpoint"),
    ),
    settings=(
        Number(spelled="gradient_accumulation_steps: {} ", means="gradient_accumulation_steps"),
        Number(spelled="max_steps_per_epoch: {} ", means="max_steps"),
        Number(spelled="epochs: {} ", means="epochs"),
    ),
    epochs="epochs",
    bar=r"\b\d{1,9}\|(?P<step>\d{1,9})(?:\|Loss: [^|\n]{0,40})?: {1,8}\d{1,3}%\|[^|\n]{0,400}\| {0,8}\d{1,9}/\d{1,9} "
    r"\[(?P<elapsed>\d{1,6}(?::\d\d){1,2})<",
    resumed_bar=r"%\|[^|\n]{0,400}\| {0,8}[1-9]\d{0,8}/\d{1,9} \[00:00<\?,",
    words=((r"^dtype: (bf16|fp16|fp32)\b", "precision"), (r"^compile: (true|false)\b", "compile")),
    varies=True,
    notes=(
        "tokens_per_second_per_gpu: torchtune counts the tokens that enter the loss; padding, and prompts that are "
        "masked, are left out",
    ),
)

REINFORCEMENT = "steps: iterations of reinforcement learning, generation of the answers included"

VERL = Dialect(
    name="verl",
    source="verl",
    reads="verl's console log, reinforcement learning and fine-tuning, with the clock of its progress bar",
    looks_for="'step:N - … - perf/time_per_step:… - perf/throughput:…'",
    row=r"\bstep:(?P<step>\d{1,15}) - ",
    marks=("perf/throughput:", "perf/time_per_step:", "timing_s/step:", "train/time(s):"),
    numbers=(
        Number(spelled=" - perf/time_per_step:{} ", means="seconds"),
        Number(spelled=" - timing_s/step:{} ", means="seconds"),
        Number(spelled=" - train/time(s):{} ", means="seconds"),
        Number(spelled=" - perf/total_num_tokens:{} ", means="tokens"),
        Number(spelled=" - train/global_tokens:{} ", means="tokens"),
        Number(spelled=" - perf/total_num_images:{} ", means="samples"),
        Number(spelled=" - perf/throughput:{} ", means="reported_tokens_per_second_per_gpu"),
        Number(spelled=" - train/loss:{} ", means="loss"),
        Number(spelled=" - actor/pg_loss:{} ", means="loss"),
        Number(spelled=" - actor/lr:{} ", means="learning_rate"),
        Number(spelled=" - train/lr:{} ", means="learning_rate"),
        Number(spelled=" - train/lr(1e-3):{} ", means="learning_rate", scale=1e-3),
        Number(spelled=" - actor/grad_norm:{} ", means="gradient_norm"),
        Number(spelled=" - train/grad_norm:{} ", means="gradient_norm"),
        Number(spelled=" - perf/mfu/actor:{} ", means="reported_mfu"),
        Number(spelled=" - train/mfu:{} ", means="reported_mfu"),
        Number(spelled=" - perf/max_memory_allocated_gb:{} ", means="memory_allocated_peak_bytes", scale=GIB),
        Number(spelled=" - perf/max_memory_reserved_gb:{} ", means="memory_reserved_peak_bytes", scale=GIB),
    ),
    interruptions=((" - timing_s/testing:", "validation"), (" - timing_s/save_checkpoint:", "checkpoint")),
    clock="Total time for train steps",
    clock_resolution=0.01,
    bar=r"\bTraining Progress: {0,8}\d{1,3}%\|[^|\n]{0,400}\| {0,8}(?P<step>\d{1,9})/\d{1,9} "
    r"\[(?P<elapsed>\d{1,6}(?::\d\d){1,2})<",
    total=r"\bTotal time for train steps: (\d{1,12}\.\d\d)s",
    gpus_of_rates=True,
    samples_if=" - perf/total_num_images:",
    notes_if=((" - timing_s/gen:", REINFORCEMENT),),
)

NEMO_RL = Dialect(
    name="nemo_rl",
    source="NeMo-RL",
    reads="NeMo-RL's console log, reinforcement learning and fine-tuning; it prints no second clock",
    looks_for="'===== Step N/N =====' and below it '• Total step time: …s'",
    row=r"(?<!=)={10,} Step (?P<step>\d{1,15})/(?P<last>\d{1,15}) ={10,}",
    marks=("• Total step time: ",),
    numbers=(
        Number(spelled="• Total step time: {}s ", means="seconds"),
        Number(spelled="• Loss: {} ", means="loss"),
        Number(spelled="• loss: {} ", means="loss"),  # preference optimization
        Number(spelled="• Policy Loss: {} ", means="loss"),
        Number(spelled="• Grad norm: {} ", means="gradient_norm"),
        Number(spelled="- E2E (Tokens/sec/gpu): {} ", means="reported_tokens_per_second_per_gpu", decimals=2),
        Number(spelled="- E2E (Tokens/sec): {} ", means="reported_tokens_per_second", decimals=2),
        Number(spelled="- E2E (Samples/sec/gpu): {} ", means="reported_samples_per_second_per_gpu", decimals=2),
        Number(spelled="- E2E (Samples/sec): {} ", means="reported_samples_per_second", decimals=2),
    ),
    block=True,
    varies=True,
    decimals=2,
    settings=(
        Number(spelled="'cluster': {'gpus_per_node': {},", means="gpus_per_node"),
        Number(spelled="'num_nodes': {},", means="num_nodes"),
    ),
    products=(("num_gpus", ("gpus_per_node", "num_nodes")),),
    new_epoch=r"(?<!=)={10,} Epoch \d{1,9}(?:/(?P<epochs>\d{1,9}))? ={10,}",
    interruptions=(("Starting validation", "validation"), ("Saving checkpoint for step", "checkpoint")),
    gpus_of_rates=True,
    notes_if=(("• generation: ", REINFORCEMENT), ("• Avg Reward: ", REINFORCEMENT)),
)

MLX = Dialect(
    name="mlx",
    source="mlx-lm",
    reads="mlx-lm's fine-tuning on Apple GPUs and CUDA, before and after its table of iterations (2026)",
    looks_for="'Iter N: Train loss …, Tokens/sec …, Trained Tokens …', or rows 'N  loss ▼  tokens/s  tokens k'",
    row=r"(?:\bIter |^ {2,8})(?P<step>\d{1,15})(?:: Train loss | {4} {0,5}\d{1,9}\.\d{3} [▼▲] )",
    marks=(", Trained Tokens ", " ▼    ", " ▲    "),
    numbers=(
        Number(spelled="Train loss {},", means="loss"),
        Number(spelled="Learning Rate {},", means="learning_rate"),
        Number(spelled="Tokens/sec {},", means="reported_tokens_per_second"),
        Number(spelled="Trained Tokens {},", means="total_tokens"),
        Number(spelled="Peak mem {} GB", means="memory_allocated_peak_bytes", scale=1e9),
        Number(spelled="    {} ▼", means="loss"),
        Number(spelled="    {} ▲", means="loss"),
        Number(spelled="▼    {} ", means="reported_tokens_per_second"),
        Number(spelled="▲    {} ", means="reported_tokens_per_second"),
        Number(spelled="    {}k", means="total_tokens", scale=1e3),
    ),
    averaged=True,
    varies=True,
    notes=(
        "tokens_per_second: mlx-lm counts the tokens that enter the loss; padding, and masked prompts, are left out",
        "steps: mlx-lm counts batches; with gradient accumulation several of them are one optimizer step",
    ),
)

DIALECTS = (NEMO_AUTOMODEL, NANOTRON, COMPOSER, TORCHTUNE, VERL, NEMO_RL, MLX)
