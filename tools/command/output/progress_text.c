/* The texts of progress: see progress.h. They have five parts, each in words or short. The line of
 * a terminal takes words where they fit; the sentence of a log always. */
#include "tools/command/output/progress.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

enum part { COUNTS, READ, RATES, LINKS, LEFT, N_PARTS };

enum { PART_BYTES = 256, NUMBER_BYTES = 32 };

/* Appends to a text of `size` bytes, as far as there is room. */
__attribute__((format(printf, 3, 4))) static void add(char *text, size_t size, const char *format,
                                                      ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, size - n, format, args);
    va_end(args);
}

/* ---- numbers ---- */

/* "0.04", "3.12", "35.1", "812", "9999", "12.3k", "1.23M"; a whole number has no point. */
static const char *number(char buffer[NUMBER_BYTES], double x)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    size_t i = 0;
    const bool is_whole = x == round(x);
    x = fmin(x, 9e14);
    for (; (i || x >= 9999.5) && x >= 999.5 && i < 4; i++)
        x /= 1000;
    const int digits = (is_whole && !i) || x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2;
    snprintf(buffer, NUMBER_BYTES, "%.*f%s", digits, x, units[i]);
    return buffer;
}

/* "45 s", "12 min", "2 h 05 min", "3 d 04 h"; short: "45s", "12m", "2h05m", "3d04h". */
static const char *duration(char buffer[NUMBER_BYTES], double seconds, bool is_short)
{
    static const char *const formats[][2] = {
        {"%.0f s", "%.0fs"},
        {"%.0f min", "%.0fm"},
        {"%.0f h %02.0f min", "%.0fh%02.0fm"},
        {"%.0f d %02.0f h", "%.0fd%02.0fh"},
    };
    seconds = fmin(seconds, 8.64e10); /* a million days */
    double minutes = round(seconds / 60), hours = round(seconds / 3600);
    if (seconds < 99.5)
        snprintf(buffer, NUMBER_BYTES, formats[0][is_short], fmax(round(seconds), 0));
    else if (minutes < 60)
        snprintf(buffer, NUMBER_BYTES, formats[1][is_short], minutes);
    else if (minutes < 48 * 60)
        snprintf(buffer, NUMBER_BYTES, formats[2][is_short], floor(minutes / 60),
                 fmod(minutes, 60));
    else
        snprintf(buffer, NUMBER_BYTES, formats[3][is_short], floor(hours / 24), fmod(hours, 24));
    return buffer;
}

/* ---- parts ---- */

static void add_counts(char *text, const struct job_view *v, bool is_short)
{
    const struct job_counts *c = &v->counts;
    const bool is_one = c->n_total ? c->n_total == 1 : c->n_done == 1;
    if (!v->noun && c->n_answer_tokens)
        add(text, PART_BYTES, is_short ? "%s%llu/%llu new" : "%s%llu of at most %llu new tokens",
            v->is_hidden ? "reasoning, " : "", (unsigned long long)c->n_answer_tokens,
            (unsigned long long)(c->n_answer_tokens + c->n_answer_tokens_left));
    if (!v->noun)
        return;
    add(text, PART_BYTES, "%llu", (unsigned long long)c->n_done);
    if (c->n_total)
        add(text, PART_BYTES, is_short ? "/%llu" : " of %llu", (unsigned long long)c->n_total);
    if (!is_short)
        add(text, PART_BYTES, " %.*s", (int)strlen(v->noun) - is_one, v->noun);
    add(text, PART_BYTES,
        is_short ? " done %llu run %llu wait" : " done, %llu running, %llu waiting, %llu failed",
        (unsigned long long)c->n_running, (unsigned long long)c->n_waiting,
        (unsigned long long)c->n_failed);
    if (is_short && c->n_failed)
        add(text, PART_BYTES, " %llu fail", (unsigned long long)c->n_failed);
}

/* A prompt may take hours, in which no item ends. */
static void add_read(char *text, const struct job_view *v, bool is_short)
{
    char done[NUMBER_BYTES], all[NUMBER_BYTES];
    if (!(v->n_read < v->n_to_read))
        return;
    add(text, PART_BYTES, is_short ? "read %s/%s" : "%s of %s tokens of prompts read",
        number(done, round(v->n_read)), number(all, round(v->n_to_read)));
    if (v->counts.n_reading > 1)
        add(text, PART_BYTES, ", %llu at once", (unsigned long long)v->counts.n_reading);
}

