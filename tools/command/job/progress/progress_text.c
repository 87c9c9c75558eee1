/* See progress_text.h. The terminal's line has five parts. Each part has several forms, from words
 * to nothing; the line begins with the longest forms. */
#include "tools/command/job/progress/progress_text.h"
#include "base/base.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum part { COUNTS, READ, RATES, LINKS, LEFT, N_PARTS };

/* Bytes of a part, and of a number: 20 digits of a count, or a rounded number. */
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

/* Two digits that count: "0.04", "3.1", "812", "1.2k", "35M". */
static const char *two_digits(char buffer[NUMBER_BYTES], double x)
{
    static const char units[] = {0, 'k', 'M', 'G', 'T'};
    size_t i = 0;
    for (; x >= 999.5 && i + 1 < sizeof units; i++)
        x /= 1000;
    int digits = x >= 9.95 || x == 0 ? 0 : x >= 0.0995 || x < 0.005 ? 1 : 2;
    int n = snprintf(buffer, NUMBER_BYTES, "%.*f", digits, fmin(x, 1e9));
    buffer[n] = units[i];
    buffer[n + 1] = 0;
    return buffer;
}

/* Three digits that count, and all digits before the point. */
static const char *three_digits(char buffer[NUMBER_BYTES], double x)
{
    int digits = x >= 99.95 || x == 0 ? 0 : x >= 9.995 ? 1 : 2;
    snprintf(buffer, NUMBER_BYTES, "%.*f", digits, fmin(x, 1e18));
    return buffer;
}

/* "9999", "12.3k", "1.23M": moves also where a token takes a second. */
static const char *tokens(char buffer[NUMBER_BYTES], double x)
{
    static const char units[] = {0, 'k', 'M', 'G'};
    size_t i = 0;
    if (x < 9999.5) {
        snprintf(buffer, NUMBER_BYTES, "%.0f", x);
        return buffer;
    }
    for (; x >= 999.5 && i + 1 < sizeof units; i++)
        x /= 1000;
    three_digits(buffer, x);
    buffer[strlen(buffer) + 1] = 0;
    buffer[strlen(buffer)] = units[i];
    return buffer;
}

static const char *count(char buffer[NUMBER_BYTES], uint64_t n)
{
    if (n >= 100000)
        return two_digits(buffer, (double)n);
    snprintf(buffer, NUMBER_BYTES, "%llu", (unsigned long long)n);
    return buffer;
}

const char *job_duration(char buffer[JOB_DURATION_BYTES], double seconds, bool is_short)
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
        snprintf(buffer, JOB_DURATION_BYTES, formats[0][is_short], fmax(round(seconds), 0));
    else if (minutes < 60)
        snprintf(buffer, JOB_DURATION_BYTES, formats[1][is_short], minutes);
    else if (minutes < 48 * 60)
        snprintf(buffer, JOB_DURATION_BYTES, formats[2][is_short], floor(minutes / 60),
                 fmod(minutes, 60));
    else
        snprintf(buffer, JOB_DURATION_BYTES, formats[3][is_short], floor(hours / 24),
                 fmod(hours, 24));
    return buffer;
}

/* ---- parts of the line: the form 0 is the longest ---- */

static void count_words(char *text, const struct job_view *v)
{
    const struct job_counts *c = &v->counts;
    add(text, PART_BYTES, "%llu ", (unsigned long long)c->n_done);
    if (c->n_total)
        add(text, PART_BYTES, "of %llu ", (unsigned long long)c->n_total);
    const bool is_one = c->n_total ? c->n_total == 1 : c->n_done == 1;
    add(text, PART_BYTES, "%.*s done, %llu running, %llu waiting, %llu failed",
        (int)strlen(v->noun) - is_one, v->noun, (unsigned long long)c->n_running,
        (unsigned long long)c->n_waiting, (unsigned long long)c->n_failed);
}

