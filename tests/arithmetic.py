"""Evaluation of the formulas that explain a figure, for tests that their numbers give its value."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence

_NUMBER = r"([×/]?)\s*(\d[\d,.]*(?:e[+-]?\d+)?)"
_ARITHMETIC = re.compile(r"(?:sqrt|[\d.e+\-*/() ])+")


def evaluated(put_in: str) -> float:
    """Return the number that a formula with its numbers gives, such as "8 sequences × 128 tokens (2 steps) / 2.5 s"."""
    runs = re.fullmatch(r"(\d+) runs: ([\d,.; ]+) \S+", put_in)
    if runs:
        return geometric_mean([number_of(text) for text in runs[2].split("; ")])
    text = re.sub(r" \([^()]*\)", "", put_in.split("; ")[0]).rsplit(": ", 1)[-1].split(", ")[0]
    first, *others = re.findall(_NUMBER, text.replace("10**9", "1e9"))
    value = number_of(first[1])
    for sign, number in others:
        assert sign, f"{put_in}: two numbers without an operator"
        value = value * number_of(number) if sign == "×" else value / number_of(number)
    return math.sqrt(value) if text.startswith("√") else value


def number_of(text: str) -> float:
    return float(text.replace(",", ""))


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def computed(formula: str, inputs: Sequence[Mapping[str, object]]) -> float:
    """Return the number that a formula in symbols gives for its inputs, which have the names of the symbols."""
    if formula.startswith("geometric mean of the runs'"):
        return geometric_mean([float(str(one["value"])) for one in inputs])
    text = re.split(r", (?:over|of) |; ", formula.rsplit(": ", 1)[-1])[0]
    for one in sorted(inputs, key=lambda one: -len(str(one["name"]))):
        text = text.replace(str(one["name"]), f"({one['value']})")
    text = text.replace("×", "*").replace("−", "-").replace("√", "sqrt")
    assert _ARITHMETIC.fullmatch(text), f"{formula}: an input is missing: {text}"
    return _value(ast.parse(text, mode="eval").body)


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant):
        return float(str(node.value))
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand)
    if isinstance(node, ast.Call):
        return math.sqrt(_value(node.args[0]))
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left), _value(node.right)
    work = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
    if isinstance(node.op, ast.Pow):
        return float(left**right)
    return left / right if isinstance(node.op, ast.Div) else work[type(node.op)]
