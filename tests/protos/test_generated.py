"""The committed gRPC code is what the compiler makes of the `.proto` files, and those follow buf's STANDARD style."""

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from protos import generate


def test_committed_code_is_up_to_date(tmp_path: Path) -> None:
    generate.generate(tmp_path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(made) == 3 * len(generate.sources())
    for path, content in made.items():
        assert (generate.ROOT / path).read_bytes() == content, f"{path} is stale: run `python -m protos.generate`"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[descriptor_pb2.FileDescriptorProto]:
    directory = tmp_path_factory.mktemp("descriptors")
    out = directory / "set.binpb"
    arguments = [*generate.search_options(directory), f"--descriptor_set_out={out}", "--include_source_info"]
    assert protoc.main(["protoc", *arguments, *map(str, generate.sources())]) == 0
    return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def test_every_declaration_is_documented(files: list[descriptor_pb2.FileDescriptorProto]) -> None:
    for file in files:
        for location in file.source_code_info.location:
            # Paths of a message (4,i), its field (4,i,2,j), an enum (5,i), its value (5,i,2,j), a service, its rpc.
            path = list(location.path)
            if path and path[0] in (4, 5, 6) and (len(path) == 2 or (len(path) == 4 and path[2] == 2)):
                assert location.leading_comments.strip(), f"{file.name}: line {location.span[0]} is undocumented"


def test_style(files: list[descriptor_pb2.FileDescriptorProto]) -> None:
    exchanged: list[str] = []
    for file in files:
        assert file.package == "weighbridge.v1"
        for service in file.service:
            assert service.name.endswith("Service")
            for method in service.method:
                assert method.input_type == f".weighbridge.v1.{method.name}Request"
                assert method.output_type == f".weighbridge.v1.{method.name}Response"
                exchanged += [method.input_type, method.output_type]
    assert len(exchanged) == len(set(exchanged))
