"""Output of a running command: blocks, the engine's own lines, progress bars on a terminal, a countdown."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tensorprimat.core.quantities import rough_time, stated_seconds
from tensorprimat.reports import harmless

if TYPE_CHECKING:
    from tensorprimat.storage.micro_result import MicroResult

WIDTH = 78  # of the rules around a block: fits a terminal of 80 columns
Watched = TypeVar("Watched")
_FILE_WIDTH = 160  # of tables in a file or a pipe, where nothing has to be wrapped
_STEP_LINE = re.compile(
    r"\[\w{1,9}\] Step\s{1,12}(\d{1,12}) \|"
)  # "[CUDA] Step  10 | Time: 1.234s | Avg: 1.245s | Memory: 45.67GB"
_BLOCK_LINE = re.compile(r"\[\w+\] (?: |Training (?:starts|finished))")  # the child's own blocks, printed here too
_COLOUR = {"[CUDA]": "green", "[ROCM]": "red", "[CPU]": "cyan"}


class Screen:
    """The console of a benchmark: stdout, or stderr if stdout carries JSON. Without a terminal it prints plain text."""

    def __init__(self, *, stderr: bool, silent: bool = False) -> None:
        """Open the console.

        silent: print only errors, because another rank prints the rest.
        """
        self._console = harmless.console(stderr=stderr, quiet=silent, highlight=False, markup=False, emoji=False)
        self._errors = harmless.console(stderr=True, highlight=False, markup=False, emoji=False)
        if not self._console.is_terminal:
            self._console.width = _FILE_WIDTH

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line, never wrapped or cut."""
        self._console.print(Text(text, style=style or ""), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning about a figure."""
        self.say(f"warning: {text}", style="yellow")

    def complain(self, text: str) -> None:
        """Print the error of one model in one line on stderr."""
        self._errors.print(Text(text, style="bold red"), soft_wrap=True)

    def block(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Print a titled block of names and values between rules."""
        rule = "=" * WIDTH
        self.say(f"\n{rule}\n{title}\n{rule}", style="bold")
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.say(f"{name:<{width}}  {value}")
        self.say(rule, style="bold")

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(*titles, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table, soft_wrap=True)

    @contextlib.contextmanager
    def training(self, title: str, steps: int) -> Iterator[Callable[[str], None]]:
        """Return the function that takes the engine's lines and moves the bar with the optimizer steps in them."""
        with self._progress() as progress:
            task = progress.add_task(title, total=steps)

            def show(line: str) -> None:
                if _BLOCK_LINE.match(line):
                    return
                if match := _STEP_LINE.search(line):
                    progress.update(task, completed=int(match[1]))
                self.say(line, style=_COLOUR.get(line.partition(" ")[0]))

            yield show

    @contextlib.contextmanager
    def cooling(self, seconds: float) -> Iterator[Callable[[float], None]]:
        """Return the function that takes the remaining seconds."""
        if seconds > 0 and not self.is_terminal:
            self.say(f"Cooling down for {stated_seconds(seconds)} before the next run")
        with self._progress() as progress:
            task = progress.add_task("Cooling down", total=seconds)
            yield lambda left: progress.update(task, completed=seconds - left)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}", markup=False),  # names of models may contain brackets
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=2,  # drawing takes CPU time from a benchmark on the CPU
            disable=not self.is_terminal,
        )


def with_progress(
    items: Iterable[Watched], total: int | None, name: Callable[[Watched], str] = lambda _: ""
) -> Iterator[Watched]:
    """Yield items as they are read, with a bar on a terminal. name: text of an item after the bar."""
    screen = harmless.console(stderr=True)
    counted = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    columns = (*counted, TextColumn("{task.fields[name]}", markup=False))
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("reading", total=total, name="")
        for item in items:
            bar.update(task, advance=1, name=name(item))
            yield item


class CellProgress:
    """A bar with the time left on a terminal, one line per cell elsewhere. The bar moves by estimated time."""

    def __init__(self, weights: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        """Begin. weights: estimated seconds of each cell."""
        self._weights, self._clock, self._start = tuple(weights), clock, clock()
        self._done, self._measured = 0, 0.0
        console = harmless.console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[left]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(f"0/{len(weights)}", total=sum(weights), left="")

    def __enter__(self) -> CellProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, cell: MicroResult, *, resumed: bool) -> None:
        """Count one finished cell. resumed: by an earlier call, so its duration does not predict that of the others."""
        from tensorprimat.reports.micro_tables import largest_that_fits, milliseconds

        weight, count = self._weights[self._done], len(self._weights)
        self._done += 1
        self._measured += 0.0 if resumed else weight
        what = {"ok": f"{milliseconds(cell.mean_time_ms)} ms", "oom": "OOM", "failed": "failed"}[cell.status]
        if fitting := largest_that_fits(cell):
            what += f" ({fitting} fits)"
        what = f"measured before, {what}" if resumed else what
        rest = sum(self._weights[self._done :])
        at_this_rate = (self._clock() - self._start) * rest / self._measured if self._measured else 0.0
        left = f"about {rough_time(at_this_rate)} left" if at_this_rate else ""
        self._bar.update(self._task, advance=weight, description=f"{self._done}/{count} {cell.title}", left=left)
        self._bar.console.print(
            f"[{self._done}/{count}] {cell.title}: {what}{f' ({left})' if left else ''}", markup=False, soft_wrap=True
        )
