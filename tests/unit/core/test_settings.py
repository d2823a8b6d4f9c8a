from pathlib import Path

import pytest
from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from megatronapp.core.errors import ConfigError
from megatronapp.core.settings import Names, ServiceSettings


class ProbeSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="MEGATRONAPP_PROBE_")
    depth: int = 1
    places: Names = ()
    hook: SecretStr | None = None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "probe.yaml"
    path.write_text("depth: 2\nhost: 10.0.0.1\n")
    return path


def test_services_bind_to_loopback_by_default() -> None:
    assert ProbeSettings.load().host == "127.0.0.1"


def test_file_beats_default(file: Path) -> None:
    assert ProbeSettings.load(file).depth == 2


def test_environment_beats_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRONAPP_PROBE_DEPTH", "3")

    settings = ProbeSettings.load(file)

    assert (settings.depth, settings.host) == (3, "10.0.0.1")


def test_flag_beats_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRONAPP_PROBE_DEPTH", "3")

    assert ProbeSettings.load(file, depth=4).depth == 4


@pytest.mark.parametrize("written", ["a, b", '["a", "b"]'])
def test_a_list_is_written_with_commas_or_as_json(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRONAPP_PROBE_PLACES", written)

    assert ProbeSettings.load().places == ProbeSettings.load(places=written).places == ("a", "b")


def test_a_flag_not_given_changes_nothing(file: Path) -> None:
    assert ProbeSettings.load(file, depth=None).depth == 2


@pytest.mark.parametrize(("key", "value"), [("depth", "deep"), ("http_port", "70000"), ("log_level", "loud")])
def test_a_wrong_value_names_flag_and_variable(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"--{key.replace('_', '-')}, or MEGATRONAPP_PROBE_{key.upper()}"):
        ProbeSettings.load(**{key: value})


def test_an_unknown_key_in_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "probe.yaml"
    path.write_text("deepth: 2\n")

    with pytest.raises(ConfigError, match="deepth"):
        ProbeSettings.load(path)


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "probe.yaml"
    path.write_text("depth: [1\n")

    with pytest.raises(ConfigError, match=r"probe\.yaml"):
        ProbeSettings.load(path)


def test_secrets_are_masked_in_the_description() -> None:
    settings = ProbeSettings.load(token="top-secret", redis_url="redis://:pass@host")

    assert "top-secret" not in str(settings.describe())
    assert "pass" not in str(settings.describe())


@pytest.mark.parametrize("name", ["token", "viewer_token", "operator_token", "redis_url", "hook"])
@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_a_secret_that_is_set_but_empty_is_refused_by_its_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MEGATRONAPP_PROBE_{name.upper()}", value)

    with pytest.raises(ConfigError, match=rf"^{name}: is set but empty.*MEGATRONAPP_PROBE_{name.upper()}"):
        ProbeSettings.load()


def test_an_empty_password_of_the_bus_is_refused() -> None:
    with pytest.raises(ConfigError, match="redis_url: has an empty password"):
        ProbeSettings.load(redis_url="redis://:@redis:6379/0")

    assert ProbeSettings.load(redis_url="redis://redis:6379/0").redis_url is not None


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"[" * 20_000, b"host: 2026-13-45", b"- a", b"1: a", b"host: &a [*a]", b"a\n\nX: y: z"]
)
def test_a_settings_file_that_makes_no_sense_is_one_line(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(text)

    with pytest.raises(ConfigError, match=r"settings\.yaml") as refused:
        ServiceSettings.load(file)

    assert "\n" not in str(refused.value)


def test_a_settings_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: No such file"):
        ServiceSettings.load(tmp_path / "nothing.yaml")
