import pytest
import torch

from megatronapp.core.errors import UnavailableError, UsageError
from megatronapp.trainer.interfere import main, parse


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--streams=0"], "--streams"),
        (["--duty-cycle=1.5"], "--duty-cycle"),
        (["--duty-cycle=0"], "--duty-cycle"),
        (["--memory-gib=-1"], "--memory-gib"),
        (["--dtype=int3"], "--dtype"),
        (["--workers=0"], "--streams"),
        (["--mem-gb=-1"], "--memory-gib"),
        (["--sleep-ms=-1"], "--sleep-ms"),
        (["--sleep-ms=5", "--duty-cycle=0.5"], "give one of them"),
        (["--speed=1"], "--speed"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(flags)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_to_do() -> None:
    with pytest.raises(UnavailableError, match="use a fault scenario"):
        main(["--duration=1"])


def test_megatraces_flags_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    load = parse(["--device=0", "--duration=120", "--workers=4", "--mem-gb=6", "--sleep-ms=5", "--dtype=float64"])

    assert (load.streams, load.memory_gib, load.rest_seconds, load.dtype) == (4, 6.0, 0.005, torch.float64)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_ends_by_itself_and_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--duration=1", "--matrix-size=1024", "--duty-cycle=0.5", "--memory-gib=1"]) == 0

    assert "TFLOP/s" in capsys.readouterr().out
