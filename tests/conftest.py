"""Fixtures for all tests."""

import gc
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import redis
import structlog
from hypothesis import settings

from tests.support.ports import free_port
from tests.support.redis import RedisServer
from tests.support.share import drawn

settings.register_profile("megatronapp", deadline=None)  # the machine's load is nobody's property
settings.load_profile("megatronapp")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("a part of the tests")
    group.addoption("--share", type=float, default=1.0, help="play so much of each module, drawn, at least one test")
    group.addoption("--share-seed", type=int, default=0, help="which part is drawn")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """With `--reruns` a worker sends the main process two small messages before each test, of which the second would
    wait 40 ms for the first one's acknowledgement."""
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are found, of which none is garbage, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header(config: pytest.Config) -> str | None:
    share, seed = config.getoption("--share"), config.getoption("--share-seed")
    return None if share >= 1 else f"a drawn part: --share {share} --share-seed {seed}"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test that got a second try had said at the first."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"second try: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.section(name, "-")
            terminalreporter.write_line(text)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After marks and keywords have chosen."""
    share = config.getoption("--share")
    if share < 1:
        kept = set(drawn(items, share, config.getoption("--share-seed"), group=lambda item: item.path))
        kept.update(item for item in items if item.get_closest_marker("always"))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """What a program under test sets up writes to that test's captured output, which is closed after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(name="free_port")
def _free_port() -> int:
    return free_port()


@pytest.fixture
def start_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RedisServer]]:
    servers: list[RedisServer] = []

    def start(*, persistent: bool = False) -> RedisServer:
        server = RedisServer(free_port(), tmp_path_factory.mktemp("redis"), persistent)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def _session_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(free_port(), tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_session_redis: RedisServer) -> RedisServer:
    """One server for the session, emptied before each test."""
    redis.Redis(port=_session_redis.port).flushall()
    return _session_redis


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real traces by other people; they lie beside a checkout, not in it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("../shared/data is absent: the real traces by other people are not part of this repository")
    return SHARED_DATA
