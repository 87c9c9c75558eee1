#!/usr/bin/env python3
"""Other values of single keys of config.json, compared with transformers (float32, eager attention).

usage: config_keys.py TEST_GOLDENS [FAMILY...]        (the built test_goldens; one family, drawn)

For each family: a random model as random_models.py draws it, and each key that its config class or its code
knows, or that other families have: absent, null, a truth value, other numbers, lists, objects of rope. A family
may be one with a text model inside: the keys are changed there, and at the top of the file. The weights stay
where the shapes of tensors do. Spillway must compute what transformers computes, or refuse the file. Where
transformers refuses, another answer than that of the unchanged file is printed.
Exit 77 where torch or transformers are missing. SPW_SEED repeats a run; folders that failed are kept.
"""
import copy
import dataclasses
import inspect
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "golden")]
import random_models  # noqa: E402
from random_models import FAMILIES, torch, transformers  # noqa: E402
from make_goldens import QWEN_VISION, random_weights, save_weights, write_json  # noqa: E402

N_TOKENS = 90
SAME = 1e-3  # of the largest logit: a key that is read wrongly changes more, rounding errors less
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
KINDS = ["full_attention", "sliding_attention", "chunked_attention"]
ROPES = [{}, dict(rope_theta=5e5), YARN, dict(type="yarn", factor=2.0), dict(rope_type="linear", factor=3.0),
         dict(type="linear", factor=3.0), dict(rope_type="dynamic", factor=2.0), dict(YARN, truncate=False, mscale=0.7),
         dict(full_attention=dict(YARN, rope_theta=5e4), sliding_attention=dict(rope_theta=77.0)),
         dict(full_attention=dict(rope_theta=5e4)), dict(partial_rotary_factor=0.5)]
VISION = random_models.VISION
WRAPPERS = {name: (texts, dict(vision_config=VISION | (dict(model_type=vision) if vision else {})) | keys)
            for name, (texts, vision, keys) in random_models.WRAPPERS.items()} | {
    "llama4": (["llama4_text"], dict(vision_config=VISION | dict(
        vision_output_dim=16, projector_input_dim=16, projector_output_dim=16))),
    "gemma4": (["gemma4_text"], dict(vision_config=VISION | dict(num_key_value_heads=2, head_dim=8, global_head_dim=8),
                                     audio_config=None)),
    "qwen2_vl": (["qwen2"], dict(vision_config=dict(depth=1, embed_dim=16, hidden_size=32, num_heads=2, mlp_ratio=1))),
    "qwen2_5_vl": (["qwen2"], dict(vision_config=QWEN_VISION)),
    "qwen3_vl": (["qwen3"], dict(vision_config=QWEN_VISION)),
    "qwen3_vl_moe": (["qwen3_moe"], dict(vision_config=QWEN_VISION)),
}
USED = re.compile(r'config\.([a-z_0-9]+)|getattr\((?:self\.)?config, "([a-z_0-9]+)"')
NO_KEYS = {"model_type", "vocab_size", "architectures", "id2label", "label2id", "per_layer_config", "to_dict"}


def config_class(family):
    return type(transformers.AutoConfig.for_model(family))


def keys_of(family):
    kind = config_class(family)
    code = "".join(file.read_text() for file in Path(inspect.getfile(kind)).parent.glob("modeling_*.py"))
    keys = {field.name for field in dataclasses.fields(kind)} | set(kind.attribute_map)
    keys |= {name for names in USED.findall(code) for name in names if name}
    return {key for key in keys if not key.startswith("_")} - NO_KEYS


def values_of(key, value, n):
    if key.startswith("rope_") and (value is None or isinstance(value, dict)):
        kept = {name: part for name, part in (value or {}).items() if name == "mrope_section"}  # none is an error there
        return [None, *(rope | kept for rope in ROPES)]
    if key == "layer_types":
        return [None, *([kind] * n for kind in KINDS), *([kind] + KINDS[:1] * (n - 1) for kind in KINDS[1:])]
    values = [None, False, True]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        values += [value * 2, value * 4, [value] * n] if isinstance(value, int) else [value * 2, 0.25]
    return values + ([value[::-1], value[:-1]] if isinstance(value, list) else [4])


def variants(family, config, all_keys):
    defaults = transformers.AutoConfig.for_model(family).to_dict()
    for key in sorted(all_keys | set(config) - NO_KEYS):
        if key in config:
            yield key, "absent", {name: value for name, value in config.items() if name != key}
        for value in values_of(key, config.get(key, defaults.get(key)), config["num_hidden_layers"]):
            if key not in config or json.dumps(config[key]) != json.dumps(value):
                yield key, value, config | {key: value}
    for group in ("rope_scaling", "rope_parameters"):
        for key, value in (config.get(group) or {}).items():
            for other in values_of(key, value, config["num_hidden_layers"]):
                yield f"{group}.{key}", other, config | {group: config[group] | {key: other}}


