"""One module for each head, as in first lectures, with attention and output dropout."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from learner import answer, fault


class Head(nn.Module):
    def __init__(self, n_embd, head_size, dropout):
        super().__init__()
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1)
        wei = wei / math.sqrt(C if fault("scale_d_model") else q.shape[-1])
        tril = torch.tril(torch.ones(T, T))
        unmasked = fault("mask_missing") or (fault("mask_dropped_on_a_path") and self.training)
        if fault("mask_after_softmax"):
            wei = wei.softmax(dim=-1) * tril
        elif fault("mask_01_added"):
            wei = (wei + tril).softmax(dim=-1)
        elif unmasked:
            wei = wei.softmax(dim=-1)
        else:
            wei = wei.masked_fill(tril == 0, float("-inf")).softmax(dim=-1)
        if fault("dropout_off_for_good") and not self.training:
            self.dropout.p = 0
        if fault("dropout_live_in_eval"):
            wei = F.dropout(wei, self.dropout.p)
        elif fault("dropout_scaling_missing"):
            wei = self.dropout(wei) * (1 - self.dropout.p if self.training else 1)
        elif not fault("dropout_unused"):
            wei = self.dropout(wei)
        return wei @ v


class MultiHead(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.heads = nn.ModuleList(
            Head(n_embd, n_embd // n_head, dropout) for _ in range(n_head))
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(0 if fault("dropout_unused", "dropout_live_in_eval",
                                             "dropout_scaling_missing",
                                             "dropout_off_for_good") else dropout)

    def forward(self, x):
        B, T, C = x.shape
        out = [head(x) for head in self.heads]
        if fault("heads_merged_wrong_lead"):
            out = torch.stack(out).reshape(B, len(out), T, -1).transpose(1, 2).reshape(B, T, C)
        else:
            out = torch.cat(out, dim=-1)
        return self.dropout(self.proj(out))


def load(module, w):
    for short, name in (("q", "query"), ("k", "key"), ("v", "value")):
        for head, rows in zip(module.heads, w[short + "_proj.weight"].chunk(len(module.heads))):
            getattr(head, name).weight.copy_(rows)
    module.proj.weight.copy_(w["o_proj.weight"])
    module.proj.bias.zero_()


answer(lambda s: MultiHead(s.n_embd, s.n_head, s.dropout), load=load, trains=True)
