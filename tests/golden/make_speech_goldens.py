#!/usr/bin/env python3
"""Makes tests/golden/speech: a random model for speech whose windows are one second long, and what transformers'
WhisperForConditionalGeneration.generate hears in the clip of make_audio_goldens.py, repeated.

    python3 tests/golden/make_speech_goldens.py       needs torch, transformers, safetensors

A case of answers.json is n_samples of the clip, the text tokens before the answer (null: those of the files), whether
there are times, and the tokens of the answer.
"""

import json
import shutil
import warnings
import wave

import numpy
import torch
from transformers import AutoConfig, AutoModelForSpeechSeq2Seq, GenerationConfig, WhisperFeatureExtractor

from make_encoder_goldens import random_weights
from make_goldens import HERE, save_weights, write_json

END, START, LANGUAGES, TRANSLATE, TRANSCRIBE, NO_TIMES, VOCAB = 70, 71, (72, 73, 74), 75, 76, 80, 132
CONFIG = dict(model_type="whisper", architectures=["WhisperForConditionalGeneration"], d_model=32, encoder_ffn_dim=40,
              decoder_ffn_dim=40, encoder_attention_heads=4, decoder_attention_heads=4, encoder_layers=1, decoder_layers=1,
              vocab_size=VOCAB, num_mel_bins=80, max_source_positions=50, max_target_positions=32,
              activation_function="gelu", scale_embedding=False, bos_token_id=END, pad_token_id=END, eos_token_id=END,
              decoder_start_token_id=START, is_encoder_decoder=True, torch_dtype="float32")
GENERATION = dict(bos_token_id=END, pad_token_id=END, eos_token_id=END, decoder_start_token_id=START, is_multilingual=True,
                  lang_to_id={"<|en|>": LANGUAGES[0], "<|de|>": LANGUAGES[1], "<|fr|>": LANGUAGES[2]},
                  task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE}, no_timestamps_token_id=NO_TIMES,
                  max_initial_timestamp_index=10, forced_decoder_ids=[[1, None], [2, TRANSCRIBE]], max_length=32,
                  suppress_tokens=[1, 5, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80], begin_suppress_tokens=[7, END])
CASES = [(4000, None, False), (16000, None, False), (16000, None, True), (11111, "de", True), (9000, "fr", False),
         (52000, None, True), (40007, None, True)]


def tokenizer():
    """A token for each of 70 characters, then the special ones, then times, which are not special in Whisper's files."""
    names = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>",
             "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    times = [f"<|{0.02 * i:.2f}|>" for i in range(VOCAB - NO_TIMES - 1)]
    added = [dict(id=END + i, content=name, single_word=False, lstrip=False, rstrip=False, normalized=False,
                  special=i < len(names)) for i, name in enumerate(names + times)]
    bytes_only = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=bytes_only,
                post_processor=None, decoder=bytes_only,
                model=dict(type="BPE", vocab={chr(33 + i): i for i in range(END)}, merges=[]))


def spice(weights):
    """So that answers vary, end, and have times only where times are asked for."""
    weights["model.decoder.embed_positions.weight"] *= 10
    for name in ("q_proj", "k_proj"):
        weights[f"model.decoder.layers.0.encoder_attn.{name}.weight"] *= 3
    tokens = weights["model.decoder.embed_tokens.weight"]
    tokens[END] *= 1.6
    tokens[NO_TIMES + 1:] *= 0.6


def hear(model, clip, n_samples, language, times):
    is_long = n_samples > 16000
    extractor = WhisperFeatureExtractor(chunk_length=1)
    features = extractor(numpy.resize(clip, n_samples), sampling_rate=16000, return_tensors="pt",
                         **(dict(padding="longest", truncation=False) if is_long else {})).input_features
    model.generation_config = GenerationConfig(**GENERATION)
    answer = model.generate(features, language=language, task=language and "translate", return_timestamps=times,
                            return_segments=is_long or times, do_sample=False)
    if is_long or times:
        return [t for segment in answer["segments"][0] for t in segment["tokens"].tolist()]
    begin = 4 if answer[0][0] == START else 0
    return [t for t in answer[0].tolist()[begin:] if t != END]


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    folder = HERE / "speech"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", GENERATION)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()) + "\n")
    config = AutoConfig.from_pretrained(folder)
    weights = random_weights(AutoModelForSpeechSeq2Seq.from_config(config), torch.Generator().manual_seed(100), False)
    spice(weights)
    save_weights(folder, {key: value.to(torch.float16) for key, value in weights.items()}, 1)
    model = AutoModelForSpeechSeq2Seq.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with wave.open(str(HERE / "audio" / "clip.wav")) as f:
        clip = numpy.frombuffer(f.readframes(f.getnframes()), "<i2").astype(numpy.float32) / 32768
    answers = []
    for n_samples, language, times in CASES:
        begin = language and [LANGUAGES[{"en": 0, "de": 1, "fr": 2}[language]], TRANSLATE] + [NO_TIMES] * (not times)
        tokens = hear(model, clip, n_samples, language, times)
        answers.append(dict(n_samples=n_samples, begin=begin, times=times, tokens=tokens))
        print(n_samples, language, times, tokens)
    (folder / "answers.json").write_text("[\n " + ",\n ".join(json.dumps(case) for case in answers) + "\n]\n")


if __name__ == "__main__":
    main()
