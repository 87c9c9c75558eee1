"""A layer that drafts tokens for a trained model, and how often it is right (tools/train_records.py --mtp).

Only the new layer learns (model.layers[-1], MtpLayer). Its target is what the model itself would say there, and not the
document: a draft stays in a run if the model picks the same token.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import make_records as mr
from records_model import CONFIG, load_exported


@torch.no_grad()
def add_layer(model, weights):
    """The model with these weights; the new layer begins as the model's last one, and adds what it gets."""
    last, new = "layers.%d." % (model.n_layers - 1), "layers.%d." % model.n_layers
    for name, p in model.named_parameters():
        old = weights.get("model." + name.replace(new, last))
        if old is not None:
            p.copy_(old)
    model.layers[-1].shared_head["norm"].weight.copy_(model.norm.weight)
    half = CONFIG["hidden_size"]
    model.layers[-1].eh_proj.weight[:, :half] += 0.5 * torch.eye(half)
    model.layers[-1].eh_proj.weight[:, half:] += 0.5 * torch.eye(half)


def freeze(model):
    model.requires_grad_(False)
    model.layers[-1].requires_grad_(True)


def draft(model, ids, hidden, cos, sin):
    """ids [B, T], hidden [B, T, H] of the model -> [B, T, H]: row i drafts what follows token i; and (k, v). Before
    the first token there is no hidden state: zeros."""
    before = F.pad(hidden[:, :-1], (0, 0, 1, 0))
    return model.layers[-1](model.embed_tokens(ids), before, cos, sin)


def mtp_losses(model, ids, positions, weight, forward):
    """As records_model.losses, for the new layer: cross entropy to the model's own probabilities."""
    cos, sin = model.rope(torch.from_numpy(positions[:, :-1]), model.embed_tokens.weight.dtype)
    ids = torch.from_numpy(ids[:, :-1])
    with torch.no_grad():
        hidden, _ = forward(ids, cos, sin)
    target_weight = torch.from_numpy(weight[:, 1:]).reshape(-1)
    index = target_weight.nonzero()[:, 0]
    drafted, _ = draft(model, ids, hidden, cos, sin)
    with torch.no_grad():
        target = model.logits(hidden.flatten(0, 1)[index]).float().softmax(-1)
    logits = model.logits(drafted.flatten(0, 1)[index]).float()
    each = F.cross_entropy(logits, target, reduction="none")
    w = target_weight[index]
    return (each * w).sum() / w.sum(), each.detach(), logits.detach().argmax(-1) == target.argmax(-1), index


@torch.no_grad()
def their_draft(theirs, ours, ids, hidden):
    """As draft(), by the layer of transformers (its loader takes a layer with experts only)."""
    from transformers.modeling_layers import MtpLayer
    decoder = theirs.get_decoder()
    block, norm = type(decoder.layers[0]), type(decoder.norm)
    layer = MtpLayer(theirs.config, block, norm, ours.n_layers).to(hidden.dtype)
    names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "shared_head": "post_norm"}
    weights = {}
    for name, p in ours.layers[-1].named_parameters():
        first = name.split(".")[0]
        weights[names[first] + ".weight" if first in names else "mtp_block." + name] = p
    layer.load_state_dict(weights)
    positions = torch.arange(ids.size(1))[None]
    mask = torch.full((ids.size(1),) * 2, torch.finfo(hidden.dtype).min, dtype=hidden.dtype).triu(1)
    embedded, before = decoder.embed_tokens(ids), F.pad(hidden[:, :-1], (0, 0, 1, 0))
    return layer(embedded, before, decoder.rotary_emb(embedded, positions), mask[None, None], positions, None)


# ------------------------------------------------------------------------------- drafts of own text
@torch.no_grad()
def write_on(model, ids, n_new, end):
    """ids [1, T] with at most n_new greedy tokens more, up to the end token `end` (None: it does not count)
    -> ids, hidden states of all but the last token"""
    rows, past, new = [], None, ids
    for _ in range(n_new):
        n = ids.size(1) - new.size(1)
        cos, sin = model.rope(torch.arange(n, ids.size(1))[None], torch.bfloat16)
        hidden, present = model(new, cos, sin, past, None if past is None else torch.ones(1, n + 1).bool())
        past = present if past is None else [(torch.cat((a[0], b[0]), 2), torch.cat((a[1], b[1]), 2))
                                             for a, b in zip(past, present)]
        rows.append(hidden)
        new = model.logits(hidden[:, -1:]).argmax(-1)
        ids = torch.cat((ids, new), 1)
        if new.item() == end:
            break
    return ids, torch.cat(rows, 1)


