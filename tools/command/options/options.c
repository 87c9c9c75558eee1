/* The option table and its parser: see options.h. */
#include "tools/command/options/options.h"

#include "base/grow.h"
#include "tools/command/common.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Several commands may have an option of this name: only that of the command is given. */
bool cli_given(const struct cli_options *o, const char *name)
{
    for (size_t i = 0; cli_rows[i].name; i++)
        if (o->given[i] && strcmp(cli_rows[i].name, name) == 0)
            return true;
    return false;
}

/* ---- values ---- */

/* Decimal digits only: no sign, no space, no overflow. */
static bool parse_count(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (!isdigit((unsigned char)*text) || !spw_mul_u64(value, 10, &value) ||
            !spw_add_u64(value, (uint64_t)(*text - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

/* A plain decimal number: strtod alone would take "inf", "0x1p3" and leading space. */
static bool parse_number(const char *text, double *out)
{
    char *end;
    if (!*text || text[strspn(text, "0123456789.eE+-")])
        return false;
    *out = strtod(text, &end);
    return *end == 0 && isfinite(*out);
}

/* "64MiB", "2GiB", "1.5G", plain bytes. K, M, G, T, P, E and KiB ... are powers of 1024, KB ... of
 * 1000. */
static bool parse_size(const char *text, uint64_t *out)
{
    static const char prefixes[] = "KMGTPE";
    size_t digits = strspn(text, "0123456789.");
    const char *unit = text + digits;
    double base = 1024, scale = 1;
    char number[32];
    if (digits == 0 || digits >= sizeof number)
        return false;
    const char *prefix = *unit ? strchr(prefixes, toupper((unsigned char)*unit)) : NULL;
    if (prefix) {
        unit++;
        if (strcasecmp(unit, "B") == 0)
            base = 1000;
        else if (*unit && strcasecmp(unit, "iB") != 0)
            return false;
        for (const char *p = prefixes; p <= prefix; p++)
            scale *= base;
    } else if (*unit && strcasecmp(unit, "B") != 0) {
        return false;
    }
    memcpy(number, text, digits);
    number[digits] = 0;
    if (scale == 1)
        return parse_count(number, out) && *out < (uint64_t)1 << 63;
    double value;
    if (!parse_number(number, &value) || value * scale >= 0x1p63)
        return false;
    *out = (uint64_t)(value * scale);
    return true;
}

static int refuse_value(const struct cli_row *row, const char *value, const char *expected)
{
    return cli_fail(CLI_REFUSED, "--%s: found '%s', expected %s", row->name, value, expected);
}

static int refuse_number(const struct cli_row *row, const char *value, const char *what)
{
    if (row->min == 0 && row->max == 0)
        return refuse_value(row, value, "a whole number from 0 to 18446744073709551615");
    return cli_fail(CLI_REFUSED, "--%s: found '%s', expected %s from %.15g to %.15g", row->name,
                    value, what, row->min, row->max);
}

static bool in_range(const struct cli_row *row, double value)
{
    return (row->min == 0 && row->max == 0) || (value >= row->min && value <= row->max);
}

static int set_count(const struct cli_row *row, const char *value, uint64_t *out)
{
    if (!parse_count(value, out) || !in_range(row, (double)*out))
        return refuse_number(row, value, "a whole number");
    return 0;
}

static int set_size(const struct cli_row *row, const char *value, uint64_t *out)
{
    if (!parse_size(value, out))
        return refuse_value(row, value,
                            "a size below 8 EiB, such as 64MiB, 2GiB, 1.5G or a number of bytes");
    return 0;
}

static int set_number(const struct cli_row *row, const char *value, double *out)
{
    if (!parse_number(value, out) || !in_range(row, *out))
        return refuse_number(row, value, "a number");
    return 0;
}

static int set_choice(const struct cli_row *row, const char *value, int *out)
{
    char expected[128] = "";
    for (const struct cli_choice *c = row->choices; c->name; c++) {
        if (strcmp(c->name, value) == 0) {
            *out = c->value;
            return 0;
        }
        size_t n = strlen(expected);
        snprintf(expected + n, sizeof expected - n, "%s%s",
                 n == 0      ? ""
                 : c[1].name ? ", "
                             : " or ",
                 c->name);
    }
    return refuse_value(row, value, expected);
}

/* "cuda:1" is "cuda" and a number. */
static int set_device(const struct cli_row *row, const char *value, struct cli_device *out)
{
    static const char prefix[] = "cuda:";
    uint64_t index;
    out->index = 0;
    if (strncmp(value, prefix, sizeof prefix - 1) != 0)
        return set_choice(row, value, &out->kind);
    if (!parse_count(value + sizeof prefix - 1, &index) || index > INT32_MAX)
        return refuse_value(row, value, "the number of a GPU, as in cuda:0");
    *out = (struct cli_device){SPW_BACKEND_CUDA, (uint32_t)index};
    return 0;
}

static int add_text(struct cli_strings *list, const char *value)
{
    if (spw_resize(&list->items, list->n + 1, sizeof *list->items))
        return cli_fail(CLI_FAILED, "out of memory");
    list->items[list->n++] = value;
    return 0;
}

/* "50256=-100" */
static int add_bias(const struct cli_row *row, const char *value, struct cli_biases *list)
{
    char id[24];
    uint64_t token;
    double bias;
    size_t bytes = strcspn(value, "=");
    snprintf(id, sizeof id, "%.*s", (int)spw_min_u64(bytes, sizeof id - 1), value);
    if (!value[bytes] || !parse_count(id, &token) || token > INT32_MAX ||
        !parse_number(value + bytes + 1, &bias) || !in_range(row, bias))
        return cli_fail(CLI_REFUSED,
                        "--%s: found '%s', expected a token id, =, and a number from %g to %g",
                        row->name, value, row->min, row->max);
    if (spw_resize(&list->items, list->n + 1, sizeof *list->items))
        return cli_fail(CLI_FAILED, "out of memory");
    list->items[list->n++] = (struct spw_logit_bias){(int32_t)token, (float)bias};
    return 0;
}

/* A second use of the option replaces the list of the first. */
static int set_counts(const struct cli_row *row, const char *value, struct cli_counts *out)
{
    out->n = 0;
    for (const char *at = value;; at++) {
        char item[64];
        size_t bytes = strcspn(at, ",");
        if (out->n == CLI_MAX_COUNTS || bytes >= sizeof item)
            return cli_fail(CLI_REFUSED, "--%s: found more than %d values, or one too long",
                            row->name, CLI_MAX_COUNTS);
        memcpy(item, at, bytes);
        item[bytes] = 0;
        uint64_t *slot = &out->items[out->n++];
        int rc = row->kind == CLI_SIZES ? set_size(row, item, slot) : set_count(row, item, slot);
        if (rc)
            return rc;
        at += bytes;
        if (!*at)
            return 0;
    }
}

static int set_ids(const struct cli_row *row, const char *value, struct cli_ids *out)
{
    struct cli_counts counts = {.n = 0};
    int code = strcmp(value, "none") ? set_counts(row, value, &counts) : 0;
    *out = (struct cli_ids){.n = counts.n, .is_given = true};
    for (size_t i = 0; i < counts.n; i++)
        out->items[i] = (int32_t)counts.items[i];
    return code;
}

static int set_value(struct cli_options *o, const struct cli_row *row, const char *value)
{
    void *field = (char *)o + row->at;
    switch (row->kind) {
    case CLI_FLAG:
        *(bool *)field = true;
        return 0;
    case CLI_COUNT:
        return set_count(row, value, field);
    case CLI_SIZE:
        return set_size(row, value, field);
    case CLI_NUMBER:
        return set_number(row, value, field);
    case CLI_CHOICE:
        return set_choice(row, value, field);
    case CLI_DEVICE:
        return set_device(row, value, field);
    case CLI_TEXTS:
        return add_text(field, value);
    case CLI_BIASES:
        return add_bias(row, value, field);
    case CLI_COUNTS:
    case CLI_SIZES:
        return set_counts(row, value, field);
    case CLI_IDS:
        return set_ids(row, value, field);
    case CLI_TEXT:
    case CLI_FILE_IN:
    case CLI_FILE_OUT:
        *(const char **)field = value;
        return 0;
    }
    return 0;
}

/* ---- the command line ---- */

/* Edits (insert, delete, replace, swap neighbours) between two short words. */
static size_t distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    size_t n = strlen(a), m = strlen(b), d[MAX + 1][MAX + 1];
    if (n > MAX || m > MAX)
        return SIZE_MAX;
    for (size_t i = 0; i <= n; i++) {
        for (size_t j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = spw_min_u64(best, spw_min_u64(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = spw_min_u64(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    }
    return d[n][m];
}

static size_t common_start(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

/* Whether the word is the name with letters left out: temp, ctx, max-tokens for max-new-tokens. */
static bool abbreviates(const char *word, const char *name)
{
    const bool is_long = strlen(word) > 2 && *word == *name;
    for (; *name; name++)
        word += *word == *name;
    return is_long && !*word;
}

/* Of equally near ones the name that begins as the word does: max_tokens is max_new_tokens, not
 * tokens. */
const char *cli_nearest(const char *word, const char *const *names, size_t n)
{
    const char *nearest = NULL;
    size_t most = 1 + strlen(word) / 4; /* a longer word may have more typing errors */
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, names[i]);
        if (d > best || (d > most && !abbreviates(word, names[i])))
            continue;
        if (!nearest || d < best || common_start(word, names[i]) > common_start(word, nearest)) {
            nearest = names[i];
            best = d;
        }
    }
    return nearest;
}

static int refuse_option(const struct cli_command *command, const char *name)
{
    const char *names[CLI_MAX_ROWS];
    size_t n = 0;
    for (const struct cli_row *row = cli_rows; row->name; row++) {
        if (row->commands & command->bit && n < sizeof names / sizeof *names)
            names[n++] = row->name;
        if (strcmp(row->name, name) == 0)
            return cli_fail(CLI_REFUSED, "--%s is no option of '%s'; see 'spillway %s --help'",
                            name, command->name, command->name);
    }
    const char *nearest = cli_nearest(name, names, n);
    if (nearest)
        return cli_fail(CLI_REFUSED, "unknown option --%s; did you mean --%s?", name, nearest);
    return cli_fail(CLI_REFUSED, "unknown option --%s; see 'spillway %s --help'", name,
                    command->name);
}

const struct cli_command *cli_find_command(const char *name)
{
    for (const struct cli_command *c = cli_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

const struct cli_row *cli_find_row(const struct cli_command *command, const char *name)
{
    for (const struct cli_row *row = cli_rows; row->name; row++)
        if (row->commands & command->bit && strcmp(row->name, name) == 0)
            return row;
    return NULL;
}

/* Parses argv[*i], "--name" or "--name=value". Without "=" the next word is the value. A setting
 * that is given again replaces the earlier one, as scripts expect that add options to a default; an
 * input would be lost without a word. */
static int parse_option(struct cli_options *o, int argc, char **argv, int *i)
{
    char name[64];
    const char *word = argv[*i] + 2, *value = strchr(word, '=');
    size_t bytes = value ? (size_t)(value++ - word) : strlen(word);
    snprintf(name, sizeof name, "%.*s", (int)spw_min_u64(bytes, sizeof name - 1), word);
    const struct cli_row *row = cli_find_row(o->command, name);
    if (!row)
        return refuse_option(o->command, name);
    if (row->kind == CLI_FLAG && value)
        return cli_fail(CLI_REFUSED, "--%s: found the value '%s', expected none", name, value);
    if (row->kind != CLI_FLAG && !value) {
        if (*i + 1 == argc)
            return cli_fail(CLI_REFUSED, "--%s: found no value, expected %s", name, row->argument);
        value = argv[++*i];
        if (strncmp(value, "--", 2) == 0 && cli_find_row(o->command, value + 2))
            return cli_fail(CLI_REFUSED,
                            "--%s: found the option %s, expected %s; --%s=%s gives "
                            "this text",
                            name, value, row->argument, name, value);
    }
    bool *given = &o->given[row - cli_rows];
    if (*given && row->kind != CLI_FLAG && strcmp(row->group, "Input") == 0)
        return cli_fail(CLI_REFUSED, "--%s: found it twice, expected one %s", name, row->argument);
    *given = true;
    return set_value(o, row, value);
}

/* What other programs call -p, -n and the like. */
static int refuse_letter(const struct cli_command *command, const char *word)
{
    static const char *const meant[][2] = {{"p", "prompt"},         {"f", "prompt-file"},
                                           {"n", "max-new-tokens"}, {"c", "context"},
                                           {"t", "threads"},        {"o", "output"}};
    if (strcmp(word, "-m") == 0 && strncmp(command->operand, "MODEL", 5) == 0)
        return cli_fail(CLI_REFUSED,
                        "unknown option -m; the model has no option: spillway %s MODEL [options]",
                        command->name);
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
        if (strcmp(word + 1, meant[i][0]) == 0 && cli_find_row(command, meant[i][1]))
            return cli_fail(CLI_REFUSED, "unknown option %s; did you mean --%s?", word,
                            meant[i][1]);
    return cli_fail(CLI_REFUSED, "unknown option %s; options are written --name", word);
}

static int set_operand(struct cli_options *o, const char *word)
{
    if (!o->verb && strchr(o->command->operand, '|') && strchr(o->command->operand, ' ')) {
        o->verb = word;
        return 0;
    }
    const bool two = strcmp(o->command->operand, "MODEL OUT.gguf") == 0 && !o->paths.n;
    if (o->operand && (two || strstr(o->command->operand, "...")))
        return add_text(&o->paths, word);
    if (o->operand)
        return cli_fail(CLI_REFUSED,
                        "found '%s' after '%s', expected one %s and options; a text "
                        "belongs to an option, and one with spaces must be quoted",
                        word, o->operand, o->command->operand);
    o->operand = word;
    return 0;
}

int cli_parse(struct cli_options *o, const struct cli_command *command, int argc, char **argv)
{
    enum { ANSWERS = CLI_GENERATE | CLI_CHAT | CLI_BATCH | CLI_SUMMARIZE | CLI_SERVE };
    *o = (struct cli_options){.command = command,
                              .max_new_tokens = 128,
                              .repetition_penalty = 1,
                              .n = 1,
                              .top_p = 1,
                              .no_repeat_ngram_size = SPW_NONE,
                              .min_length = SPW_NONE,
                              .min_new_tokens = SPW_NONE,
                              .num_beams = 1,
                              .num_beam_groups = 1,
                              .num_return_sequences = 1,
                              .length_penalty = 1,
                              .sessions = 4,
                              .kv_gate = 1,
                              .host = "127.0.0.1",
                              .port = 8080,
                              .max_queue = 1024,
                              .max_gap = 2,
                              .acceptance = 0.7,
                              .drafts = command->bit & ANSWERS ? SPW_DRAFTS_AUTO : SPW_DRAFTS_OFF,
                              .max_body = UINT64_C(64) << 20,
                              .max_connections = 1024,
                              .repeat = 3,
                              .decode_tokens = 16};
    bool only_operands = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        int rc;
        if (only_operands || word[0] != '-' || word[1] == 0) {
            rc = set_operand(o, word);
        } else if (strcmp(word, "--") == 0) {
            only_operands = true;
            continue;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            cli_help(stdout, command, i + 1 < argc && strcmp(argv[i + 1], "all") == 0);
            return CLI_HELP_SHOWN;
        } else if (word[1] != '-') {
            rc = refuse_letter(command, word);
        } else {
            rc = parse_option(o, argc, argv, &i);
        }
        if (rc)
            return rc;
    }
    if (o->operand ? !*o->operand : command->operand[0] != '[')
        return cli_fail(CLI_REFUSED, "%s: found %s %s; usage: spillway %s %s [options]",
                        command->name, o->operand ? "an empty" : "no", command->operand,
                        command->name, command->operand);
    return 0;
}

/* ---- values as JSON ---- */

static const char *choice_name(const struct cli_row *row, int value)
{
    const struct cli_choice *c = row->choices;
    while (c->name && c->value != value)
        c++;
    return c->name;
}

static json_t *texts(const struct cli_strings *strings)
{
    json_t *list = json_array();
    for (size_t i = 0; i < strings->n; i++)
        cli_json_append(&list, CLI_JSON(strings->items[i]));
    return list;
}

static json_t *biases(const struct cli_biases *b)
{
    json_t *list = json_array();
    for (size_t i = 0; i < b->n; i++)
        cli_json_append(&list, json_pack("[if]", b->items[i].token, (double)b->items[i].bias));
    return list;
}

static json_t *ids(const struct cli_ids *list)
{
    json_t *out = json_array();
    for (size_t i = 0; i < list->n; i++)
        cli_json_append(&out, CLI_JSON(list->items[i]));
    return out;
}

json_t *cli_value_json(const struct cli_options *o, const struct cli_row *row)
{
    const void *at = (const char *)o + row->at;
    switch (row->kind) {
    case CLI_FLAG:
        return CLI_JSON(*(const bool *)at);
    case CLI_COUNT:
    case CLI_SIZE:
        return CLI_JSON((int64_t) * (const uint64_t *)at); /* a seed uses all 64 bits */
    case CLI_NUMBER:
        return CLI_JSON(*(const double *)at);
    case CLI_CHOICE:
        return CLI_JSON(choice_name(row, *(const int *)at));
    case CLI_TEXTS:
        return texts(at);
    case CLI_BIASES:
        return biases(at);
    case CLI_IDS:
        return CLI_OR_NULL(((const struct cli_ids *)at)->is_given, ids(at));
    default:
        return CLI_JSON(*(const char *const *)at);
    }
}

/* ---- settings that change later ---- */

static bool is_setting(const struct cli_options *o, const struct cli_row *row)
{
    return row->commands & o->command->bit && strcmp(row->group, "Generation") == 0 &&
           (row->kind == CLI_COUNT || row->kind == CLI_NUMBER);
}

int cli_set(struct cli_options *o, const char *name, const char *value)
{
    char names[512] = "";
    for (const struct cli_row *row = cli_rows; row->name; row++) {
        if (!is_setting(o, row))
            continue;
        const size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", row->name);
        if (strcmp(row->name, name) != 0)
            continue;
        int code = set_value(o, row, value);
        if (code == 0)
            o->given[row - cli_rows] = true;
        return code;
    }
    return cli_fail(CLI_REFUSED, "found the setting '%s', expected one of %s", name, names);
}

void cli_show_settings(FILE *to, const struct cli_options *o)
{
    for (const struct cli_row *row = cli_rows; row->name; row++) {
        const void *field = (const char *)o + row->at;
        if (!is_setting(o, row))
            continue;
        fprintf(to, "%-20s ", row->name);
        if (row->kind == CLI_NUMBER)
            fprintf(to, "%g\n", *(const double *)field);
        else if (*(const uint64_t *)field == SPW_NONE)
            fprintf(to, "as the model's files say\n");
        else
            fprintf(to, "%llu\n", (unsigned long long)*(const uint64_t *)field);
    }
}

void cli_options_free(struct cli_options *o)
{
    spw_free(o->stop.items);
    spw_free(o->allowed_hosts.items);
    spw_free(o->allowed_origins.items);
    spw_free(o->logit_bias.items);
    spw_free(o->paths.items);
    o->paths = (struct cli_strings){0};
    o->stop = (struct cli_strings){0};
    o->logit_bias = (struct cli_biases){0};
}
