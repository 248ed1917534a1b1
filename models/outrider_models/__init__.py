"""The reference models: the text they learn from, how they are trained, and how good they are.

Knows the generator, tokenizer, training and evaluation of `ref-small`, `ref-medium` and `ref-large`.
Must not know the engine, the services or any wire format: those only load the finished folders.
`outrider_models.tasks` and `outrider_models.paths` import no torch and are safe for benches and tests.
"""
