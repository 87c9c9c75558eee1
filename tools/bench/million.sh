#!/usr/bin/env bash
# Runs a million tokens through a tiny model twice: with a few MiB of device and host memory and the rest of
# the KV on disk, and with all KV in memory. The logits of every generated token must be the same bits.
# Takes minutes: a benchmark, not a test.
#
#   tools/bench/million.sh OUT [TOKENS] [BUDGET]      default 1,000,000 tokens, 4 MiB
#
# OUT is a folder on the drive to use. SPILLWAY is the command, default build/release/spillway.
set -euo pipefail
out=${1:?usage: tools/bench/million.sh OUT [TOKENS] [BUDGET]}
tokens=${2:-1000000} budget=${3:-4MiB}
here=$(cd "$(dirname "$0")/../.." && pwd)
spillway=${SPILLWAY:-$here/build/release/spillway}
generated=8
mkdir -p "$out"
cat > "$out/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
 "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
 "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 256,
 "max_position_embeddings": 4194304, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
 "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16",
 "bos_token_id": 1, "eos_token_id": 2}
JSON
python3 "$here/tools/make_random_model.py" "$out/config.json" "$out/model" >/dev/null
python3 - "$((tokens - generated))" > "$out/ids" <<'PY'
import random, sys
random.seed(2)
print(" ".join(str(random.randrange(256)) for _ in range(int(sys.argv[1]))))
PY

run() { # NAME OPTIONS...
    local name=$1
    shift
    "$spillway" generate "$out/model" --device cpu --token-ids "$out/ids" --ids \
        --max-new-tokens "$generated" --drafts off --ignore-eos --context "$tokens" --progress never \
        --report "$out/$name.json" "$@" > "$out/$name.tokens"
}
run memory
run disk --device-memory "$budget" --host-memory "$budget" --disk "$out" --disk-memory 1GiB

python3 - "$out" <<'PY'
import json, sys
runs = {n: json.load(open(f"{sys.argv[1]}/{n}.json")) for n in ("memory", "disk")}
print(f"{'':8} {'prefill s':>10} {'ms a token':>11} {'device MiB':>11} {'host MiB':>9} {'disk MiB':>9} "
      f"{'GiB from disk':>14}  logits hash")
for n, r in runs.items():
    peak, moved = r["peak_bytes"], r["moved_bytes"]["disk_to_host"]
    assert moved["counted"] == moved["predicted"], moved
    print(f"{n:8} {r['prefill_seconds']:10.1f} {1e3 * r['decode_seconds'] / (r['n_generated'] - 1):11.2f} "
          f"{peak['device'] / 2**20:11.1f} {peak['host'] / 2**20:9.1f} {peak['disk'] / 2**20:9.1f} "
          f"{moved['counted'] / 2**30:14.2f}  {r['logits_hash']}")
same = runs["memory"]["logits_hash"] == runs["disk"]["logits_hash"]
same = same and runs["memory"]["tokens"] == runs["disk"]["tokens"]
print("the same, bit for bit" if same else "DIFFERENT")
sys.exit(not same)
PY
