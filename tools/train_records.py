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

    venv/bin/python tools/train_records.py --experts split models/records256 RUN/start.pt
    venv/bin/python tools/train_records.py --experts train RUN --resume RUN/start.pt --stages STAGES
    venv/bin/python tools/train_records.py --experts export RUN/last.pt models/records-experts --sharpen 1
    venv/bin/python tools/train_records.py --experts routing models/records-experts

models/records-mtp is models/records with a layer that drafts tokens:

    venv/bin/python tools/train_records.py --mtp draft models/records RUN/start.pt
    venv/bin/python tools/train_records.py --mtp train RUN --resume RUN/start.pt --stages STAGES
    venv/bin/python tools/train_records.py --mtp export RUN/last.pt models/records-mtp --sharpen 1
    venv/bin/python tools/train_records.py --mtp eval models/records-mtp     # how many drafts stay

A tool for the authors: users of spillway need none of these packages. How it learns to reach far:
* Curriculum: documents of a few hundred tokens first, until the lookup forms, then longer and longer,
  because the distractors whose attention weights add up grow with the length.
* Rotary positions: theta is so large that a third of each head hardly rotates within 131,072 positions
  and can match by content at any distance; and training leaves random gaps between the positions of
  neighbouring sentences, so that distances up to 131,072 are met in short sequences.
* q_norm and k_norm (Qwen3) carry a learned temperature, which keeps attention sharp.
* Every document is followed by many questions, and the loss lies mostly on their answers.

The other parts: records_model.py has shapes, layers and files, records_data.py tokenizer and documents,
records_experts.py how a mixture begins and what its router does, records_mtp.py the layer that drafts.
"""
import argparse
import json
import os
import pathlib
import random
import sys
import time

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from tokenizers import Tokenizer

import make_records as mr
from records_data import SEED, Source, build_tokenizer
from records_experts import print_routing, split
from records_model import (CONFIG, EXPERTS, MTP, WIDE, Model, answers_right, choose_shape, export_model,
                           load_exported, losses)
from records_mtp import add_layer, draft, freeze, mtp_losses, print_drafts, their_draft

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
            if it["p"].grad is None:  # of a model that is frozen
                continue
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
def average_gradients(model, n_workers):
    learning = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.float().reshape(-1) for p in learning])
    dist.all_reduce(flat)
    flat /= n_workers
    parts = flat.split([p.numel() for p in learning])
    for p, part in zip(learning, parts):
        p.grad = part.view_as(p).to(p.dtype)


def training_source(args):
    return Source(args.tokenizer, lambda name: not mr.held_out(name))


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
    source = training_source(args)
    model = Model().bfloat16()
    loss_of = losses
    if args.mtp:
        freeze(model)
        loss_of = mtp_losses
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
            loss, each, right, index = loss_of(model, ids, positions, weight, forward)
            (loss + model.balance()).backward()
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


def begin(args):
    """A checkpoint of the chosen shape from the model in `folder`."""
    torch.manual_seed(SEED)
    model, weights = Model().bfloat16(), load_file(pathlib.Path(args.folder) / "model.safetensors")
    if args.command == "split":
        split(model, weights, training_source(args))
    elif args.command == "draft":
        add_layer(model, weights)
    else:
        widen(model, weights)
    state = {"optimizer": Optimizer(model, 0, 0).state(), "step": 0, "n_seen": 0, "stage": -1, "seconds": 0.0}
    pathlib.Path(args.checkpoint).parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, args.checkpoint)


@torch.no_grad()
def widen(model, weights):
    """Fills the model so that it computes nearly what the narrower one with these weights does.

    Net2Net (Chen, Goodfellow, Shlens 2015, arXiv 1511.05641) with new channels that nothing reads
    and nothing writes at first: what reads a new channel is random, what writes it is zero. Only
    the embedding's new columns are small random numbers.
    """
    hidden = CONFIG["hidden_size"]
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


# ------------------------------------------------------------------------------ export and test
def export(args):
    model = Model().bfloat16()
    Optimizer(model, 0, 0).load(torch.load(args.checkpoint, weights_only=True)["optimizer"])
    # Attention trained at 4,096 tokens is spread too thin at 16,384 and beyond (half the answers wrong);
    # a lower temperature, the same in all heads, mends it without harm to short documents.
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.q_norm.weight.mul_(args.sharpen)
    export_model(model, args.folder)
    print("%d parameters" % sum(p.numel() for p in model.parameters()))


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


def difference(a, b):
    return ((a - b).float().abs().max() / b.float().abs().max()).item()


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
        worst, right, n, worst_draft = 0.0, 0, args.prompts, 0.0
        for seed in range(n):
            prompt, record, _ = mr.make_prompt(args.tokens, 777000 + seed, None, path)
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            cos, sin = ours.rope(torch.arange(ids.size(1))[None], dtype)
            hidden = ours(ids, cos, sin)[0]
            worst = max(worst, difference(ours.logits(hidden), theirs(ids).logits))
            if args.mtp:
                worst_draft = max(worst_draft, difference(draft(ours, ids, hidden, cos, sin)[0],
                                                          their_draft(theirs, ours, ids, hidden)))
            out = theirs.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.size(1):].tolist()
            right += tokenizer.decode(out, skip_special_tokens=False) == record.answer() + mr.END
        print("%s: largest difference of logits %.2e of the largest logit; %d of %d greedy answers right"
              % (text, worst, right, n))
        if args.mtp:
            print("%s: largest difference of what the new layer gives %.2e" % (text, worst_draft))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wide", action="store_true", help="the shape of models/records256")
    parser.add_argument("--experts", action="store_true", help="the shape of models/records-experts")
    parser.add_argument("--mtp", action="store_true", help="the shape of models/records-mtp")
    parser.add_argument("--tokenizer", default=str(mr.DEFAULT_TOKENIZER))
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("tokenizer")
    p.add_argument("folder", type=pathlib.Path)
    p = commands.add_parser("train")
    p.add_argument("run")
    p.add_argument("--resume", help="a checkpoint to go on from, at the next stage")
    p.add_argument("--stages", help="a JSON list in place of STAGES")
    p.add_argument("--lr-matrix", type=float, default=0.02)
    p.add_argument("--lr-other", type=float, default=0.004)
    p.add_argument("--workers", type=int, default=2, help="processes; a step takes the documents of all")
    p.add_argument("--threads", type=int, default=1, help="of each process")
    p.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    for name in "widen", "split", "draft":
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
    p.add_argument("--tokens", type=int, default=1024, help="--mtp: of each document")
    p.add_argument("--write", metavar="PREFIX", help="--mtp: PREFIX.answers.jsonl and PREFIX.documents.jsonl, the prompts")
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
    choose_shape(EXPERTS if args.experts else WIDE if args.wide else {})
    choose_shape(MTP if args.mtp else {})
    {"tokenizer": lambda a: build_tokenizer(a.folder), "train": train, "widen": begin, "split": begin,
     "draft": begin, "export": export, "eval": print_drafts if args.mtp else evaluate, "check": check,
     "routing": print_routing}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
