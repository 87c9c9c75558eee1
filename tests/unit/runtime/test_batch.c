/* A batch through the public API, on a tiny committed model: a batch gives the same results as
 * single runs, stop strings cut the text at the right place, every way to end, refusals, failed
 * allocations. */
#include "model/source/safetensors.h"
#include "tests/unit/runtime/batch_requests.h"

#include <sys/stat.h>

/* The engine has moved what a dry run of these requests moves. */
static void check_moved(struct spw_engine *e, const struct spw_request *requests,
                        const struct spw_result *results, size_t n)
{
    struct spw_plan_request lengths[16];
    uint64_t predicted[SPW_MOVED_COUNT];
    struct spw_error err = {0};
    struct spw_stats stats;
    for (size_t i = 0; i < n; i++)
        lengths[i] = (struct spw_plan_request){
            .prompt = requests[i].prompt,
            .n_prompt = requests[i].n_prompt,
            .max_new_tokens = requests[i].max_new_tokens,
            .ends_at = results[i].finish == SPW_FINISH_LENGTH ? 0 : (uint64_t)results[i].n_tokens};
    CHECK_MSG(!spw_engine_predict(predicted, e, lengths, n, &err), "%s", err.text);
    spw_engine_stats(e, &stats);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(stats.moved_bytes[i] == predicted[i], "link %d: %llu, predicted %llu", i,
                  (unsigned long long)stats.moved_bytes[i], (unsigned long long)predicted[i]);
}

/* Eleven requests of all sizes through one session, through four and through all. */
static void test_batches(uint64_t seed)
{
    enum { N = 11 };
    static struct prompt prompts[N];
    static struct seen seen[3][N];
    struct spw_request requests[N];
    struct batch_watch watch[N];
    struct spw_result results[3][N];
    const uint32_t sessions[3] = {1, 4, N};
    struct spw_tokenizer *t = make_tokenizer();
    for (int i = 0; i < N; i++)
        draw_prompt(&prompts[i], &seed);
    prompts[0].request.max_new_tokens = 0;
    for (int run = 0; run < 3; run++) {
        struct spw_engine *e = open_engine(MODEL, sessions[run]);
        struct spw_batch_times times;
        for (int i = 0; i < N; i++) {
            requests[i] = prompts[i].request;
            requests[i].text = true;
            watch[i] = (struct batch_watch){see_token, see_text, &seen[run][i]};
        }
        CHECK(batch_watched(e, t, requests, watch, N, results[run], &times, NULL) == 0);
        CHECK(times.prefill_seconds > 0 && times.decode_seconds > 0);
        check_moved(e, requests, results[run], N);
        spw_engine_close(e);
    }
    for (int i = 0; i < N; i++) {
        const struct spw_result *r = &results[0][i];
        const struct seen *s = &seen[0][i];
        CHECK(same(r, &results[1][i]) && same(r, &results[2][i]));
        CHECK(s->n_text == seen[1][i].n_text && memcmp(s->text, seen[1][i].text, s->n_text) == 0);
        CHECK(r->n_tokens == s->n_tokens &&
              memcmp(r->tokens, s->tokens, s->n_tokens * sizeof *s->tokens) == 0);
        CHECK(r->logits_hash == hash_rows(s->logits, s->n_tokens));
        if (r->finish == SPW_FINISH_LENGTH)
            CHECK(r->n_tokens == prompts[i].request.max_new_tokens);
        else
            CHECK(r->finish == SPW_FINISH_EOS && r->tokens[r->n_tokens - 1] == 2);
        if (r->n_tokens > 0)
            CHECK(r->waterlines.n_tokens == prompts[i].request.n_prompt + r->n_tokens - 1);
    }
    for (int run = 0; run < 3; run++)
        for (int i = 0; i < N; i++)
            spw_result_free(&results[run][i]);
    spw_tokenizer_close(t);
}

