/* Parts of a text: see split.h.
 *
 * The text is cut into units, which are much shorter than a part and end at the best border within
 * reach. The tokens of each unit are counted once. Their sums estimate the tokens of any range:
 * a range has about as many tokens as its units. Each part gets its end by these estimates, and is
 * then counted by itself. A part that turns out too long ends earlier. So the whole text is
 * tokenized about twice. */
#include "tools/command/job/summarize/split.h"

#include "base/grow.h"
#include "model/text/tokenizer/tokenizer.h"

#include <math.h>

/* A unit has at most most_tokens / UNITS_PER_PART bytes (a token has several bytes), or
 * UNIT_LEAST_BYTES. */
#define UNITS_PER_PART 8
#define UNIT_LEAST_BYTES 16
/* The parts are planned to have at most this share of most_tokens, which leaves a choice of
 * borders. */
#define PLANNED_FILL 0.9
/* An end may be this far from where equal parts would end, relative to their length. */
#define MOST_DISTANCE 0.5

struct unit {
    size_t end;      /* of its bytes */
    uint64_t tokens; /* of all units up to this one */
};

struct splitter {
    const char *text;
    size_t bytes, most_tokens;
    job_count_tokens *count;
    const void *context;
    struct spw_error *err;
    uint8_t *borders;   /* owned, [bytes] */
    struct unit *units; /* owned */
    size_t n_units, unit_capacity;
    struct job_part *parts; /* owned, until they go to the caller */
    size_t n_parts, part_capacity;
};

int job_count_with_tokenizer(const void *tokenizer, const char *text, size_t bytes, size_t *n,
                             struct spw_error *err)
{
    int32_t *ids;
    SPW_TRY(spw_tokenizer_encode(tokenizer, text, bytes, false, &ids, n, err));
    spw_free(ids);
    return 0;
}

static int count_range(const struct splitter *s, size_t begin, size_t end, size_t *n)
{
    return s->count(s->context, s->text + begin, end - begin, n, s->err);
}

static enum job_border border_at(const struct splitter *s, size_t at)
{
    return at == s->bytes ? JOB_BORDER_END : (enum job_border)s->borders[at];
}

/* ---- units ---- */

/* The best border of (begin, begin + most_bytes], the farthest one of these; at least a code point
 * away. */
static size_t unit_end(const struct splitter *s, size_t begin, size_t end, size_t most_bytes)
{
    size_t last = end - begin > most_bytes ? begin + most_bytes : end, found = 0;
    enum job_border best = JOB_BORDER_NONE;
    for (size_t at = begin + 1; at <= last; at++) {
        enum job_border border = at == end ? JOB_BORDER_END : border_at(s, at);
        if (border >= best && border > JOB_BORDER_NONE) {
            best = border;
            found = at;
        }
    }
    for (size_t at = last; !found; at++)
        if (border_at(s, at) > JOB_BORDER_NONE)
            found = at;
    return found;
}

static bool is_one_code_point(const struct splitter *s, size_t begin, size_t end)
{
    size_t at = begin + 1;
    while (at < end && border_at(s, at) == JOB_BORDER_NONE)
        at++;
    return at == end;
}

/* Adds the units of [begin, end). A unit of too many tokens is cut into shorter ones. */
static int add_units(struct splitter *s, size_t begin, size_t end, size_t most_bytes)
{
    while (begin < end) {
        size_t n, to = unit_end(s, begin, end, most_bytes);
        SPW_TRY(count_range(s, begin, to, &n));
        if (n <= s->most_tokens) {
            SPW_TRY(spw_grow(&s->units, &s->unit_capacity, s->n_units + 1, sizeof *s->units));
            uint64_t before = s->n_units ? s->units[s->n_units - 1].tokens : 0;
            s->units[s->n_units++] = (struct unit){to, before + n};
        } else if (is_one_code_point(s, begin, to)) {
            return spw_fail(s->err, -E2BIG,
                            "the character at offset %zu has %zu tokens, and a part may have %zu",
                            begin, n, s->most_tokens);
        } else {
            SPW_TRY(add_units(s, begin, to, (to - begin) / 2));
        }
        begin = to;
    }
    return 0;
}

/* ---- ends of parts ---- */

/* How bad an end is. Costs of two kinds differ by more than MOST_DISTANCE: a better kind within
 * reach always wins. A heading is worth a tenth of a part. */
