"""Options that several commands share: a decorator adds them to a command, which takes them as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., int])


def takes(metavar: str, text: str, *flags: str, **more: Any) -> Any:
    """Return an option with a value, for Annotated. text: its line of --help; more: as typer.Option takes it."""
    return typer.Option(*flags, metavar=metavar, help=text, **more)


def switch(flag: str, text: str, **more: Any) -> Any:
    """Return an option without a value, for Annotated."""
    return typer.Option(flag, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return an argument, for Annotated."""
    return typer.Argument(metavar=metavar, help=text, **more)


def option(
    name: str, kind: Any, metavar: str | None, text: str, *, flag: str | None = None, default: Any = None, **more: Any
) -> inspect.Parameter:
    """Return an option of a type for `with_options`, the rest as in `takes`."""
    made = typer.Option(*([flag] if flag else []), metavar=metavar, help=text, **more)
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