/* The caller has all sessions open: each request ends, and says why. */
static void test_no_session_left(void)
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_session *s = NULL;
    struct spw_batch *b = NULL, *second;
    struct spw_error err = {0};
    struct spw_event event;
    const int32_t ids[] = {5, 6};
    struct spw_request request = {.prompt = ids, .n_prompt = 2, .max_new_tokens = 4};
    uint64_t id, n_failed = 0;
    CHECK(!spw_session_open(&s, e, &err) && !spw_batch_open(&b, e, NULL, &err));
    CHECK(spw_batch_open(&second, e, NULL, &err) == -EBUSY);
    CHECK(spw_batch_cancel(b, 1000) == -ENOENT && !spw_batch_result(b, 1000));
    for (int i = 0; i < 3; i++)
        CHECK(!spw_batch_submit(b, &request, &id, &err));
    CHECK(!spw_batch_step(b, &err));
    while (spw_batch_event(b, &event))
        n_failed += event.kind == SPW_EVENT_END && event.text_bytes;
    CHECK(n_failed == 3);
    spw_batch_close(b);
    spw_session_close(s);
    spw_engine_close(e);
}

/* The batch draws like the sampler: the same loop, written by hand, gives the same tokens. */
static void test_by_hand(uint64_t seed)
{
    struct spw_engine *e = open_engine(MODEL, 2);
    struct prompt p;
    struct spw_result r;
    struct spw_session *s;
    struct spw_sampler *sampler;
    const struct spw_logit_bias biases[] = {{7, 3}, {9, -100}};
    int32_t tokens[300];
    draw_prompt(&p, &seed);
    p.request.max_new_tokens = 40;
    p.request.sampling.temperature = 1;
    p.request.sampling.frequency_penalty = 0.4f;
    p.request.sampling.presence_penalty = -0.2f;
    p.request.sampling.stream = check_random(&seed);
    p.request.sampling.logit_bias = biases;
    p.request.sampling.n_logit_bias = 2;
    p.request.ignore_eos = true;
    CHECK(batch_run(e, NULL, &p.request, 1, &r, NULL, NULL) == 0 && r.n_tokens == 40);
    CHECK(spw_session_open(&s, e, NULL) == 0);
    CHECK(spw_sampler_open(&sampler, VOCAB, NULL) == 0);
    size_t n = p.request.n_prompt;
    memcpy(tokens, p.ids, n * sizeof *tokens);
    for (size_t i = 0; i < 40; i++) {
        struct spw_span span = {.session = s, .tokens = tokens, .n_tokens = n + i, .n_logits = 1};
        CHECK(spw_sync(e, &span, 1, NULL, NULL, NULL) == 0);
        tokens[n + i] =
            spw_sampler_pick(sampler, &p.request.sampling, spw_session_logits(s), tokens, n, n + i);
    }
    CHECK(memcmp(tokens + n, r.tokens, 40 * sizeof *tokens) == 0);
    spw_sampler_close(sampler);
    spw_session_close(s);
    spw_result_free(&r);
    spw_engine_close(e);
}

/* Tokens that generation_config.json suppresses are in no answer, whatever the request's biases
 * say, unless it has a list of its own. */
