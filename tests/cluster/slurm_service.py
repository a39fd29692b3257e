"""A SLURM cluster of two nodes on this machine: munged, slurmctld and one slurmd per node.

Everything lies in one temporary folder: configuration, key, socket, spool and logs. The ports are
free ones. Nothing of an installed cluster is touched.
"""

import os
import pwd
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "sinfo")
NODES = ("one", "two")
# A requeued job waits until its old credential has expired: 120 seconds by default, 5 at least.
CONF = """
ClusterName=antipode
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=10
MinJobAge=300
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8\n"


class Unavailable(Exception):
    """The services are installed but do not run on this machine."""


def missing():
    """Return the programs that are not installed, and a reason if services cannot be started."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "SLURM's services need the user root here"


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def service(folder):
    """Run a cluster; yield the environment variables that its commands need."""
    folder = Path(folder)
    folder.chmod(0o755)
    conf = _configured(folder)
    environment = {
        **os.environ,
        "SLURM_CONF": str(conf),
        "PATH": os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"]),
    }
    with ExitStack() as stack:
        _munge(folder, environment, stack)
        _start(["slurmctld", "-D", "-i"], folder / "slurmctld.out", environment, stack)
        for name in NODES:
            _start(["slurmd", "-D", "-N", name], folder / f"{name}.out", environment, stack)
        _wait_until_idle(folder, environment)
        yield {name: environment[name] for name in ("SLURM_CONF", "PATH")}
        subprocess.run(["scancel", "--full", "--user", "root"], env=environment, check=False)


def _configured(folder):
    """Write slurm.conf and return its path."""
    host = socket.gethostname().partition(".")[0]
    user = pwd.getpwuid(os.geteuid()).pw_name
    controller, *ports = free_ports(1 + len(NODES))
    for name in ("state", *(f"spool-{name}" for name in NODES)):
        (folder / name).mkdir()
    nodes = "".join(
        NODE.format(name=name, host=host, port=port)
        for name, port in zip(NODES, ports, strict=True)
    )
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, user=user, folder=folder, controller=controller) + nodes)
    return conf


def _munge(folder, environment, stack):
    """Start munged with a key of its own, and wait for its socket."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    words = ["munged", "--foreground", "--force", f"--key-file={key}"]
    words += [f"--socket={folder / 'munge.socket'}", f"--pid-file={folder / 'munged.pid'}"]
    words += [f"--log-file={folder / 'munged.log'}", f"--seed-file={folder / 'munged.seed'}"]
    process = _start(words, folder / "munged.out", environment, stack)
    end = time.monotonic() + 30
    while not (folder / "munge.socket").exists():
        if process.poll() is not None or time.monotonic() > end:
            raise Unavailable(f"munged did not start: {(folder / 'munged.out').read_text()}")
        time.sleep(0.05)


def _start(words, log, environment, stack):
    """Start a service that ends with the stack."""
    output = stack.enter_context(log.open("w"))
    process = subprocess.Popen(
        words, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment
    )
    stack.callback(_stop, process)
    return process


def _stop(process):
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_idle(folder, environment):
    """Wait until all nodes have registered."""
    end = time.monotonic() + 60
    states = ""
    while time.monotonic() < end:
        found = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "main", "-o", "%N %t"],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
        )
        states = found.stdout + found.stderr
        if found.stdout.count("idle") == len(NODES):
            return
        time.sleep(0.2)
    logs = "\n".join(f"{log}: {log.read_text()[-800:]}" for log in sorted(folder.glob("*.out")))
    raise Unavailable(f"the nodes of SLURM are not ready: {states}\n{logs}")