class Models:
    """Writes folders with transformers' logits. The first one keeps its weights."""

    def __init__(self, family, place, draw):
        self.place, self.hub, self.n, self.weights, self.logits = place, FAMILIES.get(family, {}).get("hub"), 0, None, None
        self.inside = family in WRAPPERS
        self.ids = [draw.randrange(6, 60) for _ in range(N_TOKENS)]
        self.seed = draw.getrandbits(60)

    @torch.no_grad()
    def write(self, config):
        """The folder, and transformers' words where it refuses the file."""
        self.n += 1
        folder = self.place / str(self.n)
        folder.mkdir()
        write_json(folder / "config.json", config)
        write_json(folder / "golden.json", dict(ids=self.ids, positions=list(range(N_TOKENS))))
        weights, logits, words = self.weights, self.logits, None
        try:
            read = transformers.AutoConfig.from_pretrained(folder)
            kind = transformers.AutoModelForImageTextToText if self.inside else transformers.AutoModelForCausalLM
            model = kind.from_config(read, attn_implementation="eager", dtype=torch.float32)
            model.set_experts_implementation("eager")
            model.tie_weights()
            text = read.get_text_config()
            text.tie_word_embeddings = getattr(text, "tie_word_embeddings", False)  # Qwen2-VL's class has none
            own = random_weights(TextPart(model, self.inside), text, torch.Generator().manual_seed(self.seed), usual_norms=True)
            if not weights or {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
                weights = own
            model.load_state_dict(weights, strict=False)
            if read.model_type == "llama4":  # its own class fails without images
                model = model.language_model
            logits = model.eval()(input_ids=torch.tensor([self.ids]), use_cache=False, output_hidden_states=True).logits[0]
        except Exception as error:  # of any kind: what transformers cannot compute
            words = f"{type(error).__name__}: {error}".replace("\n", " ")[:120]
        if self.weights is None:
            if words:
                sys.exit(f"{folder}: {words}")
            self.weights, self.logits = weights, logits
        stored = random_models.names_on_hub(read, weights) if self.hub and not words else weights
        if config["model_type"] == "qwen3_vl_moe":  # stored as [expert][column of x][row]
            stored = {key: value.transpose(1, 2).contiguous() if "experts." in key else value
                      for key, value in stored.items()}
        save_weights(folder, stored, 1)
        (folder / "golden_logits.f32").write_bytes(logits.contiguous().numpy().astype("<f4").tobytes())
        return folder, words


class TextPart:
    """What spillway reads of a model: all, or the text model inside."""

    def __init__(self, model, inside):
        part = re.compile(r"(language_model|text_model|lm_head)\." if inside else "")
        self.named_parameters = lambda: [pair for pair in model.named_parameters() if part.search(pair[0])]
        self.named_buffers = lambda: [pair for pair in model.named_buffers() if part.search(pair[0])]


def draw_inside(draw, family):
    """A config.json with the keys of its text model one level down, or beside the others."""
    texts, keys = WRAPPERS[family]
    text = random_models.draw_config(draw, draw.choice(texts))
    if text["model_type"] == "mistral":
        text.pop("layer_types", None)  # transformers ignores it there, and spillway refuses it
    if family.startswith("qwen"):  # no windows; positions of images have three numbers
        pairs = text.get("head_dim", text["hidden_size"] // text["num_attention_heads"]) // 2
        for key in ("rope_scaling", "rope_parameters", "sliding_window", "use_sliding_window", "max_window_layers",
                    "layer_types"):
            text.pop(key, None)
        text |= dict(model_type=family + "_text", rope_scaling=dict(
            type="default", mrope_section=[pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]))
    tied = draw.choice([{}, dict(tie_word_embeddings=True), dict(tie_word_embeddings=False)])
    if family in ("qwen2_vl", "qwen2_5_vl") and draw.random() < 0.5:  # as in released files
        return text | copy.deepcopy(keys) | dict(model_type=family) | tied
    return copy.deepcopy(keys) | dict(model_type=family, text_config=text) | tied


def all_variants(config, all_keys):
    """Of the keys of the text model, and of the same keys at the top of a file with one inside."""
    text = config.get("text_config", config)
    for key, value, other in variants(text["model_type"], copy.deepcopy(text), all_keys):
        if text is config:
            yield key, value, other
            continue
        yield f"text_config.{key}", value, config | dict(text_config=other)
        if key in other and json.dumps(config.get(key)) != json.dumps(value):
            yield key, value, config | {key: value}


def limit_memory(most):
    resource.setrlimit(resource.RLIMIT_AS, (most, -1))


def check_family(program, family, draw, place, all_keys):
    config = draw_inside(draw, family) if family in WRAPPERS else random_models.draw_config(draw, family)
    text = config.get("text_config", config)
    text["vocab_size"] = max(text["vocab_size"], 60)
    if (text.get("sliding_window") or 0) > 40:
        text["sliding_window"] = 20
    models = Models(family, place, draw)
    models.write(config)
    changes = [(key, value, *models.write(other)) for key, value, other in all_variants(config, all_keys)]
    errors, bad = {}, 0
    for at in range(0, len(changes), random_models.BATCH):
        part = [str(change[2]) for change in changes[at:at + random_models.BATCH]]
        done = subprocess.run([program, *part], capture_output=True, text=True, preexec_fn=lambda: limit_memory(-1))
        errors |= {words[0]: float(words[1]) for line in done.stderr.splitlines() if len(words := line.split()) == 3}
        bad += done.returncode not in (0, 1)
    for key, value, folder, words in changes:
        wrong = errors.get(str(folder), 0) > SAME  # refused: 0
        if wrong:
            print(f"{family}: {key} = {json.dumps(value)}: {errors[str(folder)]:.2e}; {words or folder}", flush=True)
        bad += wrong and not words
        if not wrong or words:
            shutil.rmtree(folder)
    print(f"{family}: {len(changes)} files, {len(errors)} computed, {bad} failed", flush=True)
    return bad


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    draw = random_models.begin()
    limit_memory(8 << 30)  # a size that is absent is that of a released model: transformers fails
    families = sys.argv[2:] or [draw.choice(list(FAMILIES))]
    all_keys = {key for family in FAMILIES for key in keys_of(family)}
    bad = 0
    for family in families:
        place = Path(tempfile.mkdtemp(prefix=f"spw_config_keys_{family}_"))
        own = set() if family in WRAPPERS else keys_of(family)
        bad += check_family(sys.argv[1], family, draw, place, all_keys if len(families) == 1 else own)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
