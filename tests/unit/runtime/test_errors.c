/* Every public function that takes a struct spw_error clears the text first: it neither reads nor
 * keeps the earlier content of the struct. The table has a call of each function; the test reads
 * the public headers and checks that none is missing. */
#include "model/source/source.h"
#include "runtime/engine/cache_policy.h"
#include "offload/store/store_info.h"
#include "model/text/tokenizer/tokenizer.h"
#include "model/text/chat_template.h"
#include "model/source/safetensors.h"
#include "model/config/config.h"
#include "model/fingerprint.h"
#include "runtime/measure.h"
#include "runtime/plan_query.h"
#include "runtime/sampler.h"
#include "runtime/saved.h"
#include "tests/byte_tokenizer.h"
#include "tests/check.h"

#include <string.h>

#define MODEL "tests/golden/llama_700"

static struct spw_engine *engine; /* of one session, with `keeps` */
static struct spw_session *session;
static struct spw_saved *saved;
static struct spw_tokenizer *tokenizer;
static struct spw_chat_template *template;
static char folder[64], file[96];

static const struct spw_options cpu = {.backend = SPW_BACKEND_CPU, .threads = 1};
static const struct spw_options no_gpu = {.backend = SPW_BACKEND_CUDA, .device_index = UINT32_MAX};

/* ---- a call of each function; nearly all fail ---- */

#define CALL(name, ...)                                                                            \
    static int name(struct spw_error *err)                                                         \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }

/* A call that leaves NULL in `out`. */
#define OPENS(name, type, ...)                                                                     \
    static int name(struct spw_error *err)                                                         \
    {                                                                                              \
        type *out = (void *)&cpu;                                                                  \
        int rc = __VA_ARGS__;                                                                      \
        CHECK(!out);                                                                               \
        return rc;                                                                                 \
    }

CALL(plan_query, spw_plan_query(&(struct spw_plan_info){0}, "missing", &cpu, err))
CALL(plan_moved,
     spw_plan_moved((uint64_t[SPW_MOVED_COUNT]){0}, NULL, NULL, "missing", &cpu, NULL, 0, err))
CALL(engine_predict, spw_engine_predict((uint64_t[SPW_MOVED_COUNT]){0}, engine,
                                        &(struct spw_plan_request){0}, 1, err))
OPENS(engine_open, struct spw_engine, spw_engine_open(&out, "missing", &cpu, err))
CALL(engine_set_budgets, spw_engine_set_budgets(engine, 0, 0, 4096, err))
OPENS(session_open, struct spw_session, spw_session_open(&out, engine, err))
OPENS(session_fork, struct spw_session, spw_session_fork(&out, session, err))
CALL(sync_nothing, spw_sync(engine, &(struct spw_span){.session = session}, 1, NULL, NULL, err))
CALL(session_save, spw_session_save(session, "/missing/file", NULL, 0, NULL, err))
CALL(session_save_to, spw_session_save_to(session, "/missing/file", err))
CALL(saved_check, spw_saved_check(saved, engine, err)) /* this engine has saved it: 0 */
CALL(saved_check_model, spw_saved_check_model(saved, "missing", err))
OPENS(saved_open, struct spw_saved, spw_saved_open(&out, "missing", err))
OPENS(session_resume, struct spw_session, spw_session_resume(&out, engine, saved, err))
CALL(session_keep, spw_session_publish(session, err)) /* no cache: 0 */
OPENS(sampler_open, struct spw_sampler, spw_sampler_open(&out, 0, err))
CALL(sampling_check, spw_sampling_check(&(struct spw_sampling){.temperature = -1}, err))
CALL(check_context, spw_check_context(&(struct spw_model_config){.reach = 8},
                                      &(struct spw_options){.context = 9}, err))

static int batch_open(struct spw_error *err)
{
    struct spw_batch *first, *second = (void *)&cpu;
    if (spw_batch_open(&first, engine, NULL, NULL))
        return 0;
    int rc = spw_batch_open(&second, engine, NULL, err);
    CHECK(!second);
    spw_batch_close(first);
    return rc;
}

static int batch_step(struct spw_error *err)
{
    struct spw_batch *b;
    if (spw_batch_open(&b, engine, NULL, NULL))
        return -EBUSY;
    int rc = spw_batch_step(b, err); /* no request: 0 */
    spw_batch_close(b);
    return rc;
}