@torch.no_grad()
def drafts_right(model, ids, hidden, n_prompt, most):
    """For each token from n_prompt on, but the last: how many of `most` drafts after it are right. Each draft after
    the first one follows from the layer's own output and the token drafted before."""
    layer, n = model.layers[-1], ids.size(1)
    cos, sin = model.rope(torch.arange(n + most)[None], torch.bfloat16)
    out, past = draft(model, ids[:, :-1], hidden, cos[:, :, :n - 1], sin[:, :, :n - 1])
    at = torch.arange(n_prompt, n - 1)  # the newest token of each draft; a row of the batch
    out = out[0, at, None]
    mask = (torch.arange(n - 1) <= at[:, None])[:, None, None]  # [B, 1, 1, n - 1]: what it sees
    right, all_right = torch.zeros(len(at), dtype=torch.long), torch.ones(len(at), dtype=torch.bool)
    for i in range(1, most + 1):
        token = model.logits(out).argmax(-1)  # [B, 1]
        all_right &= (at + i < n) & (token[:, 0] == ids[0, (at + i).clamp(max=n - 1)])
        right += all_right
        mask = F.pad(mask, (0, 1), value=True)
        place = (at + i).clamp(max=n + most - 1)
        out, present = layer(model.embed_tokens(token), out, cos[0, 0, place][:, None, None],
                             sin[0, 0, place][:, None, None], past, mask)
        past = [torch.cat((a.expand(len(at), -1, -1, -1), b), 2) for a, b in zip(past, present)]
    return right.tolist()


def stayed(right, n_drafts):
    """-> drafts that stay, and steps, where each step has n_drafts drafts and goes on behind its last token."""
    n_stayed, n_steps, at = 0, 0, 0
    while at < len(right):
        n = min(right[at], n_drafts)
        n_stayed, n_steps, at = n_stayed + n, n_steps + 1, at + n + 1
    return n_stayed, n_steps


def drafts_of_texts(model, texts, n_new, end, most):
    """texts: ids [1, T] of prompts -> tokens written, and a row of drafts_right for each text"""
    n_tokens, rows = 0, []
    for ids in texts:
        text, hidden = write_on(model, ids, n_new, end)
        rows.append(drafts_right(model, text, hidden, ids.size(1), most))
        n_tokens += text.size(1) - ids.size(1)
    return n_tokens, rows


def print_drafts(args, most=4):
    """Of texts that the model writes: after which share of the tokens all of k drafts are right, and how many of k stay
    in a step."""
    folder = pathlib.Path(args.folder)
    path = folder / "tokenizer.json"
    torch.set_num_threads(args.threads)
    model, tokenizer = load_exported(folder), Tokenizer.from_file(str(path))
    questions = [mr.make_prompt(args.tokens, args.seed + i, None, path)[0] for i in range(args.documents)]
    documents = [text[:text.rindex("\n\nQ: ")] for text in questions]
    heads = ["%s %d" % (what, k) for what in ("all right of", "stay of") for k in range(1, most + 1)]
    print("| text | tokens | %s |\n|---|---|%s" % (" | ".join(heads), "---|" * len(heads)))
    for name, prompts, n_new, end in (("answers", questions, 32, 0), ("documents", documents, 128, None)):
        if args.write:
            with open("%s.%s.jsonl" % (args.write, name), "w", encoding="utf-8") as out:
                out.writelines(json.dumps({"id": i, "prompt": p}) + "\n" for i, p in enumerate(prompts))
        texts = [torch.tensor([tokenizer.encode(p).ids]) for p in prompts]
        n_tokens, rows = drafts_of_texts(model, texts, n_new, end, most)
        shares, means = [], []
        for k in range(1, most + 1):
            shares.append("%.1f %%" % (100 * sum(r >= k for right in rows for r in right) / sum(map(len, rows))))
            n_stayed, n_steps = map(sum, zip(*(stayed(right, k) for right in rows)))
            means.append("%.2f" % (n_stayed / n_steps))
        print("| %s | %d | %s |" % (name, n_tokens, " | ".join(shares + means)), flush=True)
