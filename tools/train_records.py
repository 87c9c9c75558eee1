#!/usr/bin/env python3
"""Trains models/records: a small Qwen3-shaped model that looks records up in a long document.

    python3 -m venv venv && venv/bin/pip install torch tokenizers safetensors numpy transformers
    venv/bin/python tools/train_records.py tokenizer models/records      # vocabulary, once
    venv/bin/python tools/train_records.py train RUN                     # checkpoints into RUN/
    venv/bin/python tools/train_records.py export RUN/last.pt models/records
    venv/bin/python tools/train_records.py eval models/records           # accuracy by context length
    venv/bin/python tools/train_records.py check models/records          # against transformers

models/records256 is a wider one, which starts as models/records:

    venv/bin/python tools/train_records.py --wide widen models/records RUN/start.pt
    venv/bin/python tools/train_records.py --wide train RUN --resume RUN/start.pt --stages STAGES
    venv/bin/python tools/train_records.py --wide export RUN/last.pt models/records256 --sharpen 1

models/records-experts is a mixture of experts, which starts as models/records256:

    venv/bin/python tools/train_records.py --experts upcycle models/records256 RUN/start.pt
    venv/bin/python tools/train_records.py --experts train RUN --resume RUN/start.pt --stages STAGES
    venv/bin/python tools/train_records.py --experts export RUN/last.pt models/records-experts --sharpen 1
    venv/bin/python tools/train_records.py --experts routing models/records-experts

A tool for the authors: users of spillway need none of these packages. How it learns to reach far:
* Curriculum: documents of a few hundred tokens first, until the lookup forms, then longer and longer,
  because the distractors whose attention weights add up grow with the length.
* Rotary positions: theta is so large that a third of each head hardly rotates within 131,072 positions
  and can match by content at any distance; and training leaves random gaps between the positions of
  neighbouring sentences, so that distances up to 131,072 are met in short sequences.
* q_norm and k_norm (Qwen3) carry a learned temperature, which keeps attention sharp.
* Every document is followed by many questions, and the loss lies mostly on their answers.
"""
import argparse
import json
import math
import os
import pathlib
import random
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import make_records as mr

SEED = 20261120
MAX_POSITIONS = 131072
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 768,
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": MAX_POSITIONS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000000000.0,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "initializer_range": 0.02,
    "bos_token_id": None,
    "eos_token_id": 0,
    "torch_dtype": "bfloat16",
}

# models/records256, for quantized weights: blocks of K types have 256 numbers of a row.
WIDE = {"hidden_size": 256, "intermediate_size": 512}

# models/records-experts: as many experts as 8 MB hold, all of them in the last layer.
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "num_experts": 14,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0, 1],
}

# (tokens per document, documents per worker and step, most steps, answers right that end the stage early,
#  share of the tokens spent on questions, learning rate factor at its begin and at `most steps`)
STAGES = (
    (128, 32, 600, 0.90, 0.50, 1.0, 1.0),
    (256, 16, 300, 0.93, 0.50, 0.7, 0.6),
    (512, 8, 300, 0.96, 0.45, 0.6, 0.5),
    (1024, 4, 300, 0.97, 0.40, 0.5, 0.4),
    (2048, 2, 300, 0.98, 0.30, 0.4, 0.3),
    (4096, 1, 400, 2.0, 0.25, 0.3, 0.02),
)

# ----------------------------------------------------------------------------------- tokenizer
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")  # as Qwen2: every digit is a token of its own


