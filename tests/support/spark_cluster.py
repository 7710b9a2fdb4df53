"""A standalone cluster of Spark on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
from processes import descendants, eventually


class Cluster:
    """A master and workers, each with an address of its own, so that Spark sees several hosts.

    With `local_dirs` each worker has a folder of replicas of its own, as the disks of several machines are.
    """

    def __init__(
        self,
        folder: Path,
        addresses: Sequence[str] = ("127.0.0.1", "127.0.0.2"),
        cores: int = 2,
        local_dirs: Path | None = None,
    ) -> None:
        self._folder, self._cores, self._local_dirs = folder, cores, local_dirs
        self._home = os.path.dirname(pyspark.__file__)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        self._processes = {"master": self._start("127.0.0.1", "master.Master", "--host", "127.0.0.1", "--port", port)}
        self.said("master", "Starting Spark master")
        for address in addresses:
            self.add(address)

    def add(self, address: str) -> None:
        """A worker joins, or comes back with the replicas that it had."""
        work = str(self._folder / f"work-{address}")
        options = ("--cores", self._cores, "--memory", "1g", "--work-dir", work, self.url)
        self._processes[address] = self._start(address, "worker.Worker", *options)
        self.said(address, "Successfully registered with master")

    def local_dir(self, address: str) -> Path:
        """The folder of a worker's replicas."""
        assert self._local_dirs is not None
        return self._local_dirs / address

    def _start(self, address: str, role: str, *options: object) -> subprocess.Popen[bytes]:
        name = "master" if role.startswith("master") else address
        command = [f"{self._home}/bin/spark-class", f"org.apache.spark.deploy.{role}", "--webui-port", "0"]
        env = {**os.environ, "SPARK_LOCAL_IP": address, "SPARK_HOME": self._home, "PYSPARK_PYTHON": sys.executable}
        if self._local_dirs is not None:
            env["MILLPOND_LOCAL_DIR"] = str(self._local_dirs / address)
        with open(self._folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                [*command, *map(str, options)],
                env={**env, "SPARK_DAEMON_MEMORY": "256m"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self, name: str, text: str) -> None:
        log = self._folder / f"{name}.log"
        eventually(lambda: log.exists() and text in log.read_text(errors="replace"), f"{text!r} of {name}")

    def kill(self, name: str) -> None:
        """The host is gone: its worker and the executors on it."""
        process = self._processes.pop(name)
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self.kill(name)
