"""Verifier and drafter in one process, in turns: for a machine whose cores they would fight for."""
