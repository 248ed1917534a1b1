"""Outrider: speculative decoding as a distributed service (see docs/architecture.md for the map)."""
