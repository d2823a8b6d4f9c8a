import argparse
from pathlib import Path

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer.plugins.scan import flags
from megatronapp.trainer.plugins.scan.flags import ScanSettings
from megatronapp.trainer.plugins.scan.window import Window


def settings(line: str, environment: str = "") -> ScanSettings | None:
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser)
    return flags.parse(parser.parse_args(line.split()), environment)


def test_without_trace_and_collector_the_plugin_is_off() -> None:
    assert settings("") is None


def test_the_documented_defaults() -> None:
    assert settings("--trace") == ScanSettings(
        window=Window(enabled=True, interval=5, continuous=2, full=True),
        folder=Path("trace_output"),
        collector_address="",
    )


def test_a_collector_alone_sends_summaries_without_detail() -> None:
    found = settings("", environment="127.0.0.1:7601")

    assert found is not None
    assert not found.window.enabled
    assert found.folder is None
    assert found.collector_address == "127.0.0.1:7601"


def test_the_flag_wins_over_the_environment() -> None:
    found = settings("--collector-address a:1", environment="b:2")

    assert found is not None
    assert found.collector_address == "a:1"


def test_granularity_base() -> None:
    found = settings("--trace --trace-granularity base --trace-interval 10 --continuous-trace-iterations 3")

    assert found is not None
    assert found.window == Window(enabled=True, interval=10, continuous=3, full=False)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--trace --trace-interval 0", "at least 1"),
        ("--trace --trace-interval 1000001", "too large"),
        ("--trace --trace-interval 2 --continuous-trace-iterations 3", "would begin inside"),
        ("--collector-address nowhere", "host:port"),
        ("--collector-address host:99999", "host:port"),
    ],
)
def test_wrong_values_are_refused(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        settings(line)


def test_the_trace_folder_is_made_and_absolute_since_the_agent_may_stand_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert flags.writable(Path("made/here")) == tmp_path / "made/here"
    assert (tmp_path / "made/here").is_dir()


def test_a_trace_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(UsageError, match="--trace-dir"):
        flags.writable(tmp_path / "file" / "folder")
