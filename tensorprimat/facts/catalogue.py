"""Facts about the world, read from tensorprimat/data: GPUs, prices, published models and published results.

Every cell of the GPU table is a `SourcedValue` with source and date. A device is found by its whole name as the driver
prints it; an unknown one is None, never a default. Peaks are dense, in units of 10**12 FLOP/s.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, with_config

from tensorprimat.core.result import GpuInfo, ModelShape, TrainingConfig
from tensorprimat.core.units import GB, GIB
from tensorprimat.facts import data_rows
from tensorprimat.facts.data_rows import checked_rows

RESERVED = 0.03  # share of the nameplate memory by which a driver may report less (0.1 to 1.5 % were seen)
USUALLY_RESERVED = 0.015  # the largest share that was seen
PEAKS_OF_PRECISION = {"fp32": ("fp32_matrix", "fp32")}
"""Peaks that apply to a precision, best first: matrix units multiply FP32 faster than vector units on CDNA 2."""


MATRIX_TYPES = ("fp32", "fp32_matrix", "tf32", "fp16", "bf16", "fp8", "fp4")
"""Types of numbers for which the GPU table has peaks and measured products."""
OF_MATRIX_CLOCK = ("tf32", "fp16", "bf16", "fp8", "fp4")
"""Those whose peak is that of matrix units; the vector units' peak for FP32 may be defined at another clock (H100)."""
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(gt=0)]
_MatrixType = Annotated[str, Field(pattern=f"^({'|'.join(MATRIX_TYPES)})$")]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class SourcedValue:
    """One cell: a value or, where sources differ, a range without a value."""

    value: _Positive | None = None
    low: _Positive | None = None
    high: _Positive | None = None
    source: str
    url: str | None = None
    date: date
    """Date of the source, or of the day on which it was read."""
    checked: bool
    """True if the value was read in `source`; False for general knowledge."""
    dense: bool | None = None
    """True for a peak without structured sparsity; None for a value that is not a peak."""
    note: str | None = None

    @property
    def origin(self) -> str:
        """Return source, date and note of the figure in one line."""
        unchecked = "" if self.checked else " (unchecked)"
        return f"{self.source}, {self.date.isoformat()}{unchecked}" + (f"; {self.note}" if self.note else "")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device as PyTorch shows it; a value that no source states is None or absent."""

    name: str
    vendor: Literal["nvidia", "amd"]
    names: tuple[str, ...]
    """Complete names that drivers print."""
    lacks: tuple[_MatrixType, ...]
    """Precisions that its matrix units do not have."""
    note: str | None = None
    dies: _Count = 1
    """Number of devices that the framework sees on one board; power is reported for the whole board."""
    memory_gb: SourcedValue | None = None
    memory_tb_per_second: SourcedValue | None = None
    tdp_watts: SourcedValue | None = None
    cores: SourcedValue | None = None
    """CUDA cores or stream processors."""
    matrix_clock_mhz: SourcedValue | None = None
    """Clock at which the peaks of OF_MATRIX_CLOCK are defined."""
    link_gb_per_second: SourcedValue | None = None
    """Rate in one direction of all links of a device to the others in its node (NVLink, xGMI)."""
    peak_tflops: Mapping[_MatrixType, SourcedValue] = field(default_factory=dict)
    """Dense peak by precision."""
    achievable_tflops: Mapping[_MatrixType, SourcedValue] = field(default_factory=dict)
    """Best published measurement of a matrix product, by precision."""

    def peak(self, precision: str) -> SourcedValue | None:
        """Return the dense peak that matrix products of this precision run against; None where it is not known."""
        names = PEAKS_OF_PRECISION.get(precision, (precision,))
        return next((self.peak_tflops[name] for name in names if name in self.peak_tflops), None)

    @property
    def memory_bytes(self) -> float | None:
        """Return the nameplate memory in bytes, or None if unknown; the vendors' GB are 2**30 bytes."""
        return self.memory_gb.value * GIB if self.memory_gb and self.memory_gb.value else None

    @property
    def usable_bytes(self) -> float | None:
        """Return the least memory in bytes that a driver leaves to programs; None if no source states the memory."""
        nameplate = self.memory_gb and (self.memory_gb.value or self.memory_gb.low)
        return nameplate * GIB * (1 - USUALLY_RESERVED) if nameplate else None


def dense_peak(gpu: Gpu | None, precision: str | None) -> float | None:
    """Return the dense peak of a device at a precision in 10**12 FLOP/s; None where one of the three is not known."""
    fact = gpu.peak(precision) if gpu and precision else None
    return fact.value if fact else None


