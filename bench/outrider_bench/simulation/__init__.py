"""The simulator: the services' own session machines and pacing policies on virtual time, in worlds described by micro-benchmarks.

Knows sessions, policies and the scheduler's order of work; must not know engines, models, streams or the time of day. Import submodules.
"""
