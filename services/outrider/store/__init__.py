"""Continuations of answers already given, in this process and in Redis, as guesses for other answers. Losing all of it costs speed only."""
