"""Tests with a real Slurm on this machine, which `make test-slurm` installs; skipped where it cannot run."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """\
ClusterName=tensorprimat
SlurmctldHost={host}({address})
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmdParameters=config_overrides
KillWait=5
ReturnToService=2
NodeName={host} NodeAddr={address} Port={first_port} CPUs=8 State=UNKNOWN
NodeName=second NodeHostname={host} NodeAddr={address} Port={second_port} CPUs=8 State=UNKNOWN
PartitionName=debug Nodes={host},second Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""
# Both nodes are this machine, by a slurmd each. NoInAddrAny: the daemons listen on the host's own address (127.0.0.1
# where it has no other), not on all. FORCE: jobs share a node, though ours ask for it alone, so that one may wait for
# its time limit while others are tested.


def absent():
    """Return the reason why Slurm cannot run here; None if it can."""
    if os.geteuid():
        return "Slurm starts as root only; run make test-slurm as root"
    if missing := [name for name in (*DAEMONS, "sbatch", "srun") if shutil.which(name) is None]:
        return f"{', '.join(missing)} not installed; run make test-slurm"
    return None


def pytest_collection_modifyitems(items):
    why, here = absent(), Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("slurm")
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


def address_of(host):
    try:
        return socket.gethostbyname(host)
    except OSError:  # a container whose own name nobody resolves
        return "127.0.0.1"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session", autouse=True)
def slurm(tmp_path_factory):
    """The running Slurm; its commands find it by SLURM_CONF. Everything of it is in a temporary folder."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    for name in ("state", f"spool.{host}", "spool.second"):
        (folder / name).mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=host,
            address=address_of(host),
            folder=folder,
            controller_port=free_port(),
            first_port=free_port(),
            second_port=free_port(),
        )
    )
    munge = [f"--{name}={folder}/munge.{ending}" for name, ending in MUNGE_FILES.items()]
    commands = (
        ["munged", "--foreground", "--force", *munge],
        ["slurmctld", "-D", "-c", "-f", str(configuration)],
        *(["slurmd", "-D", "-c", "-f", str(configuration), "-N", node] for node in (host, "second")),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(configuration))
        running = []
        try:
            for command in commands:
                with (folder / f"{command[0]}.log").open("ab") as log:
                    running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
            if (why := late(lambda: printed("sinfo", "--noheader", "--format=%D %T") == "2 idle", folder)) is not None:
                pytest.skip(f"Slurm does not start on this machine: {why}")
            yield folder
            printed("scancel", "--user=root")
            late(lambda: not printed("squeue", "--noheader"), folder)
        finally:
            for daemon in reversed(running):
                daemon.terminate()
                try:
                    daemon.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()


MUNGE_FILES = {
    "key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "messages", "seed-file": "seed",
}  # fmt: skip


def printed(*command):
    """Return the output of one of Slurm's commands."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()


def late(holds, folder, seconds=30):
    """Wait for a condition; return the daemons' logs if it fails to hold in time, else None."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(folder.glob("*.log")))
        time.sleep(0.2)
    return None
