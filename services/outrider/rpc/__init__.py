"""Everything grpc: conversions between protobuf and values, servers, channels, status codes. No policy."""
