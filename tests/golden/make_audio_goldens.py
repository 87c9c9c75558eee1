#!/usr/bin/env python3
"""Makes tests/golden/audio: a short synthetic clip, and what transformers' WhisperFeatureExtractor makes of it.

    python3 tests/golden/make_audio_goldens.py       needs numpy, transformers

clip.wav has 16-bit samples at 16 kHz: two rising tones, noise, and silence at the end. A case of golden.json repeats
it, up to n_samples; `file` has the rows `frames` of its log-mel spectrogram of n_frames rows, float32.
"""

import json
import wave

import numpy
from transformers import WhisperFeatureExtractor

from make_goldens import HERE

RATE = 16000
CASES = [  # name, numbers of a row, samples, seconds of a window (0: all samples), rows that are kept
    ("padded", 80, 4000, 30, [0, 1, 2, 3, 10, 23, 24, 25, 26, 27, 100, 2998, 2999]),
    ("cut", 128, 16000, 1, [0, 1, 2, 50, 97, 98, 99]),
    ("all", 80, 19950, 0, [0, 1, 25, 122, 123]),
]


def clip():
    t = numpy.arange(RATE // 4) / RATE
    x = 0.4 * numpy.sin(2 * numpy.pi * (200 + 1500 * t) * t) + 0.1 * numpy.sin(2 * numpy.pi * (3000 + 9000 * t) * t)
    x += 0.02 * numpy.random.default_rng(47).standard_normal(t.size)
    x[-RATE // 20:] = 0
    return numpy.round(x * 32767).astype("<i2")


def main():
    folder = HERE / "audio"
    folder.mkdir(exist_ok=True)
    samples = clip()
    with wave.open(str(folder / "clip.wav"), "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(RATE)
        f.writeframes(samples.tobytes())
    golden = []
    for name, n_mels, n_samples, seconds, frames in CASES:
        extractor = WhisperFeatureExtractor(feature_size=n_mels, chunk_length=seconds or 30)
        audio = numpy.resize(samples.astype(numpy.float32) / 32768, n_samples)
        whole = {} if seconds else dict(padding="longest", truncation=False)
        features = extractor(audio, sampling_rate=RATE, return_tensors="np", **whole).input_features[0].T
        features[frames].astype("<f4").tofile(folder / f"{name}.f32")
        golden.append(dict(file=f"{name}.f32", n_mels=n_mels, n_samples=n_samples, n_frames=len(features), frames=frames))
    (folder / "golden.json").write_text("[\n " + ",\n ".join(json.dumps(case) for case in golden) + "\n]\n")


if __name__ == "__main__":
    main()
