"""Names of metrics in tables, from data/metric_names.toml, which `metrics` reads.

A name is looked up as it is, then without the prefix of its section.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from tensorprimat.core.errors import UsageError
from tensorprimat.core.units import GIB
from tensorprimat.facts import data_rows
from tensorprimat.logs import fields

_SECTIONS = ("train/", "train_", "train|", "torchtune/", "metrics/", "trainer/", "performance/")

EVALUATION_PREFIXES = ("eval/", "eval_", "val/", "validation", "val_loss", "valid/", "valid_loss", "test/", "test_loss")
"""Prefixes of names of an evaluation's metrics."""

_UNITS = {"GiB": float(GIB), "GB": 1e9, "ms": 1e-3, "%": 0.01, "FLOP/s": 1e-12}


def _fields() -> Iterator[tuple[str, tuple[str, float]]]:
    for field, names in data_rows.read_data("metric_names").items():
        for entry in names:
            name, unit = (entry, None) if isinstance(entry, str) else entry
            yield name, (field, _UNITS[unit] if unit else 1.0)


_FIELDS = dict(_fields())
"""Name → field of Step, or one of those that data/metric_names.toml describes, and factor to its unit."""
OTHERWISE: Mapping[str, tuple[str, str]] = {
    "global_batch_size": ("time_per_iteration_ms", "tokens"),  # nanotron's
    "perf/throughput": ("perf/total_num_images", "reported_samples_per_second_per_gpu"),  # verl's
    "throughput": ("iteration-time", "reported_tflops_per_gpu"),  # Megatron-LM's; in other tables it may be anything
}
"""Name → another name whose presence in the table changes the field that it means, and that field."""
RUNS = ("run", "run_id", "run_name", "run_uuid", "Name")
"""Names of columns that say to which run a row belongs."""

STEPS = (
    *("trainer/global_step", "train/global_step", "torchtune/global_step", "global_step", "iteration_step"),
    *("training/global_step", "step", "iteration", "Step", "optimizer_step", "opt_step", "update_step"),
    *("train_step", "training_step", "iter", "_step"),
)
"""Names of the number of the optimizer step, the surest first: W&B's own `_step` counts its calls, and nanoGPT makes
one each 250 steps."""
CLOCKS_OF_TRACKERS = ("_timestamp", "_runtime", "timestamp", "created_at")
CLOCKS = (
    *CLOCKS_OF_TRACKERS,
    *("elapsed_s", "elapsed_seconds", "elapsed_sec", "time_elapsed", "elapsed_time_s", "elapsed_time_sec"),
    *("wall_time_s", "wall_time_sec", "wall_time_seconds", "wall_clock_s", "wall_clock_sec", "wall_clock_seconds"),
)
"""Names of the moment at which a row was logged: seconds since 1970 or since the start, or a date."""
TOTALS: Mapping[str, str] = {
    "train_runtime": "runtime_seconds",
    "train_samples_per_second": "samples_per_second",
    "train_tokens_per_second": "tokens_per_second_per_process",
}
"""Means over a whole run that the Hugging Face Trainer logs at its end → field of Reported. Its tokens are those of the
batches of the process that prints them (Trainer.num_tokens)."""
OF_SUMMARY = (*TOTALS, "train_steps_per_second", "train_loss", "num_input_tokens_seen")
"""Names in the Trainer's summary of a training. In other rows they are running means: no step has them."""
WANDB_MARKS = ("_step", "_runtime", "_timestamp", "_wandb")
MADENGINE = ("model", "performance", "metric")
"""Columns that distinguish madengine's perf.csv and multiple_results.csv from other tables."""
OF_RUN = re.compile(r"^(?P<run>.{1,200}?) - (?P<name>[^-].{0,199})$")
"""Name of a column in an export of W&B's plots: run and metric."""

LIGHTNING = ("train/time", "train|time", "train_step_timing in s")
"""Names of which a metrics.csv of Lightning or NeMo has one; the first two are seconds since the start."""


def is_lightnings(names: Collection[str]) -> bool:
    """Return True for the columns of a metrics.csv of Lightning or NeMo."""
    return "step" in names and any(name in names for name in LIGHTNING)


def names_a_table(names: Iterable[str]) -> bool:
    """Return True for the names of a table of metrics: the number of a step, and what measures or times it."""
    plain = [without_run(name) for name in names]
    if not any(name in STEPS for name in plain):
        return False
    found = [field[0] for name in plain if (field := field_of(name))]
    is_clocked = any(name in WANDB_MARKS or name in CLOCKS for name in plain)
    is_measured = any(field in fields.MEASURES for field in found) or any(map(is_of_summary, plain))
    return is_measured or (is_clocked and "loss" in found)


def are_of_table(names: Collection[str]) -> bool:
    """Return True for the columns of any CSV that a reader knows."""
    return names_a_table(names) or is_lightnings(names) or set(MADENGINE) <= set(names)


def without_run(name: str) -> str:
    """Return a column's name without the run that W&B's plots put before it."""
    match = OF_RUN.match(name)
    return match["name"] if match else name


