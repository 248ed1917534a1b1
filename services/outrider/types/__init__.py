"""Values every part of Outrider agrees on: sampling parameters, draft trees, engine steps, wire frames, model identity.

Knows numpy arrays and the standard library. Must not know torch, grpc, redis, ray, or any policy. Import the submodules directly.
"""
