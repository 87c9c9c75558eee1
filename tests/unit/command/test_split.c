/* Parts of a text: they cover it, none has too many tokens, borders are the best ones in reach, and
 * the work is linear in the length of the text. */
#include "model/text/tokenizer/tokenizer.h"
#include "tests/check.h"
#include "tools/command/job/summarize/split.h"

#include <string.h>

/* ---- ways to count tokens ---- */

enum { FOUR_BYTES, ONE_BYTE, OVERHEAD, MORE_TOGETHER, JUST_TOO_MANY, REFUSES };

struct counter {
    int way;
    size_t most; /* of a part */
    size_t counted_bytes;
};

static int count_some(const void *context, const char *text, size_t bytes, size_t *n,
                      struct spw_error *err)
{
    struct counter *c = (struct counter *)(uintptr_t)context;
    (void)text;
    c->counted_bytes += bytes;
    *n = (bytes + 3) / 4;
    if (c->way == ONE_BYTE)
        *n = bytes;
    else if (c->way == OVERHEAD)
        *n += 3;
    else if (c->way == MORE_TOGETHER) /* a range has more tokens than its halves have together */
        *n += *n * *n / (2 * c->most);
    else if (c->way == JUST_TOO_MANY)
        *n = bytes > c->most ? c->most + 1 : 1;
    else if (c->way == REFUSES)
        return spw_fail(err, -EIO, "refused");
    return 0;
}

/* ---- random texts ---- */

struct text {
    char *at;
    size_t n, capacity;
};

static void put(struct text *t, const char *word)
{
    size_t bytes = strlen(word);
    if (t->n + bytes <= t->capacity)
        memcpy(t->at + t->n, word, bytes);
    if (t->n + bytes <= t->capacity)
        t->n += bytes;
}

static void put_sentence(struct text *t, uint64_t *seed, int most_words)
{
    static const char *const words[] = {
        "water",     "a",    "spill", "river", "e.g.", "Bach", "\xc3\xa9t\xc3\xa9",
        "e\xcc\x81", "(so)", "3.14"};
    int n = (int)check_range(seed, 1, (uint64_t)most_words);
    for (int i = 0; i < n; i++) {
        put(t, words[check_range(seed, 0, 9)]);
        put(t, i + 1 < n ? " " : check_range(seed, 0, 3) ? "." : "?!");
    }
}

/* Paragraphs of `lines` lines of `sentences` sentences. */
static void put_paragraphs(struct text *t, uint64_t *seed, int lines, int sentences)
{
    size_t before;
    do {
        before = t->n;
        int n_lines = (int)check_range(seed, 1, (uint64_t)lines);
        for (int i = 0; i < n_lines; i++) {
            int n = (int)check_range(seed, 1, (uint64_t)sentences);
            for (int k = 0; k < n; k++) {
                put_sentence(t, seed, 6);
                put(t, k + 1 < n ? " " : "\n");
            }
        }
        put(t, check_range(seed, 0, 3) ? "\n" : " \t\n\n");
    } while (t->n > before && t->capacity - t->n > 200);
}

/* Any bytes that are characters, with many of what makes a border. */
static void put_anything(struct text *t, uint64_t *seed)
{
    static const char *const some[] = {"\n",       "\n\n",
                                       " ",        "#",
                                       ". ",       "\r\n",
                                       "\xcc\x81", "\xe3\x80\x82",
                                       "x",        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac",
                                       "\t"};
    while (t->capacity - t->n > 20)
        for (uint64_t i = check_range(seed, 1, 5), what = check_range(seed, 0, 10); i; i--)
            put(t, some[what]);
}

/* ---- what must hold ---- */

static bool begins_code_point(const struct text *t, size_t at)
{
    return at == t->n || ((unsigned char)t->at[at] & 0xc0) != 0x80;
}

static void check_parts(const struct text *t, const struct job_part *parts, size_t n,
                        struct counter *c)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t tokens;
        CHECK(parts[i].begin == at && parts[i].end > at && begins_code_point(t, parts[i].end));
        at = parts[i].end;
        CHECK(count_some(c, t->at + parts[i].begin, at - parts[i].begin, &tokens, NULL) == 0);
        CHECK_MSG(tokens == parts[i].n_tokens && tokens <= c->most, "part %zu has %zu tokens", i,
                  tokens);
    }
    CHECK(at == t->n);
}

