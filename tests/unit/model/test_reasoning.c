/* Reasoning in the text of answers: which marks a model has, whether a prompt opens reasoning, and
 * the parts of texts, whatever the pieces in which they arrive. Real templates come from the shared
 * data, if it is here. */
#include "model/text/reasoning.h"
#include "tests/byte_tokenizer.h"
#include "tests/folder.h"

#include <errno.h>

static const struct spw_reasoning_form none,
    think = {.open = "<think>", .close = "</think>"},
    gemma = {.open = "<|channel>thought\n", .close = "<channel|>"},
    solar = {.open = "<|think|>",
             .close = "<|end|><|begin|>assistant<|content|>",
             .bare = "<|content|>"},
    channels = {.has_channels = true};

struct row {
    const struct spw_reasoning_form *form;
    const char *prompt, *text, *answer, *reasoning;
};

static const struct row rows[] = {
    {&none, "", "<think>a</think>b", "<think>a</think>b", ""},
    {&none, "<think>\n", "\na\n", "\na\n", ""},
    {&think, "", "", "", ""},
    {&think, "", " \n a\n", " \n a\n", ""},
    {&think, "", "<think>\na\n\nb\n</think>\n\nc\n", "c\n", "a\n\nb"},
    {&think, "", "\n<think>a</think>b", "b", "a"},
    {&think, "", "<think>\n\n</think>\n\nb", "b", ""},
    {&think, "", "<think>a </think >\n</thin</think>b</think>", "b</think>", "a </think >\n</thin"},
    {&think, "", "<think>a<think>b</think>c", "c", "a<think>b"},
    {&think, "", "a<think>b</think>", "a<think>b</think>", ""}, /* only where the text begins */
    {&think, "", "<thin", "<thin", ""},
    {&think, "", "<think>cut off\n</th", "", "cut off\n</th"},
    {&think, "", "<think>", "", ""},
    {&think, "<a><think>\n", "a</think>\n\nb", "b", "a"},
    {&think, "<a><think>", "\n\n</think>b", "b", ""},
    {&think, "<a><think>\n\n</think>\n\n", "b", "b", ""},
    {&think, "<a></think>", "<think>a</think>b", "b", "a"},
    {&gemma, "", "<|channel>thought\na\n<channel|>b", "b", "a"},
    {&gemma, "<|channel>thought\n<channel|>", "b", "b", ""},
    {&gemma, "<|channel>thought\n", "a<channel|>b", "b", "a"},
    {&solar, "", "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|>", "b<|end|>", "a"},
    {&solar, "", "<|content|>b<|think|>", "b<|think|>", ""},
    {&solar, "", "<|tool_calls|>b", "<|tool_calls|>b", ""},
    {&solar, "", "<|think|>a<|end|><|begin|>assistant<|tool", "",
     "a<|end|><|begin|>assistant<|tool"},
    {&channels, "<|start|>assistant",
     "<|channel|>analysis<|message|>a\n<|end|><|start|>assistant<|channel|>final<|message|>b\n",
     "b\n", "a"},
    {&channels, "", "<|channel|>final<|message|>b", "b", ""},
    {&channels, "", "<|channel|>final <|constrain|>json<|message|>{}<|return|>", "{}", ""},
    {&channels, "", "<|channel|>analysis<|message|>cut o", "", "cut o"},
    {&channels, "", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|chan", "", "a"},
    {&channels, "", "<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|call|>", "b",
     "a"},
    {&channels, "",
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>b"
     "<|end|><|start|>assistant<|channel|>analysis<|message|>c<|end|><|start|>assistant<|channel|>"
     "final<|message|>d",
     "b\nd", "a\nc"},
    {&channels, "",
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>",
     "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
     "{\"x\": 1}",
     "a"},
    {&channels, "", "no marks", "no marks", ""},
    {&channels, "", "a <|message|> b", " b", ""}, /* a header without a channel */
    {&channels, "", "<|channel|>final<|message|>a <| b <|e c<|", "a <| b <|e c<|", ""},
};

/* ---- texts ---- */

struct got {
    char part[2][2048]; /* the answer, the reasoning */
    size_t n[2], n_calls;
};

static int take(void *context, bool is_reasoning, const char *text, size_t bytes)
{
    struct got *got = context;
    CHECK(bytes > 0 && got->n[is_reasoning] + bytes < sizeof got->part[0]);
    memcpy(got->part[is_reasoning] + got->n[is_reasoning], text, bytes);
    got->n[is_reasoning] += bytes;
    got->n_calls++;
    return 0;
}

/* Pushes pieces of `piece` bytes; 0: of random lengths. */
static struct got split(const struct spw_reasoning_form *form, const char *prompt, const char *text,
                        size_t bytes, size_t piece)
{
    struct spw_splitter s;
    struct got got = {0};
    spw_splitter_init(&s, form, spw_reasoning_is_open(form, prompt, strlen(prompt)));
    for (size_t at = 0; at < bytes;) {
        size_t n = piece ? piece : 1 + (size_t)rand() % 9;
        n = n < bytes - at ? n : bytes - at;
        CHECK(spw_splitter_push(&s, text + at, n, take, &got) == 0);
        at += n;
    }
    CHECK(spw_splitter_finish(&s, take, &got) == 0);
    return got;
}

static void test_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        for (size_t piece = 1; piece <= strlen(r->text) + 1; piece++) {
            struct got got = split(r->form, r->prompt, r->text, strlen(r->text), piece);
            CHECK_MSG(strcmp(got.part[0], r->answer) == 0, "row %zu, pieces of %zu: '%s'", i, piece,
                      got.part[0]);
            CHECK_MSG(strcmp(got.part[1], r->reasoning) == 0, "row %zu, pieces of %zu: '%s'", i,
                      piece, got.part[1]);
        }
    }
}

