"""Tables of several processes' jobs."""

from pathlib import Path

import pytest

from bench.scale import main, pool

FLAGS = [
    "recall",
    "--ranks",
    "8",
    "--percent",
    "20",
    "--step-seconds",
    "1",
    "--only",
    "slow",
    "--processes",
    "1",
    "--trials",
]


@pytest.mark.long
def test_the_jobs_of_two_processes_are_as_those_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, first, second = (tmp_path / name for name in ("whole", "first", "second"))
    main([*FLAGS, "2", "--json", str(whole)])
    main([*FLAGS, "1", "--json", str(first)])
    main([*FLAGS, "1", "--first", "1", "--json", str(second)])
    capsys.readouterr()

    pool.main([str(whole)])
    expected = capsys.readouterr().out
    pool.main([str(first), str(second)])

    assert "slow +20 %, 8 ranks" in expected
    assert "2 seeds of 0 … 1" in expected
    assert capsys.readouterr().out == expected


def test_a_seed_that_comes_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "jobs"
    main([*FLAGS, "1", "--json", str(file)])

    with pytest.raises(SystemExit):
        pool.main([str(file), str(file)])

    assert "twice" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", '{"job": {"nonsense": 1}}', '{"job": 1}'])
def test_a_file_of_something_else_is_refused_in_words(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs"
    file.write_text(text)

    with pytest.raises(SystemExit):
        pool.main([str(file)])

    assert "bench.scale --json" in capsys.readouterr().err
