import asyncio
import os
import signal
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from megatronapp.core.errors import UsageError
from megatronapp.core.service import load_settings, main, run
from megatronapp.core.settings import ServiceSettings


class Probe:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.calls.append("start")
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        self.calls.append("stop")

    def ready(self) -> bool:
        return True


async def test_a_service_stops_cleanly_on_sigterm() -> None:
    probe = Probe()

    async with asyncio.timeout(10):
        await run(probe, ServiceSettings(http_port=0), CollectorRegistry())

    assert probe.calls == ["start", "stop"]


class Working(Probe):
    """Has two tasks: one waits for ever, the other ends at once in some way."""

    def __init__(self, failure: Exception | None, others: int = 1) -> None:
        super().__init__()
        self._failure, self._others = failure, others

    async def start(self) -> None:
        self.tasks = [asyncio.create_task(asyncio.sleep(3600)) for _ in range(self._others)]
        self.tasks.append(asyncio.create_task(self._end()))

    async def stop(self) -> None:
        await super().stop()
        for task in self.tasks:
            task.cancel()

    async def _end(self) -> None:
        if self._failure is not None:
            raise self._failure


async def test_a_task_that_fails_ends_the_service_with_its_error() -> None:
    service = Working(UsageError("the disk is on fire"))

    with pytest.raises(UsageError, match="on fire"):
        async with asyncio.timeout(10):
            await run(service, ServiceSettings(http_port=0), CollectorRegistry())

    assert service.calls == ["stop"]


async def test_a_service_ends_with_the_last_of_its_tasks() -> None:
    service = Working(None, others=0)

    async with asyncio.timeout(10):
        await run(service, ServiceSettings(http_port=0), CollectorRegistry())

    assert service.calls == ["stop"]


async def test_a_task_may_end_while_others_go_on() -> None:
    service = Working(None)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await run(service, ServiceSettings(http_port=0), CollectorRegistry())


def test_every_setting_but_secrets_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings(ServiceSettings, "probe", ["--http-port", "0", "--log-level", "debug"])

    assert (settings.http_port, settings.log_level) == (0, "debug")
    with pytest.raises(SystemExit):
        load_settings(ServiceSettings, "probe", ["--token", "secret"])
    assert "secret" not in capsys.readouterr().err.replace("--token secret", "")


def test_a_config_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("http_port: 1234\n")

    assert load_settings(ServiceSettings, "probe", ["--config", str(tmp_path / "c.yaml")]).http_port == 1234


def test_a_wrong_setting_ends_the_program_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(settings: ServiceSettings) -> None:
        raise AssertionError("must not be served")

    code = main(ServiceSettings, "probe", serve, ["--http-port", "many"])

    assert code == UsageError.exit_code
    assert "flag --http-port" in capsys.readouterr().err