CELLS = ("memory_gb", "memory_tb_per_second", "tdp_watts", "cores", "matrix_clock_mhz", "link_gb_per_second")
_TABLES = ("peak_tflops", "achievable_tflops")
"""Fields of a Gpu that contain one sourced value, and one for each precision."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one GPU for an hour, with its source and date."""

    gpu: str
    provider: str
    date: date
    usd_per_gpu_hour: _Positive
    source: str
    checked: bool


class Published(TrainingConfig, extra="forbid"):
    """A published result with its settings; None where the source does not say.

    `versions` has the image under "container"; `framework` contains the version.
    """

    model: str
    num_gpus: int
    source: str
    gpu: str | None = None
    recipe: str | None = None
    """Recipe, YAML or configuration file that the source names, with its commit."""
    tokens_per_second_per_gpu: float | None = None
    samples_per_second: float | None = None
    step_seconds: float | None = None
    mfu: float | None = None
    mfu_because: str | None = None
    """Reason why no MFU can be derived for the row; None if it has one or none was derived."""
    tflops_per_gpu: float | None = None
    flops_convention: str | None = None
    derived: bool = False
    """True if the figures were computed from the source's numbers; False if the source states them."""
    date: str | None = None
    url: str | None = None
    """The page at the commit that was read."""
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """The shape of a published model that this tool does not train."""

    title: str
    also: tuple[str, ...] = ()
    """Other models of the same shape."""
    shape: ModelShape
    parameters: int
    """The publisher's count, as a check of the shape."""
    source: str
    active_parameters: int | None = None
    """The publisher's count of those that one token uses; None for a dense model."""


@cache
def published_models() -> tuple[PublishedModel, ...]:
    """Return every model of data/models.toml."""
    of_shape = ModelShape.model_fields
    models = data_rows.read_data("models")["model"]
    rows = [{**row, "shape": {key: row[key] for key in row if key in of_shape}} for row in models]
    return checked_rows("models", "model", PublishedModel, rows=rows, extra=True)


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return every GPU of the catalogue. Raises InputError that names file, row and field of a wrong value."""
    return checked_rows("gpus", "gpu", Gpu)


def find_gpu(device_name: str | None, memory_gb: float | None = None) -> Gpu | None:
    """Return the catalogue's entry for a device by its whole name; None for a device that it does not hold.

    memory_gb: as the device reports it (10**9 bytes), to distinguish variants that share a name. A name that still
    means several variants ("A100") gives the values on which they agree, and None where they agree on no peak ("H100").

    >>> find_gpu("NVIDIA H100 80GB HBM3").peak("bf16").value
    989.4
    >>> find_gpu("NVIDIA H100 NVL").name, find_gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    ('H100 NVL', None)
    """
    candidates = variants(device_name)
    if memory_gb is not None and len(candidates) > 1:
        candidates = tuple(gpu for gpu in candidates if memory_fits(gpu, memory_gb))
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    agreed = _agreement(candidates)
    return agreed if agreed.peak_tflops else None


def find_gpu_of(info: GpuInfo) -> Gpu | None:
    """Return the catalogue's entry for the device of a machine or result, by its name and its memory."""
    return find_gpu(info.device_name, info.total_memory_gb)


def with_cores(info: GpuInfo) -> GpuInfo:
    """Return the device with its number of cores, which logs do not state."""
    gpu = find_gpu_of(info) if info.gpu_cores is None else None
    return info.changed(gpu_cores=int(gpu.cores.value)) if gpu and gpu.cores and gpu.cores.value else info


def variants_of(info: GpuInfo) -> tuple[Gpu, ...]:
    """Return every entry that the device may be: those of its memory, or all of its name if none has this memory."""
    named, memory = variants(info.device_name), info.total_memory_gb
    return tuple(gpu for gpu in named if memory is None or memory_fits(gpu, memory)) or named


def variants(device_name: str | None) -> tuple[Gpu, ...]:
    """Return every entry that a name may mean: several where it leaves the variant open, none where it is unknown.

    If no entry has the whole name, size and kind of memory are removed from it; of the entries with the shorter name,
    those whose memory has that size are returned. If there are none, the only part in brackets is tried likewise.

    >>> [gpu.name for gpu in variants("AMD Instinct MI355X 288GB HBM3e")], variants("AMD Instinct MI355X 64GB HBM3e")
    (['MI355X'], ())
    >>> [gpu.name for gpu in variants("NVIDIA Hopper GPU (H200-SXM-141GB)")]
    ['H200 SXM']
    """
    name = device_name or ""
    inner = _IN_BRACKETS.findall(name)
    return _variants(name) or (_variants(inner[0]) if len(inner) == 1 else ())


