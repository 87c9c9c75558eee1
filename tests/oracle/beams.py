#!/usr/bin/env python3
"""Compares `spillway generate`, with beams and without, with transformers on random models of a few families.

usage: beams.py SPILLWAY [--groups]

Every round makes a tiny model, a prompt and options, and wants the same answers, with scores within 1e-5 of the largest
logit (or of 1) for each token, as --length-penalty counts them. Each option and each pair of them comes in turn, in every
second round alone, else beside others; rules stand in the command, in the line of a job or in the model's
generation_config.json. Every fifth round has no beams. --groups: diverse groups, which transformers has up to 4.55.4; without it
a version from 5 on is wanted.

Where both differ, the round is passed over, and counted, if transformers had to choose between candidates that are as good
as equal: nobody defines their order. So is one whose rules forbid all tokens, which the command refuses. SPW_SEED repeats a
run, SPW_ROUNDS sets its length. Exit 77 where a package is missing.
"""
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import transformers
except ImportError:
    print("skipped: torch or transformers is not installed")
    sys.exit(77)

NEAR, SAME = 2e-6, 1e-5  # of the largest logit: as good as equal; may come from the same sums
NONE = -1e8  # of a beam with a score below it nobody says which it is
OF_SEARCH = ["length_penalty", "early_stopping"]
RULES = ["repetition_penalty", "no_repeat_ngram_size", "min_length", "min_new_tokens", "forced_bos_token_id",
         "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"]
OF_FILES = ["bad_words_ids"]  # no option has them; only files of models with an encoder count
DECODERS = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
            "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
            "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
            "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM)}
