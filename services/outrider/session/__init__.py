"""Pure state machines of the draft protocol and the pacing policies: events in, effects out, no I/O, no torch."""
