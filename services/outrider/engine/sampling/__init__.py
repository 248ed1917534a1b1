"""The pick and what surrounds it, from logits of many sequences in one step. Import the submodules directly.

Knows torch, numpy and outrider.noise. Must not know models, KV or trees: a row's path is a list of tokens.
"""
