"""A preflight as tables."""

from __future__ import annotations

from tensorprimat.core import quantities
from tensorprimat.core.settings import PRECISION_OF_DTYPE
from tensorprimat.core.units import GB, TERA
from tensorprimat.reports.tables import Table, TableCell, TableRow, figure_cell, table_of
from tensorprimat.storage.preflight import NodeLook, Preflight


def _share(value: float, peak: float | None) -> TableCell:
    return figure_cell(value / peak if peak else None, quantities.percent)


def _tera(flops_per_second: float | None) -> TableCell:
    return figure_cell(flops_per_second / TERA if flops_per_second else None, quantities.rate)


def _giga(bytes_per_second: float) -> TableCell:
    return figure_cell(bytes_per_second / GB, quantities.rate)


def preflight_tables(found: Preflight) -> list[Table]:
    parts = [_matmul(found), _bandwidth(found)]
    if found.collectives:
        parts.append(_collectives(found))
    if len(found.devices) > 1:
        parts.append(_devices(found))
    if len(found.nodes()) > 1:
        parts.append(_nodes(found))
    return parts


def _matmul(found: Preflight) -> Table:
    sources = dict.fromkeys(row.achieved_source for row in found.matmul if row.achieved_source)
    rows: list[TableRow] = [
        {
            "Precision": row.precision,
            "Size": figure_cell(row.size, quantities.count),
            "Best, TFLOP/s": _tera(row.best_flops_per_second),
            "Typical, TFLOP/s": _tera(row.typical_flops_per_second),
            "Published best, TFLOP/s": _tera(row.achieved_flops_per_second),
            "Catalogue peak, TFLOP/s": _tera(row.peak_flops_per_second),
            "Best / peak": _share(row.best_flops_per_second, row.peak_flops_per_second),
        }
        for row in found.matmul
    ]
    note = (
        f"Published best: the fastest matrix product that others measured on this GPU ({'; '.join(sources)})."
        if sources
        else ""
    )
    return table_of("matmul", "Matrix products", rows, words=("Precision",), note=note)


def _bandwidth(found: Preflight) -> Table:
    rows: list[TableRow] = [
        {
            "Memory": row.kind.replace("_", " "),
            "Size": quantities.binary_size(row.size_bytes),
            "Best, GB/s": _giga(row.best_bytes_per_second),
            "Typical, GB/s": _giga(row.typical_bytes_per_second),
            "Best / peak": _share(row.best_bytes_per_second, row.peak_bytes_per_second),
        }
        for row in found.bandwidth
    ]
    note = f"Launch of one tiny kernel: {quantities.microseconds(found.launch_seconds)}."
    return table_of("bandwidth", "Memory and transfers", rows, words=("Memory",), note=note)


def _collectives(found: Preflight) -> Table:
    rows: list[TableRow] = [
        {
            "Collective": row.kind.replace("_", "-"),
            "Type": PRECISION_OF_DTYPE.get(row.dtype or "", row.dtype),
            "Message": quantities.binary_size(row.size_bytes),
            "Time": figure_cell(row.seconds, quantities.seconds),
            "Bus, GB/s": _giga(row.bus_bytes_per_second),
        }
        for row in found.collectives
    ]
    title = f"Exchange between {found.world_size} processes ({found.collective_backend})"
    return table_of("collectives", title, rows, words=("Collective", "Type"))


def _devices(found: Preflight) -> Table:
    best = max(check.flops_per_second for check in found.devices)
    several = len({check.host for check in found.devices}) > 1
    unit = found.unit.capitalize() if found.device == "cpu" else found.unit
    rows: list[TableRow] = [
        {
            **({"Node": check.host or found.host} if several else {}),
            unit: str(check.index),
            "TFLOP/s": _tera(check.flops_per_second),
            f"Share of the fastest {found.unit}": _share(check.flops_per_second, best),
        }
        for check in found.devices
    ]
    return table_of("devices", f"Each {found.unit}", rows, words=("Node", unit))


def _disturbed(look: NodeLook | None) -> str:
    if look is None:
        return "not checked"
    return f"{len(look.disturbed_by)}, see warnings" if look.disturbed_by else "none"


def _nodes(found: Preflight) -> Table:
    units = found.units.capitalize() if found.device == "cpu" else found.units
    rows: list[TableRow] = [
        {
            "Node": node.host,
            units: figure_cell(node.gpus, quantities.count),
            "Median, TFLOP/s": _tera(node.median_flops_per_second),
            f"Slowest {found.unit}": figure_cell(node.slowest.index, quantities.count),
            "Slowest, TFLOP/s": _tera(node.slowest.flops_per_second),
            f"Share of the median of all {found.units}": figure_cell(node.slowest_share, quantities.percent),
            "Other work, changed limits": _disturbed(node.look),
        }
        for node in found.nodes()
    ]
    return table_of("nodes", "Nodes, slowest first", rows, words=("Node",))
