/* model/fingerprint.c: what changes a fingerprint, what does not, and how long it takes. */
#include "model/fingerprint.h"
#include "model/source/safetensors.h"
#include "tests/engine/tiny_model.h"

static char dir[64];
enum { HALF = SPW_FINGERPRINT_BYTES / 2 };

static void in_dir(char path[128], const char *name)
{
    snprintf(path, 128, "%s/%s", dir, name);
}

static struct spw_source *source;

static int take(uint8_t out[SPW_FINGERPRINT_BYTES], struct spw_error *err)
{
    struct spw_tensors *st = NULL;
    int rc = spw_safetensors_open(&st, dir, err);
    if (!rc)
        rc = spw_fingerprint_take(out, source, st, err);
    spw_tensors_close(st);
    return rc;
}

static void taken(uint8_t out[SPW_FINGERPRINT_BYTES])
{
    struct spw_error err = {0};
    int rc = take(out, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
}

/* Turns one bit of a file. */
static void turn(const char *name, uint64_t offset)
{
    char path[128];
    in_dir(path, name);
    FILE *file = fopen(path, "r+b");
    fseek(file, (long)offset, SEEK_SET);
    int byte = fgetc(file) ^ 1;
    fseek(file, (long)offset, SEEK_SET);
    fputc(byte, file);
    fclose(file);
}

/* Which halves change when that bit is turned: 1 the first, 2 the second. It is turned back. */
static int changes(const char *name, uint64_t offset)
{
    uint8_t before[SPW_FINGERPRINT_BYTES], after[SPW_FINGERPRINT_BYTES];
    taken(before);
    turn(name, offset);
    taken(after);
    turn(name, offset);
    return (memcmp(before, after, HALF) != 0) | (memcmp(before + HALF, after + HALF, HALF) != 0)
                                                    << 1;
}

static const struct tiny_model model = {TINY("qwen2", 2, 64, 96, 4, 2, 16, 97, 4096), .bias = true,
                                        .untied = true, .seed = 7};

/* Every value of config.json, as text: each digit in turn. */
static void test_config(void)
{
    char path[128], text[2048];
    in_dir(path, "config.json");
    FILE *file = fopen(path, "rb");
    size_t n = fread(text, 1, sizeof text, file), digits = 0;
    fclose(file);
    for (size_t i = 0; i < n; i++)
        if (text[i] >= '2' && text[i] <= '9') {
            digits++;
            CHECK_MSG(changes("config.json", i) == 1, "byte %zu", i);
        }
    CHECK(digits > 10);
}

/* A name in the header, and the first and last weights of every tensor: all of them are small
 * enough to be sampled there. */
static void test_weights(void)
{
    struct spw_error err = {0};
    struct spw_tensors *st = NULL;
    CHECK(spw_safetensors_open(&st, dir, &err) == 0);
    struct spw_tensors_extent e = spw_tensors_extent(st, 0);
    const char *name = strstr((const char *)e.header + 8, "o_proj");
    CHECK(name && e.header_bytes < e.file_bytes);
    CHECK(changes("model.safetensors", (uint64_t)(name - (const char *)e.header)) == 3);
    for (size_t i = 0; i < spw_tensors_count(st); i++) {
        const struct spw_tensor *t = spw_tensors_at(st, i);
        CHECK_MSG(changes("model.safetensors", t->file_offset) == 2, "%s", t->name);
        if (t->bytes <= 4096)
            CHECK_MSG(changes("model.safetensors", t->file_offset + t->bytes - 1) == 2, "%s",
                      t->name);
    }
    spw_tensors_close(st);
}

/* Pages of files that this process has mapped and touched. */
static long file_pages(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%*d %*d %ld", &pages) == 1);
    fclose(f);
    return pages;
}

/* A tensor of 64 MiB has five parts, and something of each is sampled. */
static void test_large(void)
{
    struct tiny_model large = model;
    large.vocab = 1 << 18;
    large.layers = 1;
    struct spw_error err = {0};
    tiny_model_write(&large, dir);
    struct spw_tensors *st = NULL;
    CHECK(spw_safetensors_open(&st, dir, &err) == 0);
    const struct spw_tensor *t = spw_tensors_find(st, "model.embed_tokens.weight");
    uint8_t before[SPW_FINGERPRINT_BYTES], after[SPW_FINGERPRINT_BYTES];
    char path[128];
    in_dir(path, "model.safetensors");
    const long pages = file_pages();
    CHECK(spw_fingerprint_take(before, source, st, &err) == 0);
    CHECK_MSG(file_pages() < pages + 16, "%ld pages, then %ld", pages, file_pages());
    uint64_t part = t->bytes / 5;
    uint8_t *zeros = spw_alloc_zero(1, part), *kept = spw_alloc(part);
    FILE *file = fopen(path, "r+b");
    for (uint64_t i = 0; i < 5; i++) { /* the mapping is shared: what is written shows at once */
        memcpy(kept, (const uint8_t *)t->data + i * part, part);
        fseek(file, (long)(t->file_offset + i * part), SEEK_SET);
        fwrite(zeros, 1, part, file);
        fflush(file);
        CHECK(spw_fingerprint_take(after, source, st, &err) == 0);
        CHECK_MSG(memcmp(before + HALF, after + HALF, HALF) != 0, "part %d", (int)i);
        fseek(file, (long)(t->file_offset + i * part), SEEK_SET);
        fwrite(kept, 1, part, file);
        fflush(file);
    }
    fclose(file);
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    CHECK(spw_fingerprint_take(after, source, st, &err) == 0 &&
          memcmp(before, after, sizeof after) == 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    CHECK_MSG(seconds < 0.05, "%.3f s", seconds); /* hashing all of it takes longer than that */
    spw_free(zeros);
    spw_free(kept);
    spw_tensors_close(st);
}

static void test_same(void)
{
    uint8_t a[SPW_FINGERPRINT_BYTES], b[SPW_FINGERPRINT_BYTES];
    struct spw_error err = {0};
    char text[2 * SPW_FINGERPRINT_BYTES + 1], path[128], moved[140];
    taken(a);
    taken(b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    spw_fingerprint_text(text, a);
    CHECK(strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64);
    CHECK(strtoul((char[]){text[62], text[63], 0}, NULL, 16) == a[31]);
    in_dir(path, "generation_config.json"); /* says nothing about logits */
    FILE *file = fopen(path, "w");
    fputs("{\"eos_token_id\":[1,2]}", file);
    fclose(file);
    taken(b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    unlink(path);
    in_dir(path, "config.json");
    snprintf(moved, sizeof moved, "%s.away", path);
    CHECK(rename(path, moved) == 0);
    CHECK(take(b, &err) == -ENOENT && strstr(err.text, "config.json"));
    CHECK(rename(moved, path) == 0);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/spw_fingerprint_%d", (int)getpid());
    tiny_model_write(&model, dir);
    CHECK(spw_source_open(&source, dir, NULL) == 0);
    test_same();
    test_config();
    test_weights();
    test_large();
    spw_source_close(source);
    tiny_model_remove(dir);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
