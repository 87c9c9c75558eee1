#!/usr/bin/env python3
"""Makes the golden models with an encoder, as make_goldens.py makes the others, whose functions this file uses.

    python3 tests/golden/make_encoder_goldens.py [CASE ...]       needs torch, transformers, safetensors

Where the source is audio, golden_audio.f32 is its spectrogram, [rows][numbers of a row].

golden.json: "ids" are the source, token t as the number ~t, and then the tokens of the decoder; the logits of
"positions" are those that transformers' decoder gives for the latter: float32, eager attention, the whole sequence.
"""

import sys
import shutil
import warnings

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

from make_goldens import (DTYPES, HERE, margins, save_weights, seed_of, without, write_golden, write_json,
                          write_logits)

T5 = dict(model_type="t5", architectures=["T5ForConditionalGeneration"], d_model=32, d_kv=12, d_ff=40, num_heads=3,
          num_layers=2, num_decoder_layers=2, vocab_size=96, feed_forward_proj="relu", layer_norm_epsilon=1e-6,
          relative_attention_num_buckets=32, relative_attention_max_distance=128, decoder_start_token_id=0,
          pad_token_id=0, eos_token_id=1, is_encoder_decoder=True, n_positions=512, torch_dtype="float32")
BART = dict(model_type="bart", architectures=["BartForConditionalGeneration"], d_model=32, encoder_ffn_dim=40,
            decoder_ffn_dim=40, encoder_attention_heads=4, decoder_attention_heads=4, encoder_layers=2, decoder_layers=2,
            vocab_size=96, max_position_embeddings=64, activation_function="gelu", scale_embedding=False, bos_token_id=0,
            pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, is_encoder_decoder=True, torch_dtype="float32")
