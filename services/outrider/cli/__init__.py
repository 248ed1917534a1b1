"""The `outrider` command: up, run, generate, bench, doctor.

Knows terminals, command lines and the client API. Must not know engines, sessions or frames. Each subcommand is one module with
`add_parser` and `run`; `__main__` only chooses among them.
"""
