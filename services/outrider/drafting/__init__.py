"""Draft sources: each proposes guesses for many sessions at once. Must not know the network."""