static void add_rates(char *text, const struct job_view *v, bool is_short)
{
    char prompt[NUMBER_BYTES], answer[NUMBER_BYTES];
    if (!isnan(v->prompt_rate) && !isnan(v->answer_rate))
        add(text, PART_BYTES,
            is_short ? "in %s out %s t/s" : "%s tokens/s of prompts, %s of answers",
            number(prompt, v->prompt_rate), number(answer, v->answer_rate));
}

/* The direction of a link that is nearer to its limit. */
static const struct job_link *busier(const struct job_link *a, const struct job_link *b)
{
    if (isnan(a->rate) || isnan(b->rate))
        return isnan(a->rate) ? b : a;
    bool limited = !isnan(a->limit) && !isnan(b->limit);
    return a->rate / (limited ? a->limit : 1) >= b->rate / (limited ? b->limit : 1) ? a : b;
}

/* "host link 21.3 of 26.1 GB/s, disk 3.12 GB/s", "link 82% disk 3.12 GB/s" */
static void add_links(char *text, const struct job_view *v, bool is_short)
{
    const struct job_link *l = v->links;
    const struct job_link *busy[] = {
        busier(&l[SPW_MOVED_HOST_TO_DEVICE], &l[SPW_MOVED_DEVICE_TO_HOST]),
        busier(&l[SPW_MOVED_DISK_TO_HOST], &l[SPW_MOVED_HOST_TO_DISK])};
    char rate[NUMBER_BYTES], limit[NUMBER_BYTES];
    for (int i = 0; i < 2; i++) {
        if (isnan(busy[i]->rate))
            continue;
        const bool limited = !isnan(busy[i]->limit);
        add(text, PART_BYTES, "%s%s ",
            !*text     ? ""
            : is_short ? " "
                       : ", ",
            i          ? "disk"
            : is_short ? "link"
                       : "host link");
        if (is_short && limited) {
            add(text, PART_BYTES, "%.0f%%", fmin(100 * busy[i]->rate / busy[i]->limit, 999));
            continue;
        }
        add(text, PART_BYTES, "%s", number(rate, busy[i]->rate * 1e-9));
        if (limited)
            add(text, PART_BYTES, " of %s", number(limit, busy[i]->limit * 1e-9));
        add(text, PART_BYTES, " GB/s");
    }
}

static void add_left(char *text, const struct job_view *v, bool is_short)
{
    char time[NUMBER_BYTES];
    if (!isnan(v->took_seconds))
        add(text, PART_BYTES, "in %s", duration(time, v->took_seconds, is_short));
    else if (!isnan(v->left_seconds))
        add(text, PART_BYTES, is_short ? "left %s" : "%s left",
            duration(time, v->left_seconds, is_short));
}

/* ---- the line and the sentence ---- */

/* Appends the parts of a set. False: `size` has no room for all. */
static bool join(char *buffer, size_t size, const struct job_view *v, unsigned set, bool is_short,
                 const char *between)
{
    static void (*const parts[N_PARTS])(char *, const struct job_view *,
                                        bool) = {[COUNTS] = add_counts,
                                                 [READ] = add_read,
                                                 [RATES] = add_rates,
                                                 [LINKS] = add_links,
                                                 [LEFT] = add_left};
    size_t n = strlen(buffer);
    const size_t begin = n;
    for (int p = 0; p < N_PARTS; p++) {
        char text[PART_BYTES] = "";
        if (set >> p & 1)
            parts[p](text, v, is_short);
        if (!*text)
            continue;
        const char *before = n > begin ? between : "";
        n += strlen(before) + strlen(text);
        add(buffer, size, "%s%s", before, text);
    }
    return n < size;
}

void job_progress_line(char *buffer, int columns, const struct job_view *v)
{
    static const enum part less[] = {LINKS, RATES, READ, LEFT};
    const size_t size = (size_t)columns + 1;
    unsigned set = (1 << N_PARTS) - 1;
    *buffer = 0;
    bool fits = join(buffer, size, v, set, false, "  ");
    for (size_t i = 0; !fits && i <= sizeof less / sizeof *less; i++) {
        *buffer = 0;
        fits = join(buffer, size, v, set, true, "  ");
        set &= i < sizeof less / sizeof *less ? ~(1u << less[i]) : ~0u;
    }
}

void job_progress_sentence(char buffer[JOB_LOG_BYTES], int64_t now, const struct job_view *v)
{
    struct tm utc;
    const time_t t = (time_t)now;
    *buffer = 0;
    if (gmtime_r(&t, &utc))
        buffer[strftime(buffer, JOB_LOG_BYTES, "%Y-%m-%d %H:%M:%S UTC: ", &utc)] = 0;
    join(buffer, JOB_LOG_BYTES, v, (1 << N_PARTS) - 1, false, "; ");
}