def build_tokenizer(folder):
    """A byte-level BPE of 768 tokens learned from generated documents; the end token is id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    texts = []
    for i in range(400):
        rng = random.Random("%d/tokenizer/%d" % (SEED, i))
        document = mr.Document(rng)
        while len(document.pieces) < 200:
            document.add(*document.next_piece())
        text = document.text() + "".join("\n\nQ: %s\nA:%s" % (r.question(), r.answer())
                                         for r in document.records[:20])
        # Names are cut into their syllables, so that no token spans two of them.
        for record in document.records:
            text = text.replace(record.name, record.name[:3])
        texts.append(text + "".join("\n" + rng.choice(mr.MIDDLES + mr.TAILS * 3) for _ in range(600))
                     + "".join(" " + rng.choice(mr.HEADS) for _ in range(400)))
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(mr.END, special=True, normalized=False)], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.token_to_id(mr.END) == 0 and tokenizer.get_vocab_size() == CONFIG["vocab_size"]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


# --------------------------------------------------------------------------------------- model
class Norm(nn.Module):
    def __init__(self, size, value=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), value))

    def forward(self, x):
        f = x.float()
        f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"])
        return self.weight * f.to(x.dtype)


def linear(n_in, n_out):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=n_in ** -0.5)
    return layer


def rotate(x, cos, sin):
    """x [B, H, T, D]; cos, sin [B, 1, T, D]; pairs (i, i + D/2)."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_heads, self.n_kv, self.dim = (c["num_attention_heads"], c["num_key_value_heads"],
                                             c["head_dim"])
        h = c["hidden_size"]
        self.q_proj = linear(h, self.n_heads * self.dim)
        self.k_proj = linear(h, self.n_kv * self.dim)
        self.v_proj = linear(h, self.n_kv * self.dim)
        self.o_proj = linear(self.n_heads * self.dim, h)
        self.q_norm, self.k_norm = Norm(self.dim, 1.5), Norm(self.dim, 1.5)
        nn.init.zeros_(self.o_proj.weight)

    def forward(self, x, cos, sin, past, mask):
        n_batch, n, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(n_batch, n, self.n_heads, self.dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(n_batch, n, self.n_kv, self.dim)).transpose(1, 2)
        v = self.v_proj(x).view(n_batch, n, self.n_kv, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        present = (k, v)
        if past is not None:  # [1, n_kv, P, D], shared by the batch
            k = torch.cat((past[0].expand(n_batch, -1, -1, -1), k), 2)
            v = torch.cat((past[1].expand(n_batch, -1, -1, -1), v), 2)
        group = self.n_heads // self.n_kv
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if mask is None and n <= 512:  # for short documents plain products are the faster way
            later = torch.ones(n, n, dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(2, 3) * self.dim ** -0.5).masked_fill(later, -1e9)
            y = scores.float().softmax(-1).to(q.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(n_batch, n, -1)), present


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.up_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.down_proj = linear(c["intermediate_size"], c["hidden_size"])
        nn.init.zeros_(self.down_proj.weight)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """Qwen3's mixture: softmax over all experts, the weights of the chosen ones sum to 1."""

    def __init__(self, c):
        super().__init__()
        self.n, self.n_chosen = c["num_experts"], c["num_experts_per_tok"]
        hidden, inner = c["hidden_size"], c["moe_intermediate_size"]
        self.gate = linear(hidden, self.n)
        self.gate_proj = nn.Parameter(torch.randn(self.n, inner, hidden) * hidden ** -0.5)
        self.up_proj = nn.Parameter(torch.randn(self.n, inner, hidden) * hidden ** -0.5)
        self.down_proj = nn.Parameter(torch.zeros(self.n, hidden, inner))

    def forward(self, x):
        rows = x.reshape(-1, x.size(-1))
        share = F.linear(rows.float(), self.gate.weight.float()).softmax(-1)
        weight, self.chosen = share.topk(self.n_chosen, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        order = self.chosen.reshape(-1).argsort()  # pairs of a row and an expert, by expert
        row, counts = order // self.n_chosen, self.chosen.reshape(-1).bincount(minlength=self.n)
        # Switch transformers (arXiv 2101.03961): least where all experts get the same share.
        self.balance = self.n * (share.mean(0) * counts / counts.sum()).sum()
        parts = []
        for i, part in enumerate(rows[row].split(counts.tolist())):
            parts.append(F.linear(F.silu(F.linear(part, self.gate_proj[i])) * F.linear(part, self.up_proj[i]),
                                  self.down_proj[i]))
        y = torch.cat(parts) * weight.reshape(-1)[order, None]
        return torch.zeros_like(rows).index_add(0, row, y).view_as(x)


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c["hidden_size"]), Norm(c["hidden_size"])
        self.self_attn, self.mlp = Attention(c), (MLP if i in c.get("mlp_only_layers", (i,)) else Experts)(c)

    def forward(self, x, cos, sin, past=None, mask=None):
        y, present = self.self_attn(self.input_layernorm(x), cos, sin, past, mask)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), present


