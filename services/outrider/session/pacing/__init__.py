"""Pacing policies: pure functions from all sessions' states to the next step. One policy a file; `registry` names them.

How `adaptive` decides, and why: docs/pacing.md.
"""
