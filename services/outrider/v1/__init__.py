"""Generated protobuf and gRPC code of package outrider.v1; never edited, see `make proto`."""