ENCODERS = {"bart": (transformers.BartConfig, transformers.BartForConditionalGeneration),
            "marian": (transformers.MarianConfig, transformers.MarianMTModel),
            "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration)}
FAMILIES = DECODERS | ENCODERS


def make_config(rng, name, config_class, common):
    if name == "t5":
        return config_class(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=rng.choice([0, 2]),
                            feed_forward_proj=rng.choice(["relu", "gated-gelu"]), **common)
    if name in ENCODERS:  # the head is the embedding
        common.update(tie_word_embeddings=True, forced_eos_token_id=None)
        return config_class(d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                            decoder_attention_heads=4, max_position_embeddings=256, decoder_start_token_id=rng.choice([0, 2]), **common)
    more = {"sliding_window": 16} if name == "gemma2" else {}
    return config_class(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
                        num_key_value_heads=rng.choice([1, 2, 4]), max_position_embeddings=256, **common, **more)


def make_model(rng, folder):
    name = rng.choice(list(FAMILIES))
    config_class, model_class = FAMILIES[name]
    vocab = rng.choice([24, 60, 300])
    common = dict(vocab_size=vocab, bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=rng.random() < 0.5)
    config = make_config(rng, name, config_class, common)
    config._attn_implementation = "eager"  # others leave Gemma's cap out
    torch.manual_seed(rng.randrange(2**31))
    model = model_class(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if name != "marian" or "embed_positions" not in key:  # not saved: every reader computes them
                # answers that differ in how sure they are; T5 does not scale its attention, and f32 is not exact enough for 4
                p.mul_(rng.choice([1, 2] if name == "t5" else [1, 4, 12]))
        if "final_logits_bias" in dict(model.named_buffers()):
            model.final_logits_bias.normal_()
    eos = rng.choice([[2], [2, 3], [2, 5, 7]])
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=eos, pad_token_id=2, bos_token_id=1, decoder_start_token_id=getattr(config, "decoder_start_token_id", None))
    model.save_pretrained(folder)
    return name, model, vocab


def names_of(number, rng, names):
    """The options of a round: one, a pair, or any."""
    turns = [(name,) for name in names] + list(itertools.combinations(names, 2))
    chosen = set(turns[number // 2 % len(turns)])
    return [name for name in names if name in chosen or (number % 2 and rng.random() < 0.3)]


def make_value(rng, name, n_prompt, vocab):
    some = [rng.randrange(vocab) for _ in range(rng.choice([1, 2, min(vocab // 3, 50)]))]
    return {"length_penalty": rng.choice([-1.0, 0.0, 0.5, 2.0]), "early_stopping": rng.choice([True, False, "never"]),
            "repetition_penalty": rng.choice([0.8, 1.3]), "no_repeat_ngram_size": rng.choice([1, 2, 3]),
            "min_length": n_prompt + rng.randrange(20), "min_new_tokens": rng.randrange(1, 20), "forced_bos_token_id": some[0],
            "forced_eos_token_id": rng.choice([2, some[0], [2, 3]]), "suppress_tokens": some, "begin_suppress_tokens": some,
            "bad_words_ids": [[t] for t in some]}[name]


def forced_tokens(options):
    eos = options.get("forced_eos_token_id", [])
    return [options.get("forced_bos_token_id")] + (eos if isinstance(eos, list) else [eos])


def make_options(rng, number, groups, encodes, n_prompt, vocab):
    options = {"max_new_tokens": rng.choice([1, 3, 12, 30])}
    n_groups = rng.choice([2, 2, 3, 4]) if groups else 1
    beams = n_groups * rng.choice([1, 2, 3]) if groups else 1 if number % 5 == 4 else rng.choice([2, 3, 4, 7])
    if beams > 1:
        options.update(num_beams=beams, num_return_sequences=rng.randrange(1, beams + 1))
    if groups:
        options.update(num_beam_groups=n_groups, diversity_penalty=rng.choice([0.3, 1.0, 5.0]))
    for name in names_of(number, rng, RULES + OF_FILES * encodes + OF_SEARCH * (beams > 1)):
        options[name] = make_value(rng, name, n_prompt, vocab)
    for name in ("suppress_tokens", "begin_suppress_tokens"):  # transformers refuses to suppress a forced token
        if name in options:
            options[name] = [t for t in options[name] if t not in forced_tokens(options)] or [vocab - 1]
    return options


class Ties:
    """While it is entered: the distances between the candidates that torch.topk finds; whether it found none in a step."""

    def __enter__(self):
        self.topk, self.gaps, self.none = torch.topk, [], False
        torch.topk = self.look
        return self

    def __exit__(self, *_):
        torch.topk = self.topk

    def look(self, x, k, *args, **kwargs):
        best = self.topk(x.flatten(), min(k + 1, x.numel())).values.double()
        gaps = (best[:-1] - best[1:])[best[1:] > NONE]
        self.none |= best[0].item() < NONE
        self.gaps += gaps.tolist()
        return self.topk(x, k, *args, **kwargs)


def theirs(model, prompt, options):
    """The answers with their scores, the largest logit, the smallest distance between two candidates, and whether the rules
    forbade all tokens in a step."""
    ids = torch.tensor([prompt])
    with Ties() as ties:
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, return_dict_in_generate=True,
                             output_scores=True, output_logits=True, **options)
    if "num_beams" not in options:
        for row in out.scores:
            ties.look(row, 1)
    ends = model.generation_config.eos_token_id
    scores = out.sequences_scores.tolist() if "num_beams" in options else [0.0]
    answers = []
    for row, score in zip(out.sequences, scores):
        tokens = row[1 if model.config.is_encoder_decoder else len(prompt):].tolist()
        end = next((i for i, t in enumerate(tokens) if t in ends), len(tokens))
        answers.append((tokens[:end + 1], score))
    return answers, max(1, max(logits.abs().max().item() for logits in out.logits)), min(ties.gaps, default=1), ties.none


def ours(program, folder, prompt, options, n_beams, as_line):
    """as_line: as a line of a file of prompts, beside other lines; else by the options of the command."""
    path, report = os.path.join(folder, "input.txt"), os.path.join(folder, "report.json")
    args = [program, "generate", folder, "--progress", "never", "--device", "cpu", "--compute", "f32", "--threads", "1"]
    if as_line:
        lines = [{"tokens": prompt[:7], "max_new_tokens": 5}, {"tokens": prompt, "id": "search", **options},
                 {"tokens": prompt, "max_new_tokens": 7}]
        pathlib.Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))
        args += ["--prompts", path, "--sessions", str(n_beams)]
    else:
        pathlib.Path(path).write_text(" ".join(map(str, prompt)))
        args += ["--token-ids", path, "--ids", "--report", report]
        for key, value in options.items():
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()
            args += ["--" + key.replace("_", "-"), text]
    run = subprocess.run(args, capture_output=True, text=True)
    if run.returncode:
        return run.stderr + run.stdout
    if as_line:
        answer = next(a for a in map(json.loads, run.stdout.splitlines()) if a.get("id") == "search")
        return [(a["tokens"], a.get("score", 0.0)) for a in answer.get("choices", [answer])]
    facts = json.load(open(report))
    answers = [(a["tokens"], a["score"]) for a in facts.get("answers", [])] or [(facts["tokens"], 0.0)]
    printed = [[int(t) for t in line.split()] for line in run.stdout.removesuffix("\n").split("\n\n")]
    return answers if printed == [tokens for tokens, _ in answers] else f"printed {run.stdout}"


def same(got, want, limit, length_penalty):
    """A score is a sum over n tokens, divided by a power of n."""
    n = next((i for i, (_, score) in enumerate(want) if score < NONE), len(want))
    return len(got) == len(want) and all(
        a[0] == b[0] and abs(a[1] - b[1]) < limit * len(a[0]) ** (1 - length_penalty) for a, b in zip(got[:n], want[:n]))


def compare(program, number, rng, groups):
    """'' where both agree, None where nobody can say, else the difference."""
    with tempfile.TemporaryDirectory() as folder:
        name, model, vocab = make_model(rng, folder)
        prompt = [rng.randrange(8, vocab) for _ in range(rng.choice([1, 5, 40, 130]))]
        encodes = name in ENCODERS
        options = make_options(rng, number, groups, encodes, 1 if encodes else len(prompt), vocab)
        if "forced_bos_token_id" in options and rng.random() < 0.7:
            prompt = prompt[:1]
        with torch.no_grad():
            want, largest, gap, none = theirs(model, prompt, options)
        all_of_them, beams, penalty = dict(options), options.get("num_beams", 3), options.get("length_penalty", 1.0)
        asked = OF_FILES + (RULES[1:] if rng.random() < 0.3 else [])  # the rules of the model's files
        if encodes and options.get("num_return_sequences") == 1 and rng.random() < 0.5:
            del options["num_return_sequences"]
            asked += OF_SEARCH + ["num_beams"]
        model.generation_config.update(**{key: options.pop(key) for key in asked if key in options})
        model.generation_config.save_pretrained(folder)
        got = ours(program, folder, prompt, options, beams, rng.random() < 0.4)
    if isinstance(got, list) and same(got, want, SAME * largest, penalty):
        return ""
    refused = isinstance(got, str)
    tie = want[0][1] < NONE or (refused and none) or (not refused and gap < NEAR * largest)
    return None if tie else f"{name} {all_of_them}\n  of these in files: {sorted(set(all_of_them) - set(options))}\n  want {want}\n  got  {got}\n  gap {gap} of {largest}"


def main():
    groups = "--groups" in sys.argv
    seed = int(os.environ.get("SPW_SEED") or random.SystemRandom().randrange(2**32))
    rounds = int(os.environ.get("SPW_ROUNDS") or 100)
    if groups == (int(transformers.__version__.split(".")[0]) >= 5):
        print(f"skipped: transformers {transformers.__version__} has {'no' if groups else 'another'} search")
        return 77
    print(f"SPW_SEED={seed} transformers {transformers.__version__}", flush=True)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    failed = over = 0
    for number in range(rounds):
        difference = compare(sys.argv[1], number, random.Random(f"{seed} {number}"), groups)
        over += difference is None
        if difference:
            failed += 1
            print(f"round {number}: {difference}", flush=True)
    print(f"{rounds} rounds, {over} passed over for ties, {failed} failed")
    return failed > 0 or over > rounds // 4


sys.exit(main())
