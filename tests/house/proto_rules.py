"""The rules of proto/ (buf's STANDARD and COMMENTS, as far as they matter here), checked on a descriptor set with its comments.

Knows FileDescriptorProto. Source: buf's lint rules, docs/architecture.md section 5. buf itself is not a Python package; grpc_tools can
write a descriptor set, which holds every comment, so no other tool is needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2

PACKAGE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\.v[1-9][0-9]*")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
PASCAL = re.compile(r"[A-Z][A-Za-z0-9]*")

# Numbers of the repeated fields in FileDescriptorProto, DescriptorProto, EnumDescriptorProto and ServiceDescriptorProto that paths use.
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
_FIELD, _NESTED, _NESTED_ENUM = 2, 3, 4
_VALUE, _METHOD = 2, 2

# A path of SourceCodeInfo.Location, and all that carry a comment.
Place = tuple[int, ...]
Places = set[tuple[int, ...]]


def descriptor_set(proto_root: Path, out: Path) -> descriptor_pb2.FileDescriptorSet:
    """Compile every .proto below proto_root with its comments; raises CalledProcessError when they do not compile."""
    files = sorted(str(path.relative_to(proto_root)) for path in proto_root.rglob("*.proto"))
    assert files, f"no .proto below {proto_root}"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_source_info", f"--descriptor_set_out={out}", *files]
    subprocess.run(command, cwd=proto_root, check=True, capture_output=True, text=True)
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def problems(files: descriptor_pb2.FileDescriptorSet) -> list[str]:
    """Everything that breaks a rule, as 'file: name: problem'."""
    return [f"{file.name}: {problem}" for file in files.file for problem in _file_problems(file)]


def _file_problems(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    if not PACKAGE.fullmatch(file.package):
        yield f"package {file.package!r} does not end in a version"
    folder = file.name.rpartition("/")[0]
    if folder != file.package.replace(".", "/"):
        yield f"lies in {folder!r}, not in the folder of package {file.package}"
    commented = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}
    for index, message in enumerate(file.message_type):
        yield from _message_problems(message, (_MESSAGE, index), commented, "")
    for index, enum in enumerate(file.enum_type):
        yield from _enum_problems(enum, (_ENUM, index), commented, "")
    for index, service in enumerate(file.service):
        yield from _service_problems(service, (_SERVICE, index), commented)


def _message_problems(message: descriptor_pb2.DescriptorProto, path: Place, commented: Places, outer: str) -> Iterator[str]:
    if message.options.map_entry:
        return
    name = outer + message.name
    yield from _named_and_commented("message", name, message.name, PASCAL, path, commented)
    for index, field in enumerate(message.field):
        yield from _named_and_commented("field", f"{name}.{field.name}", field.name, SNAKE, (*path, _FIELD, index), commented)
    for index, nested in enumerate(message.nested_type):
        yield from _message_problems(nested, (*path, _NESTED, index), commented, f"{name}.")
    for index, enum in enumerate(message.enum_type):
        yield from _enum_problems(enum, (*path, _NESTED_ENUM, index), commented, f"{name}.")


def _enum_problems(enum: descriptor_pb2.EnumDescriptorProto, path: Place, commented: Places, outer: str) -> Iterator[str]:
    name = outer + enum.name
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper() + "_"
    yield from _named_and_commented("enum", name, enum.name, PASCAL, path, commented)
    for index, value in enumerate(enum.value):
        if not value.name.startswith(prefix):
            yield f"enum value {name}.{value.name} does not start with {prefix}"
        if (value.number == 0) != (value.name == prefix + "UNSPECIFIED"):
            yield f"enum value {name}.{value.name}: 0, and only 0, is {prefix}UNSPECIFIED"
        if (*path, _VALUE, index) not in commented:
            yield f"enum value {name}.{value.name} has no comment"


def _service_problems(service: descriptor_pb2.ServiceDescriptorProto, path: Place, commented: Places) -> Iterator[str]:
    yield from _named_and_commented("service", service.name, service.name, PASCAL, path, commented)
    if not service.name.endswith("Service"):
        yield f"service {service.name} does not end in Service"
    for index, method in enumerate(service.method):
        name = f"{service.name}.{method.name}"
        yield from _named_and_commented("rpc", name, method.name, PASCAL, (*path, _METHOD, index), commented)
        for kind, type_name in (("Request", method.input_type), ("Response", method.output_type)):
            allowed = {method.name + kind, service.name + method.name + kind}
            if type_name.rpartition(".")[2] not in allowed:
                yield f"rpc {name}: its {kind.lower()} is {type_name}, not {' or '.join(sorted(allowed))}"


def _named_and_commented(what: str, full_name: str, name: str, shape: re.Pattern[str], path: Place, commented: Places) -> Iterator[str]:
    if not shape.fullmatch(name):
        yield f"{what} {full_name} is not named like {shape.pattern}"
    if path not in commented:
        yield f"{what} {full_name} has no comment"
