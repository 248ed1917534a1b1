"""Verifier, drafter and gateway in one process: for a machine whose few cores should not carry messages between three."""
