"""What Outrider tells its operators: every name of a span, attribute and metric, and counters within one process.

Knows names and numbers. Must not know OpenTelemetry, Prometheus or any other vendor: services export what is counted here.
"""
