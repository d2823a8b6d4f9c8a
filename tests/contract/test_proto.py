"""The committed stubs are what proto/ generates."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from megatronapp.v1 import findings_pb2, trace_pb2

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted(path.name for path in (ROOT / "proto/megatronapp/v1").glob("*.proto"))


@pytest.mark.parametrize("proto", PROTOS)
def test_stubs_have_not_drifted(proto: str, tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *outputs, f"proto/megatronapp/v1/{proto}"],
        cwd=ROOT,
        check=True,
    )

    generated = sorted((tmp_path / "megatronapp/v1").iterdir())

    assert len(generated) == 3
    for file in generated:
        committed = ROOT / "libs/api/megatronapp/v1" / file.name
        assert committed.read_text() == file.read_text(), f"{file.name} drifted: run `make proto`"


OLD = descriptor_pb2.FileDescriptorSet.FromString((ROOT / "tests/data/6491aef/proto.pb").read_bytes())


def now() -> descriptor_pb2.FileDescriptorSet:
    files = descriptor_pb2.FileDescriptorSet()
    for module in (findings_pb2, trace_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    return files


def test_what_6491aef_sends_is_understood() -> None:
    """Fields, values and methods are only added: none is removed, renumbered or of another type."""
    then, today = _promises(OLD), _promises(now())

    assert len(then) > 200
    assert {name: (promise, today.get(name)) for name, promise in then.items() if today.get(name) != promise} == {}


def test_no_number_stands_for_something_else_than_before() -> None:
    then = {(owner, number): name for (owner, name), (number, *_) in _promises(OLD).items()}

    today = {(owner, number): name for (owner, name), (number, *_) in _promises(now()).items()}

    assert {key: today.get(key) for key, name in then.items() if today.get(key) != name} == {}


Promises = dict[tuple[str, str], tuple[object, ...]]
"""(message, enum or service; field, value or method) → what must stay as it is."""


def _promises(files: descriptor_pb2.FileDescriptorSet) -> Promises:
    found: Promises = {}
    for file in files.file:
        for message in file.message_type:
            assert not message.nested_type, "nested messages are not looked at"
            assert not message.enum_type, "nested enums are not looked at"
            for field in message.field:
                oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
                found[message.name, field.name] = (field.number, field.type, field.label, field.type_name, oneof)
        for enum in file.enum_type:
            found |= {(enum.name, value.name): (value.number,) for value in enum.value}
        for service in file.service:
            for method in service.method:
                streams = method.client_streaming, method.server_streaming
                found[service.name, method.name] = (method.name, method.input_type, method.output_type, *streams)
    return found
