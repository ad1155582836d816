"""Named axes and einsum, with grouped queries: b batch, g group, n key/value head, i j positions."""

import torch
from torch import einsum, nn

from learner import answer, fault


class GroupedAttention(nn.Module):
    def __init__(self, width, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        n, g, d = self.kv_heads, self.heads // self.kv_heads, self.head_dim
        # "b t (n g d) -> b n g t d"
        if fault("gqa_tiled"):  # "b t (g n d) -> b n g t d"
            q = self.q_proj(x).reshape(b, t, g, n, d).permute(0, 3, 2, 1, 4)
        else:
            q = self.q_proj(x).reshape(b, t, n, g, d).permute(0, 2, 3, 1, 4)
        k = self.k_proj(x).reshape(b, t, n, d)
        v = self.v_proj(x).reshape(b, t, n, d)
        scale = 1.0 if fault("scale_missing") else d ** -0.5
        scores = einsum("bngid,bjnd->bngij", q, k) * scale
        later = torch.arange(t)[None, :] > torch.arange(t)[:, None]
        if fault("mask_transposed"):
            later = later.T
        scores = scores.masked_fill(later, float("-inf"))
        weights = scores.softmax(dim=-2 if fault("softmax_axis_query") else -1)
        z = einsum("bngij,bjnd->bngid", weights, k if fault("qk_from_one_tensor") else v)
        # "b n g t d -> b t (n g d)"
        order = (0, 3, 2, 1, 4) if fault("gqa_tiled") else (0, 3, 1, 2, 4)
        return self.o_proj(z.permute(*order).reshape(b, t, -1))


answer(lambda s: GroupedAttention(s.n_embd, s.n_head, s.n_kv_head, s.head_dim))