static int batch_submit(struct spw_error *err)
{
    struct spw_batch *b;
    struct spw_request request = {.n_prompt = 0};
    uint64_t id;
    int rc = spw_batch_open(&b, engine, NULL, NULL);
    if (rc)
        return 0;
    rc = spw_batch_submit(b, &request, &id, err);
    spw_batch_close(b);
    return rc;
}

CALL(machine_probe, spw_machine_probe(&(struct spw_machine){0}, NULL, &no_gpu, err))
CALL(machine_recall,
     spw_machine_recall(&(struct spw_machine){0}, &no_gpu, NULL, SPW_PROBE_NEVER, err))
CALL(machine_topology, spw_machine_topology(&(struct spw_topology_info){0}, &no_gpu, err))
CALL(self_test, spw_self_test((char[80]){0}, &no_gpu, err))
CALL(simulate, spw_simulate(&(struct spw_simulation){0}, "missing", &cpu, &(struct spw_machine){0},
                            NULL, 1, 1, 1, err))
CALL(drive_probe, spw_drive_probe(&(struct spw_drive){0},
                                  &(struct spw_drive_options){.directory = "missing"}, err))
CALL(gate_check, spw_gate_check(&(struct spw_gate_result){.precision = SPW_KV_EXACT}, 1, MODEL,
                                &cpu, &(struct spw_gate_options){0}, err))
OPENS(chat_template_open_file, struct spw_chat_template,
      spw_chat_template_open_file(&out, "missing", "missing.jinja", err))
OPENS(chat_template_open, struct spw_chat_template,
      spw_chat_template_open(&out, "missing", NULL, err))
CALL(chat_template_render,
     spw_chat_template_render(template,
                              &(struct spw_chat_request){.messages_json = "{", .messages_bytes = 1},
                              &(char *){NULL}, &(size_t){0}, err))

static int source_open(struct spw_error *err)
{
    struct spw_source *s;
    spw_alloc_fail_nth(0);
    int rc = spw_source_open(&s, "missing", err);
    spw_alloc_fail_nth(-1);
    return rc;
}

CALL(config_parse,
     spw_config_parse(&(struct spw_model_config){0},
                      &(struct spw_config_text){.config = "{", .config_bytes = 1}, err))

CALL(config_check_audio, spw_config_check_audio(&(struct spw_model_config){.n_mels = 80},
                                                "{\"n_fft\": 1}", 12, "a file", err))
CALL(config_add_mtp, spw_config_add_mtp(&(struct spw_model_config){.model_type = "llama"}, err))

static int safetensors_check(struct spw_error *err)
{
    struct spw_tensors *st;
    CHECK(!spw_safetensors_open(&st, MODEL, NULL));
    int rc = spw_tensors_check(st, err); /* the file has not changed: 0 */
    spw_tensors_close(st);
    return rc;
}

static int fingerprint_take(struct spw_error *err)
{
    uint8_t fingerprint[SPW_FINGERPRINT_BYTES];
    struct spw_source *s;
    struct spw_tensors *st;
    CHECK(!spw_source_open(&s, MODEL, NULL) && !spw_safetensors_open(&st, MODEL, NULL));
    int rc = spw_fingerprint_take(fingerprint, s, st, err); /* 0 */
    spw_tensors_close(st);
    spw_source_close(s);
    return rc;
}

/* The operations of a source whose model does not exist. */
static struct spw_source *missing(void)
{
    struct spw_source *s = NULL;
    CHECK(!spw_source_open(&s, "missing", NULL));
    return s;
}

#define OPENS_FROM(name, type, ...)                                                                \
    static int name(struct spw_error *err)                                                         \
    {                                                                                              \
        type *out = (void *)&cpu;                                                                  \
        struct spw_source *s = missing();                                                          \
        int rc = __VA_ARGS__;                                                                      \
        CHECK(!out);                                                                               \
        spw_source_close(s);                                                                       \
        return rc;                                                                                 \
    }

static int folder_config(struct spw_error *err)
{
    struct spw_model_config c;
    struct spw_source *s = missing();
    int rc = s->ops->config(s, &c, err);
    spw_source_close(s);
    return rc;
}

OPENS_FROM(folder_tensors, struct spw_tensors, s->ops->tensors(s, &out, err))
OPENS_FROM(folder_tokenizer, struct spw_tokenizer, s->ops->tokenizer(s, &out, err))
OPENS_FROM(folder_chat_template, struct spw_chat_template,
           s->ops->chat_template(s, NULL, NULL, &out, err))