class Model(nn.Module):
    """The names of its parameters are those of Hugging Face's Qwen3, without the prefix `model.`."""

    def __init__(self, c=CONFIG):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"])
        self.half = c["head_dim"] // 2
        self.theta = c["rope_theta"]

    def rope(self, positions, dtype):
        """positions [B, T] -> cos, sin [B, 1, T, D]"""
        frequency = self.theta ** (-torch.arange(self.half).float() / self.half)
        angle = positions.float()[:, None, :, None] * frequency
        angle = torch.cat((angle, angle), -1)
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def forward(self, ids, cos, sin, past=None, mask=None):
        """-> hidden states after the last norm [B, T, hidden], and each layer's (k, v)"""
        x, presents = self.embed_tokens(ids), []
        for i, layer in enumerate(self.layers):
            x, present = layer(x, cos, sin, past[i] if past else None, mask)
            presents.append(present)
        return self.norm(x), presents

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight)

    def balance(self):
        """The load-balancing loss of the last call, summed over layers; 0 without experts."""
        return sum(layer.mlp.balance for layer in self.layers if isinstance(layer.mlp, Experts))


# ---------------------------------------------------------------------------------------- data
class Source:
    """Training documents: [T] tokens, positions with gaps, loss weights, and answer marks."""

    def __init__(self, tokenizer_path, accept):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.counter = mr.TokenCounter(tokenizer_path)
        self.accept = accept
        vocab = self.tokenizer.get_vocab()
        self.ends_sentence = np.zeros(len(vocab), bool)
        self.is_digit = np.zeros(len(vocab), bool)
        for token, i in vocab.items():
            self.ends_sentence[i] = token.startswith(".")
            self.is_digit[i] = token.isdigit()

    def text(self, rng, n_tokens, question_share):
        """A document with many questions -> text, and the character ranges of the answers."""
        # Where kinds tell few records apart, the model would learn to match the kind and never the name.
        kind = rng.choice(mr.KINDS) if rng.random() < 0.8 else None
        document = mr.Document(rng, rng.choice((0.0, 0.2, 0.35, 0.35, 0.6)), self.accept, kind)
        total, limit = 0, n_tokens * (1 - question_share * rng.uniform(0.6, 1.0))
        while True:
            piece, record = document.next_piece()
            total += self.counter.count(piece)
            if total > limit and document.records:
                break
            document.add(piece, record)
        parts, spans, length = [document.text()], [], len(document.text())
        for record in rng.sample(document.records, len(document.records)):
            question = "\n\nQ: " + record.question() + "\nA:"
            total += self.counter.count(question + record.answer()) + 1
            if total > n_tokens:
                break
            # Mostly an answer is closed by the end token; now and then a plain blank line follows.
            answer = record.answer() + (mr.END if rng.random() < 0.8 else "")
            begin = length + len(question)
            spans.append((begin, begin + len(answer)))
            parts += [question, answer]
            length = begin + len(answer)
        return "".join(parts), spans

    def batch(self, rng, n_docs, n_tokens, question_share):
        texts, spans = zip(*[self.text(rng, n_tokens, question_share) for _ in range(n_docs)])
        ids = np.zeros((n_docs, n_tokens + 1), np.int64)
        weight = np.zeros((n_docs, n_tokens + 1), np.float32)
        answer = np.full((n_docs, n_tokens + 1), -1, np.int64)  # number of the question it answers
        positions = np.zeros((n_docs, n_tokens + 1), np.int64)
        n_questions = 0
        for row, encoding in enumerate(self.tokenizer.encode_batch(list(texts))):
            n = min(len(encoding.ids), n_tokens + 1)
            tokens = np.array(encoding.ids[:n])
            ids[row, :n] = tokens
            start = np.array([o[0] for o in encoding.offsets[:n]])
            end = np.array([o[1] for o in encoding.offsets[:n]])
            # A quarter of the plain language has a small weight; the numbers inside records, which are
            # pure chance, have none.
            weight[row, row % 4:n:4] = 0.4
            weight[row, :n][self.is_digit[tokens]] = 0.0
            for begin, stop in spans[row]:
                inside = (start >= begin) & (end <= stop)
                if inside.any():
                    weight[row, :n][inside] = np.where(self.is_digit[tokens[inside]], 1.0, 0.3)
                    answer[row, :n][inside] = n_questions
                    n_questions += 1
            positions[row, :n] = self.positions(rng, tokens)
            positions[row, n:] = positions[row, n - 1]
        return ids, positions, weight, answer, n_questions

    def positions(self, rng, tokens):
        """Consecutive within a sentence; between sentences gaps that spread over a random range."""
        n = len(tokens)
        plain = np.arange(n)
        if rng.random() < 0.25:
            return plain
        span = math.exp(rng.uniform(math.log(n), math.log(MAX_POSITIONS - 1)))
        noise = np.random.default_rng(rng.getrandbits(32))
        gaps = np.zeros(n)
        spots = np.flatnonzero(self.ends_sentence[tokens[:-1]]) + 1
        gaps[spots] = noise.exponential(size=len(spots)) ** rng.choice((1, 2))
        gaps[0] = noise.exponential()
        gaps *= max(0.0, span - n) / max(gaps.sum(), 1e-9)
        return plain + np.cumsum(gaps).astype(np.int64)