static void counts(char *text, const struct job_view *v, int form)
{
    const struct job_counts *c = &v->counts;
    char n[NUMBER_BYTES];
    if (form == 0) {
        count_words(text, v);
        return;
    }
    add(text, PART_BYTES, "%s", count(n, c->n_done));
    if (c->n_total)
        add(text, PART_BYTES, "/%s", count(n, c->n_total));
    if (form == 3)
        return;
    if (form == 1 || !c->n_total)
        add(text, PART_BYTES, " done");
    add(text, PART_BYTES, " %s run", count(n, c->n_running));
    add(text, PART_BYTES, " %s wait", count(n, c->n_waiting));
    if (c->n_failed)
        add(text, PART_BYTES, " %s fail", count(n, c->n_failed));
}

/* A prompt may take hours, in which no item ends. */
static bool reads(const struct job_view *v)
{
    return v->n_read < v->n_to_read;
}

static void tokens_read(char *text, const struct job_view *v, int form)
{
    char done[NUMBER_BYTES], all[NUMBER_BYTES];
    if (form == 3 || !reads(v))
        return;
    if (form == 2)
        add(text, PART_BYTES, "read %.1f%%", 100 * v->n_read / v->n_to_read);
    else
        add(text, PART_BYTES, form ? "read %s/%s" : "%s of %s tokens of prompts read",
            tokens(done, v->n_read), tokens(all, v->n_to_read));
    if (form < 2 && v->counts.n_reading > 1)
        add(text, PART_BYTES, ", %llu at once", (unsigned long long)v->counts.n_reading);
}

static void rates(char *text, const struct job_view *v, int form)
{
    char prompt[NUMBER_BYTES], answer[NUMBER_BYTES];
    if (form == 3 || isnan(v->prompt_rate) || isnan(v->answer_rate))
        return;
    if (form == 0)
        add(text, PART_BYTES, "%s tokens/s of prompts, %s of answers",
            three_digits(prompt, v->prompt_rate), three_digits(answer, v->answer_rate));
    else
        add(text, PART_BYTES, form == 1 ? "in %s out %s t/s" : "%s+%s t/s",
            two_digits(prompt, v->prompt_rate), two_digits(answer, v->answer_rate));
}

/* The direction of a link that is nearer to its limit. */
static const struct job_link *busier(const struct job_link *a, const struct job_link *b)
{
    if (isnan(a->rate) || isnan(b->rate))
        return isnan(a->rate) ? b : a;
    bool limited = !isnan(a->limit) && !isnan(b->limit);
    return a->rate / (limited ? a->limit : 1) >= b->rate / (limited ? b->limit : 1) ? a : b;
}

/* "link 21/26 GB/s disk 3.1/3.4 GB/s"; form 2: "link 81% disk 91%". */
static void links(char *text, const struct job_view *v, int form)
{
    const struct job_link *l = v->links,
                          *busy[] = {
                              busier(&l[SPW_MOVED_HOST_TO_DEVICE], &l[SPW_MOVED_DEVICE_TO_HOST]),
                              busier(&l[SPW_MOVED_DISK_TO_HOST], &l[SPW_MOVED_HOST_TO_DISK]),
                          };
    char rate[NUMBER_BYTES], limit[NUMBER_BYTES];
    for (int i = 0; i < 2 && form < 3; i++) {
        if (isnan(busy[i]->rate))
            continue;
        const char *name = i ? "disk" : form ? "link" : "host link", *space = *text ? " " : "";
        bool limited = !isnan(busy[i]->limit);
        if (form == 2 && limited) {
            add(text, PART_BYTES, "%s%s %.0f%%", space, name,
                fmin(100 * busy[i]->rate / busy[i]->limit, 999));
            continue;
        }
        add(text, PART_BYTES, "%s%s %s", space, name, two_digits(rate, busy[i]->rate * 1e-9));
        if (limited)
            add(text, PART_BYTES, form ? "/%s" : " of %s",
                two_digits(limit, busy[i]->limit * 1e-9));
        bool another = i == 0 && !isnan(busy[1]->rate);
        if (form != 1 || !another)
            add(text, PART_BYTES, " GB/s%s", form == 0 && another ? "," : "");
    }
}

static void left(char *text, const struct job_view *v, int form)
{
    char time[JOB_DURATION_BYTES];
    if (isnan(v->left_seconds) || form == 2)
        return;
    job_duration(time, v->left_seconds, form);
    add(text, PART_BYTES, form ? "left %s" : "%s left", time);
}

