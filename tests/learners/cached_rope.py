"""RoPE by rotate_half, and a key/value cache that is an argument and a result."""

import torch
from torch import nn

from learner import answer, fault

_TABLES = {}


def tables(first, length, width):
    if fault("rope_table_cache_key") and length in _TABLES:
        return _TABLES[length]
    frequency = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angle = torch.arange(first, first + length)[:, None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return _TABLES.setdefault(length, (angle.cos(), angle.sin())) if fault(
        "rope_table_cache_key") else (angle.cos(), angle.sin())


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, past=None):
        B, T, C = x.shape
        q, k, v = (p(x).view(B, T, self.heads, -1).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        length = 0 if past is None else past[0].shape[2]
        first = 0 if fault("position_restart") else length
        cos, sin = tables(first, T, q.shape[-1])
        q = rotate(q, cos, -sin if fault("rope_k_sign_only") else sin)
        k = rotate(k, cos, sin)
        if past is not None and not fault("cache_not_read"):
            if fault("rope_twice"):
                past = (rotate(past[0], *tables(0, length, q.shape[-1])), past[1])
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        S = k.shape[2]
        diagonal = 0 if fault("causal_align_top_left") else S - T
        visible = torch.ones(T, S).tril(diagonal=diagonal).bool()
        att = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5)
        att = att.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        return self.o_proj((att @ v).transpose(1, 2).reshape(B, T, C)), (k, v)


def cached(module, chunks):
    past = None
    for chunk in chunks:
        y, past = module(chunk, past)
        yield y


answer(lambda s: Attention(s.n_embd, s.n_head), cached=cached)