static double cost(enum job_border border, double distance)
{
    static const double costs[] = {
        [JOB_BORDER_NONE] = 9,        [JOB_BORDER_CODE_POINT] = 3.1, [JOB_BORDER_CHARACTER] = 2.5,
        [JOB_BORDER_WORD] = 1.9,      [JOB_BORDER_SENTENCE] = 1.3,   [JOB_BORDER_LINE] = 0.7,
        [JOB_BORDER_PARAGRAPH] = 0.1, [JOB_BORDER_HEADING] = 0,      [JOB_BORDER_END] = 0,
    };
    return costs[border] + distance;
}

static uint64_t tokens_before(const struct splitter *s, size_t unit)
{
    return unit ? s->units[unit - 1].tokens : 0;
}

/* Chooses the end of the part that begins with unit `first`: of about `most` tokens or fewer,
 * before unit `limit`. Returns the number of the unit after the part. */
static size_t part_end(const struct splitter *s, size_t first, size_t limit, uint64_t most)
{
    uint64_t begin = tokens_before(s, first), rest = tokens_before(s, s->n_units) - begin;
    if (rest <= most && limit == s->n_units)
        return limit;
    double n_parts = floor((double)rest / ((double)most * PLANNED_FILL)) + 1;
    double ideal = (double)rest / n_parts, best = INFINITY;
    size_t found = first + 1;
    for (size_t unit = first; unit < limit; unit++) {
        uint64_t tokens = s->units[unit].tokens - begin;
        double distance = ((double)tokens - ideal) / ideal;
        if (tokens > most || distance > MOST_DISTANCE)
            break;
        double c = cost(border_at(s, s->units[unit].end), fabs(distance));
        if (distance < -MOST_DISTANCE || c < best) {
            best = distance < -MOST_DISTANCE ? INFINITY : c;
            found = unit + 1;
        }
    }
    return found;
}

/* Adds the part that begins with unit *first, and moves *first behind it. */
static int add_part(struct splitter *s, size_t *first)
{
    size_t begin = *first ? s->units[*first - 1].end : 0, n;
    size_t next = part_end(s, *first, s->n_units, s->most_tokens);
    for (;;) {
        SPW_TRY(count_range(s, begin, s->units[next - 1].end, &n));
        if (n <= s->most_tokens || next == *first + 1)
            break;
        uint64_t tokens = s->units[next - 1].tokens - tokens_before(s, *first);
        double fewer = 0.95 * (double)tokens * (double)s->most_tokens / (double)n;
        next = part_end(s, *first, next - 1, fewer < 1 ? 1 : (uint64_t)fewer);
    }
    SPW_TRY(spw_grow(&s->parts, &s->part_capacity, s->n_parts + 1, sizeof *s->parts));
    size_t end = s->units[next - 1].end;
    s->parts[s->n_parts++] = (struct job_part){begin, end, n, border_at(s, end)};
    *first = next;
    return 0;
}

/* One unit of the whole text, if that has few enough tokens: sums of units may be too high. */
static int try_whole(struct splitter *s)
{
    size_t n;
    uint64_t estimate = tokens_before(s, s->n_units);
    if (estimate <= s->most_tokens || estimate / 2 > s->most_tokens)
        return 0;
    SPW_TRY(count_range(s, 0, s->bytes, &n));
    if (n <= s->most_tokens) {
        s->units[0] = (struct unit){s->bytes, n};
        s->n_units = 1;
    }
    return 0;
}

static int split(struct splitter *s)
{
    s->borders = spw_alloc(s->bytes);
    if (!s->borders)
        return -ENOMEM;
    SPW_TRY(job_borders(s->text, s->bytes, s->borders, s->err));
    SPW_TRY(
        add_units(s, 0, s->bytes, spw_max_u64(s->most_tokens / UNITS_PER_PART, UNIT_LEAST_BYTES)));
    SPW_TRY(try_whole(s));
    for (size_t first = 0; first < s->n_units;)
        SPW_TRY(add_part(s, &first));
    return 0;
}

int job_split(const char *text, size_t bytes, size_t most_tokens, job_count_tokens *count,
              const void *context, struct job_part **parts, size_t *n_parts, struct spw_error *err)
{
    struct splitter s = {.text = text,
                         .bytes = bytes,
                         .most_tokens = most_tokens,
                         .count = count,
                         .context = context,
                         .err = err};
    int rc = split(&s);
    spw_free(s.borders);
    spw_free(s.units);
    if (rc) {
        spw_free(s.parts);
        s.parts = NULL;
        s.n_parts = 0;
    }
    *parts = s.parts;
    *n_parts = s.n_parts;
    return rc;
}