static void test_suppressed(uint64_t seed)
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_model_config *c = (struct spw_model_config *)(uintptr_t)spw_engine_config(e);
    struct prompt p;
    struct spw_result before, after;
    struct seen seen = {0};
    draw_prompt(&p, &seed);
    p.request.max_new_tokens = 1;
    p.request.ignore_eos = true;
    CHECK(!batch_run(e, NULL, &p.request, 1, &before, NULL, NULL));
    const struct spw_logit_bias bias = {before.tokens[0], 100};
    const int32_t suppressed[] = {before.tokens[0], 11};
    c->token_rules.lists[SPW_SUPPRESS] = (struct spw_token_list){suppressed, 2};
    for (int drawn = 0; drawn < 2; drawn++) {
        p.request.max_new_tokens = 30;
        p.request.sampling = (struct spw_sampling){
            .temperature = drawn ? 3 : 0, .seed = seed, .logit_bias = &bias, .n_logit_bias = 1};
        const struct batch_watch watch = {.on_token = see_token, .context = &seen};
        seen.n_tokens = 0;
        CHECK(!batch_watched(e, NULL, &p.request, &watch, 1, &after, NULL, NULL));
        CHECK(after.n_tokens == 30);
        for (size_t i = 0; i < after.n_tokens; i++) {
            int32_t best = -1;
            const float *row = seen.logits + i * VOCAB;
            for (int32_t id = 0; id < VOCAB; id++)
                if (id != bias.token && id != 11 && (best < 0 || row[id] > row[best]))
                    best = id;
            CHECK(after.tokens[i] != bias.token && after.tokens[i] != 11);
            CHECK(drawn || after.tokens[i] == best);
        }
        spw_result_free(&after);
    }
    p.request.sampling.temperature = 0;
    p.request.sampling.rules.lists[SPW_SUPPRESS].ids = (int32_t[]){0};
    CHECK(!batch_run(e, NULL, &p.request, 1, &after, NULL, NULL));
    CHECK(after.tokens[0] == bias.token);
    spw_result_free(&after);
    spw_result_free(&before);
    spw_engine_close(e);
}

/* The caller's list of biases may go once the request was submitted. */
static void test_bias_copied(void)
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_batch *b = NULL;
    struct spw_logit_bias bias = {7, 100};
    const int32_t ids[] = {5, 6};
    struct spw_request request = {.prompt = ids,
                                  .n_prompt = 2,
                                  .max_new_tokens = 1,
                                  .sampling = {.logit_bias = &bias, .n_logit_bias = 1}};
    uint64_t id;
    CHECK(!spw_batch_open(&b, e, NULL, NULL) && !spw_batch_submit(b, &request, &id, NULL));
    bias.token = 9;
    CHECK(!spw_batch_step(b, NULL) && spw_batch_result(b, id)->tokens[0] == 7);
    spw_batch_close(b);
    spw_engine_close(e);
}

/* A stop string taken from the text itself cuts it at its first occurrence. */
static void test_stop(uint64_t seed)
{
    static struct seen whole, cut;
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_tokenizer *t = make_tokenizer();
    struct prompt p;
    struct spw_result r;
    draw_prompt(&p, &seed);
    p.request.max_new_tokens = MOST;
    p.request.sampling = (struct spw_sampling){.temperature = 1.5f, .seed = check_random(&seed)};
    p.request.ignore_eos = true;
    p.request.text = true;
    struct batch_watch watch = {see_token, see_text, &whole};
    CHECK(batch_watched(e, t, &p.request, &watch, 1, &r, NULL, NULL) == 0 && r.n_tokens == MOST);
    spw_result_free(&r);
    CHECK(whole.n_text >= MOST - 2); /* a byte for each token, except the character of two bytes */
    for (int round = 0; round < 20; round++) {
        char stop[16] = "", missing[] = "\x01never\x01";
        size_t from = check_range(&seed, 0, whole.n_text - 8);
        size_t n = check_range(&seed, 1, 7);
        while (((unsigned char)whole.text[from] & 0xc0) == 0x80)
            from++;
        while (((unsigned char)whole.text[from + n] & 0xc0) == 0x80)
            n++;
        memcpy(stop, whole.text + from, n);
        stop[n] = 0;
        const char *stops[] = {missing, stop};
        whole.text[whole.n_text] = 0;
        size_t expected = (size_t)(strstr(whole.text, stop) - whole.text);
        memset(&cut, 0, sizeof cut);
        p.request.stop = stops;
        p.request.n_stop = 2;
        watch.context = &cut;
        CHECK(batch_watched(e, t, &p.request, &watch, 1, &r, NULL, NULL) == 0);
        CHECK_MSG(r.finish == SPW_FINISH_STOP && cut.n_text == expected &&
                      memcmp(cut.text, whole.text, expected) == 0,
                  "stop '%s': found %zu bytes, expected %zu", stop, cut.n_text, expected);
        CHECK(r.n_tokens == cut.n_tokens && r.n_tokens <= MOST);
        spw_result_free(&r);
    }
    spw_tokenizer_close(t);
    spw_engine_close(e);
}

