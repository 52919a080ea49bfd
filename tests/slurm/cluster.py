"""A real Slurm on one host: munge, a controller and some nodes, in a network namespace and a folder of their own.

    with SlurmCluster(folder, nodes=2) as slurm:
        job = slurm.submit("script.sh"); slurm.wait(job, "COMPLETED")

Needs root, slurm-wlm, munge and iproute2. With loopback as the only address getaddrinfo finds nothing (AI_ADDRCONFIG),
so the namespace gives `lo` a second one. There is no accounting: what `sacct` would say has to come from dumps.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import IN_CI

ADDRESS = "10.99.0.1"
# cred_expire is also how long a requeued job waits: sooner, and its node still refuses the credential that it revoked
CONFIG = """
ClusterName=perfkit-test
SlurmctldHost={host}({address})
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=40
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
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr={address} Port=[17001-{last}] CPUs=4 RealMemory=500 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "ip")


def require_slurm() -> None:
    """Skip where Slurm cannot run; in CI that is a failure."""
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    reason = f"missing: {', '.join(missing)}" if missing else "needs root" if os.geteuid() != 0 else None
    if reason and IN_CI:
        pytest.fail(f"CI must run real Slurm; {reason}")
    if reason:
        pytest.skip(f"no Slurm here; {reason}")


class SlurmCluster:
    """Slurm for one test."""

    def __init__(self, folder: Path, *, nodes: int = 2) -> None:
        require_slurm()
        self.folder, self.nodes = folder, nodes
        self._space = f"pk{os.getpid()}"
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
        values = {"host": socket.gethostname().split(".")[0], "address": ADDRESS, "folder": folder, "nodes": self.nodes}
        (folder / "slurm.conf").write_text(CONFIG.format(**values, last=17000 + self.nodes))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for command in (
            ["ip", "netns", "add", self._space],
            ["ip", "-n", self._space, "link", "set", "lo", "up"],
            ["ip", "-n", self._space, "addr", "add", f"{ADDRESS}/24", "dev", "lo"],
        ):
            done = subprocess.run(command, env=self.environ, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"this sandbox allows no network namespace: {done.stderr.strip()}")

    def _start(self) -> None:
        folder = self.folder
        self._daemon(
            "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        self._until(lambda: (folder / "munge.socket").exists(), "munge")
        self._daemon("slurmctld", "-D", "-f", f"{folder}/slurm.conf")
        for node in range(self.nodes):
            self._daemon("slurmd", "-D", "-N", f"n{node + 1}", "-f", f"{folder}/slurm.conf")
        self._until(self._idle, "idle nodes")

    def _idle(self) -> bool:
        done = self._command("sinfo", "--noheader", "--Node", "--format=%t", check=False)
        return done.stdout.split() == ["idle"] * self.nodes

    def _daemon(self, *command: str) -> None:
        wrapped = ["ip", "netns", "exec", self._space, *command]
        with (self.folder / f"{command[0]}.out").open("ab") as log:
            daemon = subprocess.Popen(wrapped, stdout=log, stderr=log, env=self.environ, start_new_session=True)
        self._daemons.append(daemon)

    def _command(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        wrapped = ["ip", "netns", "exec", self._space, *command]
        try:
            done = subprocess.run(wrapped, env=self.environ, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:  # a controller on a loaded machine: whoever polls asks again
            done = subprocess.CompletedProcess(wrapped, 124, "", "no answer within two minutes")
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done

    def _until(self, holds, what: str, timeout_s: float = 240) -> None:
        end = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
                raise AssertionError(f"waited {timeout_s:.0f} s for {what}\n{logs}")
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
        subprocess.run(["ip", "netns", "del", self._space], check=False, env=self.environ, capture_output=True)
