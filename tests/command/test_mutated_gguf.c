/* GGUF files with random damage in the header or in the data, one of them with blocks of many
 * quantized types. The library refuses each with one
 * line of text or gives an answer, and leaks nothing. Most useful under sanitizers:
 *
 *   test_mutated_gguf [COUNT]      2,500 files, 10,000 in a full run; SPW_SEED repeats a run */
#include "tests/command/mutated.h"
#include "tests/engine/gguf_folder.h"
#include "tests/engine/tiny_model.h"
#include "tests/gguf_tokenizer.h"

static const char *const goldens[] = {
    "llama_plain",      "llama_biases",    "qwen2_yarn",
    "qwen3_qk_norm",    "gemma3_new_keys", "llama_llama3_old_keys",
    "qwen2_moe_shared", "qwen3_moe_plain", "gemma4_moe_all"};
enum { N_GOLDENS = sizeof goldens / sizeof *goldens, N_FILES = N_GOLDENS + 1 };

/* A tokenizer and a template. Ids of these tiny models stay below 96. */
static void add_text(struct spw_gguf_writer *w, void *context)
{
    struct spw_gguf_string list[96];
    char names[96][16];
    float scores[96];
    int32_t types[96];
    (void)context;
    for (int i = 0; i < 96; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        if (i < 13)
            snprintf(names[i], sizeof names[i], "%c", "heloTwrds1234"[i]);
        list[i] = (struct spw_gguf_string){names[i], strlen(names[i])};
        scores[i] = -(float)i;
        types[i] = i < 90 ? 1 : 3;
    }
    spw_gguf_add_string(w, "tokenizer.ggml.model", "llama");
    spw_gguf_add_strings(w, "tokenizer.ggml.tokens", list, 96);
    spw_gguf_add(w, "tokenizer.ggml.scores", SPW_GGUF_F32, true, scores, 96);
    spw_gguf_add(w, "tokenizer.ggml.token_type", SPW_GGUF_I32, true, types, 96);
    spw_gguf_add_u32(w, "tokenizer.ggml.unknown_token_id", 95);
    spw_gguf_add(w, "tokenizer.ggml.eos_token_ids", SPW_GGUF_I32, true, (const int32_t[]){91, 92},
                 2);
    spw_gguf_add(w, "tokenizer.ggml.suppress_tokens", SPW_GGUF_I32, true, (const int32_t[]){5, 93},
                 2);
    spw_gguf_add_u32(w, "gemma3.vision.block_count", 27); /* as in Ollama's files */
    spw_gguf_add_string(w, "tokenizer.chat_template",
                        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}");
}

/* Header: most of the damage. Small changes, because a random length ends at the first check. */
static void damage(struct bytes *b, size_t header, uint64_t *seed)
{
    static const uint8_t values[] = {0, 1, 2, 3, 4, 7, 8, 9, 10, 32, 64, 127, 128, 255};
    size_t at = check_random(seed) % header, n = 1 + check_random(seed) % 20;
    switch (check_random(seed) % 8) {
    case 0:
        change_bytes(b, 0, header, seed);
        break;
    case 1: /* data: NaN, infinity, anything */
        for (int i = 0; i < 40; i++)
            change_bytes(b, header, b->n, seed);
        break;
    case 2:
        b->n -= check_random(seed) % (b->n / 2);
        break;
    case 3: /* removes or repeats a piece */
        if (check_random(seed) % 2)
            replace(b, at, n < header - at ? n : header - at, "", 0);
        else
            replace(b, at, 0, (char *)b->at + at, n < header - at ? n : header - at);
        break;
    default:
        b->at[at] = PICK(values, seed);
    }
}

static void use_parts(const char *path, struct spw_tokenizer **t)
{
    static const char text[] = "The h\xc3\xa9llo of 1234 <s>worlds\n\n  </s>";
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"hello\"}]";
    struct spw_source *s;
    struct spw_error err = {0};
    struct spw_chat_template *chat = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    CHECK(!spw_source_open(&s, path, &err));
    check_refusal(s->ops->tokenizer(s, t, &err), &err, "tokenizer");
    if (*t)
        check_refusal(spw_tokenizer_encode(*t, text, sizeof text - 1, true, &ids, &n, &err), &err,
                      "encode");
    spw_free(ids);
    spw_error_clear(&err);
    check_refusal(s->ops->chat_template(s, NULL, NULL, &chat, &err), &err, "template");
    if (chat) {
        struct spw_chat_request q = {.messages_json = messages,
                                     .messages_bytes = sizeof messages - 1};
        char *rendered = NULL;
        size_t bytes;
        check_refusal(spw_chat_template_render(chat, &q, &rendered, &bytes, &err), &err, "render");
        spw_free(rendered);
        spw_chat_template_close(chat);
    }
    spw_source_close(s);
}

/* Each matrix has a type of its own; all of them fit its rows. */
static void write_quantized(const char *dir, const char *path, uint64_t *seed)
{
    char folder[64];
    snprintf(folder, sizeof folder, "%s/folder", dir);
    tiny_model_write(&(struct tiny_model){TINY("llama", 1, 256, 256, 4, 2, 64, 96, 512),
                                          .untied = true, .seed = 5},
                     folder);
    gguf_from_folder(folder, path,
                     &(struct gguf_way){.more_keys = add_text, .seed = check_random(seed) | 1});
    tiny_model_remove(folder);
}

int main(int argc, char **argv)
{
    unsigned long n = argc > 1 ? strtoul(argv[1], NULL, 10) : (unsigned long)check_amount(10000);
    unsigned long n_answers = 0;
    uint64_t seed = check_seed();
    char dir[] = "/tmp/spw_mutated_XXXXXX", path[64];
    struct bytes b = {.at = malloc(MOST_BYTES)}, whole[N_FILES];
    size_t headers[N_FILES];
    if (!b.at || !mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    for (int i = 0; i < N_FILES; i++) {
        char folder[64];
        struct spw_gguf g;
        if (i < N_GOLDENS) {
            snprintf(folder, sizeof folder, "tests/golden/%s", goldens[i]);
            gguf_from_folder(folder, path, &(struct gguf_way){.more_keys = add_text});
        } else {
            write_quantized(dir, path, &seed);
        }
        whole[i].at = malloc(MOST_BYTES);
        CHECK(read_bytes(&whole[i], path));
        CHECK(!spw_gguf_parse(&g, whole[i].at, whole[i].n, path, NULL));
        headers[i] = g.header_bytes;
        spw_gguf_free(&g);
    }
    for (unsigned long i = 0; i < n; i++) {
        struct spw_tokenizer *t = NULL;
        uint64_t which = check_random(&seed) % N_FILES;
        alarm(SECONDS);
        b.n = whole[which].n;
        memcpy(b.at, whole[which].at, b.n);
        for (uint64_t k = check_range(&seed, 1, 3); k > 0 && b.n > headers[which] + 16; k--)
            damage(&b, headers[which], &seed);
        write_bytes(&b, dir, "m.gguf");
        use_parts(path, &t);
        n_answers += use_model(path, t);
        spw_tokenizer_close(t);
        CHECK_MSG(spw_alloc_outstanding() == 0, "file %lu left %lld", i,
                  (long long)spw_alloc_outstanding());
    }
    fprintf(stderr, "%lu of %lu files gave an answer\n", n_answers, n);
    CHECK(n < 100 || (n_answers > n / 50 && n_answers < n));
    unlink(path);
    rmdir(dir);
    for (int i = 0; i < N_FILES; i++)
        free(whole[i].at);
    free(b.at);
    return check_done();
}
