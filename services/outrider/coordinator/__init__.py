"""The coordinator: who is in the fleet and where a request goes. Its core (`fleet.py`, `placement.py`) has no I/O and no clock."""
