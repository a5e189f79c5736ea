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
    and several of them make the product. Other parameters are fixtures; each case has its own `tmp_path` and
    `monkeypatch`.
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
                    with pytest.MonkeyPatch.context() as patch:
                        check(**values, **_own(fixtures, number, patch))
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


def in_some(every: int, *names_and_cases: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator like `in_each` that tries one in `every` cases, and all of them in `make test-faults`."""
    *names, cases = names_and_cases

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        tests = {stride: in_each(*names, list(cases)[::stride])(check) for stride in (every, 1)}

        @functools.wraps(check)
        def test(one_in: int, **fixtures: Any) -> None:
            tests[one_in](**fixtures)

        signature = inspect.signature(tests[1])
        first = inspect.Parameter("one_in", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
        all_of_them = pytest.param(1, marks=pytest.mark.thorough)
        return pytest.mark.parametrize("one_in", [every, all_of_them], ids=["some", "all"])(test)

    return decorate


def _names(names: str | Sequence[str]) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _own(fixtures: dict[str, Any], number: int, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the fixtures of one case: no other one uses its temporary folder, or what it patches."""
    own = dict(fixtures)
    if "monkeypatch" in own:
        own["monkeypatch"] = patch
    if isinstance(folder := own.get("tmp_path"), Path):
        own["tmp_path"] = folder / f"case{number}"
        own["tmp_path"].mkdir(exist_ok=True)
    return own


def _shown(values: Iterable[Any]) -> str:
    return ", ".join(map(repr, values))[:NAMED]
