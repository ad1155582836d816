"""RoPE as a product of complex numbers, in float64, with Llama's names."""

import torch
from torch import nn

from learner import answer, fault


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, theta):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        exponent = torch.arange(0, self.head_dim, 2).double() / self.head_dim
        self.freqs = (500000.0 if fault("rope_theta") else theta) ** -exponent

    def rotate(self, x):  # [B, T, H, D]
        along = torch.arange(x.shape[2 if fault("rope_wrong_axis") else 1]).double()
        turn = torch.polar(torch.ones(()).double(), torch.outer(along, self.freqs))
        turn = turn if fault("rope_wrong_axis") else turn[:, None]
        if fault("rope_sign"):
            turn = turn.conj()
        if fault("rope_pairing"):
            a, b = x.chunk(2, dim=-1)
            x = torch.complex(a, b) * turn
            return torch.cat([x.real, x.imag], dim=-1)
        x = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turn
        return torch.view_as_real(x).flatten(-2)

    def forward(self, x):
        x = x.double()
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.head_dim)
        k = self.wk(x).view(B, T, self.n_kv_heads, self.head_dim)
        v = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim)
        if not fault("rope_missing"):
            q, k = self.rotate(q), self.rotate(k)
        if fault("rope_on_v"):
            v = self.rotate(v)
        group = self.n_heads // self.n_kv_heads
        repeat = (lambda t: t.repeat(1, 1, group, 1)) if fault("gqa_tiled") else (
            lambda t: t.repeat_interleave(group, dim=2))
        q, k, v = q.transpose(1, 2), repeat(k).transpose(1, 2), repeat(v).transpose(1, 2)
        scores = q @ k.transpose(2, 3) / self.head_dim ** 0.5
        scores = scores + torch.full((T, T), float("-inf")).triu(diagonal=1)
        y = torch.softmax(scores, dim=-1) @ v
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))


def load(module, w):
    module.double()
    for name in "qkvo":
        getattr(module, "w" + name).weight.copy_(w[name + "_proj.weight"])


answer(lambda s: Attention(s.n_embd, s.n_head, s.n_kv_head, getattr(s, "rope_theta", 10000.0)), load=load)
