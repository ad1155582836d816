"""Padding, slopes and norms of q and k: a module that knows them all."""

import torch
from torch import nn

from learner import answer, fault


def slopes(heads):
    power = 1 << (heads.bit_length() - 1)
    first = 0 if fault("alibi_slope_exponent") else 1
    if fault("alibi_non_power_of_two"):
        return [2.0 ** (-8 * (h + 1) / heads) for h in range(heads)]
    series = [2.0 ** (-8 * (h + first) / power) for h in range(power)]
    return series + [2.0 ** (-4 * (2 * h + first) / power) for h in range(heads - power)]


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(s.n_embd, s.n_embd, bias=False) for _ in range(4))
        self.q_norm = self.k_norm = None
        if hasattr(s, "qk_norm"):
            self.q_norm, self.k_norm = (Norm(s.head_dim, s) for _ in range(2))

    def forward(self, x, mask=None):
        B, T, C = x.shape
        H = self.s.n_head
        q, k, v = (p(x).view(B, T, H, C // H).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None:
            q = self.q_norm(q)
            k = k if fault("qk_norm_missing") else self.k_norm(k)
        scores = q @ k.transpose(-2, -1) / (C // H) ** 0.5
        if hasattr(self.s, "alibi") and not fault("alibi_missing"):
            distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]
            sign = -1 if fault("alibi_sign") else 1
            scores = scores + sign * torch.tensor(slopes(H))[:, None, None] * distance
        visible = torch.ones(T, T).tril().bool()
        if mask is not None and not fault("padding_not_masked"):
            tokens = mask.bool()[:, None, None, :]
            if fault("mask_fold_order"):
                tokens = mask.bool()[(torch.arange(B * H) % B).view(B, H)][:, :, None, :]
            visible = visible & tokens
        pattern = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        if not fault("fully_masked_row_nan"):
            pattern = pattern.nan_to_num(0)
        return self.o_proj((pattern @ v).transpose(1, 2).reshape(B, T, C))


class Norm(nn.Module):
    def __init__(self, width, s):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.layer, self.eps = s.qk_layernorm != fault("qk_norm_kind"), s.norm_eps
        if s.qk_layernorm:
            self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True) if self.layer else x
        x = x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        x = x if fault("qk_norm_gain_missing") else x * self.weight
        return x + self.bias if hasattr(self, "bias") else x


answer(Attention, padded=lambda module, x, mask: module(x, mask),
       modes="alibi qk_norm qk_layernorm")
