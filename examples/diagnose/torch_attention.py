"""Causal self-attention as a torch module, and how heed asks it:

    build/heed diagnose --run "python3 examples/diagnose/torch_attention.py"
"""

import math

import torch
from torch import nn

from heed_live import answer_torch


class Attention(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.n_head = n_head
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(n_embd, n_embd) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, past=None):
        B, T, C = x.shape
        q, k, v = (p(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        S = k.size(2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        hidden = torch.ones(T, S, dtype=torch.bool).triu(diagonal=S - T + 1)
        pattern = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        z = self.dropout(pattern) @ v
        return self.o_proj(z.transpose(1, 2).reshape(B, T, C)), (k, v)


def cached(module, chunks):
    past = None
    for x in chunks:
        y, past = module(x, past)
        yield y


answer_torch(lambda s: Attention(s.n_embd, s.n_head, s.dropout), cached=cached, trains=True)
