"""Evaluation of expressions over the columns of a table: "throughput=1000/mean_time_ms", "batch_size >= 4".

The text is parsed with ast and evaluated with pandas, a whole column at a time: numbers, text, names of columns,
arithmetic, comparisons, and/or/not, and the functions in FUNCTIONS. Everything else is refused: attributes, subscripts,
calls of other functions.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import counted
from tensorprimat.storage.cell_rows import column_of, columns_of, plain

if TYPE_CHECKING:
    import pandas as pd

MOST_LISTED = 50  # columns in a message; of more, those of similar names
LONGEST, DEEPEST = 500, 40  # characters and nesting: nobody types more by hand
OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.USub: operator.neg,
    ast.UAdd: operator.pos, ast.Not: operator.invert, ast.And: operator.and_, ast.Or: operator.or_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def column_named(name: str, cells: pd.DataFrame, *, flag: str) -> pd.Series:
    """Return a column of single values. Raises UsageError naming the flag if no row has it."""
    if name not in (known := columns_of(cells)):
        near = difflib.get_close_matches(name, known, n=5) if len(known) > MOST_LISTED else []
        raise UsageError(f"{flag} {name}: no row has such a column; columns: {', '.join(near or known)}")
    return cells[name]


def evaluate(text: str, cells: pd.DataFrame, *, flag: str) -> pd.Series:
    """Return the value of an expression for each cell; NA if a column is unmeasured or the arithmetic has no result.

    Raises UsageError naming the flag where the text is no such expression.
    """

    def refused(why: str) -> UsageError:
        shown = text if len(text) <= 60 else f"{text[:60]}…"
        return UsageError(
            f"{flag} {shown!r}: {why}; use columns, numbers, arithmetic (+ - * / // % **), comparisons, "
            f"and/or/not, and the functions {', '.join(FUNCTIONS)}"
        )

    def operation(node: ast.AST) -> Callable[..., Any]:
        if type(node) not in OPERATORS:
            raise refused(f"{type(node).__name__.lower()} is not allowed")
        return OPERATORS[type(node)]

    def values(node: ast.AST, depth: int) -> pd.Series:
        def each(*parts: ast.AST) -> list[pd.Series]:
            return [values(part, depth + 1) for part in parts]

        if depth > DEEPEST:
            raise refused(f"nested deeper than {DEEPEST}")
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return column_of([value] * len(cells), index=cells.index)
            case ast.Name(id="true" | "false" as name):
                return values(ast.Constant(name == "true"), depth)
            case ast.Name(id=name):
                return column_named(name, cells, flag=flag)
            case ast.BinOp(left=left, op=op, right=right):
                return _finite(operation(op), *(_numbers(side).astype("Float64") for side in each(left, right)))
            case ast.UnaryOp(op=op, operand=operand):
                return operation(op)((truth if isinstance(op, ast.Not) else _numbers)(*each(operand)))
            case ast.BoolOp(op=op, values=parts):
                return reduce(operation(op), map(truth, each(*parts)))
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[ast.Constant(value=None)]):
                return operation(op)(each(left)[0].isna().astype("boolean"), True)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                pairs = zip(map(operation, ops), pairwise(each(left, *comparators)), strict=True)
                return reduce(operator.and_, (_compared(compare, *two) for compare, two in pairs))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                if name not in FUNCTIONS:
                    raise refused(f"there is no function {name}")
                function, most = FUNCTIONS[name]
                if not 1 <= len(arguments) <= most:
                    raise refused(f"{name} does not take {counted(len(arguments), 'value')}")
                return _finite(function, *map(_numbers, each(*arguments)))
        raise refused(f"{type(node).__name__.lower()} is not allowed")

    if len(text) > LONGEST:
        raise refused(f"longer than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused("not an expression") from None
    with np.errstate(all="ignore"):
        return values(tree, 0)


def truth(column: pd.Series) -> pd.Series:
    """Return False for 0 and empty text, NA for unmeasured values, and True for all others."""
    return column if column.dtype == "boolean" else (_numbers(column) != 0).fillna(_texts(column) != "")


def _numbers(column: pd.Series) -> pd.Series:
    """Return the numbers of a column as Int64 or Float64, true as 1; NA for text."""
    if column.dtype in ("Int64", "Float64"):
        return column
    found = [float(value) if isinstance(value, int | float) else None for value in plain(column)]
    return column_of(found, index=column.index).astype("Float64")


def _texts(column: pd.Series) -> pd.Series:
    """Return the texts of a column; NA for numbers and booleans."""
    return column.where(column.map(type).isin([str])).astype("string")


def _compared(compare: Callable[..., Any], left: pd.Series, right: pd.Series) -> pd.Series:
    """Compare numbers, and texts; a number and a text are unequal, and neither is less. NA where a side is NA."""
    found = compare(_numbers(left), _numbers(right)).fillna(compare(_texts(left), _texts(right)))
    if compare in (operator.eq, operator.ne):
        found = found.fillna(compare is operator.ne).mask(left.isna() | right.isna())
    return found


def _finite(function: Callable[..., Any], *columns: pd.Series) -> pd.Series:
    """Apply a function to columns of numbers; NA where one is NA, as in 1 ** NA, or the result is no finite number."""
    result = function(*columns)
    known = reduce(operator.and_, (column.notna() for column in columns))
    return result.where((np.isfinite(result) & known).fillna(False))


def _rounded(column: pd.Series, *digits: pd.Series) -> pd.Series:
    """Return numbers rounded as Python does; numpy's round is wrong in the last digit of some numbers."""

    def one(value: float, *places: int) -> float | None:
        try:
            return round(value, *places)
        except (OverflowError, TypeError):  # larger than a float, or not a number of digits
            return None

    return column_of(list(map(one, plain(column.astype("Float64")), *map(plain, digits))), index=column.index)


FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int]] = {
    "abs": (np.absolute, 1), "min": (lambda *columns: reduce(np.minimum, columns), LONGEST),
    "max": (lambda *columns: reduce(np.maximum, columns), LONGEST), "round": (_rounded, 2), "sqrt": (np.sqrt, 1),
    "log": (np.log, 1), "log2": (np.log2, 1), "log10": (np.log10, 1), "exp": (np.exp, 1),
}  # fmt: skip
"""The functions of columns, and the largest number of values of each."""