/* A prompt that ends in half a character: the new text begins with the whole character. A request
 * for no tokens, or one whose tokens add no text, returns no text of the prompt. */
static void test_prompt_end(void)
{
    static struct seen seen;
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_tokenizer *t = make_tokenizer();
    struct spw_result r;
    int32_t ids[] = {94, 64, 94}; /* 0xc3, 'a', 0xc3 */
    struct spw_request request = {.prompt = ids, .n_prompt = 3, .text = true};
    struct batch_watch watch = {see_token, see_text, &seen};
    CHECK(batch_watched(e, t, &request, &watch, 1, &r, NULL, NULL) == 0 && seen.n_text == 0);
    spw_result_free(&r);
    bool completed = false, broken = false;
    request.max_new_tokens = 1;
    request.ignore_eos = true;
    for (uint64_t seed = 0; seed < 600 && !(completed && broken); seed++) {
        request.sampling = (struct spw_sampling){.temperature = 5, .seed = seed};
        memset(&seen, 0, sizeof seen);
        CHECK(batch_watched(e, t, &request, &watch, 1, &r, NULL, NULL) == 0);
        if (r.tokens[0] == 95) {
            completed = true;
            CHECK(seen.n_text == 2 && memcmp(seen.text, "\xc3\xa9", 2) == 0);
        } else if (r.tokens[0] < 94) {
            broken = true;
            CHECK(seen.n_text == 1 && seen.text[0] == '!' + r.tokens[0]);
        }
        spw_result_free(&r);
    }
    CHECK(completed && broken);
    spw_tokenizer_close(t);
    spw_engine_close(e);
}

/* The same folder with another list of eos tokens. */
static void test_eos(void)
{
    char folder[64], path[256], command[512];
    snprintf(folder, sizeof folder, "/tmp/spw_generate_%d", (int)getpid());
    snprintf(command, sizeof command, "cp -r %s %s && chmod -R u+w %s", MODEL, folder, folder);
    CHECK(system(command) == 0);
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_result r, cut;
    int32_t ids[] = {5, 17, 40};
    struct spw_request request = {.prompt = ids,
                                  .n_prompt = 3,
                                  .max_new_tokens = 30,
                                  .ignore_eos = true,
                                  .sampling = {.temperature = 2, .seed = 1}};
    CHECK(batch_run(e, NULL, &request, 1, &r, NULL, NULL) == 0);
    spw_engine_close(e);
    int32_t eos = r.tokens[9];
    size_t first = 0;
    while (r.tokens[first] != eos)
        first++;
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    FILE *file = fopen(path, "w");
    fprintf(file, "{\"eos_token_id\": [%d, %d]}", eos, VOCAB - 1);
    fclose(file);
    e = open_engine(folder, 1);
    request.ignore_eos = false;
    CHECK(batch_run(e, NULL, &request, 1, &cut, NULL, NULL) == 0);
    if (cut.tokens[cut.n_tokens - 1] == eos)
        CHECK(cut.n_tokens == first + 1);
    CHECK(cut.finish == SPW_FINISH_EOS && cut.n_tokens <= first + 1);
    CHECK(memcmp(cut.tokens, r.tokens, cut.n_tokens * sizeof *r.tokens) == 0);
    spw_result_free(&cut);
    spw_result_free(&r);
    spw_engine_close(e);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
}

