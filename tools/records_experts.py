"""A mixture of experts out of a dense model, and what its router does (tools/train_records.py --experts)."""
import math
import pathlib
import random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import make_records as mr
from records_data import SEED, Source
from records_model import MLP, Experts, answers_right, load_exported, losses

# To how many experts a channel of the dense mlp goes.
OWNERS = 2


def clusters(x, n, rounds=30):
    """Directions of n clusters of the rows of x (spherical k-means)."""
    x = F.normalize(x, dim=1)
    centre = x[torch.randperm(len(x))[:1]]
    for _ in range(1, n):  # each further one is far from those before
        far = (1 - (x @ centre.T).amax(1)).clamp(min=0)
        centre = torch.cat((centre, x[torch.multinomial(far, 1)]))
    for _ in range(rounds):
        nearest = (x @ centre.T).argmax(1)
        centre = F.normalize(torch.zeros_like(centre).index_add(0, nearest, x), dim=1)
    return centre


def copy_channels(to, source, keep):
    """to, source: gate, up, down; the first channels of `to` become the channels `keep` of `source`."""
    n = len(keep)
    to[0][:n], to[1][:n], to[2][:, :n] = source[0][keep], source[1][keep], source[2][:, keep]


def weights_of(mlp):
    return mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight


@torch.no_grad()
def mlp_inputs(model, mlp, source, n_batches):
    """The rows that mlp gets while the model reads training documents."""
    inputs = []
    hook = mlp.register_forward_pre_hook(lambda _, x: inputs.append(x[0].reshape(-1, x[0].size(-1)).float()))
    for i in range(n_batches):
        ids, positions, weight, _, _ = source.batch(random.Random("%d/split/%d" % (SEED, i)), 8, 1024, 0.4)
        losses(model, ids, positions, weight, model)
    hook.remove()
    return torch.cat(inputs)


@torch.no_grad()
def split(model, weights, source, n_batches=4):
    """Fills the model from the weights of a dense one with the same widths and mlps of twice the channels."""
    for name, p in model.named_parameters():
        if "mlp." not in name:
            p.copy_(weights["model." + name])
    for i, layer in enumerate(model.layers):
        dense = [weights["model.layers.%d.mlp.%s_proj.weight" % (i, role)] for role in ("gate", "up", "down")]
        if isinstance(layer.mlp, MLP):
            n = layer.mlp.gate_proj.weight.size(0)
            keep = (dense[0].norm(dim=1) * dense[1].norm(dim=1) * dense[2].norm(dim=0)).topk(n).indices
            copy_channels(weights_of(layer.mlp), dense, keep)
        else:
            split_mlp(layer.mlp, dense, mlp_inputs(model, layer.mlp, source, n_batches))


def split_mlp(mlp, dense, x):
    """Shared: a quarter of the channels, those that all kinds of rows use alike. The others go to the experts whose
    rows use them most. All else is new: its inputs are random, its outputs zero."""
    gate, up, down = (w.float() for w in dense)
    centre = clusters(x, mlp.n)
    centre -= centre.mean(0)
    mlp.gate.weight.copy_(centre * (2 / (x @ centre.T).std()))
    rows = torch.zeros(len(x), mlp.n).scatter(1, mlp.gate(x)[0], 1.0)
    use = (F.silu(x @ gate.T) * (x @ up.T)).abs() * down.norm(dim=0)
    use = (rows.T @ use) / rows.sum(0)[:, None]  # [experts, channels]
    quarter = gate.size(0) // 4
    alive = use.mean(0).argsort(descending=True)[:3 * quarter]
    even = use[:, alive].amax(0) / use[:, alive].mean(0)
    shared = alive[even.argsort()[:quarter]]
    copy_channels(weights_of(mlp.shared_experts), dense, shared)
    use[:, shared] = 0
    owners = torch.zeros_like(use).scatter(0, use.topk(OWNERS, 0).indices, 1.0).bool() & (use > 0)
    for k in range(mlp.n):
        copy_channels((mlp.gate_proj[k], mlp.up_proj[k], mlp.down_proj[k]), dense, owners[k].nonzero()[:, 0])


# ------------------------------------------------------------------------------------- routing
@torch.no_grad()
def routing(model, mlp, documents):
    """-> entropy of the experts' shares, largest and smallest share, and which part of its experts a token has in
    common with the token before: counted, and as it would be by chance"""
    rows = []
    for ids in documents:
        model(ids, *model.rope(torch.arange(ids.size(1))[None], torch.bfloat16))
        rows.append(torch.zeros(ids.size(1), mlp.n).scatter(1, mlp.chosen, 1.0))
    k = mlp.chosen.size(1)
    rate = torch.cat(rows).mean(0)  # of tokens that choose an expert
    share = rate / k
    entropy = -(share * share.clamp(min=1e-9).log2()).sum()
    again = torch.cat([(d[1:] * d[:-1]).sum(1) / k for d in rows]).mean()
    return entropy, share.max(), share.min(), again, (rate * rate).sum() / k


@torch.no_grad()
def shifted(model, mlp, by, batches):
    """What is lost if each row gets the experts `by` places behind its own ones -> nats and tokens of text, right
    answers, questions"""
    weight, bias = mlp.gate.weight, mlp.gate.e_score_correction_bias
    own = weight.clone(), bias.clone()
    weight.copy_(own[0].roll(by, 0))
    bias.copy_(own[1].roll(by, 0))
    sums = torch.zeros(4)
    for ids, positions, w, answer, n_questions in batches:
        _, each, right, index = losses(model, ids, positions, w, model)
        text = torch.from_numpy(answer[:, 1:]).reshape(-1)[index] < 0
        sums += torch.tensor([each[text].sum(), text.sum(),
                              answers_right(answer, right, index, n_questions) * n_questions, n_questions])
    weight.copy_(own[0])
    bias.copy_(own[1])
    return sums


def print_routing(args):
    folder = pathlib.Path(args.folder)
    path = folder / "tokenizer.json"
    torch.set_num_threads(args.threads)
    model, tokenizer = load_exported(folder), Tokenizer.from_file(str(path))
    prompts = [mr.make_prompt(args.tokens, 888000 + seed, None, path)[:2] for seed in range(args.documents)]
    documents = [torch.tensor([tokenizer.encode(text + record.answer() + mr.END).ids]) for text, record in prompts]
    source = Source(path, None)
    batches = [source.batch(random.Random("%d/shifted/%d" % (SEED, i)), 4, 1024, 0.4) for i in range(args.documents)]
    for i, mlp in [(i, layer.mlp) for i, layer in enumerate(model.layers) if isinstance(layer.mlp, Experts)]:
        print("| layer | entropy (bits) | of at most | largest share | smallest | again | by chance |\n"
              "|---|---|---|---|---|---|---|")
        entropy, most, least, again, chance = routing(model, mlp, documents)
        print("| %d | %.2f | %.2f | %.1f %% | %.1f %% | %.1f %% | %.1f %% |\n"
              % (i, entropy, math.log2(mlp.n), 100 * most, 100 * least, 100 * again, 100 * chance))
        print("| router shifted by | nats a token | answers right |\n|---|---|---|")
        for by in range(mlp.n):
            nats, tokens, right, questions = shifted(model, mlp, by, batches).tolist()
            print("| %d | %.3f | %.0f of %.0f |" % (by, nats / tokens, right, questions), flush=True)
