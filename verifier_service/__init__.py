"""The verifier: owns the target model, decides what is true, and serves one Decode stream per sample. Run `python -m verifier_service`."""
