"""One projection for q, k and v, as in nanoGPT, and torch's own attention function."""

import torch.nn.functional as F
from torch import nn

from learner import answer, fault


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, bias):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.n_head, self.n_embd = n_head, n_embd

    def forward(self, x):
        B, T, C = x.shape
        if fault("qkv_per_head_layout"):
            qkv = self.c_attn(x).view(B, T, self.n_head, 3, C // self.n_head)
            q, k, v = (qkv[:, :, :, i].transpose(1, 2) for i in range(3))
        else:
            q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
            if fault("qkv_order"):
                q, k, v = k, v, q
            shape = (B, self.n_head, T, C // self.n_head)
            if fault("heads_not_split"):
                q, k, v = q.reshape(shape), k.reshape(shape), v.reshape(shape)
            else:
                q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                           for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) * k.size(-1) ** (-1.0 if fault("scale_linear") else -0.5)
        hidden = scores.new_ones(T, T).triu(diagonal=0 if fault("mask_diagonal_excluded") else 1)
        att = F.softmax(scores.masked_fill(hidden.bool(), float("-inf")), dim=-1)
        y = att @ v
        if fault("heads_merged_untransposed"):
            y = y.reshape(B, T, C)
        else:
            y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


answer(lambda s: CausalSelfAttention(s.n_embd, s.n_head, s.bias))
