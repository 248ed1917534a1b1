"""The three sizes of the reference models and the transformers configuration each stands for.

Knows architecture numbers only (decoder-only Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU).
Must not know training.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LlamaConfig

from outrider_models.tokenizer import MODEL_MAX_LEN, VOCAB_SIZE

ROPE_THETA = 10_000.0
NORM_EPS = 1e-5
BOS_ID, END_ID, PAD_ID = 0, 3, 4  # order of chat.SPECIAL_TOKENS


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model; `tied` shares the embedding with the output head."""

    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    mlp: int
    tied: bool
    head_dim: int = 64
    vocab: int = VOCAB_SIZE

    def llama_config(self) -> LlamaConfig:
        """The same sizes as transformers names them."""
        return LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.mlp,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=MODEL_MAX_LEN,
            rms_norm_eps=NORM_EPS,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
            tie_word_embeddings=self.tied,
            bos_token_id=BOS_ID,
            eos_token_id=END_ID,
            pad_token_id=PAD_ID,
        )


SHAPES = {
    "ref-large": Shape(hidden=384, num_layers=6, num_heads=6, num_kv_heads=2, mlp=896, tied=False),
    "ref-medium": Shape(hidden=384, num_layers=4, num_heads=6, num_kv_heads=2, mlp=896, tied=False),  # begins as layers of ref-large
    "ref-small": Shape(hidden=128, num_layers=3, num_heads=2, num_kv_heads=1, mlp=352, tied=True),
}
