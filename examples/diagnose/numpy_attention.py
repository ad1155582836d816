"""Causal self-attention in numpy, and how heed asks it:

    build/heed diagnose --run "python3 examples/diagnose/numpy_attention.py"
"""

import numpy as np

from heed_live import answer_numpy


def attention(x, w, s):
    B, T, C = x.shape
    q, k, v = ((x @ w[name + "_proj.weight"].T).reshape(B, T, s.n_head, s.head_dim)
               for name in "qkv")
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(s.head_dim)
    scores[..., ~np.tri(T, dtype=bool)] = -np.inf
    pattern = np.exp(scores - scores.max(-1, keepdims=True))
    pattern /= pattern.sum(-1, keepdims=True)
    z = np.einsum("bhij,bjhd->bihd", pattern, v)
    return z.reshape(B, T, -1) @ w["o_proj.weight"].T


answer_numpy(attention)