static void test_refusals(void)
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_error err = {0};
    struct spw_result r[2];
    int32_t ids[] = {1, 2, VOCAB}, negative[] = {-1};
    const struct spw_logit_bias unknown = {VOCAB, 1};
    struct spw_request good = {.prompt = ids, .n_prompt = 2, .max_new_tokens = 1};
    struct {
        struct spw_request request;
        int rc;
        const char *says;
    } bad[] = {
        {{.prompt = ids, .max_new_tokens = 1}, -EINVAL, "empty prompt"},
        {{.prompt = ids, .n_prompt = 3, .max_new_tokens = 1}, -EINVAL, "found id 96"},
        {{.prompt = negative, .n_prompt = 1, .max_new_tokens = 1}, -EINVAL, "found id -1"},
        {{.prompt = ids, .n_prompt = 2, .max_new_tokens = 400}, -E2BIG, "context of 400"},
        {{.prompt = ids, .n_prompt = 2, .max_new_tokens = SIZE_MAX}, -E2BIG, "context of 400"},
        {{.prompt = ids, .n_prompt = 2, .max_new_tokens = 1, .text = true}, -EINVAL, "tokenizer"},
        {{.prompt = ids, .n_prompt = 2, .max_new_tokens = 1, .sampling = {.top_p = 2}},
         -EINVAL,
         "top_p"},
        {{.prompt = ids,
          .n_prompt = 2,
          .max_new_tokens = 1,
          .sampling = {.logit_bias = &unknown, .n_logit_bias = 1}},
         -EINVAL,
         "logit_bias: found the token id 96, expected 0 to 95"},
        {{.prompt = ids,
          .n_prompt = 2,
          .max_new_tokens = 1,
          .sampling = {.rules.lists[SPW_FORCED_EOS] = {ids, 3}}},
         -EINVAL,
         "token 3 of the forced_eos_token_id: found id 96"},
        {{.prompt = ids, .n_prompt = 2, .logprobs = true, .n_top_logprobs = 21},
         -EINVAL,
         "n_top_logprobs: found 21, expected at most 20"},
        {{.prompt = ids, .n_prompt = 2, .n_top_logprobs = 1}, -EINVAL, "0 without logprobs"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct spw_request both[] = {good, bad[i].request};
        spw_error_clear(&err);
        CHECK(batch_run(e, NULL, both, 2, r, NULL, &err) == bad[i].rc);
        CHECK_MSG(strstr(err.text, bad[i].says), "%s", err.text);
        CHECK(r[0].n_tokens == 0); /* the request is refused before anything is computed */
        spw_result_free(&r[0]);
        spw_result_free(&r[1]);
    }
    /* The last token is chosen but not computed: it needs no place in the context. */
    struct spw_request full = good;
    full.max_new_tokens = 399;
    full.ignore_eos = true;
    CHECK(batch_run(e, NULL, &full, 1, r, NULL, &err) == 0 && r[0].n_tokens == 399);
    spw_result_free(&r[0]);
    CHECK(batch_run(e, NULL, NULL, 0, NULL, NULL, &err) == 0);
    spw_engine_close(e);
}

/* A copy of the model with NaN at this number of a tensor. */
static void copy_damaged(const char *folder, const char *tensor, uint64_t at)
{
    static const uint16_t nan_bf16 = 0x7fc0;
    char command[512];
    struct spw_tensors *file = NULL;
    snprintf(command, sizeof command, "cp -r %s %s && chmod -R u+w %s", MODEL, folder, folder);
    CHECK(system(command) == 0 && spw_safetensors_open(&file, folder, NULL) == 0);
    const struct spw_tensor *t = spw_tensors_find(file, tensor);
    FILE *weights = fopen(t->file, "r+b");
    CHECK(t->dtype == SPW_DTYPE_BF16 &&
          !fseek(weights, (long)(t->file_offset + at * sizeof nan_bf16), SEEK_SET));
    CHECK(fwrite(&nan_bf16, 2, 1, weights) == 1);
    fclose(weights);
    spw_tensors_close(file);
}

/* Damaged weights give logits of which all, or one that no token needs, are NaN: the request ends,
 * and no token is chosen. Others do not end. */