/* The whole text at once gives the parts that pieces give, and none is longer than the text. */
static void check_whole(const struct spw_reasoning_form *form, const char *prompt, const char *text,
                        size_t bytes)
{
    const struct got whole = split(form, prompt, text, bytes, bytes + 1);
    const struct got got = split(form, prompt, text, bytes, 0);
    for (int i = 0; i < 2; i++)
        CHECK(whole.n[i] <= bytes && got.n[i] == whole.n[i] &&
              !memcmp(got.part[i], whole.part[i], whole.n[i]));
    if (form->has_channels || !form->open)
        return;
    /* independent: what strstr finds in a text with a pair */
    const char *begin = text + strspn(text, " \t\r\n");
    bool is_open = spw_reasoning_is_open(form, prompt, strlen(prompt));
    bool has = is_open || !strncmp(begin, form->open, strlen(form->open));
    const char *end = has ? strstr(is_open ? text : begin + strlen(form->open), form->close) : NULL;
    const char *expected = !has ? text : !end ? "" : end + strlen(form->close);
    CHECK_MSG(!strcmp(whole.part[0], expected + (end ? strspn(expected, "\n") : 0)), "'%s'", text);
}

/* Texts of random marks and letters. */
static void test_random_texts(void)
{
    static const char *const words[] = {"<think>",     "</think>", "<|channel|>", "analysis",
                                        "<|message|>", "<|end|>",  "<|start|>",   "final",
                                        " to=f",       "\n",       "<",           "a",
                                        "</thi",       "\n\n",     "<|",          "\xc3\xa9"};
    static const struct spw_reasoning_form *const forms[] = {&none, &think, &channels};
    for (int draw = 0; draw < 20000; draw++) {
        char text[512] = "";
        for (int n = rand() % 30; n > 0; n--)
            strcat(text, words[(size_t)rand() % (sizeof words / sizeof *words)]);
        check_whole(forms[draw % 3], draw & 8 ? "<think>" : "", text, strlen(text));
    }
}

/* A header has an end: a text without marks does not wait forever. */
static void test_long_header(void)
{
    char text[SPW_REASONING_MOST_HELD + 8];
    struct spw_splitter s;
    struct got got = {0};
    memset(text, 'x', sizeof text);
    spw_splitter_init(&s, &channels, false);
    CHECK(spw_splitter_push(&s, text, sizeof text, take, &got) == 0);
    CHECK(got.n[0] == sizeof text);
    memset(text, ' ', sizeof text);
    got = (struct got){0};
    spw_splitter_init(&s, &think, false);
    CHECK(spw_splitter_push(&s, text, sizeof text, take, &got) == 0);
    CHECK(got.n[0] == sizeof text);
}

static int refuse(void *context, bool is_reasoning, const char *text, size_t bytes)
{
    (void)context, (void)is_reasoning, (void)text, (void)bytes;
    return -EPIPE;
}

static void test_refusal(void)
{
    struct spw_splitter s;
    spw_splitter_init(&s, &think, false);
    CHECK(spw_splitter_push(&s, "answer", 6, refuse, NULL) == -EPIPE);
    spw_splitter_init(&s, &think, false);
    CHECK(spw_splitter_push(&s, "<thi", 4, refuse, NULL) == 0);
    CHECK(spw_splitter_finish(&s, refuse, NULL) == -EPIPE);
}

