"""Tensor operations, one a file: tensors in, tensors out. Must not know sessions or services."""
