"""The difference of two ledgers: what each class of work contributes; the rows sum to that of the step times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit  # scipy.stats would cost a second of import time

from tensorprimat.core import quantities
from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.traces.classes import COMMUNICATION, COPIES, MATRIX_PRODUCTS, RECOMPUTED_CLASSES, place_of
from tensorprimat.traces.ledger import Ledger
from tensorprimat.traces.work import OF_BATCHES, TraceFacts, attended_tokens, first_flops

CLOCK = "clock"
STEP_CONFIDENCE = 0.95
_ALIKE = 0.03  # by which counts of work may miss a whole multiple
_MOST_FUSED = 2.0  # of the products of equal work: query, key and value, or gate and up, in one
_OF_WEIGHTS = (MATRIX_PRODUCTS, "convolution")
_FUSED = 0.05  # more launches a step than that are other work
_OF_CLOCK = ("products", "convolution", "attention", "recomputed_products", "recomputed_attention")
"""Classes whose speed follows the clock of the GPU; the others wait for memory."""


@dataclass(frozen=True, kw_only=True)
class LedgerChange:
    """A class of the difference."""

    name: str
    """Class of the ledger, or clock."""
    baseline: float | None
    """Seconds of a step of A; None for the clock, which is a part of other classes."""
    candidate: float | None
    """Seconds of a step of B, for as many tokens as one of A."""
    difference: float
    low: float | None = None
    """Ends of the interval; None with a single step on a side."""
    high: float | None = None

    @property
    def is_shown(self) -> bool:
        """True if the steps show a difference."""
        return self.low is None or self.high is None or not self.low <= 0 <= self.high


@dataclass(frozen=True, kw_only=True)
class LedgerDifference:
    """Two ledgers, row by row."""

    baseline: Ledger
    candidate: Ledger
    scale: float
    """Steps of B for one of A: 1 unless only their batches differ."""
    rows: tuple[LedgerChange, ...]
    total: LedgerChange
    notices: tuple[Notice, ...]


def difference_of(baseline: Ledger, candidate: Ledger, facts: tuple[TraceFacts, TraceFacts]) -> LedgerDifference:
    """Return the difference of two ledgers. Raises InputError for traces of unlike programs."""
    times = work_ratio(baseline, candidate, facts)
    scale = 1 / times
    names = sorted({*baseline.classes, *candidate.classes}, key=lambda name: (place_of(name), name))
    rows = [_row(name, baseline, candidate, scale) for name in names]
    return LedgerDifference(
        baseline=baseline, candidate=candidate, scale=scale, total=_row(None, baseline, candidate, scale),
        rows=tuple(_with_clock(rows, facts[0].clock_hz, facts[1].clock_hz)),
        notices=tuple(_differing_work(baseline, candidate, times, facts)),
    )  # fmt: skip


def work_ratio(baseline: Ledger, candidate: Ledger, facts: tuple[TraceFacts, TraceFacts]) -> float:
    """Return how many times the work of a step of A a step of B does: 1, a whole number, or one over such a number.

    Raises InputError where the two are no steps of one training. FLOPs of the products decide where both have shapes,
    and the number of products has to be equal or to grow with them. Else a step does more work if products and calls
    of attention are equally many times those of the other, or if there are equally many and their results state another
    number of sequences. Of equal work, fusion may change the number of products.
    """
    backward = [any(one.operator and one.operator.is_backward for one in side.trace.kernels)
                for side in (baseline, candidate)]  # fmt: skip
    if backward[0] != backward[1] and baseline.trace.has_operators and candidate.trace.has_operators:
        raise InputError("one trace has a backward pass and the other has none, so they are no steps of one training")
    products = _first_products(baseline), _first_products(candidate)
    work = first_flops(baseline), first_flops(candidate)
    worlds = [side.trace.world_size for side in (baseline, candidate)]
    if None not in worlds and worlds[0] != worlds[1] and None in work:
        raise InputError(
            f"A ran on {worlds[0]} ranks and B on {worlds[1]}, and nothing shows that a rank does the same work; name "
            "traces of one program on equally many ranks, or with shapes"
        )
    calls = baseline.launches("attention_forward"), candidate.launches("attention_forward")
    count = _multiple(*products) if all(products) else None
    if work[0] and work[1]:
        times = _multiple(work[0], work[1])
        fits = times is not None and (times == 1 or (count is not None and _multiple(count, times) is not None))
    else:
        of_attention = _multiple(*calls) if all(calls) else 1.0
        times = count if count is not None and count == of_attention else 1.0
        whole = all(side.steps.by in ("marks", "optimizer") for side in (baseline, candidate))  # else a part of a step
        if whole and count == 1 and facts[0].sequence_length == facts[1].sequence_length:  # products of more rows
            times = _multiple(facts[0].sequences, facts[1].sequences) or 1.0
        fits = times != 1 or 1 in (count, of_attention)
    if any(products) and (not fits or (times == 1 and not _alike(*products))):
        sizes = [
            f"{quantities.with_prefix('FLOP')(quantities.to_digits(flops, 3))} in " if flops else "" for flops in work
        ]
        raise InputError(
            f"the traces are of unlike programs: a step of A has {sizes[0]}{quantities.count(products[0])} products, "
            f"one of B {sizes[1]}{quantities.count(products[1])}, which are no multiples; name traces of one model"
        )
    return times or 1.0


def _alike(one: float, other: float) -> bool:
    """Return True if fusion can explain two counts of products for equal work."""
    return min(one, other) > 0 and max(one, other) / min(one, other) < _MOST_FUSED


def _multiple(one: float, other: float) -> float | None:
    """Return which whole multiple of a number another one is, or one over it; None if it is neither."""
    ratio = max(one, other) / min(one, other)
    if abs(ratio - round(ratio)) > _ALIKE:
        return None
    return float(round(ratio)) if other >= one else 1 / round(ratio)


def _first_products(ledger: Ledger) -> float:
    """Return the products of a step with the weights; those of an attention that runs as products do not count."""
    counted = sum(not (one.operator and one.operator.name in OF_BATCHES) for one in ledger.kernels(*_OF_WEIGHTS))
    return counted / len(ledger.by_step)


def _row(name: str | None, baseline: Ledger, candidate: Ledger, scale: float) -> LedgerChange:
    """Return the row of a class, or of the whole step, with Welch's interval of the difference of the means."""
    sides = [
        np.array([sum(step.values()) if name is None else step.get(name, 0.0) for step in ledger.by_step]) * factor
        for ledger, factor in ((baseline, 1.0), (candidate, scale))
    ]
    one, other = (float(side.mean()) for side in sides)
    low = high = None
    if min(map(len, sides)) > 1:
        parts = [float(side.var(ddof=1)) / len(side) for side in sides]
        freedom = sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
        reach = float(stdtrit(sum(parts) ** 2 / freedom, (1 + STEP_CONFIDENCE) / 2)) if freedom else 0.0
        width = reach * math.sqrt(sum(parts))
        low, high = other - one - width, other - one + width
    return LedgerChange(name=name or "step", baseline=one, candidate=other, difference=other - one, low=low, high=high)


