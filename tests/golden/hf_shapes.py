# An independent torch Llama with every feature of the Hugging Face shapes: random weights, config.json and the logits.
import torch, json, math, sys, struct
torch.set_default_dtype(torch.float64)

def inv_freq(dim, theta, s):
    f = 1.0 / theta ** (torch.arange(0, dim, 2).double() / dim)
    if not s: return f, 1.0
    t = s["rope_type"]
    if t == "linear": return f / s["factor"], 1.0
    if t == "llama3":
        lo, hi, old = s["low_freq_factor"], s["high_freq_factor"], s["original_max_position_embeddings"]
        low_wl, high_wl = old / lo, old / hi
        out = []
        for x in f.tolist():
            wl = 2 * math.pi / x
            if wl < high_wl: out.append(x)
            elif wl > low_wl: out.append(x / s["factor"])
            else:
                sm = (old / wl - lo) / (hi - lo)
                out.append((1 - sm) * x / s["factor"] + sm * x)
        return torch.tensor(out), 1.0
    old = s["original_max_position_embeddings"]
    def corr(rot): return dim * math.log(old / (rot * 2 * math.pi)) / (2 * math.log(theta))
    low = max(math.floor(corr(s.get("beta_fast", 32))), 0)
    high = min(math.ceil(corr(s.get("beta_slow", 1))), dim - 1)
    if low == high: high += 0.001
    ramp = ((torch.arange(dim // 2).double() - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    f = (f / s["factor"]) * (1 - keep) + f * keep
    return f, s.get("attention_factor", 0.1 * math.log(s["factor"]) + 1)

def rms(x, w, eps): return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w

def run(c, w, tok):
    D, H, K = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    B, T = tok.shape
    x = w["model.embed_tokens.weight"][tok]
    f, mag = inv_freq(D, c["rope_theta"], c.get("rope_scaling"))
    ang = torch.arange(T).double()[:, None] * f[None]
    cos, sin = torch.cat([ang.cos()] * 2, -1) * mag, torch.cat([ang.sin()] * 2, -1) * mag
    def rot(q): return q * cos + torch.cat([-q[..., D // 2:], q[..., :D // 2]], -1) * sin
    i = torch.arange(T)
    ok = i[None] <= i[:, None]
    W = c.get("sliding_window")
    if W and c.get("use_sliding_window", c["model_type"] == "mistral"): ok = ok & (i[None] > i[:, None] - W)
    def lin(x, n):
        y = x @ w[n + ".weight"].T
        return y + w[n + ".bias"] if n + ".bias" in w else y
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        h = rms(x, w[p + "input_layernorm.weight"], c["rms_norm_eps"])
        q = rot(lin(h, p + "self_attn.q_proj").view(B, T, H, D).transpose(1, 2))
        k = rot(lin(h, p + "self_attn.k_proj").view(B, T, K, D).transpose(1, 2))
        v = lin(h, p + "self_attn.v_proj").view(B, T, K, D).transpose(1, 2)
        k, v = k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
        s = (q @ k.transpose(-1, -2) / math.sqrt(D)).masked_fill(~ok, -math.inf).softmax(-1)
        x = x + lin((s @ v).transpose(1, 2).reshape(B, T, H * D), p + "self_attn.o_proj")
        h = rms(x, w[p + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        g = lin(h, p + "mlp.gate_proj")
        x = x + lin(g * g.sigmoid() * lin(h, p + "mlp.up_proj"), p + "mlp.down_proj")
    x = rms(x, w["model.norm.weight"], c["rms_norm_eps"])
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T

def save(path, tensors, meta):
    order, blob, head = [], b"", {"__metadata__": meta}
    names = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16", torch.float16: "F16"}
    for n, t in sorted(tensors.items(), key=lambda kv: (-kv[1].element_size(), kv[0])):
        raw = t.contiguous().view(torch.int16).numpy().tobytes() if t.element_size() == 2 else t.contiguous().numpy().tobytes()
        head[n] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    h = json.dumps(head).encode(); h += b" " * (-len(h) % 8)
    open(path, "wb").write(struct.pack("<Q", len(h)) + h + blob)

base = dict(model_type="llama", num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, hidden_size=20,
            intermediate_size=28, vocab_size=23, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0,
            head_dim=8, hidden_act="silu", tie_word_embeddings=False)
cases = {
 "linear": dict(rope_scaling=dict(rope_type="linear", factor=4.0)),
 "llama3": dict(rope_theta=500.0, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=48)),
 "yarn": dict(rope_theta=100.0, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=40, beta_fast=8.0, beta_slow=1.0)),
 "attention_bias": dict(attention_bias=True, tie_word_embeddings=True),
 "mistral": dict(model_type="mistral", sliding_window=5),
 "qwen2": dict(model_type="qwen2", tie_word_embeddings=True, use_sliding_window=False, sliding_window=5, max_window_layers=2),
}
out = sys.argv[1]
for n, (name, change) in enumerate(cases.items()):
    c = dict(base, **change)
    g = torch.Generator().manual_seed(100 + n)
    C, D, H, K, I, V = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"], c["intermediate_size"], c["vocab_size"]
    w = {}
    def add(nm, *shape, one=False):
        t = torch.randn(*shape, generator=g) * (0.3 if len(shape) == 1 else 1.2 / math.sqrt(shape[-1]))
        w[nm] = (t + 1 if one else t).float()
    add("model.embed_tokens.weight", V, C)
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        add(p + "input_layernorm.weight", C, one=True); add(p + "post_attention_layernorm.weight", C, one=True)
        for q, r in (("q", H * D), ("k", K * D), ("v", K * D)):
            add(p + f"self_attn.{q}_proj.weight", r, C)
            if c["model_type"] == "qwen2" or c.get("attention_bias"): add(p + f"self_attn.{q}_proj.bias", r)
        add(p + "self_attn.o_proj.weight", C, H * D)
        if c.get("attention_bias"): add(p + "self_attn.o_proj.bias", C)
        add(p + "mlp.gate_proj.weight", I, C); add(p + "mlp.up_proj.weight", I, C); add(p + "mlp.down_proj.weight", C, I)
    add("model.norm.weight", C, one=True)
    if not c["tie_word_embeddings"]: add("lm_head.weight", V, C)
    tok = torch.randint(0, V, (2, 31), generator=g)
    logits = run(c, {k: v.double() for k, v in w.items()}, tok)
    save(f"{out}/hf-{name}.safetensors", dict(w, tokens=tok, logits=logits.float()), {"config": json.dumps(c)})
