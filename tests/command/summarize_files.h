/* A folder of documents for tests of `spillway summarize`, and a model that can read them. */
#ifndef SPW_TESTS_COMMAND_SUMMARIZE_FILES_H
#define SPW_TESTS_COMMAND_SUMMARIZE_FILES_H

#include "tests/command/batch_files.h"

/* Paragraphs of words. */
static inline void write_document(uint64_t *random, const char *name, size_t bytes)
{
    static char text[1 << 16];
    size_t n = 0;
    while (n < bytes) {
        for (uint64_t k = check_range(random, 1, 8); k > 0; k--)
            text[n++] = (char)('a' + check_range(random, 0, 25));
        uint64_t what = check_range(random, 0, 19);
        text[n++] = what < 2 ? '\n' : ' ';
        if (what == 0)
            text[n++] = '\n';
    }
    text[n] = 0;
    write_text(name, text);
}

/* Makes the last two of the 96 tokens a newline and a space, which instructions need. Adds a
 * special token whose id the model does not have. */
static inline void use_blanks(void)
{
    static const char none[] = "\"added_tokens\":[]";
    char json[2 * BYTE_TOKENIZER_BYTES];
    size_t n = byte_tokenizer_json(json);
    char *at = strstr(json, none);
    char *rest = spw_strdup(at + sizeof none - 1);
    sprintf(at, "\"added_tokens\":[{\"id\":96,\"content\":\"<e>\",\"special\":true}]%s", rest);
    spw_free(rest);
    CHECK(strlen(json) > n);
    memcpy(strstr(json, "\xc3\x83\":94"), "\xc4\x8a", 2);
    memcpy(strstr(json, "\xc2\xa9\":95"), "\xc4\xa0", 2);
    write_text("m/tokenizer.json", json);
}

/* The lines of the parts in the state of an output, to the file `to`. */
static inline void extract_parts(const char *output, const char *to)
{
    CHECK(sh("cat %s.state 2>/dev/null | grep '^.\\{17\\}part ' | cut -c75- >%s; true", output,
             to) == 0);
}

/* A model with an encoder that has the tokens of `m`, and whose files say how it summarizes. */
static inline void encoder_model(const char *name, const char *golden, const char *summarization)
{
    command_golden(name, golden);
    CHECK(sh("cp m/tokenizer.json %s && sed -i '1a \"task_specific_params\": {\"summarization\": "
             "%s},' "
             "%s/config.json",
             name, summarization, name) == 0);
}

/* `b`: BART, 64 positions, the rest from generation_config.json. `t`: T5, 512 positions. */
static inline void encoder_models(void)
{
    encoder_model("b", "bart_search", "{\"min_length\": 5}");
    encoder_model("t", "t5_search",
                  "{\"prefix\": \"summarize: \", \"num_beams\": 3, \"length_penalty\": 2.0, "
                  "\"max_length\": 40, \"min_length\": 7, \"no_repeat_ngram_size\": 3, "
                  "\"early_stopping\": true}");
}

#define OPTIONS "--instructions ins --length 20 --language Latin --max-new-tokens 60 --ignore-eos"

/* The model `m`, instructions, four documents. Its context holds the first of them as a whole. */
static inline void summarize_model(const char *test, uint64_t *random)
{
    command_model(test);
    command_limits();
    use_blanks();
    CHECK(sh("mkdir ins docs") == 0);
    write_text("ins/whole.txt", "W {title}, {length}, {language}:\nabout {focus}\n{text}\nS:");
    write_text("ins/part.txt", "P {part} of {parts} of {title}:\n{text}\nS:");
    write_text("ins/merge.txt", "M {parts} of {title}:\n{text}\nS:");
    write_document(random, "docs/short.txt", 200);
    write_document(random, "docs/long.md", 3000);
    write_document(random, "docs/longer.txt", 16000);
    write_document(random, "docs/other.txt", 1500);
}

#endif
