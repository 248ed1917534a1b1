"""Starting Outrider's services as processes of this machine: thread plan, one process, one deployment.

Knows command lines, environment variables, signals and ready lines. Must not know models, tokens, grpc or terminals.
Import the submodules directly.
"""