static void test_not_numbers(void)
{
    static const struct {
        const char *tensor;
        uint64_t at;
    } damages[] = {{"model.norm.weight", 0}, {"lm_head.weight", 95 * 32 + 3}};
    int32_t ids[] = {5, 17, 40};
    const struct spw_request one = {.prompt = ids, .n_prompt = 3, .max_new_tokens = 5};
    enum { N = 6 };
    struct spw_request r[N] = {one, one, one, one, one, one};
    r[0].max_new_tokens = r[1].max_new_tokens = 0; /* no token is picked */
    r[1].prompt_logprobs = r[2].logprobs = true;
    r[3].sampling.temperature = 1;
    r[4].sampling.repetition_penalty = 2;
    for (size_t k = 0; k < sizeof damages / sizeof *damages; k++) {
        char folder[64], command[128];
        struct spw_error err = {0};
        struct spw_result results[N];
        snprintf(folder, sizeof folder, "/tmp/spw_generate_%d", (int)getpid());
        copy_damaged(folder, damages[k].tensor, damages[k].at);
        struct spw_engine *e = open_engine(folder, 2);
        CHECK(batch_run(e, NULL, r, N, results, NULL, &err) == 0 && strstr(err.text, "NaN"));
        for (int i = 0; i < N; i++) {
            CHECK(results[i].n_tokens == 0);
            CHECK_MSG(results[i].finish == (i ? SPW_FINISH_FAILED : SPW_FINISH_LENGTH),
                      "%s, request %d: %d", damages[k].tensor, i, results[i].finish);
            spw_result_free(&results[i]);
        }
        spw_engine_close(e);
        snprintf(command, sizeof command, "rm -r %s", folder);
        CHECK(system(command) == 0);
    }
}

/* The caller ends the run; nothing stays open, and the engine still works. */
static void test_cancel(void)
{
    static struct seen seen;
    struct spw_engine *e = open_engine(MODEL, 2);
    struct spw_result r[3];
    int32_t ids[] = {1, 2, 3};
    struct spw_request request = {
        .prompt = ids, .n_prompt = 3, .max_new_tokens = 20, .ignore_eos = true};
    struct spw_request requests[] = {request, request, request};
    struct batch_watch watch[3] = {[1] = {.on_token = see_token, .context = &seen}};
    seen.stop_at = 7;
    CHECK(batch_watched(e, NULL, requests, watch, 3, r, NULL, NULL) == -ECANCELED);
    CHECK(r[1].n_tokens == 7 && r[2].n_tokens == 0);
    for (int i = 0; i < 3; i++)
        spw_result_free(&r[i]);
    memset(&seen, 0, sizeof seen);
    CHECK(batch_run(e, NULL, requests, 3, r, NULL, NULL) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(same(&r[0], &r[i]));
        if (i)
            spw_result_free(&r[i]);
    }
    spw_result_free(&r[0]);
    spw_engine_close(e);
}

/* The text of tokens that are given comes, too, and before that of the others. */
static void test_text_of_given(void)
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_tokenizer *t = make_tokenizer();
    struct spw_batch *b;
    struct spw_event event;
    uint64_t id;
    int32_t ids[] = {1, 2, 3}, given[] = {40, 41, 42, 43};
    char text[256] = "";
    const struct spw_request request = {.prompt = ids,
                                        .n_prompt = 3,
                                        .given = given,
                                        .n_given = 4,
                                        .max_new_tokens = 8,
                                        .ignore_eos = true,
                                        .text = true};
    CHECK(spw_batch_open(&b, e, t, NULL) == 0);
    CHECK(spw_batch_submit(b, &request, &id, NULL) == 0);
    while (spw_batch_step(b, NULL) > 0)
        while (spw_batch_event(b, &event))
            if (event.kind == SPW_EVENT_TEXT)
                strncat(text, event.text, event.text_bytes);
    CHECK_MSG(!strncmp(text, "IJKL", 4) && strlen(text) > 4, "'%s'", text);
    spw_batch_close(b);
    spw_tokenizer_close(t);
    spw_engine_close(e);
}

