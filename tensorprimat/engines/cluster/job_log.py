"""Reader of a job's output: the lines to show, the cause of its failure, and new lines in its log files."""

from __future__ import annotations

import io
import re
import signal
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tensorprimat.engines import failures
from tensorprimat.machine.platform import LABELS
from tensorprimat.system.failures import KILLED_FOR_MEMORY, ending, shows_kernel_kill

ENGINE_LINE = re.compile(rf"\[(?:{'|'.join(LABELS.values()).upper()})\] .*")
"""Progress line of an engine, also after a prefix that torchrun, srun or kubectl puts before it."""
ROOT_CAUSE = re.compile(
    r"Root Cause(?:(?!host\s{1,20}: ).){0,1000}host\s{1,20}: (?P<host>\S{1,300})"
    r"(?:(?!rank\s{1,20}: ).){0,300}rank\s{1,20}: (?P<rank>\d{1,9}) "
    r"(?:(?!exitcode\s{1,20}: ).){0,300}exitcode\s{1,20}: (?P<code>-?\d{1,9}) ",
    re.DOTALL,
)
"""The rank that failed first, in the summary that torchrun writes on every node."""
CANNOT_START = re.compile(r"\S{1,300}: command not found|execve\(\): .+|ModuleNotFoundError: No module named .+")
"""Messages of an image or a node that lacks the ranks' launcher or one of their imports."""
KEPT_LINES = 10_000  # last lines searched for a cause: a library's debug output has millions


@dataclass
class Console:
    """The printer of a job's lines, which keeps the last ones to find the cause of a failure."""

    out: TextIO
    err: TextIO
    output: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def show(self, line: str) -> None:
        """Print one line of the job: an engine's progress to `out`, any other to `err`."""
        if match := ENGINE_LINE.search(line):
            print(match[0], file=self.out, flush=True)
            return
        print(line, file=self.err, flush=True)
        self.output.append(line)

    def note(self, line: str) -> None:
        """Print one line of this program to `out`."""
        print(line, file=self.out, flush=True)

    def cause(self) -> str | None:
        """Return why the ranks ended, or None if unknown.

        In this order: a rank that a signal killed, an engine's own error, lack of memory, a missing program or module.
        """
        text = "\n".join(self.output)
        for failed in ROOT_CAUSE.finditer(text):
            code = int(failed["code"])
            if code < 0 and code != -signal.SIGTERM:  # torchrun itself sends it to the other ranks
                how = ending(code, memory_ran_out=shows_kernel_kill(text))
                return f"rank {failed['rank']} on {failed['host']} {how}"
        if own := failures.ENGINES_OWN_LINE.findall(text):
            return failures.first_cause(own)
        if shows_kernel_kill(text):
            return f"a process {KILLED_FOR_MEMORY}"
        lacking = CANNOT_START.search(text)
        return lacking[0] if lacking else None


class PrintedLine(io.TextIOBase):
    """A stream that shows the output of NeMo-Run line by line."""

    def __init__(self, console: Console) -> None:
        self._console, self._begun = console, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._console.show(line)
        return len(text)


class Tail:
    """A reader of new lines in the log files of a folder."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._read: dict[Path, int] = {}

    def show(self, console: Console, *, last: bool = False) -> None:
        """Show every new line. last: show an unfinished last line too."""
        for path in sorted(self._folder.glob(self._pattern)):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = len(new) if last else new.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in new[:whole].decode(errors="replace").splitlines():
                console.show(line)
