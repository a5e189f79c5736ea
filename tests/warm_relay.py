"""The program that stands in for sys.executable: it has the server of tests/warm_server.py run its arguments.

It hands over arguments, environment, working directory and standard streams, passes signals on, and ends as the fork.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def main(address: str) -> int:
    """Have the server run this process's arguments, and return the exit code."""
    if sys.argv[1][:1] == "-" and sys.argv[1] not in ("-m", "-c", "-u"):  # a guard, in Python alone
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            sys.exit(f"the warm Python at {address} has ended")
        words = {
            "arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(), "program": sys.argv[0]
        }  # fmt: skip
        request = json.dumps(words).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "little")], [0, 1, 2])
        server.sendall(request)
        answers = server.makefile()
        fork = int(answers.readline())
        for number in PASSED_ON:
            signal.signal(number, lambda received, _: _pass_on(received, fork))
        code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _pass_on(number: int, fork: int) -> None:
    """Send a signal to the fork's process group, to the fork alone before it has one, to nothing once it has ended."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            send(fork, number)
            return
