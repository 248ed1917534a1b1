"""The coordinator: who is in the fleet and where a request goes, served over gRPC and kept alive by Ray."""
