"""Options that several commands share: a decorator adds them to a command, which takes them as keywords."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.models import OptionInfo

from tensorprimat.cli import known_values as known
from tensorprimat.cli.known_values import Completion, Values, offer
from tensorprimat.core import settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import TypedNumber, as_stated
from tensorprimat.core.settings import BY_NAME, WITH_OPTION, Option

if TYPE_CHECKING:
    from tensorprimat.core.fact_values import Statement
    from tensorprimat.engines.cluster.executors import Cluster

IN_AB = frozenset(one.option.parameter for one in WITH_OPTION if one.option and one.option.in_ab)
"""Parameters that may differ between the two configurations of --ab."""

GPU_HELP = "Name of the GPU, such as MI300X or 'NVIDIA H100'."
PRESET_HELP = "Size of the model; full states that it has its published dimensions."
SHAPE_HELP = "Dimensions: a known model, a Hugging Face config.json, or name=d_model/d_ff/layers/heads."
PRECISION = "Precision that ran: fp32, tf32, bf16, fp16, fp8 or fp4."
MODEL_NAME = "Name of the model, such as llama."
FACT_OPTIONS: Mapping[str, tuple[str, str, known.Values | None]] = {
    "model_name": ("MODEL", MODEL_NAME, known.models),
    "gpu": ("NAME", GPU_HELP, known.gpu_names),
    "num_gpus": ("N", settings.option("num_gpus").help, None),
    "preset": ("NAME", PRESET_HELP, known.of_setting("preset")),
    "shape": ("SHAPE", SHAPE_HELP, None),
    "precision": ("P", PRECISION, known.precisions),
    "sequence_length": ("N", settings.option("sequence_length").help, None),
    "global_batch_size": ("N", settings.option("global_batch_size").help, None),
    "data_fingerprint": ("PATH", "Tokenised data whose first tokens are hashed, or their fingerprint.", None),
}
"""Fact → its value on the command line, its help, and the values that the shell completes."""
WARMUP = (settings.flag("warmup_steps"), "--warmup")
"""Spellings of the option that leaves out steps, the one of `tprimat run` first."""
LOG_OPTIONS = {**FACT_OPTIONS, "micro_batch_size": ("N", settings.option("micro_batch_size").help, None)}

Command = TypeVar("Command", bound=Callable[..., int])

READABLE = False
"""The parser lets a file without read permission pass, because a command reads the other files that are named."""


def _completed(offers: Values | None, listed: bool = False) -> Completion | None:
    """Return the completion of a value; None for one that the shell completes as the name of a file."""
    return None if offers is None else offer(offers, listed=listed)


def takes(
    metavar: str | None, text: str, *flags: str, offers: Values | None = None, listed: bool = False, **more: Any
) -> Any:
    """Return an option with a value, for Annotated. text: its line of --help; more: as typer.Option takes it.

    offers: returns the values that the shell completes; listed: the option takes several with commas between them.
    """
    return typer.Option(
        *flags, metavar=metavar, help=text, autocompletion=_completed(offers, listed), readable=READABLE, **more
    )


def takes_number(metavar: str, text: str, **more: Any) -> Any:
    """Return an option with a number, for Annotated. The number keeps its text, so that 1e999 is not refused as inf."""
    return takes(metavar, text, parser=number_as_typed, **more)


def number_as_typed(text: str | float) -> float:
    """Return a number with the text that was typed; the parser also passes the default, which has none."""
    if not isinstance(text, str):
        return text
    try:
        return TypedNumber(float(text), text.strip())
    except ValueError:
        raise typer.BadParameter("not a valid number") from None  # whose option cli/__init__ names


def switch(flag: str, text: str, **more: Any) -> Any:
    """Return an option without a value, for Annotated."""
    return typer.Option(flag, help=text, **more)


def argument(metavar: str, text: str, *, offers: Values | None = None, **more: Any) -> Any:
    """Return an argument, for Annotated. offers: as in `takes`."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=_completed(offers), readable=READABLE, **more)


def typed_option(
    name: str, kind: Any, metavar: str | None, text: str, *, flag: str | None = None, default: Any = None, **more: Any
) -> inspect.Parameter:
    """Return an option of a type for `with_options`, the rest as in `takes`."""
    made = takes(metavar, text, *([flag] if flag else []), **more)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made])


