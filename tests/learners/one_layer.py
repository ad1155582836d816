"""A program of its own protocol: one layer answers all questions of a run, as in a training loop."""

import math
import sys

import torch
from torch import nn

from learner import fault
from heed_live import read, write


class Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(n_embd, n_embd, bias=False) for _ in range(4))
        self.n_head, self.dropout = n_head, nn.Dropout()

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (p(x).view(B, T, self.n_head, -1).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        hidden = torch.ones(T, T, dtype=torch.bool).triu(diagonal=1)
        pattern = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        if not fault("dropout_unused"):
            pattern = self.dropout(pattern)
        return self.o_proj((pattern @ v).transpose(1, 2).reshape(B, T, C))


layer = None
files = [word for word in sys.argv if word.endswith(".safetensors")]
for question, reply in zip(files[::2], files[1::2]):
    tensors, settings = read(question)
    x = torch.from_numpy(tensors.pop("x").copy())
    if layer is None:
        layer = Attention(int(settings["n_embd"]), int(settings["n_head"]))
    layer.load_state_dict({name: torch.from_numpy(w.copy()) for name, w in tensors.items()})
    layer.dropout.p = float(settings["dropout"])
    if settings["mode"] == "eval":
        layer.eval()
    elif not fault("dropout_off_for_good"):
        layer.train()
    with torch.no_grad():
        write(reply, {"y": layer(x).numpy()}, {"modes": "train many"})
