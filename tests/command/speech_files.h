/* WAV files of any length for the golden model of speech. */
#ifndef SPW_TESTS_COMMAND_SPEECH_FILES_H
#define SPW_TESTS_COMMAND_SPEECH_FILES_H

#include "tests/command/command_run.h"

/* Samples of the golden clip, again and again, as a file of an unknown length. */
static inline void write_clip(const char *name, size_t n)
{
    enum { HEADER = 44 };
    char clip[1 << 14];
    FILE *from = fopen("tests/golden/audio/clip.wav", "rb"), *to = fopen(in_folder(name), "wb");
    const size_t bytes = fread(clip, 1, sizeof clip, from);
    memset(clip + HEADER - 4, 0xff, 4);
    fwrite(clip, 1, HEADER, to);
    for (size_t at = 0, left; at < 2 * n; at += left) {
        left = 2 * n - at < bytes - HEADER ? 2 * n - at : bytes - HEADER;
        fwrite(clip + HEADER, 1, left, to);
    }
    CHECK(bytes > HEADER && !fclose(from) && !fclose(to));
}

#endif
