"""Acceptance rules: which nodes of a draft tree become text, and which token follows them. Import the submodules directly.

Knows numpy and outrider.noise. Must not know torch, models or sessions. One file a rule, one line in `registry`.
"""
