"""How Prometheus reads a process: `GET /metrics` over HTTP, off unless a port is given."""
