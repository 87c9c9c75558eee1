/* Tokens that the other files of a folder add to those of tokenizer.json, or change. What is
 * expected are the ids and texts of transformers 5.24 (PreTrainedTokenizerFast). A file of a folder
 * is written here with ' in place of ". */
#include "model/source/source.h"
#include "tests/folder.h"
#include "tests/json_text.h"
#include "tests/tokenizer_json.h"

/* NULL: no such file. */
static void put(const char *name, const char *text)
{
    unlink(in_folder(name));
    if (text)
        write_text(name, json_quoted(text));
}

/* `padding`: the value of the key. */
static void put_tokenizer(const char *padding)
{
    char text[2000];
    snprintf(
        text, sizeof text,
        "{'version': '1.0', 'padding': %s, 'added_tokens': ["
        "{'id': 9, 'content': '<s>', 'single_word': false, 'lstrip': false, 'rstrip': false,"
        " 'normalized': false, 'special': true},"
        "{'id': 11, 'content': '<t>', 'single_word': false, 'lstrip': false, 'rstrip': false,"
        " 'normalized': false, 'special': false}], 'decoder': {'type': 'Fuse'},"
        "'model': {'type': 'BPE', 'unk_token': '?', 'vocab': {'?': 0, 'a': 1, 'b': 2, 'c': 3,"
        " ' ': 4, '<': 5, 'n': 6, '>': 7, 'ab': 8, '<s>': 9, '1': 10}, 'merges': [['a', 'b']]}}",
        padding);
    put("tokenizer.json", text);
}

/* The ids of one text, and their text without special tokens. */
static int use(char ids_text[4096], char back[1024])
{
    static const char text[] = "a <n> 1 <s> <t> ab<n>c";
    struct spw_tokenizer *t;
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0, bytes;
    char *decoded = NULL;
    int rc = spw_tokenizer_open_folder(&t, folder, &err);
    snprintf(back, 1024, "%s", err.text);
    if (rc)
        return rc;
    rc = spw_tokenizer_encode(t, text, sizeof text - 1, false, &ids, &n, &err);
    for (size_t i = 0, at = 0; i < n; i++)
        at += (size_t)snprintf(ids_text + at, 4096 - at, i ? " %d" : "%d", ids[i]);
    if (!rc)
        rc = spw_tokenizer_decode(t, ids, n, true, &decoded, &bytes);
    if (!rc)
        snprintf(back, 1024, "%s", decoded);
    spw_free(decoded);
    spw_free(ids);
    spw_tokenizer_close(t);
    return rc;
}