PEGASUS = BART | dict(model_type="pegasus", architectures=["PegasusForConditionalGeneration"], activation_function="relu",
                      scale_embedding=True, bos_token_id=None, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
MARIAN = PEGASUS | dict(model_type="marian", architectures=["MarianMTModel"], activation_function="swish", pad_token_id=95,
                        eos_token_id=0, decoder_start_token_id=95)
WHISPER = dict(model_type="whisper", architectures=["WhisperForConditionalGeneration"], d_model=32, encoder_ffn_dim=40,
               decoder_ffn_dim=40, encoder_attention_heads=4, decoder_attention_heads=4, encoder_layers=2, decoder_layers=2,
               vocab_size=96, num_mel_bins=8, max_source_positions=40, max_target_positions=64, activation_function="gelu",
               scale_embedding=True, bos_token_id=2, pad_token_id=2, eos_token_id=2, decoder_start_token_id=3,
               is_encoder_decoder=True, torch_dtype="float32")
GATED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
CASES = {  # config, tokens of the source, tokens of the decoder, stored type
    "t5_relu": (T5, 150, 60, "f32"),
    "t5_gated": (T5 | GATED | dict(num_decoder_layers=3, relative_attention_num_buckets=16,
                                   relative_attention_max_distance=40), 530, 150, "bf16"),
    "t5_short": (T5 | dict(num_layers=1, num_decoder_layers=1), 5, 300, "f16"),
    "mt5_gated": (T5 | GATED | dict(model_type="mt5", architectures=["MT5ForConditionalGeneration"]), 40, 30, "bf16"),
    "umt5_buckets": (T5 | dict(model_type="umt5", architectures=["UMT5ForConditionalGeneration"],
                               feed_forward_proj="gated-gelu"), 128, 20, "bf16"),
    "bart_plain": (BART, 40, 30, "f32"),
    "bart_long": (BART | dict(max_position_embeddings=704, decoder_layers=3, scale_embedding=True,
                              activation_function="gelu_new"), 530, 150, "bf16"),
    "bart_bare": (BART | dict(decoder_layers=1), 20, 10, "bf16"),  # as the model without its head was saved, long ago
    "mbart_plain": (BART | dict(model_type="mbart", architectures=["MBartForConditionalGeneration"], decoder_layers=1,
                                scale_embedding=True, activation_function="relu"), 50, 40, "bf16"),
    "pegasus_plain": (PEGASUS | dict(max_position_embeddings=320), 300, 130, "bf16"),
    "pegasus_stored": (PEGASUS | dict(encoder_layers=1, scale_embedding=False, max_position_embeddings=40), 40, 20, "bf16"),
    "m2m_100_plain": (BART | dict(model_type="m2m_100", architectures=["M2M100ForConditionalGeneration"],
                                  activation_function="relu"), 530, 150, "bf16"),
    "m2m_100_scaled": (without(BART, "scale_embedding") | dict(
        model_type="m2m_100", architectures=["M2M100ForConditionalGeneration"], pad_token_id=3), 30, 20, "f32"),
    "marian_plain": (MARIAN | dict(max_position_embeddings=700), 200, 140, "bf16"),
    "marian_apart": (MARIAN | dict(share_encoder_decoder_embeddings=False, vocab_size=130, decoder_vocab_size=96,
                                   decoder_layers=1), 30, 20, "bf16"),
    "marian_stored": (MARIAN | dict(scale_embedding=False), 64, 30, "f16"),
    "whisper_plain": (WHISPER, 40, 30, "f32"),
    "whisper_long": (WHISPER | dict(max_source_positions=150, max_target_positions=160, decoder_layers=3, num_mel_bins=10),
                     150, 150, "f16"),
}
for name, base, keys in (("pegasus_search", PEGASUS, dict(num_beams=3, length_penalty=0.8, max_length=16,
                                                          no_repeat_ngram_size=2)),
                         ("bart_search", BART, {}), ("m2m_100_search", CASES["m2m_100_plain"][0], {}),
                         ("marian_search", MARIAN, {}), ("t5_search", T5, {})):
    CASES[name] = (base | keys, 25, 12, "bf16")
BF16 = {"bart_long", "m2m_100_plain", "pegasus_plain"}  # logits of transformers in bfloat16, too
# generation_config.json (None: there is none), and for each run options of the command and of transformers
SEARCHES = {
    "bart_search": (dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_bos_token_id=0,
                         forced_eos_token_id=2, num_beams=4, length_penalty=2.0, early_stopping=True, max_length=24,
                         min_length=8, no_repeat_ngram_size=3),
                    [("", {}), ("--num-beams 1", dict(num_beams=1)), ("--max-new-tokens 30", dict(max_new_tokens=30)),
                     ("--length-penalty -1 --early-stopping never", dict(length_penalty=-1.0, early_stopping="never")),
                     ("--min-length 0 --no-repeat-ngram-size 0", dict(min_length=0, no_repeat_ngram_size=0)),
                     ("--num-beams 2 --forced-bos-token-id 9", dict(num_beams=2, forced_bos_token_id=9))]),
    "marian_search": (dict(pad_token_id=95, eos_token_id=0, decoder_start_token_id=95, forced_eos_token_id=0, num_beams=6,
                           bad_words_ids=[[95], [0], [11], [12], [13]], max_length=30, renormalize_logits=True),
                      [("", {}), ("--num-beams 1", dict(num_beams=1)), ("--length-penalty 0", dict(length_penalty=0.0))]),
    "m2m_100_search": (dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, num_beams=5,
                            max_new_tokens=15),
                       [("--forced-bos-token-id 7", dict(forced_bos_token_id=7)), ("", {})]),
    "pegasus_search": (None, [("", {}), ("--num-beams 1 --max-new-tokens 9", dict(num_beams=1, max_new_tokens=9))]),
    "t5_search": (dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, num_beams=2, max_length=20, repetition_penalty=1.2,
                       bad_words_ids=[[65, 65], [61, 61, 61], [73, 24], [55]], early_stopping="never"),
                  [("", {}), ("--num-beams 3", dict(num_beams=3)),
                   ("--num-beams 1 --repetition-penalty 1", dict(num_beams=1, repetition_penalty=1.0))]),
}


def random_weights(model, generator, stored=False):
    """Scores are not scaled in T5's families, so queries are small; numbers of distances matter."""
    weights = {}
    for name, value in model.state_dict().items():
        hears = model.config.model_type == "whisper"
        shared = getattr(model.config, "share_encoder_decoder_embeddings", not hears)
        if (name.endswith("embed_tokens.weight") and shared) or name == "proj_out.weight" or (
                name == "lm_head.weight" and model.config.tie_word_embeddings):
            continue  # those of "shared"
        if "embed_positions" in name and not model.config.model_type.endswith(("bart", "whisper")) and not stored:
            continue  # transformers makes them
        x = torch.randn(value.shape, generator=generator)
        if "layer_norm" in name or "layernorm" in name:
            x = name.endswith("weight") + 0.2 * x
        elif "relative_attention_bias" in name:
            x = 1.5 * x
        elif name.endswith((".q.weight", ".k.weight")):
            x = x * 0.15
        elif name.endswith((".bias", "embed_positions.weight")):
            x = 0.3 * x
        elif not name.endswith(("shared.weight", "embed_tokens.weight")) and name != "final_logits_bias":
            x = x / value[0].numel() ** 0.5
        weights[name] = x
    return weights


