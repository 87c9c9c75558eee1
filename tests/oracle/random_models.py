#!/usr/bin/env python3
"""Compares all logits of random models with transformers (float32, eager attention).

usage: random_models.py TEST_GOLDENS [COUNT]        (the built test_goldens; 8 models)

Every round draws a model of any family: sizes, biases, windows, layer_types, rope, activation, an
output matrix that is tied, not tied, tied in config.json but different in the file, or alone in the
file; the type of the stored weights; a multimodal wrapper; names without a prefix; shards. transformers
loads the folder itself, and computes a prompt that is longer than the window; test_goldens wants each
logit within 1e-5 of the largest one of its row. Exit 77 where torch or transformers are missing.
SPW_SEED repeats a run. A folder that failed is kept.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

try:
    import torch
    import transformers
except ImportError:
    print("skipped: torch or transformers is not installed")
    sys.exit(77)

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
from make_goldens import random_weights, save_weights, write_json  # noqa: E402

STORED = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BATCH = 24  # models between two runs of test_goldens


def draw_rope(draw):
    """Keys of config.json, in either generation."""
    kind = draw.choice(["default", "default", "linear", "dynamic", "llama3", "yarn"])
    theta = draw.choice([10000.0, 500000.0, 1000000])
    scaling = {"rope_type": kind}
    if kind != "default":
        scaling["factor"] = draw.choice([2.0, 4.0, 8.0])
    if kind == "llama3":
        scaling |= dict(low_freq_factor=1.0, high_freq_factor=4.0)
    if kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = draw.choice([32, 64, 256])
    if draw.random() < 0.5:
        return dict(rope_parameters=scaling | dict(rope_theta=theta))
    return dict(rope_theta=theta) | (dict(rope_scaling=scaling) if kind != "default" else {})


def draw_gemma_rope(draw):
    full = draw.choice([{}, dict(rope_type="linear", factor=8.0)])
    if draw.random() < 0.4:
        return dict(rope_theta=1000000, rope_local_base_freq=10000.0) | (
            dict(rope_scaling=full) if full else {})
    if draw.random() < 0.3:  # means nothing to transformers
        return dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=77.0))
    return dict(rope_parameters=dict(
        full_attention=dict(rope_type="default", rope_theta=500000.0) | full,
        sliding_attention=dict(rope_type="default", rope_theta=20000.0)))


def draw_layer_types(draw, n):
    return [draw.choice(["full_attention", "sliding_attention"]) for _ in range(n)]


def draw_config(draw, family):
    heads = draw.choice([2, 3, 4])
    n = draw.randint(2, 4)
    config = dict(
        model_type=family, hidden_size=heads * draw.choice([8, 12, 16]), num_attention_heads=heads,
        num_key_value_heads=draw.choice([h for h in (1, 2, 3, 4) if heads % h == 0]),
        intermediate_size=draw.randint(20, 70), num_hidden_layers=n, vocab_size=draw.randint(60, 130),
        max_position_embeddings=draw.choice([128, 1024]), rms_norm_eps=draw.choice([1e-5, 1e-6]),
        bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if draw.random() < 0.6 or family in ("mistral", "ministral", "qwen3", "gemma3_text"):
        config["head_dim"] = draw.choice([8, 16, 20])
    window = draw.choice([5, 16, 33, 128, 140])
    if family == "gemma3_text":
        config |= dict(hidden_activation=draw.choice(["gelu_pytorch_tanh", "gelu", "relu"]),
                       query_pre_attn_scalar=draw.choice([8, 16, 24]), sliding_window=window,
                       final_logit_softcapping=draw.choice([None, 6.0, 30.0]),
                       attention_bias=draw.random() < 0.3)
        config |= draw_gemma_rope(draw)
    else:
        config["hidden_act"] = draw.choice(["silu"] * 3 + ["gelu", "gelu_new", "relu", "quick_gelu",
                                                           "gelu_pytorch_tanh"])
        config |= draw_rope(draw)
    if family in ("llama", "qwen3"):
        config["attention_bias"] = draw.random() < 0.4
    if family == "llama":
        config["mlp_bias"] = draw.random() < 0.4
        if draw.random() < 0.2:
            config["layer_types"] = ["full_attention"] * n
    if family in ("mistral", "ministral"):
        config["sliding_window"] = None if family == "mistral" and draw.random() < 0.3 else window
    if family in ("qwen2", "qwen3"):
        config |= dict(use_sliding_window=draw.random() < 0.7, sliding_window=window,
                       max_window_layers=draw.randint(0, n))
    slides = family == "gemma3_text" or (config.get("sliding_window")
                                         and config.get("use_sliding_window", True))
    if family != "llama" and slides and draw.random() < 0.6:
        config["layer_types"] = draw_layer_types(draw, n)
    elif family == "gemma3_text":
        config["sliding_window_pattern"] = draw.choice([2, 3])
    return config


def draw_head(draw, weights, config):
    """What becomes of the output matrix; weights has both."""
    kind = draw.choice(["tied", "untied", "tied, differs", "tied, equal", "tied, head only"])
    config["tie_word_embeddings"] = kind != "untied"
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    if kind == "tied":
        del weights[head]
    if kind in ("tied, equal", "tied, head only"):
        weights[head] = weights[embedding].clone()
    if kind == "tied, head only":
        del weights[embedding]
    return kind


def wrap(config, weights):
    """As multimodal checkpoints of Gemma-3 are: text_config, and a tower for images beside it."""
    whole = dict(model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"],
                 text_config=config, eos_token_id=[1, 3], mm_tokens_per_image=4,
                 boi_token_index=3, eoi_token_index=4, image_token_index=5,
                 tie_word_embeddings=config["tie_word_embeddings"],
                 vision_config=dict(model_type="siglip_vision_model", hidden_size=16,
                                    intermediate_size=16, num_hidden_layers=1,
                                    num_attention_heads=2, image_size=28, patch_size=14))
    return whole, {"language_model." + name: value for name, value in weights.items()}


@torch.no_grad()
def reference(folder, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def make_model(draw, folder):
    """Writes the folder; returns what was drawn, in words."""
    family = draw.choice(["llama", "mistral", "ministral", "qwen2", "qwen3", "gemma3_text"])
    config = draw_config(draw, family)
    plain = transformers.AutoConfig.for_model(**json.loads(json.dumps(
        config | dict(tie_word_embeddings=False))))
    generator = torch.Generator().manual_seed(draw.getrandbits(60))
    weights = random_weights(transformers.AutoModelForCausalLM.from_config(plain), plain, generator)
    weights["model.embed_tokens.weight"] *= 0.4  # tied: or every token would only predict itself
    head = draw_head(draw, weights, config)
    stored = draw.choice(list(STORED))
    weights = {name: value.to(STORED[stored]) for name, value in weights.items()}
    names = "plain"
    if family == "gemma3_text" and draw.random() < 0.5:
        names = "wrapped"
        config, weights = wrap(config, weights)
    elif draw.random() < 0.25:
        names = "no prefix"
        weights = {name.removeprefix("model."): value for name, value in weights.items()}
    folder.mkdir()
    write_json(folder / "config.json", config)
    save_weights(folder, weights, draw.choice([1, 1, 3]))
    n = draw.randint(150, 330)
    vocab = config.get("text_config", config)["vocab_size"]
    ids = [draw.randrange(6, vocab) for _ in range(n)]
    logits = reference(folder, ids)
    (folder / "golden_logits.f32").write_bytes(logits.numpy().astype("<f4").tobytes())
    write_json(folder / "golden.json", dict(ids=ids, positions=list(range(n))))
    listed = "layer_types" in config.get("text_config", config)
    return dict(family=family, head=head, stored=stored, names=names,
                kinds="layer_types" if listed else "by rule",
                act=config.get("text_config", config).get("hidden_act", "gemma's"))


def run_batch(program, folders):
    """{folder: relative error}; of those that could not be run the program's words."""
    done = subprocess.run([program, *map(str, folders)], capture_output=True, text=True)
    errors = {}
    for line in done.stderr.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] in map(str, folders):
            errors[words[0]] = float(words[1])
        elif "failed:" in line:
            print(line)
    return errors, done.returncode


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) == 3 else 8
    seed = int(os.environ.get("SPW_SEED") or random.getrandbits(40))
    print(f"SPW_SEED={seed}", flush=True)
    draw = random.Random(seed)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    place = Path(tempfile.mkdtemp(prefix="spw_random_models_"))
    seen, worst, bad, made = Counter(), 0.0, [], 0
    while made < count:
        folders = {}
        for _ in range(min(BATCH, count - made)):
            folder = place / f"model{made}"
            folders[str(folder)] = make_model(draw, folder)
            made += 1
        errors, code = run_batch(sys.argv[1], folders)
        if code not in (0, 1):
            print(f"test_goldens ended with {code}")
            bad.append(str(code))
        for folder, what in folders.items():
            error = errors.get(folder)
            seen.update(f"{key}: {value}" for key, value in what.items())
            if error is None or not error <= 1e-5:
                print(f"{folder}: {what}: {error}")
                bad.append(folder)
            else:
                worst = max(worst, error)
                shutil.rmtree(folder)
    for key in sorted(seen):
        print(f"  {seen[key]:4} {key}")
    print(f"{made} models, {len(bad)} failed, worst relative error of the others {worst:.2e}")
    if not bad:
        place.rmdir()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
