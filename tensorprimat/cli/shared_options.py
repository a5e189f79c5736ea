"""Options that several commands share: a decorator adds them to a command, which takes them as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.models import OptionInfo

from tensorprimat.cli.known_values import Completion, Values, offer
from tensorprimat.core.quantities import TypedNumber

if TYPE_CHECKING:
    from tensorprimat.engines.cluster.executors import Cluster

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


def with_flags_by_name(command: Command) -> Command:
    """Give each option that takes a value and states no flag the flag of its parameter's name; return the command.

    typer 0.27 would derive it from the placeholder where both are the same word: `--ENGINE` for `--engine ENGINE`.
    """
    signature = inspect.signature(command, eval_str=True)
    for parameter in signature.parameters.values():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            states_flag = isinstance(option, OptionInfo) and (option.param_decls or isinstance(option.default, str))
            if isinstance(option, OptionInfo) and option.metavar and not states_flag:
                option.param_decls = (f"--{parameter.name.replace('_', '-')}",)
    command.__signature__ = signature  # type: ignore[attr-defined]
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
