"""Fixtures that several tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import pytest
import warm_server

from tensorprimat import logs
from tensorprimat.core.result import Result
from tensorprimat.logs.format import UserFacts
from tensorprimat.machine import noise, platform
from tensorprimat.system import regular

sys.dont_write_bytecode = False  # hundreds of processes import the package: each module is compiled once
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several tests train at once: threads of one would wait for the others
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job: children would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)
with contextlib.suppress(ImportError):  # absent where only the wheel is tested
    from hypothesis import settings

    settings.register_profile("any speed", deadline=None)  # another program may have both cores for a second
    settings.load_profile("any speed")
SHARED = Path(__file__).resolve().parents[2] / "shared"
MEMORY = Path("/dev/shm")
FREE_BYTES = 2 * 2**30  # a run of the suite needs a few percent of it at a time


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real logs next to the checkout; a test that needs it is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"needs real logs in {SHARED}, which are not part of the project")
    return SHARED


class Settled:
    """Plugin that takes objects which stay for the whole run out of later garbage collections (gc.freeze).

    Imports make a million objects: garbage collection is off while the tests are collected, and later collections do
    not look at these objects. Nothing is frozen while a test runs: Hypothesis asks for the referrers of an object that
    it has just made, and gc does not look for them among frozen objects.
    """

    LONG_SECONDS = 0.03

    def __init__(self) -> None:
        self.begun = 0.0
        self.was_long = False
        gc.disable()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        if "hypothesis" in sys.modules:
            use_hypothesis_once()
        gc.freeze()
        gc.enable()
        gc.callbacks.append(self.searched)

    def searched(self, phase: str, _found: dict[str, int]) -> None:
        """Note a long garbage collection, as after the first test that imports a large library."""
        if phase == "start":
            self.begun = time.perf_counter()
        elif time.perf_counter() - self.begun > self.LONG_SECONDS:
            self.was_long = True

    def pytest_runtest_logfinish(self) -> None:
        """Leave the objects that a long garbage collection kept out of later ones; done between two tests."""
        if self.was_long:
            self.was_long = False
            gc.freeze()


def use_hypothesis_once() -> None:
    """Let Hypothesis make its random generator and check that an object refers to it, before gc.freeze.

    From Python 3.14 on, the dict that refers to it would be frozen, so that a check after gc.freeze would find nothing.
    """
    from hypothesis import given, settings, strategies

    settings(max_examples=1, database=None)(given(strategies.none())(lambda _: None))()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Settled(), "settled")
    if has_room_in_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # pytest's own variable


def has_room_in_memory() -> bool:
    """Return True if the folders of tests fit into MEMORY, and programs in them may run.

    Tests rewrite small files thousands of times, which ext4 writes to the disk each time.
    """
    try:
        state = os.statvfs(MEMORY)
    except (AttributeError, OSError):  # not Linux
        return False
    runs = not state.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK | os.X_OK)
    return runs and state.f_bavail * state.f_frsize >= FREE_BYTES


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which tests were collected but every one was skipped: it proves nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.config.option.collectonly:
        return
    counts = {outcome: len(reporter.stats.get(outcome, ())) for outcome in ("passed", "failed", "error", "skipped")}
    if counts["skipped"] and not counts["passed"] + counts["failed"] + counts["error"]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests that run at the same time are no noise."""
    quiet = noise.NoiseReading(cores=2, load=0.0, busy_share=0.0, cpu_cap_hertz=None)
    monkeypatch.setattr(noise, "observe_machine", lambda _gpu_ids=(): quiet)


@pytest.fixture(autouse=True)
def new_detection() -> None:
    """A test may pretend another machine, so it does not take over what an earlier test detected."""
    platform._detect.cache_clear()


@pytest.fixture(autouse=True)
def loud_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error inside a reader fails a test, whatever a user would see of it."""
    monkeypatch.setenv(regular.DEBUG, "1")


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program like sys.executable whose processes need not import torch, Lightning and transformers (Linux only)."""
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # one server for all workers, in the folder that holds those of each
        return warm_server.shared(folder.parent, owner=os.getppid())
    return warm_server.shared(folder, owner=os.getpid())


@pytest.fixture
def warm(warm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that this test starts by sys.executable need not import torch, Lightning and transformers."""
    monkeypatch.setattr(sys, "executable", warm_python)


@pytest.fixture
def short_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preflight whose intervals are too short for figures, and long enough to see that everything runs."""
    monkeypatch.setattr("tensorprimat.measure.matmul.LEAST_SECONDS", 1e-4)
    for name, value in (("QUICK_SIZES", (32, 64)), ("QUICK_STREAM_BYTES", 2**16)):
        monkeypatch.setattr(f"tensorprimat.measure.preflight.{name}", {"cpu": value})
    monkeypatch.setattr("tensorprimat.measure.preflight.LAUNCHES", 10)


class TextReader(Protocol):
    """Type of `read_text(text, format=None, **flags)`, which reads a text as a log file."""

    def __call__(self, text: str, *, format: str | None = None, **flags: Any) -> Result: ...


@pytest.fixture
def read_text(tmp_path: Path) -> TextReader:
    """A text as if it were a log file; flags are fields of `UserFacts`."""

    def read(text: str, *, format: str | None = None, **flags: Any) -> Result:
        path = tmp_path / "training.log"
        path.write_bytes(text.encode())
        return logs.read(path, format=format, facts=UserFacts(**flags))

    return read
