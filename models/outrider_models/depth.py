"""A shallower model from a deeper one's weights: evenly spaced layers, the first and the last among them.

What is left reads and writes the same residual stream and only has to be trained on, not anew. Must not know training or files.
Source: layer dropping (Sajjad et al. 2020, 2004.03844; Men et al. 2024, 2403.03853).
"""

from __future__ import annotations

from outrider_models.network import Weights, init_weights
from outrider_models.shapes import Shape

_LAYERS = "model.layers."


def fit_depth(weights: Weights, shape: Shape) -> Weights:
    """`weights` with shape.num_layers of their layers. Raises ValueError when they are of another width, or of fewer layers."""
    num_layers = 1 + max(int(_place(name)[0]) for name in weights if name.startswith(_LAYERS))
    if num_layers < shape.num_layers:
        raise ValueError(f"the weights have {num_layers} layers, the model needs {shape.num_layers}")
    kept = {str(_nearest(place, num_layers, shape.num_layers)): str(place) for place in range(shape.num_layers)}
    fitted: Weights = {}
    for name, weight in weights.items():
        if not name.startswith(_LAYERS):
            fitted[name] = weight
            continue
        layer, rest = _place(name)
        if layer in kept:
            fitted[f"{_LAYERS}{kept[layer]}.{rest}"] = weight
    wanted = {name: weight.shape for name, weight in init_weights(shape, 0).items()}
    if wanted != {name: weight.shape for name, weight in fitted.items()}:
        raise ValueError("the weights are of another width, or tied where the model's are not: only their depth can be fitted")
    return fitted


def _place(name: str) -> tuple[str, str]:
    layer, _, rest = name.removeprefix(_LAYERS).partition(".")
    return layer, rest


def _nearest(place: int, num_layers: int, num_kept: int) -> int:
    return num_layers - 1 if num_kept == 1 else round(place * (num_layers - 1) / (num_kept - 1))
