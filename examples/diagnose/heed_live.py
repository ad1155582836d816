"""Lets `heed diagnose --run "python3 my_attention.py"` ask an attention layer.

A torch module:                             A function of numpy arrays:

    from heed_live import answer_torch          from heed_live import answer_numpy
    answer_torch(lambda s: MyAttention(         answer_numpy(my_attention)
        s.n_embd, s.n_head))                    # my_attention(x, weights, s) -> y

Weights come as q_proj k_proj v_proj o_proj (or c_attn c_proj), each .weight [out, in] as
torch.nn.Linear keeps it, with .bias where settings say so. Needs numpy, and torch for modules.
"""

import json
import os
import sys
from types import SimpleNamespace

import numpy as np

_DTYPES = {"F64": "<f8", "F32": "<f4"}


def read(path):
    """Tensors by name and settings of a safetensors file of float tensors."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    settings = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        array = np.frombuffer(data[first:last], _DTYPES[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"])
    return tensors, settings


def write(path, tensors, settings):
    """The same, the other way: float64 stays, everything else becomes float32."""
    header, pieces, at = {"__metadata__": settings}, [], 0
    for name, array in tensors.items():
        dtype = "F64" if array.dtype == np.float64 else "F32"
        piece = np.ascontiguousarray(array, _DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [at, at + len(piece)]}
        pieces.append(piece)
        at += len(piece)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(pieces))


def _typed(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def _each(answer):
    """Answers every question among the arguments, each in a process of its own."""
    files = [word for word in sys.argv[1:] if word.endswith(".safetensors")]
    pairs = list(zip(files[::2], files[1::2]))
    for question, reply in pairs[:-1]:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                answer(question, reply)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    answer(*pairs[-1])


def _question(path):
    tensors, texts = read(path)
    s = SimpleNamespace(**{name: _typed(text) for name, text in texts.items()})
    s.chunks = [int(n) for n in texts.get("chunks", "").split(",") if n]
    s.attention_mask = tensors.pop("attention_mask", None)
    return tensors.pop("x"), tensors, s


def answer_numpy(function, modes=""):
    """`function(x, weights, settings)` returns y, or a dict of y and intermediates by name.

    modes    what it knows besides, as "padded alibi qk_norm": s.attention_mask, s.alibi and
             weights["q_norm.weight"] are there when these are asked for
    """
    def one(question, reply):
        x, weights, s = _question(question)
        y = function(x, weights, s)
        write(reply, y if isinstance(y, dict) else {"y": y}, {"modes": modes + " many"})

    _each(one)


def answer_torch(make, load=None, cached=None, trains=False, padded=None, modes=""):
    """`make(settings)` returns the module; y = module(x), or the first of a tuple.

    load(module, weights)    copies the weights; without it names must be those of the file
    cached(module, chunks)   y for each of the chunks x[:, a:b], through the module's own cache
    trains                   the module has a train mode, with dropout of probability s.dropout,
                             and is asked again behind an evaluation
    padded(module, x, mask)  y of rows that begin with padding, where attention_mask [B, T] is 0
    modes                    more that the module knows, by `make`'s settings: "alibi qk_norm"
    What a module keeps in a dict `self.saved` is handed over: q k v q_rot k_rot scores pattern z
    merged.
    """
    import torch

    known = modes.split() + ["many"] + ["cached"] * (cached is not None) + ["train", "train_again"] * trains
    known += ["padded"] * (padded is not None)

    def one(question, reply):
        x, weights, s = _question(question)
        module = make(s)
        weights = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
        with torch.no_grad():
            (load or _load)(module, weights)
            x = torch.from_numpy(x.copy())
            if s.mode == "train_again":
                for training in (True, False):
                    module.train(training)(x)
            module.train(s.mode in ("train", "train_again"))
            if s.mode == "cached":
                y = torch.cat(list(cached(module, x.split(s.chunks, dim=1))), dim=1)
            elif s.mode == "padded":
                y = padded(module, x, torch.from_numpy(s.attention_mask.copy()))
            else:
                y = module(x)
        y = y[0] if isinstance(y, tuple) else y
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"the module returned {type(y).__name__}, not y")
        results = {**(getattr(module, "saved", {}) if s.mode == "eval" else {}), "y": y}
        results = {name: (t.double() if t.dtype == torch.float64 else t.float()).numpy()
                   for name, t in results.items()}
        write(reply, results, {"modes": " ".join(known)})

    _each(one)


def _hint(parameters):
    if "c_attn.weight" in parameters:
        return "ask with --qkv-layout blocks, or per_head"
    return "give answer_torch a load(module, weights)"


def _load(module, weights):
    parameters = dict(module.named_parameters())
    for name, weight in weights.items():
        if name not in parameters:
            raise KeyError(f"the module has {', '.join(parameters)} and no {name}: "
                           + _hint(parameters))
        if parameters[name].shape != weight.shape:
            raise ValueError(f"{name} has the shape {list(parameters[name].shape)}, "
                             f"the settings ask for {list(weight.shape)}")
        parameters[name].copy_(weight)
    for name, parameter in parameters.items():
        if name.endswith("bias") and name not in weights:
            parameter.zero_()
