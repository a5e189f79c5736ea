"""The workload of a cell: one model, one optimizer, a few batches on the device, and the step that is timed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from tensorprimat.core.errors import InputError
from tensorprimat.engines.torch.cross_entropy import cross_entropy, linear_cross_entropy
from tensorprimat.engines.torch.model import LanguageModel, default_dtype
from tensorprimat.engines.torch.optimizer import adamw
from tensorprimat.machine.environment import has_fused_norm
from tensorprimat.machine.platform import multiply_float32_in
from tensorprimat.measure.matmul import TORCH_DTYPES
from tensorprimat.models.footprint import LARGEST_LOGITS
from tensorprimat.storage.micro_result import CellSpec

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

DTYPES = (np.dtype(np.uint16), np.dtype(np.int32))
CHUNK = 2**24  # tokens that are checked at a time, because a file may be larger than memory
DISTINCT_BATCHES = 2  # batches that alternate, so that no step repeats the one before it

TimingMark = Callable[[], None]


class Network(LanguageModel):
    """The torch engine's model, whose loss computes gradients in the forward pass only if all logits would not fit."""

    forward_only = False

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch of shape (sequences, length + 1)."""
        hidden = self.hidden(batch[:, :-1])
        targets = batch[:, 1:].flatten()
        if not _in_pieces(len(targets), self.causal.lm_head.weight.shape[0]):
            return cross_entropy(self.causal.lm_head(hidden), targets)
        if not self.forward_only:
            return linear_cross_entropy(hidden, self.causal.lm_head.weight, targets)
        return self._loss_in_pieces(hidden, targets)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _loss_in_pieces(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rows = max(1, LARGEST_LOGITS // int(self.causal.lm_head.weight.shape[0]))
        losses = [
            functional.cross_entropy(self.causal.lm_head(part).float(), target, reduction="sum")
            for part, target in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.stack(losses).sum() / len(targets)


def _in_pieces(rows: int, vocabulary_size: int) -> bool:
    """Return True if a batch has too many logits to hold them all, so that the loss is computed in pieces."""
    return rows * vocabulary_size > LARGEST_LOGITS


class Workload:
    """One cell's model on its device; `step` runs the pass that the cell names."""

    def __init__(self, spec: CellSpec) -> None:
        """Build model, optimizer and batches. Raises InputError for the token file; torch raises if memory runs out."""
        self.spec, self.device = spec, torch.device(spec.device)
        multiply_float32_in(spec.precision)
        torch.manual_seed(spec.seed)
        on_host = batches(spec)
        stored = torch.float32 if spec.autocast else TORCH_DTYPES[spec.precision]
        with self.device, default_dtype(stored):  # so that peak memory does not include a copy in a wider type
            self.network = Network(spec.as_preset, attention=spec.attention, sequence_length=spec.context_length)
        self.network.forward_only = spec.forward_only
        if not spec.autocast:
            self.network.to(stored)  # buffers too
            self.network.restore_rotary()
        self._batches = cycle([batch.to(self.device) for batch in on_host])
        if spec.compile:
            self.network.compile_layers()
        self._optimizer: torch.optim.Optimizer | None = None
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=spec.autocast and spec.precision == "fp16")
        if spec.pass_name == "train":
            self._optimizer = adamw(self.network, fused=not self._scaler.is_enabled())

    def step(self, mark: TimingMark = lambda: None) -> None:
        """Run the cell's pass once. mark: called at the start and after each part."""
        batch = next(self._batches)
        mark()
        with self._autocast():
            loss = self.network(batch)
        mark()
        if self.spec.forward_only:
            return
        self._scaler.scale(loss).backward()
        mark()
        if self._optimizer is None:
            self.network.zero_grad(set_to_none=True)
            return
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        mark()

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the timed parts of one step, in order."""
        every = ("forward", "backward", "optimizer")
        return every[: {"forward": 1, "forward-backward": 2, "train": 3}[self.spec.pass_name]]

    @property
    def queues_whole_steps(self) -> bool:
        """Return True if the host queues a step without waiting for results of the device.

        A CPU has no queue; a gradient scaler waits before the optimizer step to learn if a gradient overflowed.
        """
        waits = self._optimizer is not None and self._scaler.is_enabled()
        return self.device.type == "cuda" and not waits

    @property
    def loss(self) -> str:
        """Return a description of the loss computation."""
        if not _in_pieces(self.spec.tokens, self.spec.vocab):
            return "cross-entropy of all logits"
        if self.spec.forward_only:
            return "cross-entropy in pieces"
        return "linear cross-entropy in pieces, gradients in forward"

    @property
    def fused_norm(self) -> bool:
        """Return True if RMS norm is one kernel on this device."""
        return has_fused_norm(self.device.type)

    def _autocast(self) -> AbstractContextManager[Any]:
        if not self.spec.autocast:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self.device.type, TORCH_DTYPES[self.spec.precision])
        return context


def batches(spec: CellSpec) -> list[torch.Tensor]:
    """Return DISTINCT_BATCHES batches of shape (batch size, context + 1) on the host; the last token is only a target.

    Raises InputError for a token file that cannot be used for the cell.
    """
    import torch

    size, length = spec.batch_size, spec.context_length + 1
    if spec.data is None:
        from tensorprimat.engines.torch.data import TokenStream

        stream = TokenStream(vocabulary_size=spec.vocab, seed=spec.seed)
        made = (
            np.stack([stream.sequence(batch * size + row, length) for row in range(size)])
            for batch in range(DISTINCT_BATCHES)
        )
        return [torch.from_numpy(batch) for batch in made]
    tokens = open_tokens(Path(spec.data), vocabulary_size=spec.vocab, least=length)
    random = np.random.default_rng(spec.seed)
    starts = random.integers(0, len(tokens) - length + 1, (DISTINCT_BATCHES, size))
    return [
        torch.from_numpy(np.stack([tokens[start : start + length] for start in row]).astype(np.int64)) for row in starts
    ]


def open_tokens(path: Path, *, vocabulary_size: int, least: int) -> NDArray[np.uint16] | NDArray[np.int32]:
    """Return the tokens of a file (.npy of uint16 or int32, one dimension), memory-mapped, after a check of all tokens.

    least: number of tokens that it must have. Raises InputError with the reason where the file cannot be used.
    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # a pipe would wait for a writer
        raise InputError("is a pipe or a device, not a token file", path=path, remedy="give another --data")
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError("no such token file", path=path, remedy="give another --data") from None
    except IsADirectoryError:
        raise InputError("a folder, not a token file", path=path, remedy="give another --data") from None
    except PermissionError:
        raise InputError("no permission to read it", path=path, remedy="give another --data") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path, remedy="give another --data") from error
    except (ValueError, EOFError) as error:  # numpy's message advises to trust the file and unpickle it
        remedy = "--data takes one that numpy.save wrote, of uint16 or int32 (tokens without a header: numpy.fromfile)"
        raise InputError("not a .npy file of numbers", path=path, remedy=remedy) from error
    if not isinstance(tokens, np.ndarray):
        raise InputError("an archive of arrays, not a single array", path=path, remedy="--data takes a .npy file")
    if tokens.dtype not in DTYPES:
        raise InputError(f"tokens of type {tokens.dtype}", path=path, remedy="--data takes uint16 or int32")
    if tokens.ndim != 1:
        raise InputError(f"an array of shape {tokens.shape}", path=path, remedy="--data takes one dimension of tokens")
    if len(tokens) < least:
        raise InputError(
            f"{len(tokens)} tokens, but a sequence needs {least}", path=path, remedy="lower --context-length"
        )
    for start in range(0, len(tokens), CHUNK):
        part = tokens[start : start + CHUNK]
        wrong = np.flatnonzero((part < 0) | (part >= vocabulary_size))
        if len(wrong):
            raise InputError(
                f"token {start + wrong[0]} has id {part[wrong[0]]}, and the vocabulary ends at {vocabulary_size - 1}",
                path=path,
                remedy="raise --vocab-size, or give another --data",
            )
    return tokens
