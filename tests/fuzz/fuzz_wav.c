/* libFuzzer target of WAV files. What is accepted has samples, all of them finite.
 *
 *   build/fuzz/fuzz_wav -max_total_time=60 tests/fuzz/seeds/wav */
#include "model/audio/audio.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void expect(bool promise)
{
    if (!promise)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct spw_audio a;
    struct spw_error err = {0};
    if (spw_audio_read_wav(&a, data, bytes, "wav", &err))
        expect(err.text[0] && !a.samples);
    else
        expect(a.n > 0 && a.n <= bytes && a.rate >= 1000);
    for (size_t i = 0; i < a.n; i++)
        expect(isfinite(a.samples[i]));
    spw_audio_free(&a);
    expect(spw_alloc_outstanding() == 0);
    return 0;
}
