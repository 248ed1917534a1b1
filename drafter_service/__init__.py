"""The drafter process: guesses ahead for many sessions of many verifiers. Run it with `python -m drafter_service --help`."""