/* ---- forms ---- */

/* A tokenizer of bytes with added tokens: names with commas between them. */
static struct spw_tokenizer *tokenizer(const char *names, bool special)
{
    static const char none_added[] = "\"added_tokens\":[";
    char json[BYTE_TOKENIZER_BYTES], all[BYTE_TOKENIZER_BYTES + 2048], list[512];
    byte_tokenizer_json(json);
    const char *at = strstr(json, none_added) + sizeof none_added - 1;
    int n = snprintf(all, sizeof all, "%.*s", (int)(at - json), json);
    snprintf(list, sizeof list, "%s", names);
    int id = BYTE_TOKENIZER_VOCAB;
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ","))
        n += snprintf(all + n, sizeof all - (size_t)n,
                      "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                      "\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                      id > BYTE_TOKENIZER_VOCAB ? "," : "", id, name, special ? "true" : "false"),
            id++;
    snprintf(all + n, sizeof all - (size_t)n, "%s", at);
    struct spw_tokenizer *t;
    struct spw_error err = {0};
    CHECK_MSG(spw_tokenizer_parse(&t, all, strlen(all), "test", &err) == 0, "%s", err.text);
    return t;
}

/* The form of a template (NULL: none) and added tokens. */
static struct spw_reasoning_form form_of(const char *template, const char *names, bool special)
{
    struct spw_chat_template *t = NULL;
    struct spw_reasoning_form form;
    if (template) {
        write_text("chat_template.jinja", template);
        CHECK(spw_chat_template_open(&t, folder, NULL, NULL) == 0);
    }
    struct spw_tokenizer *k = tokenizer(names, special);
    CHECK(spw_reasoning_find(&form, t, k) == 0);
    spw_chat_template_close(t);
    spw_tokenizer_close(k);
    return form;
}

static bool is_pair(const struct spw_reasoning_form *f, const char *open)
{
    return !f->has_channels && (open ? f->open && !strcmp(f->open, open) : !f->open);
}

static void test_forms(void)
{
    struct spw_reasoning_form f = form_of("{{ messages }}", "<x>", true);
    CHECK(is_pair(&f, NULL) && !f.specials.n && !spw_reasoning_has_marks(&f));
    f = form_of("{{ '</think>' }}", "<x>", true);
    CHECK(is_pair(&f, "<think>") && !f.specials.n && spw_reasoning_has_marks(&f));
    f = form_of(NULL, "<think>,</think>", false);
    CHECK(is_pair(&f, "<think>") && !f.specials.n);
    f = form_of("x", "<think>", false); /* one of the pair is not enough */
    CHECK(is_pair(&f, NULL));
    f = form_of("x", "<think>,</think>", true);
    CHECK(is_pair(&f, "<think>") && f.specials.n == 2 &&
          f.specials.ids[0] == BYTE_TOKENIZER_VOCAB &&
          f.specials.ids[1] == BYTE_TOKENIZER_VOCAB + 1);
    f = form_of("x", "[THINK],[/THINK]", true);
    CHECK(is_pair(&f, "[THINK]") && f.specials.n == 2);
    f = form_of("x <channel|>", "<|channel>,<channel|>", true);
    CHECK(is_pair(&f, "<|channel>thought\n") && f.specials.n == 2);
    f = form_of("x", "<|think|>,<|content|>,<|begin|>,<|end|>", true);
    CHECK(is_pair(&f, "<|think|>") && f.specials.n == 4 && !strcmp(f.bare, "<|content|>"));
    f = form_of("x", "<|think|>,<|begin|>,<|end|>", true);
    CHECK(is_pair(&f, NULL));
    f = form_of("x", "<|start|>,<|end|>,<|message|>,<|channel|>,<|return|>,<|call|>", true);
    CHECK(f.has_channels && f.specials.n == 6 && spw_reasoning_has_marks(&f));
}

/* Real templates, with a tokenizer that has none of the marks but those of gpt-oss: their forms;
 * whether the prompt opens reasoning; whether they print the reasoning of an earlier answer. */
static const struct {
    const char *file, *open;
    bool channels, opens, keeps;
} real[] = {
    {"GLM-4.7-Flash", "<think>", false, true, false},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<think>", false, false, false},
    {"llama-cpp-deepseek-r1", "<think>", false, true, false},
    {"MiniMax-M2", "<think>", false, true, false},
    {"NVIDIA-Nemotron-Nano-v2", "<think>", false, true, false},
    {"StepFun3.5-Flash", "<think>", false, true, false},
    {"LFM2.5-8B-A1B", "<think>", false, false, false},
    {"poolside-Laguna-S-2.1", "<think>", false, true, true},
    {"mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]", false, false, false},
    {"google-gemma-4-31B-it", "<|channel>thought\n", false, false, false},
    {"openai-gpt-oss-120b", NULL, true, false, false},
    {"google-gemma-2-2b-it", NULL, false, false, false},
    {"meta-llama-Llama-3.1-8B-Instruct", NULL, false, false, false},
    {"Qwen-Qwen2.5-7B-Instruct", NULL, false, false, false},
};

