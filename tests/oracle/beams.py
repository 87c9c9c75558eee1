#!/usr/bin/env python3
"""Compares `spillway generate --num-beams` with transformers on random models of a few families.

usage: beams.py SPILLWAY [--groups]

Every round makes a tiny model, a prompt and options of the search, and wants the same answers, with scores within 1e-5 of
the largest logit (or of 1) for each token, as --length-penalty counts them. --groups: diverse groups, which transformers has up to 4.55.4; without it a version from 5 on is
wanted. Rounds in which two answers were as good as equal are passed over, and counted: nobody defines their order. SPW_SEED
repeats a run, SPW_ROUNDS sets its length. Exit 77 where a package is missing.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError:
    print("skipped: torch or transformers is not installed")
    sys.exit(77)

NEAR, SAME = 2e-6, 1e-5  # of the largest logit: as good as equal; may come from the same sums
FAMILIES = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
            "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
            "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
            "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM)}


def make_model(rng, folder):
    name = rng.choice(list(FAMILIES))
    config_class, model_class = FAMILIES[name]
    vocab = rng.choice([24, 60, 300])
    common = dict(vocab_size=vocab, bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=rng.random() < 0.5)
    more = {"sliding_window": 16} if name == "gemma2" else {}
    config = config_class(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
                          num_key_value_heads=rng.choice([1, 2, 4]), max_position_embeddings=256, **common, **more)
    config._attn_implementation = "eager"  # others leave Gemma's cap out
    torch.manual_seed(rng.randrange(2**31))
    model = model_class(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(rng.choice([1, 4, 12]))  # answers that differ in how sure they are
    eos = rng.choice([[2], [2, 3], [2, 5, 7]])
    model.generation_config = transformers.GenerationConfig(eos_token_id=eos, pad_token_id=2, bos_token_id=1)
    model.save_pretrained(folder)
    return name, model, vocab


def make_options(rng, groups):
    n_groups = rng.choice([2, 2, 3, 4]) if groups else 1
    beams = n_groups * rng.choice([1, 2, 3]) if groups else rng.choice([2, 3, 4, 7])
    options = {"num_beams": beams, "max_new_tokens": rng.choice([1, 3, 12, 30]), "num_return_sequences": rng.randrange(1, beams + 1)}
    if rng.random() < 0.6:
        options["length_penalty"] = rng.choice([-1.0, 0.0, 0.5, 2.0])
    if rng.random() < 0.6:
        options["early_stopping"] = rng.choice([True, False, "never"])
    if rng.random() < 0.3:
        options["repetition_penalty"] = rng.choice([0.8, 1.3])
    if groups:
        options.update(num_beam_groups=n_groups, diversity_penalty=rng.choice([0.3, 1.0, 5.0]))
    return options


def theirs(model, prompt, options):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, return_dict_in_generate=True,
                         output_scores=True, output_logits=True, **options)
    ends = model.generation_config.eos_token_id
    answers = []
    for row, score in zip(out.sequences, out.sequences_scores):
        tokens = row[len(prompt):].tolist()
        end = next((i for i, t in enumerate(tokens) if t in ends), len(tokens))
        answers.append((tokens[:end + 1], score.item()))
    return answers, max(1, max(logits.abs().max().item() for logits in out.logits))


def ours(program, folder, prompt, options, as_line):
    """as_line: as a line of a file of prompts, beside other lines; else by the options of the command."""
    path, report = os.path.join(folder, "input.txt"), os.path.join(folder, "report.json")
    args = [program, "generate", folder, "--progress", "never", "--device", "cpu", "--compute", "f32", "--threads", "1"]
    if as_line:
        lines = [{"tokens": prompt[:7], "max_new_tokens": 5}, {"tokens": prompt, "id": "search", **options}, {"tokens": prompt}]
        pathlib.Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))
        args += ["--prompts", path, "--sessions", str(options["num_beams"])]
    else:
        pathlib.Path(path).write_text(" ".join(map(str, prompt)))
        args += ["--token-ids", path, "--ids", "--report", report]
        for key, value in options.items():
            args += ["--" + key.replace("_", "-"), str(value).lower()]
    run = subprocess.run(args, capture_output=True, text=True)
    if run.returncode:
        return run.stderr + run.stdout
    if as_line:
        answer = next(a for a in map(json.loads, run.stdout.splitlines()) if a.get("id") == "search")
        return [(a["tokens"], a["score"]) for a in answer.get("choices", [answer])]
    answers = [(a["tokens"], a["score"]) for a in json.load(open(report))["answers"]]
    printed = [[int(t) for t in line.split()] for line in run.stdout.strip().split("\n\n")]
    return answers if printed == [tokens for tokens, _ in answers] else f"printed {run.stdout}"


def near(answers, limit):
    """Whether two answers are as good as equal."""
    scores = sorted(score for _, score in answers)
    return any(b - a < limit for a, b in zip(scores, scores[1:]))


def compare(program, rng, groups):
    """'' where both agree, None where nobody can say, else the difference."""
    with tempfile.TemporaryDirectory() as folder:
        name, model, vocab = make_model(rng, folder)
        prompt, options = [rng.randrange(8, vocab) for _ in range(rng.choice([1, 5, 40, 130]))], make_options(rng, groups)
        with torch.no_grad():
            want, largest = theirs(model, prompt, options)
        got = ours(program, folder, prompt, options, rng.random() < 0.4)
    of_sum = 1 - options.get("length_penalty", 1.0)  # a score is a sum over n tokens, and divided by a power of n
    if isinstance(got, list) and len(got) == len(want) and all(
            a[0] == b[0] and abs(a[1] - b[1]) < SAME * largest * len(a[0]) ** of_sum for a, b in zip(got, want)):
        return ""
    return None if isinstance(got, list) and near(want, NEAR * largest) else f"{name} {options}\n  want {want}\n  got  {got}"


def main():
    groups = "--groups" in sys.argv
    seed = int(os.environ.get("SPW_SEED") or random.SystemRandom().randrange(2**32))
    rounds = int(os.environ.get("SPW_ROUNDS") or 100)
    if groups == (int(transformers.__version__.split(".")[0]) >= 5):
        print(f"skipped: transformers {transformers.__version__} has {'no' if groups else 'another'} search")
        return 77
    print(f"SPW_SEED={seed} transformers {transformers.__version__}", flush=True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    failed = over = 0
    for number in range(rounds):
        difference = compare(sys.argv[1], random.Random(f"{seed} {number}"), groups)
        over += difference is None
        if difference:
            failed += 1
            print(f"round {number}: {difference}", flush=True)
    print(f"{rounds} rounds, {over} passed over, {failed} failed")
    return failed > 0 or over > rounds // 4


sys.exit(main())