static void test_tokens(void)
{
    static const struct {
        const char *config, *map, *ids, *pad, *tokens, *text;
    } cases[] = {
        {"{}", NULL, NULL, NULL, "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3", "a <n> 1  <t> ab<n>c"},
        {"{'bos_token': '<n>'}", NULL, NULL, NULL, "1 4 12 4 10 4 9 4 11 4 8 12 3",
         "a  1  <t> abc"},
        {"{'bos_token': {'__type': 'AddedToken', 'content': '<n>', 'lstrip': true, 'normalized': "
         "false}}",
         NULL, NULL, NULL, "1 12 4 10 4 9 4 11 4 8 12 3", "a 1  <t> abc"},
        {"{'eos_token': '1', 'pad_token': null}", NULL, NULL, NULL,
         "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3", "a <n>   <t> ab<n>c"},
        {"{'eos_token': '<t>'}", NULL, NULL, NULL, "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3",
         "a <n> 1   ab<n>c"},
        {"{'eos_token': '<t>', 'added_tokens_decoder': {}}", NULL, NULL, NULL,
         "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3", "a <n> 1  <t> ab<n>c"},
        {"{'x_token': '<n>', 'y_token': {'content': '1'}, 'add_bos_token': true}", NULL, NULL, NULL,
         "1 4 12 4 10 4 9 4 11 4 8 12 3", "a  1  <t> abc"},
        {"{'y_token': {'__type': 'AddedToken', 'content': '1', 'rstrip': true}}", NULL, NULL, NULL,
         "1 4 5 6 7 4 10 9 4 11 4 8 5 6 7 3", "a <n>  <t> ab<n>c"},
        {"{'additional_special_tokens': ['<n>', '1']}", NULL, NULL, NULL,
         "1 4 12 4 10 4 9 4 11 4 8 12 3", "a    <t> abc"},
        {"{'additional_special_tokens': ['<n>'], 'extra_special_tokens': ['1']}", NULL, NULL, NULL,
         "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3", "a <n>   <t> ab<n>c"},
        {"{'additional_special_tokens': ['<n>'], 'extra_special_tokens': {'x': '1'}}", NULL, NULL,
         NULL, "1 4 12 4 10 4 9 4 11 4 8 12 3", "a    <t> abc"},
        {"{'extra_special_tokens': [{'__type': 'AddedToken', 'content': '<n>', 'single_word': "
         "true}]}",
         NULL, NULL, NULL, "1 4 12 4 10 4 9 4 11 4 8 5 6 7 3", "a <n> 1  <t> ab<n>c"},
        {"{'model_specific_special_tokens': {'x': '<n>'}}", NULL, NULL, NULL,
         "1 4 12 4 10 4 9 4 11 4 8 12 3", "a  1  <t> abc"},
        {"{'model_specific_special_tokens': {'x': '<n>'}, 'y_token': '1'}", NULL, NULL, NULL,
         "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3", "a <n>   <t> ab<n>c"},
        {"{'added_tokens_decoder': {'9': {'content': '<s>', 'lstrip': true, 'special': true}, "
         "'11': {'content': '<t>', 'rstrip': true}}}",
         NULL, NULL, NULL, "1 4 5 6 7 4 10 9 4 11 8 5 6 7 3", "a <n> 1 <t>ab<n>c"},
        {"{'added_tokens_decoder': {'9': {'content': '<s>', 'special': false}, '30': {'content': "
         "'<n>', 'special': true}, '2': {'content': 'b', 'special': true}}}",
         NULL, NULL, NULL, "1 4 12 4 10 4 9 4 11 4 1 2 12 3", "a  1  <t> ac"},
        {"{'added_tokens_decoder': {'13': {'content': '1 ', 'normalized': false}, '12': "
         "{'content': '<n>', 'normalized': false}}, 'bos_token': '<n>'}",
         NULL, NULL, NULL, "1 4 12 4 13 9 4 11 4 8 12 3", "a  1  <t> abc"},
        {"{'added_tokens_decoder': {}, 'bos_token': '<n>'}", "{'eos_token': '1'}", "{'c': 3}", NULL,
         "1 4 12 4 10 4 9 4 11 4 8 12 3", "a  1  <t> abc"},
        {"{'bos_token': '<n>', 'eos_token': '1'}",
         "{'bos_token': {'content': 'c', 'lstrip': true}, 'x_token': 'a'}", NULL, NULL,
         "1 4 5 6 7 4 10 4 9 4 11 4 1 2 5 6 7 3", " <n>   <t> b<n>"},
        {"{'bos_token': '<n>'}", "{'bos_token': null}", NULL, NULL,
         "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3", "a <n> 1  <t> ab<n>c"},
        {"{'additional_special_tokens': ['<n>']}", "{'additional_special_tokens': ['1']}", NULL,
         NULL, "1 4 12 4 10 4 9 4 11 4 8 12 3", "a  1  <t> abc"},
        {"{}", "{'additional_special_tokens': ['1']}", NULL, NULL,
         "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3", "a <n>   <t> ab<n>c"},
        {"{'extra_special_tokens': ['<n>']}", "{'extra_special_tokens': ['1']}", NULL, NULL,
         "1 4 12 4 10 4 9 4 11 4 8 12 3", "a    <t> abc"},
        {"{'extra_special_tokens': ['<n>']}", "{'extra_special_tokens': {'x': '1'}}", NULL, NULL,
         "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3", "a <n>   <t> ab<n>c"},
        {NULL, "{'pad_token': '<n>'}", NULL, NULL, "1 4 12 4 10 4 9 4 11 4 8 12 3",
         "a  1  <t> abc"},
        {"{'pad_token': '1'}", NULL, "{'<n>': 20, '1': 10, 'c': 3}", NULL,
         "1 4 12 4 10 4 9 4 11 4 8 12 3", "a <n>   <t> ab<n>c"},
        {"{}", NULL, NULL, "<n>", "1 4 12 4 10 4 9 4 11 4 8 12 3", "a  1  <t> abc"},
        {"{'pad_token': null}", NULL, NULL, "<n>", "1 4 5 6 7 4 10 4 9 4 11 4 8 5 6 7 3",
         "a <n> 1  <t> ab<n>c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char tokens[4096] = "", text[1024], padding[100] = "null";
        if (cases[i].pad)
            snprintf(padding, sizeof padding, "{'pad_token': '%s'}", cases[i].pad);
        put_tokenizer(padding);
        put("tokenizer_config.json", cases[i].config);
        put("special_tokens_map.json", cases[i].map);
        put("added_tokens.json", cases[i].ids);
        CHECK(!use(tokens, text));
        CHECK_MSG(!strcmp(tokens, cases[i].tokens) && !strcmp(text, cases[i].text),
                  "case %zu: %s \"%s\"", i, tokens, text);
    }
}

static void test_refusals(void)
{
    static const struct {
        const char *name, *text, *part;
    } cases[] = {
        {"tokenizer_config.json", "[]", "/tokenizer_config.json: found a list"},
        {"tokenizer_config.json", "{", "/tokenizer_config.json: line 1"},
        {"tokenizer_config.json", "{'added_tokens_decoder': null}",
         "/tokenizer_config.json: added_tokens_decoder: found null, expected an object"},
        {"tokenizer_config.json", "{'added_tokens_decoder': {'x': {'content': 'y'}}}",
         "added_tokens_decoder: found \"x\": an object, expected a token id"},
        {"tokenizer_config.json", "{'added_tokens_decoder': {'-1': {'content': 'y'}}}", "\"-1\""},
        {"tokenizer_config.json", "{'added_tokens_decoder': {'4194304': {'content': 'y'}}}",
         "\"4194304\""},
        {"tokenizer_config.json", "{'added_tokens_decoder': {'99999999999999999999': {}}}",
         "\"99999999999999999999\""},
        {"tokenizer_config.json", "{'added_tokens_decoder': {'5': 'y'}}", "found \"5\": \"y\""},
        {"tokenizer_config.json", "{'added_tokens_decoder': {'5': {}}}",
         "added_tokens_decoder.5.content: found nothing, expected a string"},
        {"tokenizer_config.json", "{'added_tokens_decoder': {'5': {'content': 3}}}",
         "added_tokens_decoder.5.content: found 3"},
        {"tokenizer_config.json", "{'added_tokens_decoder': {'5': {'content': 'y', 'lstrip': 1}}}",
         "added_tokens_decoder.5.lstrip: found 1, expected true or false"},
        {"tokenizer_config.json", "{'bos_token': {'content': 'y', 'special': 'yes'}}",
         "/tokenizer_config.json: bos_token.special: found \"yes\""},
        {"tokenizer_config.json", "{'split_special_tokens': true}",
         "/tokenizer_config.json: split_special_tokens: found true, expected false"},
        {"tokenizer_config.json", "{'split_special_tokens': 'no'}",
         "/tokenizer_config.json: split_special_tokens: found \"no\""},
        {"tokenizer_config.json", "{'tokenizer_class': 'GPT2Tokenizer', 'add_prefix_space': 1}",
         "/tokenizer_config.json: add_prefix_space: found 1, expected true or false"},
        {"special_tokens_map.json", "{'bos_token': {'lstrip': true}}",
         "/special_tokens_map.json: bos_token.content: found nothing"},
        {"tokenizer_config.json", "{'extra_special_tokens': ['y', {'content': []}]}",
         "/tokenizer_config.json: special tokens[1].content: found a list"},
        {"added_tokens.json", "{'y': 4194304}", "/added_tokens.json: y: found 4194304"},
        {"added_tokens.json", "{'y': '5'}", "/added_tokens.json: y: found \"5\""},
        {"added_tokens.json", "{'y\\nz': -1}", "/added_tokens.json: y?z: found -1"},
    };
    put_tokenizer("null");
    put("tokenizer_config.json", NULL);
    put("special_tokens_map.json", NULL);
    put("added_tokens.json", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_tokenizer *t;
        struct spw_error err = {0};
        put(cases[i].name, cases[i].text);
        CHECK(spw_tokenizer_open_folder(&t, folder, &err) == -EINVAL && !t);
        CHECK_MSG(strstr(err.text, cases[i].part) && !strchr(err.text, '\n'), "case %zu: %s", i,
                  err.text);
        put(cases[i].name, NULL);
    }
}

/* Two files say whether a space stands in front of a text. */
static void test_prefix_space(void)
{
    static const struct {
        const char *class, *key, *step, *refusal;
    } cases[] = {
        {"GPT2Tokenizer", "true", "'ByteLevel', 'add_prefix_space': true", NULL},
        {"GPT2Tokenizer", "true", "'ByteLevel', 'add_prefix_space': false",
         "found no space in front of a text, expected what add_prefix_space of "
         "tokenizer_config.json says: a space"},
        {"Qwen2TokenizerFast", "false", "'ByteLevel'",
         "found a space in front of a text, expected what add_prefix_space of "
         "tokenizer_config.json says: none"},
        {"Qwen2Tokenizer", "null", "'ByteLevel'", NULL},
        {"Qwen2TokenizerSlow", "false", "'ByteLevel'", NULL},
        {"PreTrainedTokenizerFast", "false", "'ByteLevel'", NULL},
        {"LlamaTokenizer", "false", "'ByteLevel'", NULL},
        {"LlamaTokenizer", "false", "'Metaspace', 'replacement': '_', 'prepend_scheme': 'never'",
         NULL},
        {"LlamaTokenizer", "true", "'Metaspace', 'replacement': '_', 'prepend_scheme': 'first'",
         NULL},
        {"LlamaTokenizer", "false", "'Metaspace', 'replacement': '_', 'prepend_scheme': 'first'",
         "found a space"},
        {"GPT2Tokenizer", "false", "'Metaspace', 'replacement': '_'", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_tokenizer *t;
        struct spw_error err = {0};
        char text[400];
        snprintf(text, sizeof text, "{'tokenizer_class': '%s', 'add_prefix_space': %s}",
                 cases[i].class, cases[i].key);
        put("tokenizer_config.json", text);
        snprintf(text, sizeof text,
                 "{'pre_tokenizer': {'type': %s},"
                 " 'model': {'type': 'BPE', 'vocab': {'a': 0}, 'merges': []}}",
                 cases[i].step);
        put("tokenizer.json", text);
        int rc = spw_tokenizer_open_folder(&t, folder, &err);
        CHECK_MSG(cases[i].refusal ? rc == -EINVAL && strstr(err.text, cases[i].refusal) : !rc,
                  "case %zu: %s", i, err.text);
        spw_tokenizer_close(t);
    }
}

/* The vocabulary has a hole, so the next id is that of another token. */
static void test_taken_id(void)
{
    struct spw_tokenizer *t;
    struct spw_error err = {0};
    put("tokenizer.json", "{'model': {'type': 'BPE', 'vocab': {'a': 0, 'b': 2}, 'merges': []}}");
    put("tokenizer_config.json", "{'bos_token': '<n>'}");
    CHECK(spw_tokenizer_open_folder(&t, folder, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "/tokenizer.json: a token of another file: found id 2 for \"<n>\""),
              "%s", err.text);
    put("tokenizer.json", "{'model': {'type': 'BPE', 'vocab': {'a': 0, 'b': 1}, 'merges': []},"
                          " 'added_tokens': [{'id': 4194303, 'content': 'x'}]}");
    CHECK(spw_tokenizer_open_folder(&t, folder, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "a token of another file.id: found 4194304"), "%s", err.text);
}

/* What a job or a stored measurement knows its tokenizer by: each of the files counts. */
static void test_text(void)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "added_tokens.json"};
    struct spw_source *s;
    struct spw_error err = {0};
    char *text, expected[100] = "";
    size_t bytes;
    CHECK(!spw_source_open(&s, folder, &err));
    for (int i = 0; i < 4; i++)
        put(names[i], NULL);
    for (int i = 0; i < 4; i++) {
        CHECK(s->ops->text(s, SPW_SOURCE_TOKENIZER, &text, &bytes, &err) == (i ? 0 : -ENOENT));
        CHECK(i ? bytes == strlen(expected) && !strcmp(text, expected) : !text);
        spw_free(text);
        put(names[i], names[i]);
        strcat(expected, names[i]);
    }
    int rc = -ENOMEM;
    for (int64_t n = 0; rc == -ENOMEM; n++) {
        spw_alloc_fail_nth(n);
        rc = s->ops->text(s, SPW_SOURCE_TOKENIZER, &text, &bytes, &err);
        spw_alloc_fail_nth(-1);
        CHECK(rc ? rc == -ENOMEM && !text && strstr(err.text, "out of memory")
                 : !strcmp(text, expected));
        spw_free(text);
    }
    spw_source_close(s);
    for (int i = 0; i < 4; i++)
        put(names[i], NULL);
}

