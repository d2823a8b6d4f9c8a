"""A real redis-server on a free loopback port."""

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis


@dataclass
class RedisServer:
    port: int
    folder: Path
    persistent: bool = False
    detached: bool = False
    """In a session of its own, so that a signal to our group is not its end."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        keep = ["--appendonly", "yes", "--appendfsync", "always"] if self.persistent else ["--save", ""]
        self.process = subprocess.Popen(
            ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), *keep],
            stdout=subprocess.DEVNULL,
            start_new_session=self.detached,
        )
        client = redis.Redis(port=self.port)
        for _ in range(200):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                if self.process.poll() is not None:  # what may answer then is another's
                    raise RuntimeError(
                        f"redis-server ended with {self.process.returncode}: port {self.port}?"
                    ) from None
                time.sleep(0.05)
        else:
            raise RuntimeError("redis-server did not start")
        client.close()

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