OPENS_FROM(folder_text, char, s->ops->text(s, SPW_SOURCE_TOKENIZER, &out, &(size_t){0}, err))
OPENS(tokenizer_open_folder, struct spw_tokenizer, spw_tokenizer_open_folder(&out, "missing", err))
OPENS(tokenizer_parse, struct spw_tokenizer, spw_tokenizer_parse(&out, "{", 1, "a file", err))
CALL(tokenizer_encode_spans,
     spw_tokenizer_encode_spans(tokenizer, &(struct spw_encoding){.text = "\xff", .bytes = 1},
                                &(int32_t *){NULL}, &(size_t){0}, err))
CALL(tokenizer_encode,
     spw_tokenizer_encode(tokenizer, "\xff", 1, false, &(int32_t *){NULL}, &(size_t){0}, err))
CALL(store_list,
     spw_store_list(&(struct spw_store_entry *){NULL}, &(size_t){0}, "missing", false, err))
CALL(store_prune, spw_store_prune(&(struct spw_store_pruned){0}, "missing", 0, err))

CALL(cache_policy_make,
     spw_cache_policy_make(&(struct spw_cache_policy){0}, spw_engine_config(engine), SPW_DTYPE_F32,
                           &(struct spw_options){.on_oom = UINT32_MAX}, err))

static const struct {
    const char *name;
    int (*call)(struct spw_error *err);
} calls[] = {
    {"spw_plan_query", plan_query},
    {"spw_plan_moved", plan_moved},
    {"spw_engine_predict", engine_predict},
    {"spw_engine_open", engine_open},
    {"spw_engine_set_budgets", engine_set_budgets},
    {"spw_session_open", session_open},
    {"spw_session_fork", session_fork},
    {"spw_sync", sync_nothing},
    {"spw_session_save_to", session_save_to},
    {"spw_session_save", session_save},
    {"spw_saved_check", saved_check},
    {"spw_saved_check_model", saved_check_model},
    {"spw_saved_open", saved_open},
    {"spw_session_resume", session_resume},
    {"spw_session_publish", session_keep},
    {"spw_sampler_open", sampler_open},
    {"spw_sampling_check", sampling_check},
    {"spw_check_context", check_context},
    {"spw_batch_open", batch_open},
    {"spw_batch_submit", batch_submit},
    {"spw_batch_step", batch_step},
    {"spw_machine_probe", machine_probe},
    {"spw_machine_recall", machine_recall},
    {"spw_machine_topology", machine_topology},
    {"spw_simulate", simulate},
    {"spw_drive_probe", drive_probe},
    {"spw_self_test", self_test},
    {"spw_gate_check", gate_check},
    {"spw_chat_template_open", chat_template_open},
    {"spw_chat_template_open_file", chat_template_open_file},
    {"spw_chat_template_render", chat_template_render},
    {"spw_source_open", source_open},
    {"source: config", folder_config},
    {"source: tensors", folder_tensors},
    {"source: tokenizer", folder_tokenizer},
    {"source: chat_template", folder_chat_template},
    {"source: text", folder_text},
    {"spw_config_parse", config_parse},
    {"spw_config_check_audio", config_check_audio},
    {"spw_config_add_mtp", config_add_mtp},
    {"spw_tensors_check", safetensors_check},
    {"spw_fingerprint_take", fingerprint_take},
    {"spw_tokenizer_open_folder", tokenizer_open_folder},
    {"spw_tokenizer_parse", tokenizer_parse},
    {"spw_tokenizer_encode", tokenizer_encode},
    {"spw_tokenizer_encode_spans", tokenizer_encode_spans},
    {"spw_store_list", store_list},
    {"spw_store_prune", store_prune},
    {"spw_cache_policy_make", cache_policy_make},
};
enum { N_CALLS = sizeof calls / sizeof *calls, N_SOURCE_CALLS = 5 };

/* ---- the struct after a call ---- */

/* `poison`: every byte of the struct before the call. */
static void check_call(size_t i, unsigned char poison)
{
    struct spw_error poisoned, clean = {0};
    memset(&poisoned, poison, sizeof poisoned);
    int expected = calls[i].call(&clean), rc = calls[i].call(&poisoned);
    CHECK_MSG(rc == expected, "%s: %d, not %d", calls[i].name, rc, expected);
    CHECK_MSG(memchr(poisoned.text, 0, sizeof poisoned.text), "%s: no end", calls[i].name);
    poisoned.text[sizeof poisoned.text - 1] = 0;
    CHECK_MSG(strcmp(poisoned.text, clean.text) == 0, "%s: \"%.80s\", not \"%.80s\"", calls[i].name,
              poisoned.text, clean.text);
    CHECK_MSG(!rc == !*clean.text, "%s: %d \"%s\"", calls[i].name, rc, clean.text);
}