/* ---- the line ---- */

static void write_part(char *text, const struct job_view *v, enum part part, int form)
{
    static void (*const parts[N_PARTS])(char *, const struct job_view *, int) = {
        [COUNTS] = counts, [READ] = tokens_read, [RATES] = rates, [LINKS] = links, [LEFT] = left};
    *text = 0;
    parts[part](text, v, form);
}

void job_progress_line(char *buffer, int columns, const struct job_view *v)
{
    /* Which part takes its next form. */
    static const enum part shorter[] = {LINKS, READ, COUNTS, LEFT,  RATES, RATES,  COUNTS,
                                        LINKS, READ, LINKS,  RATES, READ,  COUNTS, LEFT};
    const size_t size = (size_t)columns + 1;
    int forms[N_PARTS] = {0};
    char text[N_PARTS][PART_BYTES];
    for (size_t i = 0;; i++) {
        size_t n = 0;
        for (int p = 0; p < N_PARTS; p++) {
            write_part(text[p], v, (enum part)p, forms[p]);
            n += strlen(text[p]) + (n && *text[p] ? 2 : 0);
        }
        if (n < size || i == sizeof shorter / sizeof *shorter)
            break;
        forms[shorter[i]]++;
    }
    *buffer = 0;
    for (int p = 0; p < N_PARTS; p++)
        if (*text[p])
            add(buffer, size, "%s%s", *buffer ? "  " : "", text[p]);
}

/* ---- the sentence ---- */

static void add_links(char *text, const struct job_view *v)
{
    static const char *const names[] = {
        [SPW_MOVED_HOST_TO_DEVICE] = "to the device",
        [SPW_MOVED_DEVICE_TO_HOST] = "from the device",
        [SPW_MOVED_DISK_TO_HOST] = "from the disk",
        [SPW_MOVED_HOST_TO_DISK] = "to the disk",
    };
    const char *before = "; ";
    char rate[NUMBER_BYTES], limit[NUMBER_BYTES];
    for (int i = 0; i < SPW_MOVED_COUNT; i++) {
        const struct job_link *l = &v->links[i];
        if (isnan(l->rate))
            continue;
        add(text, JOB_LOG_BYTES, "%s%s %s", before, names[i], three_digits(rate, l->rate * 1e-9));
        if (!isnan(l->limit))
            add(text, JOB_LOG_BYTES, " of %s", three_digits(limit, l->limit * 1e-9));
        add(text, JOB_LOG_BYTES, " GB/s");
        before = ", ";
    }
}

static void add_left(char *text, const struct job_view *v)
{
    char time[JOB_DURATION_BYTES];
    if (!isnan(v->took_seconds)) {
        add(text, JOB_LOG_BYTES, "; in %s", job_duration(time, v->took_seconds, false));
        return;
    }
    if (!isnan(v->left_seconds))
        add(text, JOB_LOG_BYTES, "; %s left", job_duration(time, v->left_seconds, false));
}

void job_progress_sentence(char buffer[JOB_LOG_BYTES], int64_t now, const struct job_view *v)
{
    struct tm utc;
    const time_t t = (time_t)now;
    char rate[NUMBER_BYTES];
    *buffer = 0;
    if (gmtime_r(&t, &utc))
        buffer[strftime(buffer, JOB_LOG_BYTES, "%Y-%m-%d %H:%M:%S UTC: ", &utc)] = 0;
    count_words(buffer + strlen(buffer), v);
    if (reads(v)) {
        add(buffer, JOB_LOG_BYTES, "; ");
        tokens_read(buffer + strlen(buffer), v, 0);
    }
    if (!isnan(v->prompt_rate) && !isnan(v->answer_rate)) {
        add(buffer, JOB_LOG_BYTES, "; %s tokens/s of prompts", three_digits(rate, v->prompt_rate));
        add(buffer, JOB_LOG_BYTES, ", %s of answers", three_digits(rate, v->answer_rate));
    }
    add_links(buffer, v);
    add_left(buffer, v);
}
