"""`megatronapp up` and `token`, as processes: who signs in, before and after a restart, and what is refused."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

UP_SECONDS = 60.0
JOB = "{apiVersion: megatronapp.io/v1alpha1, kind: TrainingJob, metadata: {name: no-model}, spec: {procPerNode: 1}}"

pytestmark = pytest.mark.timeout(180)


def megatronapp(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "megatronapp.cli.main", *arguments]
    return subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False, timeout=100)


def environment(home: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MEGATRONAPP_", "XDG_"))}
    return {**inherited, "HOME": str(home), "COLUMNS": "200"}


@contextmanager
def up(home: Path, *flags: str) -> Iterator[dict[str, str]]:
    """The platform; gives what it prints, by the first word of each line."""
    printed = home / "up.log"
    command = [sys.executable, "-m", "megatronapp.cli.main", "up", "--port", "0", "--collector-port", "0", *flags]
    with printed.open("w") as output:
        process = subprocess.Popen(command, env=environment(home), stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + UP_SECONDS
            while "a run" not in printed.read_text():
                assert process.poll() is None, printed.read_text()
                assert time.monotonic() < deadline, printed.read_text()
                time.sleep(0.1)
            yield dict(re.split(r"\s{2,}", line)[:2] for line in printed.read_text().splitlines())
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def signed_in(page: str, **options: object) -> bool:
    answer = httpx.get(f"{page}api/v1/session", **options)  # type: ignore[arg-type]
    return bool(answer.json()["authenticated"])


@pytest.mark.long
def test_who_has_signed_in_stays_so_over_a_restart_and_the_token_is_the_same(home: Path) -> None:
    with up(home) as first:
        page = first["page"].split("?")[0]
        link = httpx.get(first["page"])
        cookies = dict(link.cookies)
        assert signed_in(page, cookies=cookies)
        file = home / ".local/share/megatronapp/operator-token"
        assert file.read_text() == first["token"]
        assert file.stat().st_mode & 0o777 == 0o600

    with up(home) as second:
        page = second["page"].split("?")[0]
        assert second["token"] == first["token"]
        assert signed_in(page, cookies=cookies)
        assert signed_in(page, headers={"Authorization": f"Bearer {first['token']}"})
        assert not signed_in(page)


def test_a_second_browser_gets_the_token_and_a_link_of_its_own(home: Path) -> None:
    with up(home) as running:
        result = megatronapp("token", home=home)
        link = result.stderr.split()[1]
        again = megatronapp("token", home=home).stderr.split()[1]

        assert result.stdout == f"{running['token']}\n"
        assert link != again
        assert len(httpx.get(link).cookies) == 1
        assert httpx.get(link).status_code == 401, "it works once"

    stopped = megatronapp("token", home=home)
    assert (stopped.stdout, stopped.stderr) == (result.stdout, "")


@pytest.mark.long
def test_a_second_platform_on_one_folder_is_refused_and_changes_nothing(home: Path) -> None:
    with up(home) as running:
        second = megatronapp("up", "--port", "0", "--collector-port", "0", home=home)

        assert second.returncode == 2
        assert f"its page is {running['page'].split('?')[0]}" in second.stderr
        assert "--folder" in second.stderr
        assert megatronapp("token", home=home).stdout.strip() == running["token"]
        assert signed_in(running["page"].split("?")[0], headers={"Authorization": f"Bearer {running['token']}"})


def test_a_token_that_was_never_made_is_told(tmp_path: Path) -> None:
    result = megatronapp("token", home=tmp_path)

    assert (result.returncode, result.stdout) == (1, "")
    assert "`megatronapp up` creates one" in result.stderr


def test_a_taken_port_names_the_flag_that_chooses_it(tmp_path: Path) -> None:
    for flag, other in (("--port", "--collector-port"), ("--collector-port", "--port")):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            result = megatronapp("up", flag, port, other, "0", home=tmp_path)

        assert result.returncode == 2
        assert f"port {port} on 127.0.0.1 is in use; choose" in result.stderr
        assert result.stderr.endswith(f"choose another with {flag}\n")
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_run_without_a_platform_says_that_nothing_traces_it(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)

    result = megatronapp("run", str(job), home=tmp_path)

    assert "not traced" in result.stdout
    assert "`megatronapp up`" in result.stdout


@pytest.mark.parametrize("flag", ["--port", "--collector-port"])
def test_a_port_that_is_none_is_refused(flag: str, tmp_path: Path) -> None:
    result = megatronapp("up", flag, "99999", home=tmp_path)

    assert result.returncode == 2
    assert f"Invalid value for '{flag}'" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_version_and_a_shells_completion_are_printed(tmp_path: Path) -> None:
    assert re.fullmatch(r"megatronapp \d+\.\d+\.\d+\S*\n", megatronapp("--version", home=tmp_path).stdout)
    completion = shlex.join([sys.executable, "-m", "megatronapp.cli.main", "--show-completion"])
    # The shell that asks is found among the parents; `:` keeps bash from handing its process over.
    typed = ["bash", "-c", f"{completion}; :"]
    done = subprocess.run(typed, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert "complete" in done.stdout, done.stderr
