#!/usr/bin/env python3
"""Decodes with Hugging Face transformers and its offloaded KV cache, for comparison with spillway.

    tools/bench/hf_offloaded.py MODEL --token-ids FILE --new-tokens N [--json OUT.json]
        [--cache offloaded|dynamic] [--prefill-chunk N]

MODEL is a folder that spillway runs too (tools/make_random_model.py makes one). FILE has the same ids as
for `spillway generate --token-ids`. Prints and writes: seconds of the prompt, seconds of each decoded
token (the median and all), tokens a second, peak device memory, the tokens. Exit 77 without torch,
transformers or a GPU. The time of the prompt ends at the first new token, so the time of decoding has
nothing of the prompt.
"""

import argparse
import json
import statistics
import sys
import time

SKIPPED = 77


def skip(why):
    print(f"hf_offloaded: skipped: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


try:
    import torch
    import transformers
except ImportError as error:
    skip(error)


class Clock(transformers.StoppingCriteria):
    """Notes when each token is there."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores, **kwargs):
        torch.cuda.synchronize()
        self.times.append(time.monotonic())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def read_ids(path):
    with open(path, encoding="utf-8") as file:
        return [int(word) for word in file.read().replace(",", " ").replace("[", " ").replace("]", " ").split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--token-ids", required=True, metavar="FILE")
    parser.add_argument("--new-tokens", type=int, default=16, metavar="N")
    parser.add_argument("--cache", choices=("offloaded", "dynamic"), default="offloaded")
    parser.add_argument("--prefill-chunk", type=int, default=2048, metavar="N")
    parser.add_argument("--json", metavar="OUT.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        skip("torch sees no GPU")
    if args.new_tokens < 3:
        sys.exit("hf_offloaded: --new-tokens: expected 3 or more, the first one ends the prompt")

    ids = torch.tensor([read_ids(args.token_ids)], device="cuda")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16, attn_implementation="sdpa").to("cuda").eval()
    clock = Clock()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    start = time.monotonic()
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=args.new_tokens,
            min_new_tokens=args.new_tokens, cache_implementation=args.cache,
            prefill_chunk_size=args.prefill_chunk, pad_token_id=0,
            stopping_criteria=transformers.StoppingCriteriaList([clock]))
    steps = [b - a for a, b in zip(clock.times, clock.times[1:])]
    result = {
        "torch": torch.__version__, "transformers": transformers.__version__,
        "gpu": torch.cuda.get_device_name(), "cache": args.cache, "context": ids.shape[1],
        "prefill_seconds": clock.times[0] - start,
        "decode_seconds_per_token": statistics.median(steps), "decode_seconds": steps,
        "decode_tokens_per_second": 1 / statistics.median(steps),
        "peak_device_bytes": torch.cuda.max_memory_allocated(),
        "reserved_device_bytes": torch.cuda.max_memory_reserved(),
        "tokens": out[0, ids.shape[1]:].tolist(),
    }
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)
            file.write("\n")
    print(f"{result['gpu']}, transformers {result['transformers']}, {args.cache} cache, "
          f"{result['context']} tokens: prompt {result['prefill_seconds']:.2f} s, "
          f"{result['decode_tokens_per_second']:.2f} tokens/s, "
          f"peak {result['peak_device_bytes'] / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
