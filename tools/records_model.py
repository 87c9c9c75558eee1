"""The models of tools/train_records.py: their shapes, their layers, and their files.

The names of all parameters are those of Hugging Face, without the prefix `model.`.
"""
import json
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

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

# GLM-4.5's shape, which GGUF holds too. A key without a value is not written.
GLM = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "use_sliding_window": None,
    "use_qk_norm": True,
    "partial_rotary_factor": 1.0,
    "first_k_dense_replace": 2,
    "moe_intermediate_size": 256,
    "n_shared_experts": 1,
    "n_routed_experts": 12,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
}

# models/records-experts: two dense layers, then one with a part that all tokens share and with experts.
EXPERTS = GLM | {"hidden_size": 256, "intermediate_size": 256}

# models/records-mtp: records, and a layer that drafts the token after the next. No layer has experts.
MTP = GLM | {"first_k_dense_replace": CONFIG["num_hidden_layers"] + 1, "num_nextn_predict_layers": 1}


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
    def __init__(self, c, inner):
        super().__init__()
        self.gate_proj = linear(c["hidden_size"], inner)
        self.up_proj = linear(c["hidden_size"], inner)
        self.down_proj = linear(inner, c["hidden_size"])
        nn.init.zeros_(self.down_proj.weight)

    def inside(self, x):
        return F.silu(self.gate_proj(x)) * self.up_proj(x)

    def forward(self, x):
        return self.down_proj(self.inside(x))


class Router(nn.Module):
    """A score in 0 .. 1 for each expert. A bias moves the choice, not the weights of the chosen."""

    def __init__(self, c):
        super().__init__()
        self.n_chosen = c["num_experts_per_tok"]
        self.weight = nn.Parameter(torch.randn(c["n_routed_experts"], c["hidden_size"]) * c["hidden_size"] ** -0.5)
        self.e_score_correction_bias = nn.Parameter(torch.zeros(c["n_routed_experts"]))

    def forward(self, rows):
        scores = F.linear(rows.float(), self.weight.float()).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(self.n_chosen, -1).indices
        weight = scores.gather(1, chosen)
        return chosen, weight / weight.sum(-1, keepdim=True)


class Experts(nn.Module):
    """GLM-4's mixture: an mlp for all rows, and the experts that the router chooses for each row."""

    def __init__(self, c):
        super().__init__()
        self.n, self.factor = c["n_routed_experts"], c["routed_scaling_factor"]
        self.gate = Router(c)
        hidden, inner = c["hidden_size"], c["moe_intermediate_size"]
        self.shared_experts = MLP(c, c["n_shared_experts"] * inner)
        self.gate_proj = nn.Parameter(torch.randn(self.n, inner, hidden) * hidden ** -0.5)
        self.up_proj = nn.Parameter(torch.randn(self.n, inner, hidden) * hidden ** -0.5)
        self.down_proj = nn.Parameter(torch.zeros(self.n, hidden, inner))

    def forward(self, x):
        rows = x.reshape(-1, x.size(-1))
        self.chosen, weight = self.gate(rows)
        order = self.chosen.reshape(-1).argsort()  # pairs of a row and an expert, by expert
        row, counts = order // self.chosen.size(1), self.chosen.reshape(-1).bincount(minlength=self.n)
        # Its gradient lowers the bias of experts that are chosen too often (arXiv 2408.15664).
        self.balance = (self.gate.e_score_correction_bias.float() * (counts / counts.sum() - 1 / self.n)).sum()
        parts = []
        for i, part in enumerate(rows[row].split(counts.tolist())):
            parts.append(F.linear(F.silu(F.linear(part, self.gate_proj[i])) * F.linear(part, self.up_proj[i]),
                                  self.down_proj[i]))
        y = torch.cat(parts) * (self.factor * weight).to(x.dtype).reshape(-1)[order, None]
        return self.shared_experts(x) + torch.zeros_like(rows).index_add(0, row, y).view_as(x)


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c["hidden_size"]), Norm(c["hidden_size"])
        self.self_attn = Attention(c)
        dense = i < c.get("first_k_dense_replace", c["num_hidden_layers"])
        self.mlp = MLP(c, c["intermediate_size"]) if dense else Experts(c)

    def forward(self, x, cos, sin, past=None, mask=None):
        y, present = self.self_attn(self.input_layernorm(x), cos, sin, past, mask)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), present


class MtpLayer(Layer):
    """Drafts the token after the next (multi-token prediction, DeepSeek-V3, arXiv 2412.19437): of a token and the last
    hidden state of the token before it, both normed, it makes what embedding and head of the model can read."""

    def __init__(self, c):
        super().__init__(c, c["num_hidden_layers"])
        hidden = c["hidden_size"]
        self.enorm, self.hnorm, self.eh_proj = Norm(hidden), Norm(hidden), linear(2 * hidden, hidden)
        self.shared_head = nn.ModuleDict({"norm": Norm(hidden)})

    def forward(self, embedded, hidden, cos, sin, past=None, mask=None):
        """embedded, hidden [B, T, hidden]: of a token, and of the token before it -> as Layer, after the last norm"""
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1))
        x, present = super().forward(x, cos, sin, past, mask)
        return self.shared_head["norm"](x), present


class Model(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.n_layers = c["num_hidden_layers"]
        self.layers = nn.ModuleList(Layer(c, i) for i in range(self.n_layers))
        self.layers.extend(MtpLayer(c) for _ in range(c.get("num_nextn_predict_layers", 0)))
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
        for i in range(self.n_layers):
            x, present = self.layers[i](x, cos, sin, past[i] if past else None, mask)
            presents.append(present)
        return self.norm(x), presents

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight)

    def balance(self):
        """What balances the experts after the last call, summed over layers; 0 without experts."""
        return sum(layer.mlp.balance for layer in self.layers if isinstance(layer.mlp, Experts))


def choose_shape(changes):
    CONFIG.update(changes)
    for key in [key for key, value in changes.items() if value is None]:
        del CONFIG[key]


# --------------------------------------------------------------------------------------- files
def tensors(model):
    """parameter, expert or None, name in the file: a tensor for each matrix of each expert."""
    for name, p in model.named_parameters():
        if p.dim() < 3:
            yield p, None, "model." + name
            continue
        layer, role = name.rsplit(".", 1)
        for i in range(len(p)):
            yield p, i, "model.%s.experts.%d.%s.weight" % (layer, i, role)


@torch.no_grad()
def export_model(model, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: (p if i is None else p[i]).detach().contiguous() for p, i, name in tensors(model)}
    for name in weights:
        if name.endswith("e_score_correction_bias"):  # transformers holds it in f32
            weights[name] = weights[name].float()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    generation = {"eos_token_id": [0], "do_sample": False, "max_new_tokens": 16}
    for name, content in (("config.json", CONFIG), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def load_exported(folder):
    model = Model().bfloat16()
    weights = load_file(pathlib.Path(folder) / "model.safetensors")
    for p, i, name in tensors(model):
        (p if i is None else p[i]).copy_(weights[name])
    return model.eval()


# -------------------------------------------------------------------------------------- losses
def losses(model, ids, positions, weight, forward):
    """-> weighted loss, prediction right [N], flat index of the N positions that carry weight"""
    cos, sin = model.rope(torch.from_numpy(positions[:, :-1]), model.embed_tokens.weight.dtype)
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
