#!/usr/bin/env python3
"""Which format quantized KV tiles should have: the comparison behind quant/qtile.h.

    tools/bench/kv_formats.py synthetic
    tools/bench/kv_formats.py model models/records --tokens 4096 --documents 2 --questions 32
    tools/bench/kv_formats.py model .../stories260K --tokens 512 --documents 8

Needs torch, safetensors and, for questions, tokenizers; exit 77 without them.

Formats, by tiles of 128 positions; "bits" is what a number of K and V takes at head dim 128, scales
and all:

    group    quanto's way: each token alone, groups of 64 channels, asymmetric
    kivi     keys asymmetric by channel over 32 tokens, values as in `group`
    two-axis rotated, then a scale for each channel and each token in turns until both have variance 1
             (as KVarN does), asymmetric by token; keys and values
    tile     quant/qtile.h: rotated, keys centred by channel over the tile, one midrise step a token
             and 64 channels; `-rotation` and `-centring` leave one of them out, `/32` halves the
             groups, `+v-centring` centres values too, `clip` cuts the range to 0.9 of the largest

Measures. Synthetic: root mean square error of the logits q.k / sqrt(d), q normal. Models, teacher-forced in f32, exact
against quantized:
KL divergence of the next-token distribution at each position that reads quantized tiles, median and
99.9th percentile, and how often the most probable token is the same; right lookups of the bundled
model. Query block b reads tile j quantized iff 0 < j < b - window / 128, during the prompt too.

Results (21 Nov 2026, seeds as they stand here). `tile` wins, and quant/qtile.h is it. At four bits:

                   bits | logit error of synthetic keys           | records, 4,096 tokens    | stories260K
                        | plain constant rotary outlier norms mix | KL median 99.9 %    same | KL 99.9 %    same
    group          4.50 | 0.091  1.93     5.57   0.94   0.24 2.89 | 2.2e-6    0.93  98.29 % | 0.77      97.82 %
    kivi           4.75 | 0.079  0.079    1.29   0.44   0.30 0.30 | 1.4e-6    0.46  98.51 % | 0.12      98.81 %
    two-axis       4.62 | 0.090  2.61     2.36   0.39   0.24 3.26 | 1.4e-6    0.46  98.63 % | 2.8       95.05 %
    tile           4.38 | 0.097  0.097    1.13   0.39   0.26 0.26 | 2.0e-6    0.90  98.42 % | 0.36      98.70 %
      -rotation    4.38 | 0.097  0.097   12.6    1.80   0.27 0.27 | 2.4e-6    1.7   98.31 % | 0.23      97.82 %
      -centring    4.25 | 0.097  2.27     2.40   0.39   0.27 2.35 | 2.1e-6    1.0   98.56 % | 1.2       97.35 %
      -both        4.25 | 0.097 15.3     13.6    1.80   0.27 14.9 | 2.6e-6    1.5   98.29 % | 2.3       93.90 %
      +v-centring  4.50 | 0.097  0.097    1.13   0.39   0.26 0.26 | 1.5e-6    1.2   98.56 % | 0.35      98.57 %
      /32          4.62 | 0.089  0.089    1.17   0.38   0.24 0.24 | 1.7e-6    0.62  98.64 % | 0.36      98.70 %
      clip         4.38 | 0.103  0.103    2.66   0.45   0.27 0.27 | 3.2e-6    2.0   97.77 % | 0.80      96.89 %
    tile 8 bits    8.38 | 0.006  0.006    0.078  0.024  0.016 0.016| 2.6e-8   0.004 99.87 % | 0.0007    99.90 %
    tile 8:4       6.38 |                                         | 6.9e-7    0.18  99.13 % | 0.008     99.54 %
    tile 8:2       5.38 |                                         | 9.6e-6    1.7   96.36 % | 0.14      98.16 %

Of those that no column breaks, `tile` takes the fewest bits. Only kivi comes through constant channels too:
its groups of 32 tokens cost 0.4 bits more, and no smaller code of it is a part of a larger one. Both halves of
`tile` are needed, though not by records alone, whose keys are normed and have no offset: there all are within half
a percent. Clipping loses. Groups of 32 cost 0.25 bits for a sixth of the median KL of records, centred values
0.12 for a quarter of it (and 98.45 % for 98.36 % in 22,312 positions of 6 documents); neither gives stories260K
anything: not taken. Values of 2 bits behind 8-bit keys lose four times as many tokens as values of 4 bits: not taken.
`rotary`: constants in the quick pairs of channels turn within a tile, and no mean takes them out. The format bears
it best, but such a model is one that the gate is there for.

Right lookups with the window of 1,024 tokens, 8,192 tokens, 144 questions: exact 143, tile 8 143, 8:4 143, 4 142,
kivi 142, group 141; median KL 1.7e-8 (8), 9.9e-7 (4), same top 99.91 %, 98.61 %. The table
has no window: every tile but the first and the query's own block is quantized; records: 2 documents, of 64 questions
exact answers 62 and no format fewer; stories260K: 24 texts of 512 tokens drawn from the model itself.
"""
import argparse
import json
import math
import pathlib
import random
import sys

