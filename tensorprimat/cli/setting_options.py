"""Options of a training's settings, made from their rows in `core/settings` for the commands that train."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tensorprimat.cli.shared_options import Command, typed_option, with_options
from tensorprimat.core.settings import BY_NAME, WITH_OPTION, Option

IN_AB = frozenset(one.option.parameter for one in WITH_OPTION if one.option and one.option.in_ab)
"""Parameters that may differ between the two configurations of --ab."""


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