def _with_clock(rows: list[LedgerChange], baseline: float | None, candidate: float | None) -> list[LedgerChange]:
    """Return the rows with the part that another clock explains as a row of its own, where both clocks are known."""
    if not baseline or not candidate:
        return rows
    share = baseline / candidate - 1
    parts = {row.name: (row.baseline or 0.0) * share for row in rows if row.name.startswith(_OF_CLOCK)}

    def without(row: LedgerChange) -> LedgerChange:
        part = parts.get(row.name, 0.0)
        low, high = (None if end is None else end - part for end in (row.low, row.high))
        return replace(row, difference=row.difference - part, low=low, high=high)

    clock = LedgerChange(name=CLOCK, baseline=None, candidate=None, difference=sum(parts.values()))
    return [*map(without, rows), clock]


def _differs(one: float, other: float, times: float, least: float) -> bool:
    """Return True if a count per step is neither equal nor as many times as the work."""
    return all(abs(other / factor - one) > least * max(one, other / factor) for factor in (1.0, times))


def _differing_work(
    baseline: Ledger, candidate: Ledger, times: float, facts: tuple[TraceFacts, TraceFacts]
) -> list[Notice]:
    """Return what the two steps do not have in common, which the difference of their times includes."""
    found = []
    ledgers = (baseline, candidate)
    if times != 1:
        found.append(Notice("trace_batches_differ", "work", times=times))
    ours, theirs = (attended_tokens(one) or stated.sequence_length for one, stated in zip(ledgers, facts, strict=True))
    if None not in (ours, theirs) and ours != theirs:
        found.append(Notice("trace_sequences_differ", "work", ours=ours, theirs=theirs))
    precisions = [_precisions(ledger) for ledger in ledgers]
    if precisions[0] != precisions[1]:
        found.append(Notice("trace_precisions_differ", "work", ours=precisions[0], theirs=precisions[1]))
    shares = [sum(ledger.launches(name) for name in RECOMPUTED_CLASSES.values()) for ledger in ledgers]
    if _differs(shares[0], shares[1], times, _ALIKE):
        found.append(Notice("trace_recomputation_differs", "work", ours=shares[0], theirs=shares[1]))
    others = ("recomputed", COMMUNICATION, COPIES)
    launches = [sum(one.launches(name) for name in one.items if not name.startswith(others)) for one in ledgers]
    if _differs(launches[0], launches[1], times, _FUSED):
        found.append(Notice("trace_fusion_differs", "work", ours=launches[0], theirs=launches[1]))
    return found


def _precisions(ledger: Ledger) -> str:
    """Return the precisions of the products that take a fiftieth of their time or more."""
    every = ledger.seconds(MATRIX_PRODUCTS)
    names = (
        name for name, seconds in ledger.classes.items() if name.startswith(MATRIX_PRODUCTS) and seconds > every / 50
    )
    return ", ".join(name.partition("_")[2] or "unknown" for name in names) or "none"


def by_group(rows: Mapping[str, float]) -> dict[str, float]:
    """Return differences by the group of their class, the largest first.

    >>> by_group({"products_bf16": 0.02, "products_fp8": -0.05, "copies": 0.001})
    {'products': -0.030000000000000002, 'copies': 0.001}
    """
    groups: dict[str, float] = {}
    for name, seconds in rows.items():
        group = name if name.startswith(COMMUNICATION) else _GROUPS.get(name.partition("_")[0], name)
        groups[group] = groups.get(group, 0.0) + seconds
    return dict(sorted(groups.items(), key=lambda item: -abs(item[1])))


_GROUPS = {"products": "products", "attention": "attention", "recomputed": "recomputed work", "gap": "gaps"}
