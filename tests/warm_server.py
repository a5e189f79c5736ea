"""A Python with the training stack already imported, for tests that start many processes which train.

Importing torch, Lightning and transformers takes 7 s of CPU time. A server imports them once; every process is then a
fork of it. `shared` gives a program that stands in for sys.executable (see warm_relay): it takes the same arguments,
and ends as the fork ends. The server also imports the records and the readers of this checkout's tensorprimat; a fork
whose paths name another tensorprimat, or none, forgets them. The fork is no child of the program, and has a session of
its own.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import importlib.machinery
import inspect
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

STACK = (
    "numpy", "pydantic.main", "psutil", "yaml", "typer", "rich.live", "jinja2", "scipy.special", "matplotlib.figure",
    "matplotlib.backends.backend_agg", "torch", "torch._dynamo", "torch.profiler", "torch.distributed.run",
    "lightning.pytorch",
    "transformers.models.llama.modeling_llama", "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.mistral.modeling_mistral", "transformers.models.auto.modeling_auto",
)  # fmt: skip
PACKAGE = "tensorprimat"
OWN = (f"{PACKAGE}.storage.store", f"{PACKAGE}.models.presets", f"{PACKAGE}.logs")
"""Modules of this checkout: none that runs as a program (-m), which Python warns of if it is imported already."""
ERRORS = "stderr"
"""File of a server's errors, in its folder."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def shared(folder: Path, owner: int) -> str:
    """Return the program that stands in for sys.executable for all who name this folder.

    The first one starts the server, which ends with the process `owner`. Raises RuntimeError with the server's errors
    if it ends before it can serve.
    """
    note = folder / "warm_python"
    with (folder / "warm_python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            note.write_text(str(_start(owner)))
    program = Path(note.read_text())
    until = time.monotonic() + 120
    while not (program.parent / "socket").exists() and time.monotonic() < until:  # before a test, whose time is limited
        if _has_ended(program.parent):
            raise RuntimeError(f"the warm Python ended before it could serve:\n{(program.parent / ERRORS).read_text()}")
        time.sleep(0.05)
    return str(program)


def _has_ended(folder: Path) -> bool:
    """Return True if the server of a folder has ended, whether or not its parent has noticed."""
    try:
        server = os.pidfd_open(int((folder / "pid").read_text()))
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([server], [], [], 0)[0])
    finally:
        os.close(server)


def _start(owner: int) -> Path:
    """Start a server that ends with the process `owner`, and return its program."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))  # the path of a socket has at most 107 characters
    address, program = folder / "socket", folder / "python"
    errors = (os.POSIX_SPAWN_OPEN, 2, str(folder / ERRORS), os.O_WRONLY | os.O_CREAT, 0o600)
    server = os.posix_spawn(  # nobody waits for it, of which Popen would warn
        sys.executable,
        [sys.executable, __file__, str(address), str(owner)],
        {name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        file_actions=[*((os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1)), errors],
        setsid=True,
    )
    (folder / "pid").write_text(str(server))
    program.write_text(RELAY.format(python=sys.executable, tests=str(Path(__file__).parent), address=str(address)))
    program.chmod(0o755)
    return program


RELAY = """#!{python} -SE
import sys
sys.path.insert(0, {tests!r})
import warm_relay
sys.exit(warm_relay.main({address!r}))
"""


def serve(address: str, owner: int) -> NoReturn:
    """Import the stack, then fork a process for every connection, as long as the process `owner` lives."""
    alive = os.pidfd_open(owner)
    for module in STACK:
        with suppress(ImportError):  # a smaller environment
            importlib.import_module(module)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    for module in OWN:
        importlib.import_module(module)
    del sys.path[0]
    _settle()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{address}~")
        server.listen(64)
        os.rename(f"{address}~", address)  # whoever sees this name can connect
        while alive not in select.select([server, alive], [], [])[0]:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _supervise(connection)
            connection.close()
            _reap()
    shutil.rmtree(Path(address).parent, ignore_errors=True)
    os._exit(0)  # without taking torch down in order


def _settle() -> None:
    """Do once what every fork would do again because the stack is imported."""
    gc.collect()
    gc.freeze()  # a search for unreachable objects looks at those of the stack no more, and copies none of their pages
    inspect.getmodule(inspect.currentframe())  # notes the file of every module, for inspect.stack in torch.distributed
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False  # the operators of torch need not be taken down one by one


def _reap() -> None:
    """Wait for every process that has ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _supervise(connection: socket.socket) -> None:
    """Fork the process that runs the request, tell its number and how it ended, and kill it if nobody listens."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    request = b""
    while len(request) < int.from_bytes(size, "little"):
        request += connection.recv(2**16)
    fork = os.fork()
    if fork == 0:
        connection.close()
        _become(json.loads(request), streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{fork}\n".encode())
    ended = os.pidfd_open(fork)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.killpg(fork, signal.SIGKILL)
    _, status = os.waitpid(fork, 0)
    with suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Run arguments of Python as a process of its own; never returns."""
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    for number in PASSED_ON:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.executable = request["program"]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    arguments = request["arguments"]
    unbuffered = "-u" in arguments[:1] or os.environ.get("PYTHONUNBUFFERED")
    if arguments[:1] == ["-u"]:
        arguments = arguments[1:]
    if unbuffered:
        sys.stdout.reconfigure(write_through=True)
    code: object = 0
    try:
        _interpret(arguments)
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        code = -signal.SIGINT
        traceback.print_exc()
    except BaseException:  # noqa: BLE001  what Python prints at the end of a program
        code = 1
        sys.excepthook(*sys.exc_info())
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)


def _interpret(arguments: list[str]) -> None:
    """Run arguments as Python does: -m MODULE, -c CODE, or a file."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    del sys.path[0]  # the folder of this file
    if arguments[0] == "-m":
        sys.path[:0] = [os.getcwd(), *paths]
        _forget_other_package()
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path[:0] = ["", *paths]
        _forget_other_package()
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[:0] = [str(Path(arguments[0]).resolve().parent), *paths]
        _forget_other_package()
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _forget_other_package() -> None:
    """Forget the imported modules of tensorprimat, unless sys.path leads to the same package."""
    found = importlib.machinery.PathFinder.find_spec(PACKAGE)
    if found is None or Path(found.origin or "").resolve() != Path(sys.modules[PACKAGE].__file__ or "").resolve():
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
