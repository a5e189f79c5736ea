"""Options that several commands share: a decorator adds them to a command, which takes them as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TypeVar

Command = TypeVar("Command", bound=Callable[..., int])


def with_options(parameters: Sequence[inspect.Parameter], *, after: str) -> Callable[[Command], Command]:
    """Return a decorator that gives a command more parameters. after: the parameter of the command that they follow.

    The command receives them by its own **keywords.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        place = next(number for number, one in enumerate(named, 1) if one.name == after)
        every = [*named[:place], *parameters, *named[place:]]
        by_keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in every]
        command.__signature__ = own.replace(parameters=by_keyword)  # type: ignore[attr-defined]
        return command

    return decorate
