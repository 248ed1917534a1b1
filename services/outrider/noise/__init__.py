"""Addressed noise: every random number of Outrider is a pure function of (key, position, token). Import the submodules directly.

Knows numpy and the standard library. Must not know torch (its twin is outrider.engine.noise_torch) nor who samples what.
"""
