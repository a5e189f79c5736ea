"""Checks of many cases as one test that names every offender."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

NAMED = 120  # characters of a case in a message


def in_each(*names_and_cases: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a check a test of all cases: `in_each(cases)` or `in_each("a, b", cases)`.

    The first form gives the check's first parameter each case; the second takes what `pytest.mark.parametrize` takes,
    and several of them make the product. Other parameters are fixtures; each case has a `tmp_path` of its own.
    """
    *names, cases = names_and_cases

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(check)
        called = _names(names[0]) if names else [next(iter(signature.parameters))]
        rest = [one for name, one in signature.parameters.items() if name not in called]

        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            offenders, skipped = [], []
            listed = list(cases)
            for number, case in enumerate(listed):
                values = dict(zip(called, case if len(called) > 1 else (case,), strict=True))
                try:
                    check(**values, **_own(fixtures, number))
                except pytest.skip.Exception as error:
                    skipped.append(str(error))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # whatever a case raises is shown
                    offenders.append(f"{_shown(values.values())}: {type(error).__name__}: {error}")
            if offenders:
                pytest.fail("\n".join(offenders))
            if listed and len(skipped) == len(listed):
                pytest.skip(skipped[0])

        test.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]  # for pytest's fixtures
        return test

    return decorate


def _names(names: str | Sequence[str]) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _own(fixtures: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the fixtures of one case, whose temporary folder no other case uses."""
    folder = fixtures.get("tmp_path")
    if not isinstance(folder, Path):
        return fixtures
    own = folder / f"case{number}"
    own.mkdir(exist_ok=True)
    return {**fixtures, "tmp_path": own}


def _shown(values: Iterable[Any]) -> str:
    return ", ".join(map(repr, values))[:NAMED]
