"""A preflight as tables."""

from __future__ import annotations

from collections.abc import Callable

from tensorprimat.core import quantities
from tensorprimat.core.settings import PRECISION_OF_DTYPE
from tensorprimat.core.units import GB, TERA
from tensorprimat.reports.tables import Table, TableCell, figure_cell, table_of, text_cell
from tensorprimat.storage.preflight import Bandwidth, Collective, DeviceCheck, MatrixRate, NodeLook, NodeRate, Preflight


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
    columns: dict[str, Callable[[MatrixRate], TableCell]] = {
        "Precision": lambda row: text_cell(row.precision),
        "Size": lambda row: figure_cell(row.size, quantities.count),
        "Best, TFLOP/s": lambda row: _tera(row.best_flops_per_second),
        "Typical, TFLOP/s": lambda row: _tera(row.typical_flops_per_second),
        "Published best, TFLOP/s": lambda row: _tera(row.achieved_flops_per_second),
        "Catalogue peak, TFLOP/s": lambda row: _tera(row.peak_flops_per_second),
        "Best / peak": lambda row: _share(row.best_flops_per_second, row.peak_flops_per_second),
    }
    note = (
        f"Published best: the fastest matrix product that others measured on this GPU ({'; '.join(sources)})."
        if sources
        else ""
    )
    return table_of("matmul", "Matrix products", found.matmul, columns, words=("Precision",), note=note)


def _bandwidth(found: Preflight) -> Table:
    columns: dict[str, Callable[[Bandwidth], TableCell]] = {
        "Memory": lambda row: text_cell(row.kind.replace("_", " ")),
        "Size": lambda row: text_cell(quantities.binary_size(row.size_bytes)),
        "Best, GB/s": lambda row: _giga(row.best_bytes_per_second),
        "Typical, GB/s": lambda row: _giga(row.typical_bytes_per_second),
        "Best / peak": lambda row: _share(row.best_bytes_per_second, row.peak_bytes_per_second),
    }
    note = f"Launch of one tiny kernel: {quantities.microseconds(found.launch_seconds)}."
    return table_of("bandwidth", "Memory and transfers", found.bandwidth, columns, words=("Memory",), note=note)


def _collectives(found: Preflight) -> Table:
    columns: dict[str, Callable[[Collective], TableCell]] = {
        "Collective": lambda row: text_cell(row.kind.replace("_", "-")),
        "Type": lambda row: text_cell(PRECISION_OF_DTYPE.get(row.dtype or "", row.dtype)),
        "Message": lambda row: text_cell(quantities.binary_size(row.size_bytes)),
        "Time": lambda row: figure_cell(row.seconds, quantities.seconds),
        "Bus, GB/s": lambda row: _giga(row.bus_bytes_per_second),
    }
    title = f"Exchange between {found.world_size} processes ({found.collective_backend})"
    return table_of("collectives", title, found.collectives, columns, words=("Collective", "Type"))


def _devices(found: Preflight) -> Table:
    best = max(check.flops_per_second for check in found.devices)
    unit = found.unit.capitalize() if found.device == "cpu" else found.unit
    columns: dict[str, Callable[[DeviceCheck], TableCell]] = {
        "Node": lambda check: text_cell(check.host or found.host),
        unit: lambda check: text_cell(str(check.index)),
        "TFLOP/s": lambda check: _tera(check.flops_per_second),
        f"Share of the fastest {found.unit}": lambda check: _share(check.flops_per_second, best),
    }
    if len({check.host for check in found.devices}) == 1:
        del columns["Node"]
    return table_of("devices", f"Each {found.unit}", found.devices, columns, words=("Node", unit))


def _disturbed(look: NodeLook | None) -> str:
    if look is None:
        return "not checked"
    return f"{len(look.disturbed_by)}, see warnings" if look.disturbed_by else "none"


def _nodes(found: Preflight) -> Table:
    columns: dict[str, Callable[[NodeRate], TableCell]] = {
        "Node": lambda node: text_cell(node.host),
        found.units.capitalize() if found.device == "cpu" else found.units: (
            lambda node: figure_cell(node.gpus, quantities.count)
        ),
        "Median, TFLOP/s": lambda node: _tera(node.median_flops_per_second),
        f"Slowest {found.unit}": lambda node: figure_cell(node.slowest.index, quantities.count),
        "Slowest, TFLOP/s": lambda node: _tera(node.slowest.flops_per_second),
        f"Share of the median of all {found.units}": lambda node: figure_cell(node.slowest_share, quantities.percent),
        "Other work, changed limits": lambda node: text_cell(_disturbed(node.look)),
    }
    return table_of("nodes", "Nodes, slowest first", found.nodes(), columns, words=("Node",))
