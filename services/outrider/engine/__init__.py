"""The model engines: one step over many sequences. Imports nothing here, so that torch loads only where it is used."""
