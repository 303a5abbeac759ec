"""Makes `buf/validate/validate.proto`, in which our `.proto` files state what a request may be, known to protobuf.

The package `protovalidate` brings that file for another implementation of protobuf than gRPC's, so it is registered
here from its descriptor. Generated modules import this one in its place; see `generate`.
"""

from __future__ import annotations

import protovalidate
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, field_mask_pb2, timestamp_pb2

_IMPORTS = (descriptor_pb2, duration_pb2, field_mask_pb2, timestamp_pb2)


def file_set() -> descriptor_pb2.FileDescriptorSet:
    """Returns the descriptors of `buf/validate/validate.proto` and of all that it imports, imported ones first."""
    result = descriptor_pb2.FileDescriptorSet()
    for module in _IMPORTS:
        module.DESCRIPTOR.CopyToProto(result.file.add())
    result.file.add().MergeFromString(protovalidate.ViolationPb.desc().file.proto.to_binary())
    return result


DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(file_set().file[-1].SerializeToString())