/* Text that was read does not come again, also if its request is canceled before the next step. */
static void test_cancel_after_text(void)
{
    struct spw_engine *e = open_engine(MODEL, 1);
    struct spw_tokenizer *t = make_tokenizer();
    struct spw_batch *b;
    struct spw_event event;
    uint64_t id;
    int32_t ids[] = {1, 2, 3};
    int n_texts = 0, n_ends = 0;
    struct spw_request request = {
        .prompt = ids, .n_prompt = 3, .max_new_tokens = 20, .ignore_eos = true, .text = true};
    CHECK(spw_batch_open(&b, e, t, NULL) == 0);
    CHECK(spw_batch_submit(b, &request, &id, NULL) == 0);
    for (int step = 0; step < 10 && !n_texts; step++) {
        CHECK(spw_batch_step(b, NULL) == 1);
        while (spw_batch_event(b, &event))
            n_texts += event.kind == SPW_EVENT_TEXT;
    }
    CHECK(n_texts == 1 && spw_batch_cancel(b, id) == 0);
    while (spw_batch_event(b, &event)) {
        CHECK(event.kind == SPW_EVENT_END && event.request == id);
        n_ends++;
    }
    CHECK(n_ends == 1);
    spw_batch_close(b);
    spw_tokenizer_close(t);
    spw_engine_close(e);
}

/* A request waits while another request uses its session, although a slot is free: the caller has
 * the engine's other session. */
static void test_sessions_of_callers(void)
{
    struct spw_engine *e = open_engine(MODEL, 2);
    struct spw_batch *b;
    struct spw_session *mine;
    struct spw_result r;
    uint64_t ids[4];
    int32_t tokens[] = {1, 2, 3};
    struct spw_request request = {
        .prompt = tokens, .n_prompt = 3, .max_new_tokens = 5, .ignore_eos = true};
    CHECK(spw_session_open(&mine, e, NULL) == 0);
    CHECK(spw_batch_open(&b, e, NULL, NULL) == 0);
    for (int i = 0; i < 4; i++) {
        request.session = i == 3 ? mine : NULL;
        CHECK(spw_batch_submit(b, &request, &ids[i], NULL) == 0);
    }
    CHECK(spw_batch_step(b, NULL) == 1);
    CHECK(spw_batch_result(b, ids[3])->n_tokens == 1); /* the request has its session already */
    while (spw_batch_step(b, NULL) > 0)
        ;
    for (int i = 0; i < 4; i++) {
        CHECK(spw_batch_take(b, ids[i], &r) == 0);
        CHECK_MSG(r.finish == SPW_FINISH_LENGTH && r.n_tokens == 5, "request %d: %d", i,
                  (int)r.finish);
        spw_result_free(&r);
    }
    spw_session_close(mine);
    CHECK(spw_session_open(&mine, e, NULL) == 0);
    spw_session_close(mine);
    spw_batch_close(b);
    spw_engine_close(e);
}

static bool interrupt_later(void *context)
{
    int *left = context;
    return --*left == 0;
}

/* A prompt whose step is interrupted after its first pass continues there in the next step. The
 * tokens of the first pass were computed, not reused. */
static void test_reuse_after_interrupt(void)
{
    int left = 0, n_kept = 0;
    int32_t ids[200];
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .context = 400, .threads = 2};
    struct spw_request request = {.prompt = ids, .n_prompt = 200, .max_new_tokens = 1};
    struct spw_plan_info plan;
    struct spw_engine *e;
    struct spw_batch *b;
    uint64_t id;
    for (int i = 0; i < 200; i++)
        ids[i] = (i * 7) % VOCAB;
    CHECK(spw_plan_query(&plan, MODEL, &o, NULL) == 0);
    o.device_bytes =
        plan.smallest_device_bytes; /* hidden states of few rows, so the prompt takes many passes */
    o.host_bytes = plan.smallest_host_bytes;
    CHECK(spw_engine_open(&e, MODEL, &o, NULL) == 0);
    e->look.is_time = interrupt_later;
    e->look.context = &left;
    for (int when = 1; when < 40; when += 2) {
        left = when;
        CHECK(spw_batch_open(&b, e, NULL, NULL) == 0);
        CHECK(spw_batch_submit(b, &request, &id, NULL) == 0);
        int first = spw_batch_step(b, NULL), rc = first;
        while (rc > 0 || rc == -ECANCELED)
            rc = spw_batch_step(b, NULL);
        CHECK(rc == 0 && spw_batch_result(b, id)->n_reused == 0);
        n_kept += first == -ECANCELED;
        spw_batch_close(b);
    }
    CHECK(n_kept > 5);
    spw_engine_close(e);
}

