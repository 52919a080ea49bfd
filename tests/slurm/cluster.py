"""A real Slurm on one host: munge, a controller and some nodes, in a folder and, where allowed, a network of their own.

    with SlurmCluster(folder, nodes=2) as slurm:
        job = slurm.submit("script.sh"); slurm.wait(job, "COMPLETED")

Needs root, slurm-wlm and munge. `network` is one of NETWORKS; by itself it takes a network namespace if the sandbox
allows one, else the host's loopback with free ports. $PERFKIT_SLURM_NETWORK chooses for every test.

With 127.0.0.1 as the only address, getaddrinfo finds nothing for IPv4 (AI_ADDRCONFIG), so a namespace gives `lo` a
second one; where that is not ours to do, Slurm is told to ask for IPv6 as well, and then the rule does not apply.
There is no accounting: what `sacct` would say has to come from dumps.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import IN_CI

NETWORKS = ("namespace", "host", "bare")
"""A namespace with a second address; the host's loopback; a namespace with nothing but loopback, to test the latter."""
SECOND_ADDRESS = "10.99.0.1"
PORTS = range(20_000, 30_000)
"""Below the ports that the kernel gives to outgoing connections, so none is taken between choice and use."""
ASK_IPV4 = "import socket as s; s.getaddrinfo('127.0.0.1', 80, s.AF_INET, flags=s.AI_ADDRCONFIG)"
# cred_expire is also how long a requeued job waits: sooner, and its node still refuses the credential that it revoked.
# The timeouts are for a machine that is busy: the default loses and requeues a job that has not started in 10 s.
CONFIG = """
ClusterName=perfkit-test
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=40
MessageTimeout=90
BatchStartTimeout=240
SchedulerParameters=sched_interval=5,bf_interval=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
JobRequeue=1
SlurmdParameters=config_overrides
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
NODE = (
    "NodeName=n{number} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cpus} RealMemory={memory_mb} "
    "State=UNKNOWN\n"
)
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")


def require_slurm() -> None:
    """Skip where Slurm cannot run; in CI that is a failure."""
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    reason = f"missing: {', '.join(missing)}" if missing else "needs root" if os.geteuid() != 0 else None
    if reason and IN_CI:
        pytest.fail(f"CI must run real Slurm; {reason}")
    if reason:
        pytest.skip(f"no Slurm here; {reason}")


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    free: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            taken = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                taken.bind(("", port))
                free.append(port)
            if len(free) == count:
                return free
    raise AssertionError(f"fewer than {count} free ports in {PORTS}")


class SlurmCluster:
    """Slurm for one test."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 2,
        network: str | None = None,
        cpus: int = 4,
        memory_mb: int = 500,
        own_processes: bool = False,
    ) -> None:
        """Prepare a cluster; nodes may claim what they do not have, and jobs may see no processes but their node's."""
        require_slurm()
        self.folder, self.nodes = folder, nodes
        self._claims = {"cpus": cpus, "memory_mb": memory_mb}
        self._apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if own_processes else []
        self.network = network or os.environ.get("PERFKIT_SLURM_NETWORK")
        assert self.network in (None, *NETWORKS), f"network is one of {NETWORKS}, not {self.network}"
        self._space = f"pk{uuid.uuid4().hex[:12]}"
        self._inside: list[str] = []
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environ = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }

    def __enter__(self) -> SlurmCluster:
        try:
            self._prepare()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _prepare(self) -> None:
        folder = self.folder
        for name in ("state", *(f"spool.n{i + 1}" for i in range(self.nodes))):
            (folder / name).mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        folder.chmod(0o755)
        if self.network != "host":
            refused = self._enter_namespace()
            if refused and self.network is not None:
                pytest.skip(f"this sandbox allows no network namespace: {refused}")
        address = SECOND_ADDRESS if self._inside and self.network != "bare" else "127.0.0.1"
        ipv4 = subprocess.run([*self._inside, sys.executable, "-c", ASK_IPV4], env=self.environ, capture_output=True)
        here = {"host": socket.gethostname().split(".")[0], "address": address}
        self.address = address
        controller, *ports = free_ports(1 + self.nodes)
        text = CONFIG.format(**here, folder=folder, port=controller)
        text += "CommunicationParameters=EnableIPv6\n" if ipv4.returncode else ""
        for number, port in enumerate(ports):
            text += NODE.format(**here, **self._claims, number=number + 1, port=port)
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _enter_namespace(self) -> str | None:
        """Make a network namespace for what is started from now on; returns why that is impossible."""
        inside = ["ip", "netns", "exec", self._space]
        commands = [["ip", "netns", "add", self._space], [*inside, "ip", "link", "set", "lo", "up"]]
        if self.network != "bare":
            commands.append([*inside, "ip", "addr", "add", f"{SECOND_ADDRESS}/24", "dev", "lo"])
        for command in commands:
            try:
                done = subprocess.run(command, env=self.environ, capture_output=True, text=True)
            except OSError as error:  # no iproute2
                return str(error)
            if done.returncode:
                return done.stderr.strip()
        self._inside = inside
        return None

    def _start(self) -> None:
        folder = self.folder
        self._daemon(
            "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        self._until(lambda: (folder / "munge.socket").exists(), "munge")
        self._daemon("slurmctld", "-D", "-f", f"{folder}/slurm.conf")
        for node in range(self.nodes):
            self._daemon(*self._apart, "slurmd", "-D", "-N", f"n{node + 1}", "-f", f"{folder}/slurm.conf")
        self._until(self._idle, "idle nodes")

    def _idle(self) -> bool:
        done = self._command("sinfo", "--noheader", "--Node", "--format=%t", check=False)
        return done.stdout.split() == ["idle"] * self.nodes

    def _daemon(self, *command: str) -> None:
        wrapped = [*self._inside, *command]
        with (self.folder / f"{command[0]}.out").open("ab") as log:
            daemon = subprocess.Popen(wrapped, stdout=log, stderr=log, env=self.environ, start_new_session=True)
        self._daemons.append(daemon)

    def _command(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        wrapped = [*self._inside, *command]
        try:
            done = subprocess.run(wrapped, env=self.environ, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:  # a controller on a loaded machine: whoever polls asks again
            done = subprocess.CompletedProcess(wrapped, 124, "", "no answer within two minutes")
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done

    def _until(self, holds: Callable[[], bool], what: str, timeout_s: float = 240) -> None:
        end = time.monotonic() + timeout_s
        while not holds():
            dead = [str(daemon.args) for daemon in self._daemons if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                why = f"{dead[0]} has ended" if dead else f"waited {timeout_s:.0f} s"
                logs = [
                    path.read_text(errors="replace")[-2000:]
                    for path in (*self.folder.glob("*.log"), *self.folder.glob("*.out"))
                ]
                raise AssertionError("\n".join([f"{what}: {why}", *logs]))
            time.sleep(0.2)

    def submit(self, script: Path, *options: str) -> str:
        """Submit a batch script and return the job's id."""
        return self._command("sbatch", "--parsable", *options, str(script)).stdout.strip().split(";")[0]

    def control(self, *command: str) -> str:
        """Run scontrol and return what it prints."""
        return self._command("scontrol", *command).stdout

    def facts(self, job: str) -> dict[str, str]:
        """Return what `scontrol show job` says."""
        done = self._command("scontrol", "show", "job", job, check=False)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def wait(self, job: str, state: str, timeout_s: float = 480) -> dict[str, str]:
        """Wait for a state of a job, and return what Slurm says of it then."""
        seen: dict[str, str] = {}

        def there() -> bool:
            seen.update(self.facts(job))
            return seen.get("JobState") == state

        self._until(there, f"job {job} to be {state}", timeout_s)
        return seen

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._daemons):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._daemons:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=10)
        if shutil.which("ip", path=self.environ["PATH"]):
            subprocess.run(["ip", "netns", "del", self._space], check=False, env=self.environ, capture_output=True)
