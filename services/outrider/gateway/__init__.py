"""The client-facing process: validation, tokenisation, streaming text, admission. Stateless between requests."""