struct marks {
    uint64_t n, done, total;
};

static void see_progress(void *context, const struct spw_progress *p)
{
    struct marks *m = context;
    CHECK(p->done >= m->done && p->done <= p->total);
    m->done = p->done == p->total ? 0 : p->done;
    m->total = p->total;
    m->n++;
}

/* Progress grows chunk by chunk to the end of each step, and changes nothing. */
static void test_progress(uint64_t seed)
{
    struct marks marks = {0};
    struct spw_error err = {0};
    struct spw_options o = {.backend = SPW_BACKEND_CPU,
                            .context = 400,
                            .prefill_chunk = 16,
                            .threads = 2,
                            .on_progress = see_progress,
                            .progress_context = &marks};
    struct prompt p;
    struct spw_result with, without;
    struct spw_engine *e;
    draw_prompt(&p, &seed);
    p.request.n_prompt = 200;
    for (int i = 0; i < 200; i++)
        p.ids[i] = (i * 7) % VOCAB;
    p.request.max_new_tokens = 5;
    p.request.ignore_eos = true;
    int rc = spw_engine_open(&e, MODEL, &o, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    CHECK(batch_run(e, NULL, &p.request, 1, &with, NULL, NULL) == 0);
    CHECK(marks.total == 3 && marks.done == 0); /* the last step: one token, three layers */
    CHECK_MSG(marks.n >= 13 * 3 - 2, "%llu marks", (unsigned long long)marks.n);
    spw_engine_close(e);
    e = open_engine(MODEL, 1);
    CHECK(batch_run(e, NULL, &p.request, 1, &without, NULL, NULL) == 0);
    CHECK(same(&with, &without));
    spw_engine_close(e);
    spw_result_free(&with);
    spw_result_free(&without);
}

static void test_allocation(void)
{
    struct spw_engine *e = open_engine(MODEL, 2);
    struct spw_tokenizer *t = make_tokenizer();
    const char *stops[] = {"\x01"};
    int32_t ids[] = {1, 2, 3};
    struct spw_request request = {.prompt = ids,
                                  .n_prompt = 3,
                                  .max_new_tokens = 4,
                                  .ignore_eos = true,
                                  .text = true,
                                  .stop = stops,
                                  .n_stop = 1,
                                  .prompt_logprobs = true,
                                  .logprobs = true,
                                  .n_top_logprobs = 2};
    struct spw_request requests[] = {request, request, request};
    struct spw_result r[3];
    int64_t n_failed = 0;
    for (int64_t n = 0; n < 1000; n++) {
        struct spw_error err = {0};
        spw_alloc_fail_nth(n);
        int rc = batch_run(e, t, requests, 3, r, NULL, &err);
        spw_alloc_fail_nth(-1);
        for (int i = 0; i < 3; i++)
            spw_result_free(&r[i]);
        if (!err.text[0]) /* a request that fails alone also has a reason */
            break;
        CHECK_MSG(rc == -ENOMEM || rc == 0, "%d: %s", rc, err.text);
        n_failed++;
    }
    CHECK(n_failed > 10 && n_failed < 999);
    spw_tokenizer_close(t);
    spw_engine_close(e);
}

int main(void)
{
    uint64_t seed = check_seed();
    test_batches(seed);
    test_no_session_left();
    test_by_hand(seed + 1);
    test_bias_copied();
    test_suppressed(seed + 1);
    test_stop(seed + 2);
    test_prompt_end();
    test_eos();
    test_refusals();
    test_not_numbers();
    test_cancel();
    test_text_of_given();
    test_cancel_after_text();
    test_sessions_of_callers();
    test_reuse_after_interrupt();
    test_progress(seed + 3);
    test_allocation();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