def model_class(config):
    return AutoModelForSpeechSeq2Seq if config.model_type == "whisper" else AutoModelForSeq2SeqLM


def load(folder, dtype):
    kind = model_class(AutoConfig.from_pretrained(folder))
    return kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def forward(model, source, audio, target):
    inputs = dict(input_ids=torch.tensor([source])) if audio is None else dict(input_features=audio.to(model.dtype))
    return model(**inputs, decoder_input_ids=torch.tensor([target]), use_cache=False).logits[0]


@torch.no_grad()
def write_answers(folder, model, source, runs):
    """source: ids for --token-ids; answers: a line for each run, "options|ids"."""
    (folder / "source").write_text(" ".join(map(str, source)) + "\n")
    with open(folder / "answers", "w") as file:
        for options, own in runs:
            row = model.generate(torch.tensor([source]), attention_mask=torch.ones(1, len(source), dtype=torch.long), **own)
            file.write(f"{options}|{' '.join(map(str, row[0, 1:].tolist()))}\n")


def make_case(name):
    config_json, n_source, n_target, stored = CASES[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_json(folder / "config.json", config_json)
    config = AutoConfig.from_pretrained(folder)
    generator = torch.Generator().manual_seed(seed_of(name))
    weights = random_weights(model_class(config).from_config(config), generator, name.endswith("stored"))
    if name in SEARCHES:  # logits that differ less from each other
        weights = {key: value * (0.3 if key.endswith("shared.weight") else 1) for key, value in weights.items()}
    if name == "bart_bare":
        weights = {key.removeprefix("model."): value for key, value in weights.items() if key != "final_logits_bias"}
        weights |= {"encoder.version": torch.ones(1), "decoder.version": torch.ones(1)}
    save_weights(folder, {key: value.to(DTYPES[stored]) for key, value in weights.items()}, 1)
    source = torch.randint(2, config.vocab_size, (n_source,), generator=generator).tolist()
    target = [config.decoder_start_token_id] + torch.randint(2, getattr(config, "decoder_vocab_size", None) or config.vocab_size, (n_target - 1,), generator=generator).tolist()
    audio = None
    if config.model_type == "whisper":
        audio = torch.randn(1, config.num_mel_bins, 2 * n_source, generator=generator)
        audio[0].T.contiguous().numpy().astype("<f4").tofile(folder / "golden_audio.f32")
    logits = forward(load(folder, torch.float32), source, audio, target)
    exact = forward(load(folder, torch.float64), source, audio, target)
    wanted = {0, 1, 2, n_target // 2, n_target - 2, n_target - 1, 127 - n_source, 128 - n_source, 129 - n_source,
              255 - n_source, 256 - n_source, 511 - n_source, 512 - n_source, 127, 128, 129, 200}
    positions = sorted(p for p in wanted if 0 <= p < n_target)
    golden = dict(case=name, stored=stored, ids=[~t for t in source] + target, positions=[n_source + p for p in positions],
                  logits_file="golden_logits.f32", argmax=logits.argmax(-1).tolist(), margin=margins(logits),
                  max_abs_logit=float(logits.abs().max()),
                  max_abs_difference_to_float64=float((logits.double() - exact).abs().max()))
    write_logits(folder / "golden_logits.f32", logits, positions)
    if name in BF16:
        half = forward(load(folder, torch.bfloat16), source, audio, target)
        golden["bf16"] = dict(argmax=half.argmax(-1).tolist(), margin=margins(half),
                              max_abs_difference_to_f32=float((half.float() - logits).abs().max()))
    write_golden(folder / "golden.json", golden)
    if name in SEARCHES:
        generation, runs = SEARCHES[name]
        if generation:
            write_json(folder / "generation_config.json", generation)
        write_answers(folder, load(folder, torch.float32), source, runs)
    print(f"{name}: logits up to {golden['max_abs_logit']:.2f}, float32 against float64 "
          f"{golden['max_abs_difference_to_float64']:.2g}, {len(set(golden['argmax']))} different argmaxes of {n_target}")


def main():
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    for name in sys.argv[1:] or CASES:
        make_case(name)


if __name__ == "__main__":
    main()