def with_options(parameters: Sequence[inspect.Parameter], *, after: str | None) -> Callable[[Command], Command]:
    """Return a decorator that gives a command more parameters. after: the parameter of the command that they follow.

    The command receives them by its own **keywords. Without `after` they come first.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        place = 0 if after is None else 1 + [one.name for one in named].index(after)
        every = [*named[:place], *parameters, *named[place:]]
        by_keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in every]
        command.__signature__ = own.replace(parameters=by_keyword)  # type: ignore[attr-defined]
        return command

    return decorate


class TypedFolder(type(Path())):  # type: ignore[misc]
    """The value of --output with a slash at its end: a folder, whatever its suffix."""


def _output(text: str | Path) -> Path:
    return TypedFolder(text) if str(text).endswith("/") else Path(text)


def with_flags_by_name(command: Command) -> Command:
    """Give each option that takes a value and states no flag the flag of its parameter's name; return the command.

    typer 0.27 would derive it from the placeholder where both are the same word: `--ENGINE` for `--engine ENGINE`.
    --output keeps the slash at its end, which a Path loses.
    """
    signature, parameters = inspect.signature(command, eval_str=True), []
    for parameter in signature.parameters.values():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            states_flag = isinstance(option, OptionInfo) and (option.param_decls or isinstance(option.default, str))
            if isinstance(option, OptionInfo) and option.metavar and not states_flag:
                option.param_decls = (f"--{parameter.name.replace('_', '-')}",)
            if isinstance(option, OptionInfo) and parameter.name in ("output", "output_dir"):
                option.parser = _output
                parameter = parameter.replace(annotation=Annotated[Any, option])  # typer makes a Path of a Path
        parameters.append(parameter)
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


CLUSTER_OPTIONS = (
    typed_option("account", str | None, "NAME", "Slurm account to charge."),
    typed_option("partition", str | None, "NAME", "Slurm partition."),
    typed_option("time", str | None, "LIMIT", "Slurm time limit of a run.", show_default="01:00:00"),
    typed_option("container_image", str | None, "IMAGE", "Container that the ranks start in."),
    typed_option("container_mounts", list[str] | None, "SRC:DST", "A folder for the container (repeatable)."),
)
"""Options of the commands that can run on other machines with --executor."""


def cluster_of(typed: Mapping[str, Any]) -> Cluster:
    """Return the cluster that the options of a command describe."""
    from tensorprimat.engines.cluster.executors import Cluster

    stated = {name: value for name, value in typed.items() if name in Cluster.model_fields and value is not None}
    return Cluster(**{**stated, "container_mounts": tuple(typed["container_mounts"] or ())})


def with_fact_options(
    *, after: str, options: Mapping[str, tuple[str, str, known.Values | None]] = FACT_OPTIONS, side: str = "[SIDE=]"
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one option for each fact that a user can state, after a parameter.

    side: how --help shows that a value may be for one input only.
    """
    made = [
        typed_option(name, list[str] | None, f"{side}{metavar}", text, offers=offers)
        for name, (metavar, text, offers) in options.items()
    ]
    return with_options(made, after=after)


def statements(typed: Mapping[str, Any], *, warmup_steps: int | None = None) -> tuple[Statement, ...]:
    """Return the stated facts, checked. typed: the keywords of a command. Raises UsageError that names the flag."""
    from tensorprimat.core.fact_values import read_statements

    return read_statements({**{name: typed.get(name) for name in LOG_OPTIONS}, "warmup_steps": warmup_steps})


def with_settings(
    *names: str,
    after: str,
    differing: Mapping[str, Mapping[str, Any]] | None = None,
    environment: str | None = None,
    engines: bool = True,
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one option for each setting; the command takes them as keywords.

    names: settings of `core/settings`; none for all that have an option. after: the parameter that they follow.
    differing: name → fields of `Option` that differ in this command, such as the help. environment: prefix of the
    environment variables that also set the options. engines: let the help name the engines that have an option.
    """
    own = {name: BY_NAME[name].option for name in names or BY_NAME}
    here = [replace(one, **(differing or {}).get(name, {})) for name, one in own.items() if one is not None]
    return with_options([_parameter(one, environment, engines=engines) for one in here], after=after)


def setting_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among a command's parameters by their names in RunSettings."""
    found = ((one.name, one.option.parameter) for one in WITH_OPTION if one.option)
    return {name: parameters[parameter] for name, parameter in found if parameter in parameters}


def _parameter(setting: Option, environment: str | None, *, engines: bool) -> inspect.Parameter:
    named = f"{setting.help.removesuffix('.')} ({setting.engine})." if setting.engine and engines else setting.help
    return typed_option(
        setting.parameter,
        setting.type if setting.default is not None else setting.type | None,
        None if setting.type is bool else setting.metavar,
        named,
        flag=setting.flag,
        default=setting.default,
        show_default=setting.shown_default or True,
        envvar=None if environment is None else environment + setting.parameter.upper(),
        offers=(lambda: setting.choices) if setting.choices else None,
    )


PRICE = 'USD per hour of one GPU, by GPU or label of a side: "H100=2.10,MI300X=1.85", "cpu=0.10", or 2.10 for all.'


Prices = Annotated[list[str] | None, takes("[GPU=]USD", PRICE)]


def typed_prices(typed: Sequence[str] | None) -> dict[str, float]:
    """Return USD per GPU-hour by the name of a device. Raises UsageError that names the flag."""
    prices: dict[str, float] = {}
    for name, usd in (_price(part) for text in typed or () for part in _parts(text)):
        if prices.setdefault(name, usd) != usd:
            raise UsageError(
                f"--price {name or 'for every device'}: stated twice, {as_stated(prices[name])} and {as_stated(usd)}"
            )
    return prices


def _parts(text: str) -> list[str]:
    """Split a list of prices; a comma inside one amount is refused and not read as a second price.

    >>> _parts("H100=2.10,MI300X=1.85"), _parts("2.10"), _parts("H100 (batch 8, TP 2)=2.10")
    (['H100=2.10', 'MI300X=1.85'], ['2.10'], ['H100 (batch 8, TP 2)=2.10'])
    """
    parts: list[str] = []
    for part in text.split(","):
        if parts and "=" not in parts[-1] and finite_number(parts[-1]) is None:  # a label contains the comma
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    if len(parts) > 1 and not all("=" in part for part in parts):
        raise UsageError(f'--price {text}: write it like "H100=2.10,MI300X=1.85", in USD per hour of one GPU')
    return parts


def _price(text: str) -> tuple[str, float]:
    """Return name and USD; an amount alone has the empty name.

    >>> _price("H100=2.10"), _price("2.10")
    (('H100', 2.1), ('', 2.1))
    """
    name, equals, amount = text.rpartition("=")
    usd = finite_number(amount)
    if usd is None or usd <= 0 or bool(equals) != bool(name.strip()) or ("=" in name and ";" in name):
        raise UsageError(f'--price {text}: write it like "H100=2.10", in USD per hour of one GPU')
    return name.strip(), TypedNumber(usd, amount.strip())


def finite_number(text: str) -> float | None:
    """Return a finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