# ----------------------------------------------------------------------------------- optimizer
def orthogonalize(g):
    """Newton-Schulz iteration towards the nearest orthogonal matrix (Muon, Jordan et al. 2024), of
    one matrix or of one for each expert."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    if g.size(-2) > g.size(-1):
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return (x.mT if g.size(-2) > g.size(-1) else x).float()


class Optimizer:
    """Muon for the matrices, Adam for embedding, routers and norms; float32 masters of bfloat16 weights."""

    def __init__(self, model, lr_matrix, lr_other):
        self.items = []
        for name, p in model.named_parameters():
            muon = p.ndim >= 2 and "embed" not in name and "mlp.gate." not in name
            self.items.append({"p": p, "muon": muon, "lr": lr_matrix if muon else lr_other,
                               "master": p.detach().float().clone(),
                               "m": torch.zeros_like(p, dtype=torch.float32),
                               "v": None if muon else torch.zeros_like(p, dtype=torch.float32)})
        self.t = 0

    @torch.no_grad()
    def step(self, scale):
        self.t += 1
        for it in self.items:
            g, p, m = it["p"].grad.float(), it["p"], it["m"]
            if it["muon"]:
                m.mul_(0.95).add_(g)
                update = orthogonalize(g + 0.95 * m) * max(1.0, p.size(-2) / p.size(-1)) ** 0.5
                it["master"].mul_(1 - 0.01 * it["lr"] * scale)
            else:
                m.lerp_(g, 0.1)
                it["v"].lerp_(g * g, 0.02)
                update = (m / (1 - 0.9 ** self.t)) / ((it["v"] / (1 - 0.98 ** self.t)).sqrt() + 1e-10)
            it["master"].add_(update, alpha=-it["lr"] * scale)
            p.copy_(it["master"])
            p.grad = None

    def state(self):
        return {"t": self.t, "items": [{k: it[k] for k in ("master", "m", "v")} for it in self.items]}

    @torch.no_grad()
    def load(self, state):
        self.t = state["t"]
        for it, saved in zip(self.items, state["items"]):
            it.update(saved)
            it["p"].copy_(it["master"])


# ------------------------------------------------------------------------------------ training
def losses(model, ids, positions, weight, forward):
    """-> weighted loss, prediction right [N], flat index of the N positions that carry weight"""
    cos, sin = model.rope(torch.from_numpy(positions[:, :-1]), torch.bfloat16)
    hidden, _ = forward(torch.from_numpy(ids[:, :-1]), cos, sin)
    target_weight = torch.from_numpy(weight[:, 1:]).reshape(-1)
    index = target_weight.nonzero()[:, 0]
    logits = model.logits(hidden.reshape(-1, hidden.size(-1))[index]).float()
    target = torch.from_numpy(ids[:, 1:]).reshape(-1)[index]
    each = F.cross_entropy(logits, target, reduction="none")
    w = target_weight[index]
    return (each * w).sum() / w.sum(), each.detach(), logits.detach().argmax(-1) == target, index


def answers_right(answer, right, index, n_questions):
    """Share of the questions all of whose answer tokens are predicted."""
    number = torch.from_numpy(answer[:, 1:]).reshape(-1)[index]
    wrong = torch.zeros(n_questions)
    inside = number >= 0
    wrong.index_add_(0, number[inside], (~right[inside]).float())
    return (wrong == 0).float().mean().item()


def average_gradients(model, n_workers):
    flat = torch.cat([p.grad.float().reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= n_workers
    parts = flat.split([p.numel() for p in model.parameters()])
    for p, part in zip(model.parameters(), parts):
        p.grad = part.view_as(p).to(p.dtype)


def train(args):
    """Each worker process computes the gradient of its own documents; all take the same steps."""
    run = pathlib.Path(args.run)
    run.mkdir(parents=True, exist_ok=True)
    meeting = run / ("meeting%d" % os.getpid())
    rank = 0
    while rank < args.workers - 1 and os.fork() == 0:
        rank += 1
    torch.set_num_threads(args.threads)
    if args.workers > 1:
        dist.init_process_group("gloo", "file://%s" % meeting.absolute(), rank=rank,
                                world_size=args.workers)
    torch.manual_seed(SEED)
    stages = [tuple(s) for s in json.loads(args.stages)] if args.stages else STAGES
    source = Source(args.tokenizer, lambda name: not mr.held_out(name))
    model = Model().bfloat16()
    optimizer = Optimizer(model, args.lr_matrix, args.lr_other)
    step, n_seen, spent, first = 0, 0, 0.0, 0
    if args.resume:
        saved = torch.load(args.resume, weights_only=True)
        optimizer.load(saved["optimizer"])
        step, n_seen, spent, first = saved["step"], saved["n_seen"], saved["seconds"], saved["stage"] + 1
        if args.stages:
            first = 0
    forward = torch.compile(model, dynamic=False) if args.compile else model
    log = open(run / "log.csv" if rank == 0 else os.devnull, "a", encoding="utf-8")
    begun = time.time()

    def save(stage, name="last.pt"):
        if rank:
            return
        state = {"optimizer": optimizer.state(), "step": step, "n_seen": n_seen, "stage": stage,
                 "seconds": spent + time.time() - begun}
        torch.save(state, run / "new.pt")
        os.replace(run / "new.pt", run / name)

    for number in range(first, len(stages)):
        n_tokens, n_docs, most, enough, share, rate_begin, rate_end = stages[number]
        smooth = 0.0
        for i in range(most):
            rng = random.Random("%d/train/%d/%d" % (SEED, step, rank))
            ids, positions, weight, answer, n_questions = source.batch(rng, n_docs, n_tokens, share)
            loss, each, right, index = losses(model, ids, positions, weight, forward)
            (loss + args.balance * model.balance()).backward()
            if args.workers > 1:
                average_gradients(model, args.workers)
            rate = rate_begin + (rate_end - rate_begin) * i / most
            optimizer.step(rate * min(1.0, (step + 1) / 50))
            step, n_seen = step + 1, n_seen + n_docs * n_tokens * args.workers
            got = answers_right(answer, right, index, n_questions)
            if step % 10 == 0:
                inside = torch.from_numpy(answer[:, 1:]).reshape(-1)[index] >= 0
                line = (step, n_tokens, n_seen, round(spent + time.time() - begun, 1),
                        round(each[inside].mean().item(), 4), round(each[~inside].mean().item(), 4),
                        round(got, 4))
                log.write(",".join(map(str, line)) + "\n")
                log.flush()
                if step % 50 == 0 and rank == 0:
                    print("step %d  T %d  seen %d  %.0f s  answer loss %.4f  text loss %.4f  right %.3f"
                          % line, flush=True)
            if step % 50 == 0:
                save(number)
            if args.workers > 1:  # every worker ends the stage at the same step
                shared = torch.tensor(got)
                dist.all_reduce(shared)
                got = shared.item() / args.workers
            smooth = 0.95 * smooth + 0.05 * got
            if smooth > enough:
                break
        save(number)
        save(number, "stage%d.pt" % number)


def save_start(model, path):
    state = {"optimizer": Optimizer(model, 0, 0).state(), "step": 0, "n_seen": 0, "stage": -1, "seconds": 0.0}
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


def widen(args):
    """A checkpoint of the --wide shape that computes nearly what the model in `folder` does.

    Net2Net (Chen, Goodfellow, Shlens 2015, arXiv 1511.05641) with new channels that nothing reads
    and nothing writes at first: what reads a new channel is random, what writes it is zero. Only
    the embedding's new columns are small random numbers.
    """
    from safetensors.torch import load_file
    torch.manual_seed(SEED)
    model = Model().bfloat16()
    hidden = CONFIG["hidden_size"]
    weights = load_file(pathlib.Path(args.folder) / "model.safetensors")
    with torch.no_grad():
        model.embed_tokens.weight.mul_(0.4)
        for name, p in model.named_parameters():
            old = weights["model." + name]
            if p.dim() == 2:
                p[:old.size(0), :old.size(1)] = old
            elif p.size(0) == hidden:  # a norm; its mean square is over more channels
                p.fill_((old.size(0) / hidden) ** 0.5)
                p[:old.size(0)] *= old
            else:
                p.copy_(old)
    save_start(model, args.checkpoint)


def upcycle(args):
    """A checkpoint of the --experts shape from the dense model in `folder`.

    Sparse upcycling (Komatsuzaki et al. 2022, arXiv 2212.05055). Each expert is a random half of the
    channels of its layer's mlp, with outputs doubled, so that the mean of two experts is near the mlp.
    A dense mlp keeps the half of its channels with the largest weights.
    """
    from safetensors.torch import load_file
    torch.manual_seed(SEED)
    model = Model().bfloat16()
    weights = load_file(pathlib.Path(args.folder) / "model.safetensors")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "mlp." not in name:
                p.copy_(weights["model." + name])
        for i, layer in enumerate(model.layers):
            gate, up, down = (weights["model.layers.%d.mlp.%s_proj.weight" % (i, role)]
                              for role in ("gate", "up", "down"))
            mlp = layer.mlp
            if isinstance(mlp, MLP):
                n = mlp.gate_proj.weight.size(0)
                keep = (gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)).topk(n).indices
                mlp.gate_proj.weight.copy_(gate[keep])
                mlp.up_proj.weight.copy_(up[keep])
                mlp.down_proj.weight.copy_(down[:, keep])
                continue
            for k in range(mlp.n):
                keep = torch.randperm(gate.size(0))[:mlp.gate_proj.size(1)]
                mlp.gate_proj[k], mlp.up_proj[k] = gate[keep], up[keep]
                mlp.down_proj[k] = down[:, keep] * (gate.size(0) / len(keep))
    save_start(model, args.checkpoint)


# ------------------------------------------------------------------------------ export and test
def tensors(model):
    """parameter, expert or None, name in the file: a tensor for each matrix of each expert."""
    for name, p in model.named_parameters():
        if p.dim() < 3:
            yield p, None, "model." + name
            continue
        layer, role = name.rsplit(".", 1)
        for i in range(len(p)):
            yield p, i, "model.%s.experts.%d.%s.weight" % (layer, i, role)


def export(args):
    from safetensors.torch import save_file
    model = Model().bfloat16()
    Optimizer(model, 0, 0).load(torch.load(args.checkpoint, weights_only=True)["optimizer"])
    # Attention trained at 4,096 tokens is spread too thin at 16,384 and beyond (half the answers wrong);
    # a lower temperature, the same in all heads, mends it without harm to short documents.
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.q_norm.weight.mul_(args.sharpen)
    folder = pathlib.Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({file_name: (p if i is None else p[i]).detach().contiguous()
               for p, i, file_name in tensors(model)},
              folder / "model.safetensors", metadata={"format": "pt"})
    generation = {"eos_token_id": [0], "do_sample": False, "max_new_tokens": 16}
    for name, content in (("config.json", CONFIG), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print("%d parameters" % sum(p.numel() for p in model.parameters()))


@torch.no_grad()
def load_exported(folder):
    from safetensors.torch import load_file
    model = Model().bfloat16()
    weights = load_file(folder / "model.safetensors")
    for p, i, file_name in tensors(model):
        (p if i is None else p[i]).copy_(weights[file_name])
    return model.eval()


@torch.no_grad()
def lookups_right(model, tokenizer, n_tokens, seed, n_questions, path, accept):
    """Asks n_questions of one fresh document, each on its own -> how many were answered exactly.

    The document is computed once; then question by question, teacher-forced: all of the answer's
    tokens (space, digits, full stop, end token) must have the largest logit, which is when greedy
    decoding gives exactly that answer.
    """
    prompt, _, records = mr.make_prompt(n_tokens, seed, 0, path, accept=accept)
    document = prompt[:prompt.rindex("\n\nQ: ")]
    ids = torch.tensor([tokenizer.encode(document).ids[:-1]])  # the last full stop joins the newline
    n, past = ids.size(1), None
    for begin in range(0, n, 4096):
        part = ids[:, begin:begin + 4096]
        cos, sin = model.rope(torch.arange(begin, begin + part.size(1))[None], torch.bfloat16)
        mask = torch.ones(part.size(1), begin + part.size(1), dtype=torch.bool).tril(begin)
        _, presents = model(part, cos, sin, past, mask)
        if past is None:
            past = presents
        else:
            past = [(torch.cat((a[0], b[0]), 2), torch.cat((a[1], b[1]), 2)) for a, b in zip(past, presents)]
    right = 0
    for record in random.Random(seed).sample(records, min(n_questions, len(records))):
        whole = tokenizer.encode(mr.prompt_for(document, record) + record.answer() + mr.END).ids
        tail = torch.tensor([whole[n:]])
        assert whole[:n] == ids[0].tolist()
        m = tail.size(1) - 1
        cos, sin = model.rope(torch.arange(n, n + m)[None], torch.bfloat16)
        mask = torch.ones(m, n + m, dtype=torch.bool).tril(n)
        hidden, _ = model(tail[:, :-1], cos, sin, past, mask)
        n_answer = len(tokenizer.encode(record.answer() + mr.END).ids)
        right += bool((model.logits(hidden[0, -n_answer:]).argmax(-1) == tail[0, -n_answer:]).all())
    return right, min(n_questions, len(records))


def evaluate(args):
    folder = pathlib.Path(args.folder)
    path = folder / "tokenizer.json"
    torch.set_num_threads(args.threads)
    model, tokenizer = load_exported(folder), Tokenizer.from_file(str(path))
    accept = mr.held_out if args.held_out else None
    print("| context (tokens) | documents | lookups | right |\n|---|---|---|---|")
    for n_tokens in args.lengths:
        n_documents = max(1, min(args.documents, args.most_tokens // n_tokens))
        right = total = 0
        for i in range(n_documents):
            r, t = lookups_right(model, tokenizer, n_tokens, args.seed + i, args.questions, path, accept)
            right, total = right + r, total + t
        print("| %d | %d | %d | %.1f %% |" % (n_tokens, n_documents, total, 100 * right / total), flush=True)


@torch.no_grad()
def check(args):
    """The exported folder in transformers: same logits as Model, and whole greedy answers."""
    from transformers import AutoModelForCausalLM
    folder = pathlib.Path(args.folder)
    path = folder / "tokenizer.json"
    ours, tokenizer = load_exported(folder), Tokenizer.from_file(str(path))
    for dtype, text in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
        ours.to(dtype)
        worst, right, n = 0.0, 0, args.prompts
        for seed in range(n):
            prompt, record, _ = mr.make_prompt(args.tokens, 777000 + seed, None, path)
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            cos, sin = ours.rope(torch.arange(ids.size(1))[None], dtype)
            a, b = ours.logits(ours(ids, cos, sin)[0]).float(), theirs(ids).logits.float()
            worst = max(worst, ((a - b).abs().max() / b.abs().max()).item())
            out = theirs.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.size(1):].tolist()
            right += tokenizer.decode(out, skip_special_tokens=False) == record.answer() + mr.END
        print("%s: largest difference of logits %.2e of the largest logit; %d of %d greedy answers right"
              % (text, worst, right, n))


@torch.no_grad()
def routing(args):
    """Which experts the tokens of documents choose, and how often a token keeps an expert of the one before."""
    folder = pathlib.Path(args.folder)
    path = folder / "tokenizer.json"
    torch.set_num_threads(args.threads)
    model, tokenizer = load_exported(folder), Tokenizer.from_file(str(path))
    chosen = {i: [] for i, layer in enumerate(model.layers) if isinstance(layer.mlp, Experts)}
    for seed in range(args.documents):
        prompt, record, _ = mr.make_prompt(args.tokens, 888000 + seed, None, path)
        ids = torch.tensor([tokenizer.encode(prompt + record.answer() + mr.END).ids])
        model(ids, *model.rope(torch.arange(ids.size(1))[None], torch.bfloat16))
        for i in chosen:
            mlp = model.layers[i].mlp
            chosen[i].append(torch.zeros(ids.size(1), mlp.n).scatter(1, mlp.chosen, 1.0))
    print("| layer | entropy (bits) | of at most | largest share | smallest | again | by chance |\n"
          "|---|---|---|---|---|---|---|")
    for i, documents in chosen.items():
        rate = torch.cat(documents).mean(0)  # of tokens that choose an expert
        k = model.layers[i].mlp.n_chosen
        share = rate / k
        entropy = -(share * share.clamp(min=1e-9).log2()).sum()
        again = torch.cat([(d[1:] * d[:-1]).sum(1) / k for d in documents]).mean()
        print("| %d | %.2f | %.2f | %.1f %% | %.1f %% | %.1f %% | %.1f %% |"
              % (i, entropy, math.log2(len(rate)), 100 * share.max(), 100 * share.min(), 100 * again,
                 100 * (rate * rate).sum() / k))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wide", action="store_true", help="the shape of models/records256")
    parser.add_argument("--experts", action="store_true", help="the shape of models/records-experts")
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("tokenizer")
    p.add_argument("folder", type=pathlib.Path)
    p = commands.add_parser("train")
    p.add_argument("run")
    p.add_argument("--tokenizer", default=str(mr.DEFAULT_TOKENIZER))
    p.add_argument("--resume", help="a checkpoint to go on from, at the next stage")
    p.add_argument("--stages", help="a JSON list in place of STAGES")
    p.add_argument("--balance", type=float, default=0.001, help="weight of the load-balancing loss of experts")
    p.add_argument("--lr-matrix", type=float, default=0.02)
    p.add_argument("--lr-other", type=float, default=0.004)
    p.add_argument("--workers", type=int, default=2, help="processes; a step takes the documents of all")
    p.add_argument("--threads", type=int, default=1, help="of each process")
    p.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    for name in "widen", "upcycle":
        p = commands.add_parser(name)
        p.add_argument("folder")
        p.add_argument("checkpoint")
    p = commands.add_parser("export")
    p.add_argument("checkpoint")
    p.add_argument("folder")
    p.add_argument("--sharpen", type=float, default=1.6, help="factor on every q_norm (default 1.6)")
    p = commands.add_parser("eval")
    p.add_argument("folder")
    p.add_argument("--lengths", type=int, nargs="+",
                   default=[256, 1024, 4096, 8192, 16384, 32768, 65536, 131072])
    p.add_argument("--documents", type=int, default=8)
    p.add_argument("--questions", type=int, default=32, help="of each document")
    p.add_argument("--most-tokens", type=int, default=65536, help="of all documents of one length")
    p.add_argument("--seed", type=int, default=555000)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--held-out", action="store_true", help="only names that training never showed")
    p = commands.add_parser("check")
    p.add_argument("folder")
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--prompts", type=int, default=5)
    p = commands.add_parser("routing")
    p.add_argument("folder")
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--documents", type=int, default=8)
    p.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    CONFIG.update(EXPERTS if args.experts else WIDE if args.wide else {})
    {"tokenizer": lambda a: build_tokenizer(a.folder), "train": train, "widen": widen, "upcycle": upcycle,
     "export": export, "eval": evaluate, "check": check,
     "routing": routing}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
