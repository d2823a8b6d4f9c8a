"""TLS on the collector's gRPC: who gets which file of which Secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatronapp.collector.settings import CollectorSettings
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.operator.settings import OperatorSettings
from tests.support.environment import load
from tests.support.helm import HelmError, Object, find, of_kind, pods, render

FOLDER = "/etc/megatronapp/tls"


def environment(objects: list[Object], component: str) -> dict[str, str]:
    (pod,) = [p for p in pods(objects).values() if label(p) == component]
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"] if "value" in each}


def label(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def tls_settings(objects: list[Object], component: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    given = {name: value for name, value in environment(objects, component).items() if "TLS" in name or "_FILE" in name}
    return load(component, given, monkeypatch)


def test_without_it_nothing_is_mounted_or_set() -> None:
    objects = render({})

    assert not [name for c in ("collector", "gateway", "operator") for name in environment(objects, c) if "TLS" in name]
    assert not [v for pod in pods(objects).values() for v in pod["spec"].get("volumes", []) if v["name"] == "tls"]
    assert of_kind(objects, "Certificate") == {}


@pytest.mark.parametrize("mutual", [False, True])
def test_each_component_is_told_its_files(mutual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render({"tls": {"enabled": True, "secretName": "own", "mutual": mutual}})

    collector = tls_settings(objects, "collector", monkeypatch)
    gateway = tls_settings(objects, "gateway", monkeypatch)
    operator = tls_settings(objects, "operator", monkeypatch)

    assert isinstance(collector, CollectorSettings)
    assert isinstance(gateway, GatewaySettings)
    assert isinstance(operator, OperatorSettings)
    assert collector.tls is not None
    assert (str(collector.tls.certificate_file), str(collector.tls.key_file)) == (
        f"{FOLDER}/tls.crt",
        f"{FOLDER}/tls.key",
    )
    assert (collector.tls.client_ca_file is not None) == mutual
    assert gateway.tls is not None
    assert (gateway.tls.certificate_file, gateway.tls.key_file) == (Path(FOLDER) / "tls.crt", Path(FOLDER) / "tls.key")
    assert (gateway.tls.client_ca_file is not None) == mutual
    assert gateway.collector_tls.ca_file == f"{FOLDER}/ca.crt"
    assert bool(gateway.collector_tls.certificate_file and gateway.collector_tls.key_file) == mutual
    assert (operator.collector_tls_secret, operator.collector_mutual_tls) == ("megatronapp-collector-tls", mutual)
    for pod in pods(objects).values():
        mounted = [v["secret"]["secretName"] for v in pod["spec"].get("volumes", []) if v["name"] == "tls"]
        assert mounted == (["own"] if label(pod) in ("collector", "gateway") else [])


def test_cert_manager_makes_the_secret_for_the_names_that_clients_use(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = {"kind": "Issuer", "name": "own-ca"}
    objects = render({"tls": {"enabled": True, "certManager": {"enabled": True, "issuerRef": issuer}}})

    certificate = find(objects, "Certificate", "collector")["spec"]
    (shard,) = tls_settings_addresses(objects)
    _, _, domain = shard.partition(":")[0].partition(".")

    assert certificate["issuerRef"] == issuer
    assert f"*.{domain}" in certificate["dnsNames"]
    assert [name for name in certificate["dnsNames"] if "-gateway." in name]
    (collector,) = [p for p in pods(objects).values() if label(p) == "collector"]
    assert [v["secret"]["secretName"] for v in collector["spec"]["volumes"] if v["name"] == "tls"] == [
        certificate["secretName"]
    ]


def tls_settings_addresses(objects: list[Object]) -> list[str]:
    import json

    found: list[str] = json.loads(environment(objects, "gateway")["MEGATRONAPP_GATEWAY_COLLECTOR_ADDRESSES"])
    return found


def test_a_secret_that_is_missing_is_said() -> None:
    with pytest.raises(HelmError, match=r"tls\.secretName is needed"):
        render({"tls": {"enabled": True}})
