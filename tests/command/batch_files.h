/* Jobs in the folder of command_run.h: items, the command, and what stands in its files afterwards.
 */
#ifndef SPW_TESTS_COMMAND_BATCH_FILES_H
#define SPW_TESTS_COMMAND_BATCH_FILES_H

#include "tests/command/command_model.h"
#include "tests/command/command_start.h"

#include <jansson.h>
#include <string.h>
#include <xxhash.h>

#define RUN "--device cpu --threads 1 --progress never --quiet"

/* ---- items ---- */

static inline json_t *some_tokens(uint64_t *random, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer((json_int_t)check_range(random, 3, 95)));
    return list;
}

/* One of every kind of answer: drawn, stopped early, several, with log-probabilities, OpenAI's. */
static inline json_t *some_item(uint64_t *random, int number)
{
    const int most = (int)check_range(random, 1, 120);
    json_t *tokens = some_tokens(random, check_range(random, 1, 300));
    if (number % 7 == 6)
        return json_pack("{s:o, s:s, s:s, s:{s:s, s:o, s:i, s:f, s:i}}", "custom_id",
                         json_sprintf("item %d", number), "method", "POST", "url",
                         "/v1/completions", "body", "model", "m", "prompt", tokens, "max_tokens",
                         most, "temperature", 1.0, "logprobs", 2);
    json_t *x = json_pack("{s:o, s:o, s:i}", "id", json_sprintf("item %d", number), "tokens",
                          tokens, "max_new_tokens", most);
    if (number % 3 == 1)
        json_object_update_new(x, json_pack("{s:f, s:i, s:f, s:b}", "temperature", 1.2, "seed",
                                            number, "frequency_penalty", 0.4, "ignore_eos", 1));
    if (number % 5 == 2)
        json_object_set_new(x, "logprobs", json_integer(3));
    if (number % 4 == 3)
        json_object_update_new(
            x, json_pack("{s:i, s:f, s:[s,s]}", "n", 3, "temperature", 1.5, "stop", "e", "o"));
    return x;
}

/* Appends items first to last. */
static inline void add_items(const char *name, uint64_t seed, int first, int last)
{
    FILE *file = fopen(in_folder(name), "a");
    CHECK(file);
    for (int i = first; file && i <= last; i++) {
        uint64_t random = seed + (uint64_t)i * 1000;
        json_t *x = some_item(&random, i);
        CHECK(x && json_dumpf(x, file, JSON_COMPACT) == 0);
        fputc('\n', file);
        json_decref(x);
    }
    if (file)
        fclose(file);
}

/* ---- files ---- */

/* What may differ between two runs of one item, also of a part of a summary. */
static inline void forget_time(json_t *line)
{
    static const char *const names[] = {"seconds", "moved_bytes", "predicted_seconds"};
    json_t *body = json_object_get(json_object_get(line, "response"), "body"), *part;
    size_t i;
    json_object_del(body, "created");
    json_object_del(json_object_get(body, "usage"), "prompt_tokens_details");
    for (i = 0; i < sizeof names / sizeof *names; i++)
        json_object_del(line, names[i]);
    json_array_foreach(json_object_get(line, "parts"), i, part) forget_time(part);
}

/* {id of the item as JSON, or "#" and the number of its line: its line}. Every id once. A last line
 * without a newline is left out. */
static inline json_t *results_of(const char *name)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    json_t *all = json_object();
    FILE *file = fopen(in_folder(name), "r");
    while (file && (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n') {
        json_t *x = json_loads(line, JSON_ALLOW_NUL, NULL);
        CHECK_MSG(json_is_object(x), "%s: %.100s", name, line);
        json_t *id = json_object_get(x, "custom_id");
        id = id ? id : json_object_get(x, "id");
        char *key =
            json_is_null(id) || !id ? NULL : json_dumps(id, JSON_ENCODE_ANY | JSON_SORT_KEYS);
        char number[32];
        snprintf(number, sizeof number, "#%lld",
                 (long long)json_integer_value(json_object_get(x, "line")));
        forget_time(x);
        CHECK_MSG(!json_object_get(all, key ? key : number), "%s has %.100s twice", name,
                  key ? key : number);
        json_object_set_new(all, key ? key : number, x);
        free(key);
    }
    free(line);
    if (file)
        fclose(file);
    return all;
}

/* results_of, of which each line is the one in `whole` (or any, NULL). */
static inline json_t *checked_results_of(const char *name, const json_t *whole)
{
    const char *key;
    json_t *line, *all = results_of(name);
    json_object_foreach(all, key, line) CHECK_MSG(
        !whole || json_equal(line, json_object_get(whole, key)), "%s: %s differs", name, key);
    return all;
}

/* Every item has an answer or an error, never both, and an answer is the one in `whole` (or any,
 * NULL). Returns how many items have ended. */
static inline size_t check_results(const char *output, const json_t *whole, size_t n_failed)
{
    char errors[128];
    const char *key;
    json_t *line;
    snprintf(errors, sizeof errors, "%s.errors", output);
    json_t *answers = checked_results_of(output, whole), *failed = results_of(errors);
    json_object_foreach(answers, key, line)
        CHECK_MSG(!json_object_get(failed, key), "%s has an answer and an error", key);
    char *errors_text = json_dumps(failed, JSON_COMPACT);
    CHECK_MSG(json_object_size(failed) == n_failed, "%s: %zu errors: %.300s", output,
              json_object_size(failed), errors_text);
    free(errors_text);
    size_t n = json_object_size(answers) + json_object_size(failed);
    json_decref(answers);
    json_decref(failed);
    return n;
}

static inline void remove_job(const char *output)
{
    sh("rm -rf %s %s.errors %s.state", output, output, output);
}

/* Gives each line of a state the sum that fits it, after a test has changed the line. The sum has
 * 16 digits and a blank. */
static inline void correct_sums(const char *name)
{
    char new_path[300], *line = NULL;
    size_t room = 0;
    snprintf(new_path, sizeof new_path, "%s.new", in_folder(name));
    FILE *from = fopen(in_folder(name), "r"), *to = fopen(new_path, "w");
    CHECK(from && to);
    while (getline(&line, &room, from) > 0) {
        const size_t n = strlen(line + 17) - 1;
        fprintf(to, "%016llx %s", (unsigned long long)XXH3_64bits(line + 17, n), line + 17);
    }
    free(line);
    fclose(from);
    CHECK(fclose(to) == 0 && rename(new_path, in_folder(name)) == 0);
}

/* The least device memory, in KiB, with which contexts of this length fit side by side. */
static inline int least_budget(const char *model, size_t context, int sessions, int host_kib)
{
    int fails = 0, fits = 1 << 20;
    while (fits - fails > 1) {
        int middle = (fails + fits) / 2;
        int code = sh("\"$S\" plan %s --device cpu --no-probe --quiet --context %zu --sessions %d "
                      "--device-memory %dKiB --host-memory %dKiB --on-oom fail",
                      model, context, sessions, middle, host_kib);
        *(code ? &fails : &fits) = middle;
    }
    return fits;
}

/* Runs the job `input` to `output`. */
static inline int batch(const char *input, const char *output, const char *options)
{
    return sh("\"$S\" batch m --input %s --output %s " RUN " %s", input, output, options);
}

#endif