static void write_file(const char *name, const char *text, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(text, 1, bytes, f) == bytes);
    if (f)
        fclose(f);
}

static void open_all(void)
{
    static const char config[] = "{\"chat_template\":\"{{ messages }}\"}";
    static const int32_t ids[] = {1, 2, 3};
    char json[BYTE_TOKENIZER_BYTES];
    struct spw_error err;
    struct spw_options o = cpu;
    o.context = 16;
    o.saves = true;
    snprintf(folder, sizeof folder, "/tmp/spw_errors_%d", (int)getpid());
    snprintf(file, sizeof file, "mkdir %s", folder);
    CHECK(system(file) == 0);
    snprintf(file, sizeof file, "%s/saved", folder);
    write_file("tokenizer_config.json", config, sizeof config - 1);
    CHECK(!spw_chat_template_open(&template, folder, NULL, &err));
    size_t n = byte_tokenizer_json(json);
    CHECK(!spw_tokenizer_parse(&tokenizer, json, n, "a file", &err));
    CHECK_MSG(!spw_engine_open(&engine, MODEL, &o, &err), "%s", err.text);
    CHECK_MSG(!spw_session_open(&session, engine, &err), "%s", err.text);
    struct spw_span span = {session, ids, 3, 0};
    CHECK(!spw_session_logits(session)); /* new: there are none */
    CHECK_MSG(!spw_sync(engine, &span, 1, NULL, NULL, &err), "%s", err.text);
    CHECK(!spw_session_logits(session)); /* the call asked for none */
    span.n_logits = 1;
    CHECK_MSG(!spw_sync(engine, &span, 1, NULL, NULL, &err), "%s", err.text);
    CHECK(spw_session_logits(session));
    CHECK_MSG(!spw_session_save(session, file, NULL, 0, NULL, &err), "%s", err.text);
    CHECK_MSG(!spw_saved_open(&saved, file, &err), "%s", err.text);
}

static void close_all(void)
{
    char command[128];
    spw_saved_close(saved);
    spw_session_close(session);
    spw_engine_close(engine);
    spw_tokenizer_close(tokenizer);
    spw_chat_template_close(template);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
    CHECK(spw_alloc_outstanding() == 0);
}

/* ---- no function is missing ---- */

static bool is_called(const char *name, size_t length)
{
    for (size_t i = 0; i < N_CALLS; i++)
        if (strlen(calls[i].name) == length && !strncmp(calls[i].name, name, length))
            return true;
    return false;
}

/* Declarations begin a line. Returns how many of them take a struct spw_error. */
static size_t check_header(const char *path)
{
    static char text[1 << 17];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0, found = 0;
    text[n] = 0;
    if (f)
        fclose(f);
    for (char *at = strstr(text, "\nint spw_"); at; at = strstr(at + 1, "\nint spw_")) {
        char *name = at + strlen("\nint "), *end = strchr(name, ';');
        char *argument = strstr(name, "struct spw_error *");
        if (!end || !argument || argument > end)
            continue;
        size_t length = strcspn(name, "(");
        CHECK_MSG(is_called(name, length), "%s: %.*s is not in the table", path, (int)length, name);
        found++;
    }
    CHECK_MSG(n > 0, "%s", path);
    return found;
}

static void check_headers(void)
{
    static const char *const headers[] = {
        "runtime/spillway.h",         "runtime/plan_query.h",   "runtime/saved.h",
        "runtime/sampler.h",          "runtime/measure.h",      "runtime/engine/cache_policy.h",
        "model/text/chat_template.h", "model/config/config.h",  "model/fingerprint.h",
        "model/source/source.h",      "model/source/tensors.h", "model/text/tokenizer/tokenizer.h",
        "offload/store/store_info.h"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        n += check_header(headers[i]);
    CHECK_MSG(n + N_SOURCE_CALLS == N_CALLS, "%zu functions, %d calls", n, N_CALLS);
}

int main(void)
{
    check_headers();
    open_all();
    for (size_t i = 0; i < N_CALLS; i++) {
        check_call(i, 0xa5);
        check_call(i, 'x');
    }
    close_all();
    return check_done();
}