try:
    import torch
    from safetensors.torch import load_file
except ImportError as missing:
    print("kv_formats: skipped: %s" % missing, file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import make_records as mr  # noqa: E402

TILE = 128


# ---- formats: x is [..., 128 tokens, d channels], what comes back is what it stands for ----

def hadamard(x, most=1 << 30):
    d = x.size(-1)
    block = min(d & -d, most)
    y = x.reshape(-1, d // block, block)
    h = 1
    while h < block:
        y = y.reshape(-1, block // (2 * h), 2, h)
        y = torch.stack((y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]), 2)
        h *= 2
    return y.reshape(x.shape) / math.sqrt(block)


def by_groups(x, size, f):
    return torch.cat([f(part) for part in x.split(size, -1)], -1)


def asymmetric(x, bits, dim=-1):
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp_min(1e-30)
    return ((x - low) / scale).round() * scale + low


def bf16_up(x):
    bits = (x.float().contiguous().view(torch.int32) + 0xffff) & ~0xffff
    return bits.view(torch.float32)


def midrise(x, bits, clip=1.0):
    step = bf16_up((x.abs().amax(-1, keepdim=True) * (clip / 128)).clamp_min(2.0**-100))
    wide = 2 ** (8 - bits)
    code = (x / step + 128).floor().clamp(0, 255).div(wide).floor()
    return (code + 0.5 - 128 / wide) * wide * step


def group(x, bits, keys):
    return by_groups(x, 64, lambda g: asymmetric(g, bits))


def kivi(x, bits, keys):
    if not keys:
        return group(x, bits, keys)
    y = x.unflatten(-2, (TILE // 32, 32))
    return asymmetric(y, bits, -2).flatten(-3, -2)


def two_axis(x, bits, keys):
    y = hadamard(x, 1 << 30 if keys else 64)
    scale = torch.ones_like(y)
    for _ in range(8):
        for dim in (-2, -1):
            scale = scale * (y / scale).std(dim, keepdim=True).clamp_min(1e-12)
    y = by_groups(y / scale, 64, lambda g: asymmetric(g, bits)) * scale
    return hadamard(y, 1 << 30 if keys else 64)


def tile(x, bits, keys, rotation=True, centring=True, size=64, v_centring=False, clip=1.0):
    turn = (lambda t: hadamard(t, 1 << 30 if keys else 64)) if rotation else (lambda t: t)
    y = turn(x)
    mean = y.mean(-2, keepdim=True) if (centring if keys else v_centring) else torch.zeros(())
    return turn(by_groups(y - mean, size, lambda g: midrise(g, bits, clip)) + mean)


def option(**options):
    return lambda x, bits, keys: tile(x, bits, keys, **options)


def exact(x, bits, keys):
    return x


# name, function, bits of keys, bits of values, metadata bits a number at head dim 128
FORMATS = [
    ("exact", exact, 16, 16, 0),
    ("group 8", group, 8, 8, 32 / 64),
    ("kivi 8", kivi, 8, 8, (32 / 32 + 32 / 64) / 2),
    ("two-axis 8", two_axis, 8, 8, 32 / 64 + 16 / 128),
    ("tile 8", tile, 8, 8, 16 / 64 + 32 / 128 / 2),
    ("group 4", group, 4, 4, 32 / 64),
    ("kivi 4", kivi, 4, 4, (32 / 32 + 32 / 64) / 2),
    ("two-axis 4", two_axis, 4, 4, 32 / 64 + 16 / 128),
    ("tile 4", tile, 4, 4, 16 / 64 + 32 / 128 / 2),
    ("tile 4 -rotation", option(rotation=False), 4, 4, 16 / 64 + 32 / 128 / 2),
    ("tile 4 -centring", option(centring=False), 4, 4, 16 / 64),
    ("tile 4 -both", option(rotation=False, centring=False), 4, 4, 16 / 64),
    ("tile 4 +v-centring", option(v_centring=True), 4, 4, 16 / 64 + 32 / 128),
    ("tile 4 /32", option(size=32), 4, 4, 16 / 32 + 32 / 128 / 2),
    ("tile 4 clip", option(clip=0.9), 4, 4, 16 / 64 + 32 / 128 / 2),
    ("tile 8:4", tile, 8, 4, 16 / 64 + 32 / 128 / 2),
    ("tile 4:2", tile, 4, 2, 16 / 64 + 32 / 128 / 2),
    ("tile 8:2", tile, 8, 2, 16 / 64 + 32 / 128 / 2),
]


def chosen(options):
    names = options.formats.split(",") if options.formats else None
    return [f for f in FORMATS if not names or f[0] in names or f[0] == "exact"]


# ---- synthetic keys ----

def turned(x, theta=1e6):
    """Rotary positions, as a cache holds keys."""
    half = x.size(-1) // 2
    angle = torch.arange(x.size(-2), dtype=torch.float64)[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def synthetic_keys(n=1024, d=128):
    torch.manual_seed(1)
    plain = torch.randn(n, d)
    constant, outlier = torch.zeros(d), torch.ones(d)
    constant[[3, 41, 77, 126]] = torch.tensor([300.0, -150.0, 80.0, 200.0])
    outlier[[9, 50, 51, 100]] = 30.0
    slow = torch.zeros(d)  # pairs that turn little within a tile
    slow[[50, 60, 63, 114]] = torch.tensor([300.0, -150.0, 80.0, 200.0])
    norms = torch.exp(torch.randn(n, 1))
    return {"normal": plain, "constant channels": plain + constant,
            "the same, slow rotary": turned(plain + slow), "the same, any rotary": turned(plain + constant),
            "outlier channels": plain * outlier, "token norms": plain * norms,
            "constant + norms": plain * norms + constant}


def synthetic(options):
    keys = synthetic_keys()
    q = torch.randn(64, 128)
    print("| format | bits | " + " | ".join(keys) + " |\n|---|" + "---|" * (len(keys) + 1))
    for name, f, k_bits, v_bits, meta in chosen(options)[1:]:
        cells = []
        for k in keys.values():
            stored = f(k.reshape(-1, TILE, 128), k_bits, True).reshape(k.shape)
            error = q @ (stored - k).T / math.sqrt(128)
            cells.append(error.square().mean().sqrt().item())
        print("| %s | %.2f | " % (name, (k_bits + v_bits) / 2 + meta)
              + " | ".join("%.4f" % c for c in cells) + " |")


# ---- models: Llama and Qwen3, f32 ----

class Model:
    def __init__(self, folder):
        self.c = c = json.loads((folder / "config.json").read_text())
        self.w = {n.removeprefix("model."): w.float() for n, w in load_file(folder / "model.safetensors").items()}
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.d = c.get("head_dim") or c["hidden_size"] // self.heads

    def norm(self, x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * self.w[name]

    def rope(self, x, begin):
        half = self.d // 2
        theta = self.c.get("rope_theta", 10000.0)
        angle = torch.arange(begin, begin + x.size(-2), dtype=torch.float64)[:, None]
        angle = angle * theta ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attention(self, q, kv, stored, begin, window):
        """Block by block, exact and quantized tiles side by side. q: [heads, n, d]."""
        out = torch.empty_like(q)
        at = 0
        while at < q.size(1):
            block = (begin + at) // TILE
            end = min(q.size(1), (block + 1) * TILE - begin)
            tiles = max(1, block - window // TILE) * TILE
            k, v = (torch.cat((x[:, :TILE], s[:, TILE:tiles], x[:, tiles:begin + end]), 1)
                    .repeat_interleave(self.heads // self.kv_heads, 0) for x, s in zip(kv, stored))
            scores = q[:, at:end] @ k.transpose(1, 2) / math.sqrt(self.d)
            mask = torch.ones(end - at, begin + end, dtype=torch.bool).tril(begin + at)
            out[:, at:end] = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
            at = end
        return out

    def __call__(self, ids, past, fmt, window):
        """Logits of ids, which follow `past` ([(K, V, stored K, stored V)] by layer, or None)."""
        c, n = self.c, len(ids)
        begin = past[0][0].size(1) if past else 0
        x, kept = self.w["embed_tokens.weight"][ids], []
        for i in range(c["num_hidden_layers"]):
            p = "layers.%d." % i
            y = self.norm(x, p + "input_layernorm.weight")
            q, k, v = ((y @ self.w[p + "self_attn.%s_proj.weight" % s].T).reshape(n, -1, self.d).transpose(0, 1)
                       for s in "qkv")
            if p + "self_attn.q_norm.weight" in self.w:
                q, k = self.norm(q, p + "self_attn.q_norm.weight"), self.norm(k, p + "self_attn.k_norm.weight")
            q, k = self.rope(q, begin), self.rope(k, begin)
            if past:
                k, v = torch.cat((past[i][0], k), 1), torch.cat((past[i][1], v), 1)
            old = past[i][2:] if past else (k[:, :0], v[:, :0])
            stored = [self.store(s, o, fmt, is_key) for s, o, is_key in zip((k, v), old, (True, False))]
            kept.append((k, v, *stored))
            y = self.attention(q, (k, v), stored, begin, window)
            x = x + y.transpose(0, 1).reshape(n, -1) @ self.w[p + "self_attn.o_proj.weight"].T
            y = self.norm(x, p + "post_attention_layernorm.weight")
            gate, up = (y @ self.w[p + "mlp.%s_proj.weight" % s].T for s in ("gate", "up"))
            x = x + (torch.nn.functional.silu(gate) * up) @ self.w[p + "mlp.down_proj.weight"].T
        return self.norm(x, "norm.weight") @ self.w["embed_tokens.weight"].T, kept

    def store(self, x, old, fmt, is_key):
        """What the whole tiles of [heads, n, d] stand for, of which `old` are known."""
        new = x[:, old.size(1):x.size(1) // TILE * TILE]
        if not new.size(1):
            return old
        tiles = fmt[1](new.reshape(-1, TILE, self.d), fmt[2] if is_key else fmt[3], is_key)
        return torch.cat((old, tiles.reshape(new.shape)), 1)


def sampled(model, n, seed):
    """n tokens drawn from the model itself: text it knows."""
    torch.manual_seed(seed)
    ids, past, exact_format = [model.c["bos_token_id"]], None, FORMATS[0]
    while len(ids) < n:
        logits, past = model(torch.tensor(ids[-1:]), past, exact_format, n)
        ids.append(int(torch.multinomial(logits[-1].softmax(-1), 1)))
    return ids


def lookups(model, tokenizer, document, records, past, n, fmt, window):
    right = 0
    for record in records:
        ids = tokenizer.encode(mr.prompt_for(document, record) + record.answer() + mr.END).ids
        tail, m = torch.tensor(ids[n:]), len(tokenizer.encode(record.answer() + mr.END).ids)
        logits, _ = model(tail[:-1], past, fmt, window)
        right += bool((logits[-m:].argmax(-1) == tail[-m:]).all())
    return right


@torch.no_grad()
def run_model(options):
    torch.set_num_threads(options.threads)
    model = Model(options.folder)
    asks, tokenizer = options.questions > 0, None
    if asks:
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    formats = chosen(options)
    kl, same = {f[0]: [] for f in formats}, {f[0]: [] for f in formats}
    right, asked = {f[0]: 0 for f in formats}, 0
    first = (2 + options.window // TILE) * TILE  # the first position that reads a quantized tile
    for seed in range(options.documents):
        document = records = None
        if asks:
            prompt, _, records = mr.make_prompt(options.tokens, "formats/%d" % seed, 0,
                                                options.folder / "tokenizer.json")
            document = prompt[:prompt.rindex("\n\nQ: ")]
            ids = tokenizer.encode(document).ids[:-1]
            records = random.Random(seed).sample(records, min(options.questions, len(records)))
            asked += len(records)
        else:
            ids = sampled(model, options.tokens, seed)
        for fmt in formats:
            logits, past = model(torch.tensor(ids), None, fmt, options.window)
            p = logits[first:].log_softmax(-1)
            if fmt[0] == "exact":
                reference = p
            kl[fmt[0]].append((reference.exp() * (reference - p)).sum(-1))
            same[fmt[0]].append((reference.argmax(-1) == p.argmax(-1)).float())
            if asks:
                right[fmt[0]] += lookups(model, tokenizer, document, records, past, len(ids), fmt, options.window)
    print("| format | median KL | 99.9th percentile | same top |%s\n|---|---|---|---|%s"
          % ((" right of %d |" % asked, "---|") if asks else ("", "")))
    for fmt in formats[1:] if not asks else formats:
        k, s = torch.cat(kl[fmt[0]]), torch.cat(same[fmt[0]])
        print("| %s | %.1e | %.1e | %.2f %% |%s" % (fmt[0], k.median(), k.quantile(0.999), 100 * s.mean(),
                                                   " %d |" % right[fmt[0]] if asks else ""))
    print("%d positions" % len(k))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--formats", help="comma-separated names of the list in this file")
    parser.add_argument("--threads", type=int, default=1)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("synthetic").set_defaults(run=synthetic)
    p = commands.add_parser("model")
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--window", type=int, default=0)
    p.add_argument("--documents", type=int, default=2)
    p.add_argument("--questions", type=int, default=0,
                   help="of each document; 0: the text is drawn from the model instead")
    p.set_defaults(run=run_model)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