def _variants(name: str) -> tuple[Gpu, ...]:
    plain = plain_name(name)
    found = _of_plain_name(plain)
    bare = _MEMORY.sub("", f" {plain}").strip()
    if found or bare == plain:
        return found
    sizes = [float(size) for size in _GIGABYTES.findall(plain)]
    return tuple(gpu for gpu in _of_plain_name(bare) if all(memory_fits(gpu, size) for size in sizes))


def _of_plain_name(plain: str) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in gpus() if plain and plain in _plain_names(gpu.name, *gpu.names))


@cache
def _plain_names(*names: str) -> frozenset[str]:
    return frozenset(map(plain_name, names))


_IN_BRACKETS = re.compile(r"\(([^()]{1,80})\)")
_GIGABYTES = re.compile(r"\b(\d{1,3})gb\b")
_MEMORY = re.compile(r" (?:\d{1,3}gb|hbm\d[a-z]?|gddr\d[a-z]?)(?= |$)")


_VENDOR_WORDS = {"nvidia", "amd", "tesla", "instinct", "geforce"}


def plain_name(name: str) -> str:
    """Return a device name without case, punctuation, vendor's words and the mark of a virtual function.

    >>> plain_name("NVIDIA A100-SXM4-80GB"), plain_name("AMD Instinct MI300X VF")
    ('a100 sxm4 80gb', 'mi300x')
    """
    words = re.sub(r"[-_/()\s]+", " ", name.casefold()).split()
    while words and words[0] in _VENDOR_WORDS:
        words.pop(0)
    return " ".join(words[:-1] if words[-1:] == ["vf"] else words)


def typed_gpu(text: str) -> str:
    """Return the name in the catalogue of a GPU as a user types it: without spaces, and without the form of an SXM.

    A name that the catalogue does not have stays as it is.

    >>> typed_gpu("RTX4090"), typed_gpu("H100"), typed_gpu("mi-355x"), typed_gpu("MI3000X")
    ('RTX 4090', 'H100 SXM', 'MI355X', 'MI3000X')
    """
    found = variants(text) or tuple(gpu for gpu in gpus() if _squeezed(text) in map(_squeezed, (gpu.name, *gpu.names)))
    modules = [gpu for gpu in found if "SXM" in gpu.name]
    if len(found) == 1 and not variants(text):
        return found[0].name
    return modules[0].name if len(found) > 1 and len(modules) == 1 else text


def nearest_gpu(text: str) -> str | None:
    """Return the GPU of the catalogue whose name is most like a text; None if none is much like it.

    >>> nearest_gpu("MI3000X"), nearest_gpu("Trainium")
    ('MI300X', None)
    """
    by_name = {_squeezed(gpu.name): gpu.name for gpu in gpus()}
    near = difflib.get_close_matches(_squeezed(text), by_name, n=1, cutoff=0.8)
    return by_name[near[0]] if near else None


def _squeezed(name: str) -> str:
    return re.sub(r"[\W_]", "", plain_name(name)).lower()


def memory_fits(gpu: Gpu, memory_gb: float) -> bool:
    """Return True if a device that reports so much memory (10**9 bytes) may be this GPU, or its memory is unknown."""
    if gpu.memory_gb is None or gpu.memory_gb.value is None:
        return True
    nameplate = gpu.memory_gb.value  # its GB count 2**30 bytes; a result file may hold the nameplate itself
    return any(1 - RESERVED <= memory_gb / whole <= 1.005 for whole in (nameplate, nameplate * GIB / GB))


def _agreement(candidates: tuple[Gpu, ...]) -> Gpu:
    """Return a Gpu that contains only the facts on which all variants agree."""
    first, *others = candidates

    def agreed(of_variants: Sequence[Mapping[str, SourcedValue | None]]) -> dict[str, SourcedValue]:
        mine, *theirs = of_variants
        return {
            name: fact
            for name, fact in mine.items()
            if fact and all((cell := cells.get(name)) and cell.value == fact.value for cells in theirs)
        }

    return Gpu(
        name=" or ".join(gpu.name for gpu in candidates),
        vendor=first.vendor,
        names=(),
        lacks=tuple(precision for precision in first.lacks if all(precision in gpu.lacks for gpu in others)),
        **agreed([{cell: getattr(gpu, cell) for cell in CELLS} for gpu in candidates]),  # type: ignore[arg-type]
        **{table: agreed([getattr(gpu, table) for gpu in candidates]) for table in _TABLES},  # type: ignore[arg-type]
    )


@cache
def prices() -> tuple[Price, ...]:
    """Return every price, in the file's order: the first of a GPU is the one in use."""
    return checked_rows("prices", "price", Price)


@cache
def published_tables() -> tuple[Published, ...]:
    """Return the rows of published.toml; reproduce/published.py puts them into one list with the MLPerf library."""
    return checked_rows("published", "result", Published)