static void test_allocations(void)
{
    char good[4096] = "", tokens[4096] = "", good_text[1024], text[1024];
    int64_t before = spw_alloc_outstanding(), n = 0;
    int rc;
    put_tokenizer("{'pad_token': '1'}");
    put("tokenizer_config.json", "{'bos_token': '<n>', 'x_token': {'__type': 'AddedToken',"
                                 " 'content': 'c'}, 'extra_special_tokens': ['b']}");
    put("special_tokens_map.json", "{'eos_token': '<n>', 'extra_special_tokens': {'x': '>'}}");
    put("added_tokens.json", "{'<': 5, '<n>n': 14}");
    CHECK(!use(good, good_text));
    json_set_alloc_funcs(json_alloc, json_free);
    for (int successes = 0; successes < 20 && n < 10000; n++) {
        spw_alloc_fail_nth(n);
        rc = use(tokens, text);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || rc == -ENOMEM, "allocation %lld: %d %s", (long long)n, rc, text);
        CHECK_MSG(rc || (!strcmp(tokens, good) && !strcmp(text, good_text)), "allocation %lld",
                  (long long)n);
        CHECK_MSG(spw_alloc_outstanding() == before, "allocation %lld leaks", (long long)n);
        successes = rc ? 0 : successes + 1;
    }
    json_set_alloc_funcs(malloc, free);
    CHECK(n > 100 && n < 10000 && !json_outstanding);
}

int main(void)
{
    open_folder("tokens");
    test_tokens();
    test_refusals();
    test_taken_id();
    test_prefix_space();
    test_text();
    test_allocations();
    close_folder();
    return check_done();
}
