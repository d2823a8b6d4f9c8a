"""A real cluster for tests, and the operator as a process beside it.

KUBECONFIG names any cluster; without it the test cluster of ../shared/cluster is started, where it is at hand.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
TEST_CLUSTER = ROOT.parent / "shared" / "cluster" / "cluster"
CRD = ROOT / "deploy/helm/megatronapp/files/crds/trainingjob.yaml"
CHART = ROOT / "deploy/helm/megatronapp"
PYTHON_IMAGE = "docker.io/library/python:3.11-slim"
PATIENCE = 10
"""How often a server that can't be reached is asked again."""
LONGEST_COMMAND_SECONDS = 1800
"""The tests' own limits are for the tests alone: their fixtures make the images, which takes a while the first time."""
FLAGS = ("-f", str(CHART / "ci/minimal-values.yaml"), "--wait", "--timeout", "10m")


class CommandError(subprocess.CalledProcessError):
    def __str__(self) -> str:
        return f"{super().__str__()}: {self.stderr}"


class NoClusterError(Exception):
    """Why there is none."""


@dataclass
class Cluster:
    kubeconfig: Path
    namespace: str = "default"

    @classmethod
    @contextmanager
    def at_hand(cls, nodes: int = 3) -> Iterator[Cluster]:
        """The cluster that KUBECONFIG names, or the test cluster, started if it is not up. Raises NoClusterError."""
        if os.environ.get("KUBECONFIG"):
            yield cls(Path(os.environ["KUBECONFIG"]))
            return
        if not TEST_CLUSTER.exists():
            raise NoClusterError("no Kubernetes: set KUBECONFIG, or put the test cluster beside the project")
        started = subprocess.run([TEST_CLUSTER, "up", str(nodes)], capture_output=True, text=True, check=False)
        if started.returncode and "already up" not in started.stderr:
            raise NoClusterError(f"the test cluster does not start: {started.stderr.strip()}")
        config = subprocess.run([TEST_CLUSTER, "kubeconfig"], capture_output=True, text=True, check=True)
        try:
            yield cls(Path(config.stdout.strip()))
        finally:
            if not started.returncode:
                subprocess.run([TEST_CLUSTER, "down"], check=False, capture_output=True)

    @property
    def is_test_cluster(self) -> bool:
        """Whether nodes can be cut off and images made here."""
        return TEST_CLUSTER.exists() and (self.kubeconfig.parent / "bin").is_dir()

    def has_image(self, name: str) -> bool:
        """Whether every node has it."""
        return all(_has_image(node, name) for node in self.list("nodes"))

    def tool(self, *arguments: str, **environment: str) -> str:
        """The test cluster's own script: cut, heal, restart, image, load."""
        return _run([str(TEST_CLUSTER), *arguments], environment)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Raises CalledProcessError, whose stderr tells what the server said. One that can't be reached
        on a busy machine is asked again."""
        command, environment = [self._kubectl, "-n", self.namespace, *arguments], {"KUBECONFIG": str(self.kubeconfig)}
        for _ in range(PATIENCE):
            try:
                return _run(command, environment, text)
            except CommandError as error:
                if "Unable to connect to the server" not in error.stderr:
                    raise
                time.sleep(2.0)
        return _run(command, environment, text)

    @property
    def _kubectl(self) -> str:
        return shutil.which("kubectl") or str(self.kubeconfig.parent / "bin" / "kubectl")

    @property
    def program_folder(self) -> Path:
        """Where kubectl is."""
        return Path(self._kubectl).parent

    def apply(self, *objects: dict[str, Any]) -> None:
        # As JSON: YAML of Go and of Python disagree on words like "y".
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        found = self.kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(found) if found.strip() else None

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        labels = ["-l", selector] if selector else []
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *labels, "-o", "json"))["items"]
        return items

    def install_definition(self) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
        # Not `kubectl wait`, which fails on a definition that has no status yet.
        wait_until("the definition is established", self._has_definition, 30)

    def _has_definition(self) -> bool:
        status = (self.get("crd", "trainingjobs.megatronapp.io") or {}).get("status") or {}
        return ("Established", "True") in {(found["type"], found["status"]) for found in status.get("conditions") or ()}

    @contextmanager
    def forward(self, target: str, port: int) -> Iterator[str]:
        """`host:port` on loopback that leads to a port of a pod or service (`service/name`)."""
        command = [self._kubectl, "-n", self.namespace, "port-forward", target, f":{port}"]
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                found = re.search(r"127\.0\.0\.1:\d+", line)
                assert found, f"no way to {target} port {port}: {line}"
                yield found[0]
            finally:
                process.terminate()

    @contextmanager
    def fresh_namespace(self, name: str) -> Iterator[Cluster]:
        """A namespace of the test's own, gone afterwards with all that is in it. Pods that break the Pod Security
        standard "restricted" are refused there."""
        self.kubectl("create", "namespace", name)
        self.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        try:
            yield Cluster(self.kubeconfig, name)
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")


def wait_until(what: str, check: Callable[[], Any], seconds: float = 60.0, pause: float = 0.25) -> Any:
    """What `check` returns as soon as it is true; AssertionError in the end."""
    end = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"not in {seconds:.0f} s: {what}"
        time.sleep(pause)


@dataclass
class OperatorProcess:
    """`python -m megatronapp.operator` against a cluster."""

    kubeconfig: Path
    port: int
    log: Path
    flags: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it leads and has seen all that is there."""
        flags = {"http-port": str(self.port), "lease-seconds": "60", "log-format": "console", **self.flags}
        command = [sys.executable, "-m", "megatronapp.operator"]
        for name, value in flags.items():
            command += [f"--{name}", value]
        with self.log.open("ab") as out:
            environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    def wait_ready(self, seconds: float = 60.0) -> None:
        def leads() -> bool:
            assert self.alive(), f"the operator has ended: {self.log.read_text()[-2000:]}"
            return self.metric("megatronapp_operator_leader") == 1.0

        wait_until("the operator leads", leads, seconds, 0.1)

    def metric(self, name: str) -> float | None:
        """A metric without labels; None while nobody answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return None
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Ask it to end. Returns its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def _has_image(node: dict[str, Any], name: str) -> bool:
    return any(name in (image["names"] or ()) for image in node["status"].get("images") or ())


def _run(command: list[str], environment: dict[str, str], text: str | None = None) -> str:
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=LONGEST_COMMAND_SECONDS,
    )
    if done.returncode:
        raise CommandError(done.returncode, command, done.stdout, done.stderr.strip())
    return done.stdout


@dataclass
class Release:
    """The chart, installed."""

    cluster: Cluster
    name: str
    flags: tuple[str, ...] = ()
    """What it was installed with."""

    @classmethod
    @contextmanager
    def installed(cls, cluster: Cluster, name: str, watched: str, *flags: str) -> Iterator[Release]:
        """In a namespace of its own, for jobs in the namespace `watched`."""
        with cluster.fresh_namespace(name) as own:
            release = cls(own, name, (*FLAGS, "--set", f"watchNamespaces={{{watched}}}", *flags))
            release.install()
            try:
                yield release
            finally:
                release.helm("uninstall", name)

    def install(self) -> None:
        self.helm("install", self.name, str(CHART), *self.flags)

    @property
    def prefix(self) -> str:
        """Of its objects' names."""
        return f"{self.name}-megatronapp"

    def upgrade(self, *flags: str) -> None:
        self.helm("upgrade", self.name, str(CHART), *self.flags, *flags)

    def helm(self, *arguments: str) -> str:
        beside = self.cluster.kubeconfig.parent / "bin" / "helm"
        program = shutil.which("helm") or str(beside)
        return _run([program, "-n", self.cluster.namespace, *arguments], {"KUBECONFIG": str(self.cluster.kubeconfig)})

    def secret(self, name: str, key: str) -> str:
        """A value of one of the release's secrets."""
        found = self.cluster.get("secret", f"{self.prefix}-{name}") or {}
        return b64decode(found["data"][key]).decode()

    def pod(self, component: str) -> str:
        """The name of a component's pod that is not being ended."""
        return next(str(pod["metadata"]["name"]) for pod in self._pods(component))

    def is_ready(self, component: str) -> bool:
        """Whether its pods, at least one, take requests."""
        conditions = [pod["status"].get("conditions") or () for pod in self._pods(component)]
        ready = [any((c["type"], c["status"]) == ("Ready", "True") for c in found) for found in conditions]
        return bool(ready) and all(ready)

    def restarts(self) -> dict[str, int]:
        """How often the containers of each running pod were started again."""
        return {
            pod["metadata"]["name"]: sum(
                state["restartCount"] for state in pod["status"].get("containerStatuses") or ()
            )
            for pod in self.cluster.list("pods", f"app.kubernetes.io/instance={self.name}")
            if pod["status"]["phase"] == "Running"
        }

    def _pods(self, component: str) -> list[dict[str, Any]]:
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        return [pod for pod in self.cluster.list("pods", selector) if not pod["metadata"].get("deletionTimestamp")]