/* Whether a line that is not blank begins here, after one that is. */
static bool is_paragraph(const struct text *t, size_t at)
{
    size_t before = at - 1;
    while (before > 0 && strchr(" \t", t->at[before - 1]))
        before--;
    return t->at[at - 1] == '\n' && before > 0 && t->at[before - 1] == '\n' &&
           !strchr(" \t\n", t->at[at]);
}

static bool is_line(const struct text *t, size_t at)
{
    return t->at[at - 1] == '\n';
}

static bool is_sentence(const struct text *t, size_t at)
{
    return t->at[at] == ' ' && strchr(".!?", t->at[at - 1]);
}

static bool is_word(const struct text *t, size_t at)
{
    return t->at[at] == ' ' && t->at[at + 1] != ' ';
}

typedef bool is_border(const struct text *t, size_t at);

/* Every part ends at such a border, and the parts have about the same length. */
static void check_borders(const struct text *t, const struct job_part *parts, size_t n, size_t most,
                          is_border *is)
{
    for (size_t i = 0; i + 1 < n; i++)
        CHECK_MSG(is(t, parts[i].end), "part %zu ends with '%.*s', before '%.*s'", i, 20,
                  t->at + parts[i].end - 20, 20, t->at + parts[i].end);
    for (size_t i = 0; i < n && n > 1; i++)
        CHECK_MSG(parts[i].n_tokens >= most * 3 / 10, "part %zu of %zu has %zu of %zu tokens", i, n,
                  parts[i].n_tokens, most);
    CHECK_MSG((double)n <= (double)t->n / 4 / (0.7 * (double)most) + 2, "%zu parts", n);
}

static struct text text_of(size_t capacity)
{
    struct text t = {malloc(capacity), 0, capacity};
    CHECK(t.at);
    return t;
}

