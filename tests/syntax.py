"""Syntax trees of source files, parsed once by each process: several tests look at the same files."""

import ast
from functools import cache


@cache
def nodes(text: str) -> list[ast.AST]:
    """Return every node of a module in the order of ast.walk: the first one is the module."""
    return list(ast.walk(ast.parse(text)))