_TIME_UNITS = {
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
}
_STEP = frozenset(("step", "iter", "iteration", "it", "dt"))
_OF_A_TIME = frozenset(("time", "duration", "dur", "latency", "per", "train", "training", "elapsed", "wall"))
"""Words that a step time may have in its name; others, such as eval, data, optimizer, avg or max, make it another."""
_OTHER_SECTIONS = re.compile(r"eval|val|valid|validation|test|data\w*", re.IGNORECASE)
_SLASH_PER = re.compile(r"/(?=(?:s|sec|second|step|iter|iteration|it|gpu|device)(?:/|$))", re.IGNORECASE)
_RATE = re.compile(
    r"(?:train_|training_)?(?:(?:tok(?:en)?s?|toks)|(?P<samples>(?:sample|sequence|seq|example)s?))_(?:per_)?"
    r"(?:s|sec|second)(?P<gpu>_(?:per_)?(?:gpu|device))?(?:_window)?"
)


@cache
def spelled_out(name: str) -> tuple[str, float] | None:
    """Return the field and the factor of a name that no list holds, but whose words say what it is, with its unit.

    >>> spelled_out("perf/iter_time_ms"), spelled_out("perf/tok_s"), spelled_out("eval/step_ms"), spelled_out("it/s")
    (('seconds', 0.001), ('reported_tokens_per_second', 1.0), None, None)
    """
    *sections, last = _SLASH_PER.sub("_per_", name).split("/")
    if any(_OTHER_SECTIONS.fullmatch(section) for section in sections):
        return None
    words = _words(last)
    if (rate := _RATE.fullmatch("_".join(words))) is not None:
        counted = "samples" if rate["samples"] else "tokens"
        return f"reported_{counted}_per_second" + "_per_gpu" * bool(rate["gpu"]), 1.0
    if is_unitless(last):
        return "seconds", 1.0
    units = [word for word in words if word in _TIME_UNITS]
    others = {word for word in words if word not in _TIME_UNITS}
    if len(units) != 1 or not others & _STEP or not others <= _STEP | _OF_A_TIME:
        return None
    is_rate = "per" in words and words.index("per") < words.index(units[0]) and not others & {"time", "duration"}
    return None if is_rate else ("seconds", _TIME_UNITS[units[0]])


def is_unitless(name: str) -> bool:
    """Return True for the name of a step time that does not say its unit.

    >>> [is_unitless(name) for name in ("perf/step_time", "time_per_iter", "dt", "step_time_s", "step", "time")]
    [True, True, True, False, False, False]
    """
    words = set(_words(name.rpartition("/")[2]))
    if name in _FIELDS and "step_time" not in name:
        return False  # known to count seconds
    return words == {"dt"} or (bool(words & _STEP and words & {"time", "duration"}) and words <= _STEP | _OF_A_TIME)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def is_of_summary(name: str) -> bool:
    """Return True for a mean over a whole training of the Hugging Face Trainer, with W&B's prefix or without it."""
    return name.removeprefix("train/") in TOTALS or name.removeprefix("train/") == "train_steps_per_second"


_STATED: dict[str, tuple[str, float]] = {}
"""Name → field and factor, as the user states them (`--map`)."""
_MAPPED = {
    "step_time": "seconds",
    "loss": "loss",
    **{name: f"reported_{name}" for name in ("tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second")},
}


@contextmanager
def mapped(typed: Iterable[str]) -> Iterator[None]:
    """Read names of a table as the user states them: "step_time=perf/step:ms". Raises UsageError for another text."""
    stated = {}
    for text in typed:
        field, equals, name = text.partition("=")
        has_unit = field == "step_time" and ":" in name
        name, _, unit = name.rpartition(":") if has_unit else (name, "", "s")
        if not equals or not name or field not in _MAPPED:
            raise UsageError(f"--map {text}: must be FIELD=NAME, with one of the fields {', '.join(_MAPPED)}")
        if field == "step_time" and unit not in _TIME_UNITS:
            raise UsageError(f"--map {text}: {unit} is no unit of time; use s or ms")
        stated[name] = (_MAPPED[field], _TIME_UNITS[unit] if field == "step_time" else 1.0)
    _STATED.update(stated)
    is_known.cache_clear()
    try:
        yield
    finally:
        _STATED.clear()
        is_known.cache_clear()


@cache
def is_known(name: str) -> bool:
    """Return True for the name of a number that is read from a table of metrics."""
    return name in STEPS or name in CLOCKS or name in OTHERWISE or field_of(name) is not None


def field_of(name: str) -> tuple[str, float] | None:
    """Return the field that a metric is, and the factor to its unit; None for one that is not known.

    >>> field_of("train/tokens_per_sec"), field_of("perf/time_per_step"), field_of("eval/loss")
    (('reported_tokens_per_second', 1.0), ('seconds', 1.0), None)
    """
    if stated := _STATED.get(name):
        return stated
    return None if is_of_summary(name) else listed_field(name) or spelled_out(name)


def listed_field(name: str) -> tuple[str, float] | None:
    """Return what `field_of` returns for a name that data/metric_names.toml holds, else None."""
    if name in _FIELDS:
        return _FIELDS[name]
    if name.startswith("lr-"):  # Lightning's LearningRateMonitor adds the optimizer
        return _FIELDS["lr"]
    section = next((section for section in _SECTIONS if name.startswith(section)), "")
    return _FIELDS.get(name.removeprefix(section)) if section else None