static void check_real(size_t i, const char *template)
{
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \"Question1\"}, {\"role\": \"assistant\", \"content\": "
        "\"Answer1\", \"reasoning_content\": \"Reason1\"}, {\"role\": \"user\", \"content\": "
        "\"Question2\"}]";
    const struct tm now = {.tm_year = 126, .tm_mday = 1};
    const struct spw_chat_request request = {.messages_json = messages,
                                             .messages_bytes = sizeof messages - 1,
                                             .add_generation_prompt = true,
                                             .now = &now};
    const char *tokens = real[i].channels ? "<|start|>,<|end|>,<|message|>,<|channel|>" : "<x>";
    struct spw_reasoning_form f = form_of(template, tokens, true);
    struct spw_chat_template *t;
    struct spw_error err = {0};
    char *text;
    size_t bytes;
    CHECK_MSG(f.has_channels == real[i].channels && (f.has_channels || is_pair(&f, real[i].open)),
              "%s: %s", real[i].file, f.open ? f.open : "none");
    CHECK(spw_chat_template_open(&t, folder, NULL, NULL) == 0);
    int rc = spw_chat_template_render(t, &request, &text, &bytes, &err);
    CHECK_MSG(rc == 0, "%s: %s", real[i].file, err.text);
    if (rc == 0) {
        CHECK_MSG(strstr(text, "Answer1") && strstr(text, "Question2"), "%s", text);
        CHECK_MSG(!strstr(text, "Reason1") == !real[i].keeps, "%s: %s", real[i].file, text);
        CHECK_MSG(spw_reasoning_is_open(&f, text, bytes) == real[i].opens, "%s: ...%s",
                  real[i].file, text + (bytes > 60 ? bytes - 60 : 0));
        spw_free(text);
    }
    spw_chat_template_close(t);
}

static void test_real_templates(void)
{
    const char *data = getenv("SPW_DATA");
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        static char text[1 << 17];
        char path[512];
        snprintf(path, sizeof path, "%s/chat/templates/%s.jinja", data ? data : "../shared/data",
                 real[i].file);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        check_real(i, text);
    }
}

/* ---- tokens ---- */

static void check_count(const char *names, bool special, const char *prompt, const char *text,
                        uint64_t expected)
{
    struct spw_reasoning_form form = form_of("</think>", names, special);
    struct spw_tokenizer *t = tokenizer(names, special);
    const bool is_open = spw_reasoning_is_open(&form, prompt, strlen(prompt));
    int32_t *ids;
    size_t n;
    uint64_t found;
    CHECK(spw_tokenizer_encode(t, text, strlen(text), false, &ids, &n, NULL) == 0);
    CHECK(spw_reasoning_count(&found, &form, is_open, t, ids, n) == 0);
    CHECK_MSG(found == expected, "%s: %llu tokens of %zu", text, (unsigned long long)found, n);
    spw_free(ids);
    spw_tokenizer_close(t);
}

/* A mark is one token, or as many as it has letters. */
static void test_counts(void)
{
    static const char pair[] = "<think>,</think>";
    static const char all[] = "<|start|>,<|end|>,<|message|>,<|channel|>,<|return|>,<|call|>";
    for (int special = 0; special < 2; special++) {
        check_count(pair, special, "", "<think>ab</think>cd", 4);
        check_count(pair, special, "<think>", "ab</think>cd", 3);
        check_count(pair, special, "", "ab</think>cd", 0);
        check_count(pair, special, "", "<think>a\xc3\xa9", 4);
        check_count(pair, special, "", "", 0);
    }
    check_count("<x>", true, "", "<think>ab</think>cd", 17);
    check_count("<x>", true, "", "<thinks>", 0);
    check_count(all, true, "",
                "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>final"
                "<|message|>c",
                13);
    check_count(all, true, "", "<|channel|>final<|message|>c<|return|>", 0);
}

int main(void)
{
    srand((unsigned)check_seed());
    open_folder("reasoning");
    test_rows();
    test_random_texts();
    test_long_header();
    test_refusal();
    test_forms();
    test_counts();
    test_real_templates();
    close_folder();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
