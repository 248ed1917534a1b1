"""Outrider's benchmark drivers: speed against transformers, and identity against plain decoding and an independent oracle.

Run through `outrider bench`. Knows the client API, transformers and the reference tasks; must not reach into the services.
Import the submodules directly.
"""