/* Cuts the text and frees it. */
static void check_text(struct text *t, size_t most, int way, is_border *is)
{
    struct counter c = {way, most, 0};
    struct job_part *parts;
    struct spw_error err = {0};
    size_t n;
    int rc = job_split(t->at, t->n, most, count_some, &c, &parts, &n, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    CHECK_MSG(way != FOUR_BYTES || c.counted_bytes <= 4 * t->n, "%zu bytes counted of %zu",
              c.counted_bytes, t->n);
    check_parts(t, parts, n, &c);
    if (is)
        check_borders(t, parts, n, most, is);
    spw_free(parts);
    free(t->at);
}

static void random_texts(struct check_draws *d, uint64_t *seed)
{
    while (check_another(d)) {
        size_t most = check_range(seed, 400, 4000), bytes = check_range(seed, 1, 20 * most);
        int way = (int)check_range(seed, 0, JUST_TOO_MANY);
        struct text t = text_of(bytes);
        put_paragraphs(&t, seed, 3, 2);
        check_text(&t, most, way, NULL);

        t = text_of(bytes + 1000);
        put_paragraphs(&t, seed, 3, 2);
        check_text(&t, most, FOUR_BYTES, is_paragraph);

        t = text_of(bytes);
        put_anything(&t, seed);
        check_text(&t, check_range(seed, 20, 300), way, NULL);
    }
}

/* Without better borders the next best kind is used. */
static void worse_borders(uint64_t *seed)
{
    struct text t = text_of(60000);
    while (t.capacity - t.n > 200) {
        put_sentence(&t, seed, 8);
        put(&t, "\n");
    }
    check_text(&t, 1000, FOUR_BYTES, is_line);
    t = text_of(60000);
    while (t.capacity - t.n > 200) {
        put_sentence(&t, seed, 8);
        put(&t, " ");
    }
    check_text(&t, 1000, FOUR_BYTES, is_sentence);
    t = text_of(60000);
    while (t.capacity - t.n > 200)
        put(&t, check_range(seed, 0, 1) ? "word " : "and   ");
    check_text(&t, 1000, FOUR_BYTES, is_word);
}

/* ---- single borders ---- */

static enum job_border border_before(const char *text, const char *rest)
{
    uint8_t borders[200];
    size_t at = (size_t)(strstr(text, rest) - text);
    CHECK(strlen(text) < sizeof borders && job_borders(text, strlen(text), borders, NULL) == 0);
    return (enum job_border)borders[at];
}

static void kinds_of_borders(void)
{
    static const char text[] = "One. Two words!\" Three\r\nline\n \t\nNew\n\n# Head\n\nUnder it\n\n"
                               "A \xe3\x80\x82\xe4\xba\x8c e\xcc\x81!";
    CHECK(border_before(text, " Two") == JOB_BORDER_SENTENCE);
    CHECK(border_before(text, "Two") == JOB_BORDER_CHARACTER);
    CHECK(border_before(text, " words") == JOB_BORDER_WORD);
    CHECK(border_before(text, " Three") == JOB_BORDER_SENTENCE);
    CHECK(border_before(text, "\nline") == JOB_BORDER_CODE_POINT);
    CHECK(border_before(text, "line") == JOB_BORDER_LINE);
    CHECK(border_before(text, "New") == JOB_BORDER_PARAGRAPH);
    CHECK(border_before(text, "# Head") == JOB_BORDER_HEADING);
    CHECK(border_before(text, "Under") == JOB_BORDER_LINE); /* stays with its heading */
    CHECK(border_before(text, "A ") == JOB_BORDER_PARAGRAPH);
    CHECK(border_before(text, "\xe4\xba\x8c") == JOB_BORDER_SENTENCE);
    CHECK(border_before(text, "\xcc\x81") == JOB_BORDER_CODE_POINT);
    CHECK(border_before(text, "\xba\x8c") == JOB_BORDER_NONE);
    CHECK(border_before("a #b", "#b") == JOB_BORDER_CHARACTER);
    CHECK(border_before("a\n#b", "#b") == JOB_BORDER_LINE);
    CHECK(border_before("a\n  ## b", "  ##") == JOB_BORDER_HEADING);
}

/* A heading within reach is worth a small detour. */
static void headings(void)
{
    struct text t = text_of(4000);
    while (t.n < 1800)
        put(&t, "some words\n\n");
    put(&t, "# Second half\n\n");
    while (t.n < 3900)
        put(&t, "some words\n\n");
    struct counter c = {FOUR_BYTES, 600, 0};
    struct job_part *parts;
    size_t n;
    CHECK(job_split(t.at, t.n, 600, count_some, &c, &parts, &n, NULL) == 0);
    CHECK(n == 2 && memcmp(t.at + parts[0].end, "# Second", 8) == 0);
    CHECK(parts[0].border == JOB_BORDER_HEADING && parts[1].border == JOB_BORDER_END);
    spw_free(parts);
    free(t.at);
}

/* ---- hostile texts ---- */

static void repeat(const char *what, size_t bytes, size_t most)
{
    struct text t = text_of(bytes);
    while (t.n + strlen(what) <= bytes)
        put(&t, what);
    check_text(&t, most, FOUR_BYTES, NULL);
}

static void long_texts(void)
{
    static const char *const whats[] = {"a",
                                        "\n",
                                        " ",
                                        "\n\n",
                                        "\xcc\x81",
                                        "a ",
                                        ". ",
                                        "#",
                                        "# ",
                                        "\n# a",
                                        "\xe3\x80\x82",
                                        "\r\n",
                                        "\n\n#  x\n\ny. z \xcc\x81"};
    for (size_t i = 0; i < sizeof whats / sizeof *whats; i++)
        repeat(whats[i], 300000, i % 2 ? 50 : 4000);
    repeat("a", 5 << 20, 3000);
    repeat("\n", 5 << 20, 100000);
    repeat("\xcc\x81", 5 << 20, 3000);
}

static void refusals(void)
{
    struct counter c = {ONE_BYTE, 2, 0};
    struct job_part *parts;
    struct spw_error err = {0};
    size_t n;
    CHECK(job_split("ab\xe2\x82\xac", 5, 2, count_some, &c, &parts, &n, &err) == -E2BIG && !parts);
    CHECK_MSG(strstr(err.text, "offset 2") && strstr(err.text, "3 tokens"), "%s", err.text);
    spw_error_clear(&err);
    CHECK(job_split("abc\xff", 4, 9, count_some, &c, &parts, &n, &err) == -EILSEQ);
    CHECK_MSG(strstr(err.text, "0xff at offset 3"), "%s", err.text);
    CHECK(job_split("", 0, 9, count_some, &c, &parts, &n, NULL) == 0 && n == 0);
    c.way = REFUSES;
    CHECK(job_split("abc", 3, 9, count_some, &c, &parts, &n, NULL) == -EIO && !parts);
}

static void no_memory(void)
{
    char text[3000];
    struct counter c = {ONE_BYTE, 20, 0};
    struct job_part *parts;
    size_t n;
    int rc = -ENOMEM;
    memset(text, 'x', sizeof text);
    for (int i = 0; rc == -ENOMEM; i++) {
        spw_alloc_fail_nth(i);
        rc = job_split(text, sizeof text, 20, count_some, &c, &parts, &n, NULL);
        spw_alloc_fail_nth(-1);
        CHECK(i < 100 && (rc == 0 || (rc == -ENOMEM && !parts)));
    }
    spw_free(parts);
}

/* ---- a real tokenizer ---- */

static void check_tokenizer(const char *name, const struct text *t, size_t most)
{
    char path[1000];
    struct spw_tokenizer *tokenizer;
    struct spw_error err = {0};
    snprintf(path, sizeof path, "%s/tokenizers/%s", getenv("SPW_DATA"), name);
    CHECK_MSG(spw_tokenizer_open_folder(&tokenizer, path, &err) == 0, "%s", err.text);
    struct job_part *parts;
    size_t n, tokens, smallest = most, n_paragraphs = 0;
    double before = check_seconds();
    CHECK(job_split(t->at, t->n, most, job_count_with_tokenizer, tokenizer, &parts, &n, &err) == 0);
    double seconds = check_seconds() - before;
    for (size_t i = 0; i < n; i++) {
        CHECK(job_count_with_tokenizer(tokenizer, t->at + parts[i].begin,
                                       parts[i].end - parts[i].begin, &tokens, NULL) == 0);
        CHECK(tokens == parts[i].n_tokens && tokens <= most);
        n_paragraphs += parts[i].border >= JOB_BORDER_PARAGRAPH;
        smallest = spw_min_u64(smallest, tokens);
    }
    CHECK(n_paragraphs >= n * 9 / 10); /* a few paragraphs are longer than half a part */
    CHECK_MSG(smallest >= most / 3, "smallest part: %zu of %zu tokens", smallest, most);
    fprintf(stderr, "%s: %zu parts of %zu to %zu tokens, %.1f MB/s\n", name, n, smallest, most,
            (double)t->n / seconds / 1e6);
    spw_free(parts);
    spw_tokenizer_close(tokenizer);
}

/* argv[2]: bytes of the text. */
static void real_tokenizers(size_t bytes)
{
    char path[1000];
    const char *data = getenv("SPW_DATA");
    snprintf(path, sizeof path, "%s/texts/moby-dick.txt", data ? data : "");
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "no shared test data: a part of the test is skipped\n");
        return;
    }
    struct text t = text_of(bytes);
    while (t.n < bytes) {
        size_t n = fread(t.at + t.n, 1, bytes - t.n, file);
        t.n += n;
        rewind(file);
    }
    while (!begins_code_point(&t, t.n - 1))
        t.n--;
    t.n--;
    fclose(file);
    check_tokenizer("qwen2.5", &t, 3000);
    check_tokenizer("phi-3-mini", &t, 1000);
    free(t.at);
}

int main(int argc, char **argv)
{
    struct check_draws d = check_draws_of(argc, argv, 200);
    uint64_t seed = check_seed();
    kinds_of_borders();
    headings();
    refusals();
    no_memory();
    worse_borders(&seed);
    long_texts();
    random_texts(&d, &seed);
    real_tokenizers(argc > 2 ? strtoull(argv[2], NULL, 10) : 200000);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
