"""A preflight as tables."""

from __future__ import annotations

from tensorprimat.core import quantities
from tensorprimat.core.preflight import Preflight
from tensorprimat.core.units import GB, TERA
from tensorprimat.reports.tables import Cell, Column, Table, figure, text


def _share(value: float, peak: float | None) -> Cell:
    return figure(value / peak if peak else None, quantities.percent)


def _size(size_bytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"


def tables(found: Preflight) -> list[Table]:
    """Return every part that was measured."""
    parts = [_matmul(found), _bandwidth(found)]
    if found.collectives:
        parts.append(_collectives(found))
    if len(found.devices) > 1:
        parts.append(_devices(found))
    if len(found.nodes()) > 1:
        parts.append(_nodes(found))
    return parts


def _matmul(found: Preflight) -> Table:
    titles = ("Precision", "Size", "Best, TFLOP/s", "Typical, TFLOP/s", "Others' best, TFLOP/s",
              "Catalogue peak, TFLOP/s", "Best of peak")  # fmt: skip
    sources = dict.fromkeys(row.achieved_source for row in found.matmul if row.achieved_source)
    return Table(
        key="matmul",
        title="Matrix products",
        columns=tuple(Column(title=title, numeric=title != "Precision") for title in titles),
        rows=tuple(
            (
                text(row.precision),
                figure(row.size, quantities.count),
                figure(row.best_flops_per_second / TERA, quantities.rate),
                figure(row.typical_flops_per_second / TERA, quantities.rate),
                figure(
                    row.achieved_flops_per_second / TERA if row.achieved_flops_per_second else None, quantities.rate
                ),
                figure(row.peak_flops_per_second / TERA if row.peak_flops_per_second else None, quantities.rate),
                _share(row.best_flops_per_second, row.peak_flops_per_second),
            )
            for row in found.matmul
        ),
        note=f"Others' best: the best matrix product measured on this GPU, {'; '.join(sources)}." if sources else "",
    )


def _bandwidth(found: Preflight) -> Table:
    titles = ("Memory", "Size", "Best, GB/s", "Typical, GB/s", "Best of peak")
    launch = quantities.microseconds(found.launch_seconds)
    return Table(
        key="bandwidth",
        title="Memory and transfers",
        columns=tuple(Column(title=title, numeric=title != "Memory") for title in titles),
        rows=tuple(
            (
                text(row.kind.replace("_", " ")),
                text(_size(row.size_bytes)),
                figure(row.best_bytes_per_second / GB, quantities.rate),
                figure(row.typical_bytes_per_second / GB, quantities.rate),
                _share(row.best_bytes_per_second, row.peak_bytes_per_second),
            )
            for row in found.bandwidth
        ),
        note=f"Launch of one tiny kernel: {launch}.",
    )


def _collectives(found: Preflight) -> Table:
    titles = ("Collective", "Message", "Time", "Bus, GB/s")
    return Table(
        key="collectives",
        title=f"Exchange between {found.world_size} processes ({found.collective_backend})",
        columns=tuple(Column(title=title, numeric=title != "Collective") for title in titles),
        rows=tuple(
            (
                text(row.kind.replace("_", "-")),
                text(_size(row.size_bytes)),
                figure(row.seconds, quantities.seconds),
                figure(row.bus_bytes_per_second / GB, quantities.rate),
            )
            for row in found.collectives
        ),
    )


def _devices(found: Preflight) -> Table:
    best = max(check.flops_per_second for check in found.devices)
    several = len({check.host for check in found.devices}) > 1
    return Table(
        key="devices",
        title=f"Each {found.unit}",
        columns=(
            *([Column(title="Node")] if several else []),
            Column(title=found.unit.capitalize() if found.device == "cpu" else found.unit),
            Column(title="TFLOP/s", numeric=True),
            Column(title="Of the fastest", numeric=True),
        ),
        rows=tuple(
            (
                *([text(check.host or found.host)] if several else []),
                text(str(check.index)),
                figure(check.flops_per_second / TERA, quantities.rate),
                _share(check.flops_per_second, best),
            )
            for check in found.devices
        ),
    )


def _nodes(found: Preflight) -> Table:
    return Table(
        key="nodes",
        title="Nodes, slowest first",
        columns=(
            Column(title="Node"),
            Column(title=found.units.capitalize() if found.device == "cpu" else found.units, numeric=True),
            Column(title="Median, TFLOP/s", numeric=True),
            Column(title=f"Slowest {found.unit}", numeric=True),
            Column(title="TFLOP/s", numeric=True),
            Column(title="Of the median of all", numeric=True),
        ),
        rows=tuple(
            (
                text(node.host),
                figure(node.gpus, quantities.count),
                figure(node.median_flops_per_second / TERA, quantities.rate),
                figure(node.slowest.index, quantities.count),
                figure(node.slowest.flops_per_second / TERA, quantities.rate),
                figure(node.slowest_share, quantities.percent),
            )
            for node in found.nodes()
        ),
    )
