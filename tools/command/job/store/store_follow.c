/* OUTPUT and the file of errors, which follow from the state: see store_parts.h.
 *
 * The lines of a file are those of the records of its kind, in the order of the state, without the
 * errors of items that are new again. A file that a kill has left is a beginning of that, or still
 * has such errors. Then the file is cut where it departs, and the rest is written behind. */
#include "tools/command/job/store/store_parts.h"

#include "base/file.h"
#include "base/grow.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads at most n bytes of the file from `at` on. */
static int read_text(struct job_follow *f, const struct job_out *o, size_t n, size_t *got)
{
    SPW_TRY(spw_grow(&f->text, &f->capacity, n, 1));
    return spw_read_at(o->log->fd, f->text, n, o->at, got);
}

/* Whether the record's line is the next one of the file, and the file has it whole. */
static int compare(struct job_follow *f, const struct job_out *o, const struct job_record *r,
                   bool *is_next)
{
    size_t n;
    SPW_TRY(read_text(f, o, r->bytes + 1, &n));
    *is_next =
        n == r->bytes + 1 && f->text[r->bytes] == '\n' && !memcmp(f->text, r->text, r->bytes);
    return 0;
}

/* Passes over a line that is not one of the job. The rest of a line that a kill has cut off is no
 * line. */
static int skip_line(struct job_follow *f, struct job_out *o)
{
    enum { PIECE = 1 << 16 };
    const char *newline = NULL;
    for (size_t n = 1; n && !newline; o->at += newline ? (size_t)(newline - f->text) + 1 : n) {
        SPW_TRY(read_text(f, o, PIECE, &n));
        newline = memchr(f->text, '\n', n);
    }
    o->line += newline != NULL;
    if (newline && !o->damaged)
        o->damaged = o->line;
    return 0;
}

static bool is_live(const struct job_entry *e, const struct job_line *line)
{
    return e && e->ended != JOB_NOT_ENDED && e->at == line->offset;
}

static struct job_out *out_of(struct job_follow *f, const struct job_record *r)
{
    if (!r || (r->kind != JOB_ANSWER && r->kind != JOB_ERROR))
        return NULL;
    return &f->outs[r->kind == JOB_ANSWER ? JOB_OUTPUT : JOB_ERRORS];
}

static int compare_record(struct job_store *s, const struct job_line *line,
                          const struct job_record *r, void *context)
{
    struct job_follow *f = context;
    struct job_out *o = out_of(f, r);
    struct job_entry *e = o ? job_table_find(&s->table, r->key) : NULL;
    const bool lives = is_live(e, line);
    bool is_there;
    /* The line of an item that has ended again was removed before the new one was written. */
    if (!o || (!lives && e->ended != JOB_NOT_ENDED))
        return 0;
    int rc = compare(f, o, r, &is_there);
    if (!rc && !is_there && lives && o->at < o->size)
        rc = skip_line(f, o);
    if (rc)
        return job_store_fail(o->log->path, rc);
    if (is_there) {
        o->at += r->bytes + 1;
        o->line++;
    }
    o->departs |= is_there != lives;
    if (lives && !o->departs)
        o->good = o->at;
    if (lives && o->departs && !o->number) {
        o->rest = line->offset;
        o->number = line->number;
    }
    if (lives && !is_there && f->forgets)
        job_store_end(s, e, JOB_NOT_ENDED);
    return 0;
}

/* Writes what a file lacks. */
static int write_record(struct job_store *s, const struct job_line *line,
                        const struct job_record *r, void *context)
{
    struct job_out *o = out_of(context, r);
    if (!o || !o->number || line->offset < o->rest ||
        !is_live(job_table_find(&s->table, r->key), line))
        return 0;
    line->text[line->bytes] = '\n'; /* in the place of the NUL */
    int rc = job_log_append(o->log, r->text, r->bytes + 1);
    return rc ? job_store_fail(o->log->path, rc) : 0;
}

/* Refuses a file with a line that is not one of the job, or names the line. */
static int check(struct job_store *s, struct job_follow *f, bool mends)
{
    for (int i = 0; i < JOB_N_OUTS; i++) {
        struct job_out *o = &f->outs[i];
        int rc = o->at < o->size ? skip_line(f, o) : 0;
        if (rc)
            return job_store_fail(o->log->path, rc);
        o->departs |= o->good < o->size;
        if (!o->damaged || (mends && s->mends))
            continue;
        s->is_damaged = true;
        cli_fail(0,
                 "%s: line %" PRIu64 " is not as the job wrote it; --retry-failed writes the "
                 "file again from %s",
                 o->log->path, o->damaged, s->state.path);
        if (mends)
            return CLI_REFUSED;
    }
    return 0;
}

int job_store_compare(struct job_store *s, struct job_follow *f, bool mends)
{
    struct stat st;
    *f = (struct job_follow){.forgets = !mends};
    for (int i = 0; i < JOB_N_OUTS; i++) {
        f->outs[i].log = &s->outs[i];
        if (s->outs[i].fd >= 0 && fstat(s->outs[i].fd, &st))
            return job_store_fail(s->outs[i].path, -errno);
        f->outs[i].size = s->outs[i].fd >= 0 ? (uint64_t)st.st_size : 0;
    }
    int code = job_store_read(s, 0, 1, compare_record, f);
    if (!code)
        code = check(s, f, mends);
    spw_free(f->text);
    f->text = NULL;
    return code;
}

int job_store_mend(struct job_store *s, struct job_follow *f)
{
    const struct job_out *first = NULL;
    for (int i = 0; i < JOB_N_OUTS; i++) {
        struct job_out *o = &f->outs[i];
        int rc = o->good < o->size ? job_log_cut(o->log, o->good) : 0;
        if (rc)
            return job_store_fail(o->log->path, rc);
        if (o->number && (!first || o->rest < first->rest))
            first = o;
    }
    int code = first ? job_store_read(s, first->rest, first->number, write_record, f) : 0;
    for (int i = 0; i < JOB_N_OUTS && !code; i++)
        if (f->outs[i].departs && fdatasync(f->outs[i].log->fd))
            code = job_store_fail(f->outs[i].log->path, -errno);
    return code;
}
