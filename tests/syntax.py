"""Syntax trees of source files, parsed once by each process: several tests look at the same files."""

import ast
from functools import cache

import pytest


@cache
def nodes(text: str) -> list[ast.AST]:
    """Return every node of a module in the order of ast.walk: the first one is the module."""
    return list(ast.walk(ast.parse(text)))


def in_each(paths):
    """Return a decorator of a check of one file that makes it a test of all of them, which names every offender."""

    def decorate(check):
        def test():
            offenders = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    offenders.append(f"{path}: {error}")
            if offenders:
                pytest.fail("\n".join(offenders))

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
