/* Saves sessions to files and resumes them: see spillway.h. A file is a pack (offload/store/pack.h)
 * with a full snapshot of the session (snapshot.h). The state of the pack begins with the settings
 * that the file was computed with, so that a refusal can name both sides. The caller's own bytes
 * follow.
 *
 * A later save grows the file in place. Complete tiles of the same tokens stay where they are. New
 * are: the tiles since the last save, the tail, the logits, and tiles that have become old. The
 * first save of a session reads the tiles that stay, and writes damaged ones again.
 *
 * A session holds a lock on its file until it is closed. */
#include "offload/store/owner.h"
#include "quant/types.h"
#include "runtime/persist/snapshot.h"
#include "runtime/saved.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    SAVE_TRIES = 3,
    /* Every save adds a section to each layer. With more than this many times the sections of a new
     * file, the file is written anew, so that its tables stay small beside its tiles. */
    MAX_PARTS = 64,
};

/* The first bytes of the pack's state. */
struct head {
    uint64_t rope_table, residual_tokens;
    uint32_t compute, kv, precision, state_bytes;
    uint32_t mixed, reserved; /* as in struct spw_session */
    uint8_t model[SPW_FINGERPRINT_BYTES];
    char backend[SPW_SNAPSHOT_BACKEND_BYTES];
};

struct spw_saved {
    struct spw_pack *pack; /* owned */
    struct head head;
    struct spw_saved_info info;
    char foreign[2 * SPW_OWNER_TEXT];
};

/* ---- saving ---- */

struct save {
    struct spw_session *s;
    const char *path;
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    struct spw_pack *before;           /* owned; the file as it is now, or NULL */
    uint64_t n_shared;                 /* tokens that the file shares with the session */
    bool *bad;                         /* owned, [n_records of before]: damaged records */
    uint64_t *first_record;            /* owned, [n_sections of before]: index into `bad` */
    struct spw_pack_section *wanted;   /* owned, [n_wanted] */
    struct spw_pack_section *sections; /* owned, [max]: `wanted`, split into old and new parts */
    uint32_t n_wanted, n, max;
    bool reuses;          /* at least one part of the file stays */
    uint64_t write_bytes; /* in all, tables included */
};

static void fill_head(struct head *h, const struct spw_session *s, size_t state_bytes)
{
    const struct spw_engine *e = s->engine;
    memset(h, 0, sizeof *h);
    h->rope_table = s->rope_table;
    h->residual_tokens = e->plan.info.residual_tokens;
    h->compute = (uint32_t)e->plan.info.compute;
    h->kv = (uint32_t)e->plan.info.kv;
    h->precision = (uint32_t)e->plan.info.precision;
    h->state_bytes = (uint32_t)state_bytes;
    h->mixed = s->mixed;
    memcpy(h->model, e->model_fingerprint, sizeof h->model);
    spw_snapshot_backend(h->backend, e);
}

/* Opens the existing file, and counts the tokens that it shares with the session. */
static int open_before(struct save *v)
{
    struct head h;
    v->n_shared = 0;
    if (!spw_save_file_is_private(v->s->file))
        return 0;
    int rc = spw_pack_open(&v->before, v->path, v->fingerprint, NULL);
    if (rc)
        return rc == -ENOMEM ? rc : 0; /* any other file is replaced */
    const struct spw_pack_info *i = spw_pack_info(v->before);
    if (i->first_token || i->state_bytes < sizeof h)
        return 0;
    memcpy(&h, i->state, sizeof h);
    if (h.rope_table != v->s->rope_table || h.mixed != v->s->mixed)
        return 0;
    v->n_shared = spw_common_prefix(i->tokens, i->n_tokens, v->s->tokens, v->s->n_tokens);
    return 0;
}

/* ---- verifying the tiles that stay ---- */

static uint64_t record_of(const struct save *v, const struct spw_pack_section *x, uint32_t tile)
{
    return v->first_record[x - spw_pack_info(v->before)->sections] + tile - x->first_tile;
}

static bool is_bad(const struct save *v, const struct spw_pack_section *x, uint32_t tile)
{
    return v->bad && v->bad[record_of(v, x, tile)];
}

/* Reads tiles [tile, tile + n) into the piece, and marks the damaged ones. */
static void verify_tiles(struct save *v, const struct spw_pack_section *x, uint32_t tile,
                         uint32_t n)
{
    struct spw_engine *e = v->s->engine;
    uint8_t *piece = e->lane.host_arena + e->plan.host.piece;
    uint64_t bytes = n * x->record_bytes;
    uint64_t offset = x->offset + (tile - x->first_tile) * x->record_bytes;
    bool is_read = spw_pack_fetch(v->before, offset, bytes, piece, NULL) == 0;
    for (uint32_t i = 0; i < n; i++)
        v->bad[record_of(v, x, tile + i)] =
            !is_read ||
            spw_pack_check_records(v->before, x, tile + i, 1, piece + i * x->record_bytes, NULL);
    e->files.read_bytes += is_read ? bytes : 0;
}

/* Without this a byte that the drive has changed would stay in the file for ever. */
static int verify_before(struct save *v)
{
    const struct spw_pack_info *i = spw_pack_info(v->before);
    uint64_t n_records = 0;
    v->bad = spw_alloc_zero(i->n_records + 1, sizeof *v->bad);
    v->first_record = spw_alloc_zero(i->n_sections + 1, sizeof *v->first_record);
    if (!v->bad || !v->first_record)
        return -ENOMEM;
    for (uint32_t k = 0; k < i->n_sections; k++) {
        v->first_record[k] = n_records;
        n_records += i->sections[k].n_tiles;
    }
    for (uint32_t k = 0; k < i->n_sections; k++) {
        const struct spw_pack_section *x = &i->sections[k];
        uint64_t piece = v->s->engine->plan.piece_bytes / x->record_bytes;
        uint64_t end = spw_min_u64(x->first_tile + x->n_tiles, v->n_shared / SPW_TILE_TOKENS);
        if (x->kind >= SPW_SNAPSHOT_TAIL || !piece) /* these are always written anew */
            continue;
        for (uint64_t t = x->first_tile, n; t < end; t += n) {
            n = spw_min_u64(end - t, piece);
            verify_tiles(v, x, (uint32_t)t, (uint32_t)n);
        }
    }
    return 0;
}

/* ---- which tiles stay ---- */

/* The section of the file that has a good record of this tile. NULL: the tile must be written. */
static const struct spw_pack_section *
old_section(const struct save *v, const struct spw_pack_section *wanted, uint32_t tile)
{
    if (wanted->kind >= SPW_SNAPSHOT_TAIL || tile >= v->n_shared / SPW_TILE_TOKENS)
        return NULL;
    const struct spw_pack_section *x = spw_pack_find(v->before, wanted->kind, wanted->layer, tile);
    return x && x->record_bytes == wanted->record_bytes && !is_bad(v, x, tile) ? x : NULL;
}

/* The end of the tiles of `x` that can stay, beginning with `tile`. */
static uint32_t old_end(const struct save *v, const struct spw_pack_section *x, uint32_t tile)
{
    uint32_t end = (uint32_t)spw_min_u64(x->first_tile + x->n_tiles, v->n_shared / SPW_TILE_TOKENS);
    while (tile < end && !is_bad(v, x, tile))
        tile++;
    return tile;
}

/* Splits one wanted section into old and new parts. -E2BIG: there are too many parts. */
static int split_section(struct save *v, const struct spw_pack_section *wanted)
{
    uint32_t end = wanted->first_tile + wanted->n_tiles;
    for (uint32_t t = wanted->first_tile, next; t < end; t = next) {
        const struct spw_pack_section *x = old_section(v, wanted, t);
        if (v->n == v->max)
            return -E2BIG;
        next = x ? old_end(v, x, t) : t + 1;
        while (!x && next < end && !old_section(v, wanted, next))
            next++;
        next = spw_min_u32(next, end);
        struct spw_pack_section *to = &v->sections[v->n++];
        if (x) {
            *to = spw_pack_part(x, t, next - t);
            v->reuses = true;
            continue;
        }
        *to = *wanted;
        to->first_tile = t;
        to->n_tiles = next - t;
    }
    return 0;
}

static void split_sections(struct save *v)
{
    int rc = 0;
    v->n = 0;
    v->reuses = false;
    for (uint32_t i = 0; i < v->n_wanted && !rc; i++)
        rc = split_section(v, &v->wanted[i]);
    if (!rc)
        return;
    memcpy(v->sections, v->wanted, v->n_wanted * sizeof *v->wanted);
    v->n = v->n_wanted;
    v->reuses = false;
}

static int plan_save(struct save *v)
{
    struct spw_session *s = v->s;
    uint32_t most = spw_snapshot_max_sections(s->engine);
    v->max = most * MAX_PARTS;
    v->wanted = spw_alloc_zero(most, sizeof *v->wanted);
    v->sections = spw_alloc_zero(v->max, sizeof *v->sections);
    if (!v->wanted || !v->sections)
        return -ENOMEM;
    struct spw_snapshot_range all = {.to = s->n_tokens, .checkpoint = true, .tail = true};
    v->n_wanted = spw_snapshot_sections(s, &all, v->wanted);
    SPW_TRY(open_before(v));
    if (v->n_shared && !s->file->verified)
        SPW_TRY(verify_before(v));
    split_sections(v);
    return 0;
}

static int check_limit(struct save *v, const struct spw_pack_spec *spec, struct spw_error *err)
{
    v->write_bytes = spw_pack_write_bytes(spec);
    return spw_snapshot_check_limit(v->s->engine, v->write_bytes, v->path, err);
}

static int open_writer(struct save *v, struct spw_pack_writer **w, size_t state_bytes,
                       struct spw_error *err)
{
    struct spw_pack_spec spec = {.fingerprint = v->fingerprint,
                                 .n_tokens = v->s->n_tokens,
                                 .tokens = v->s->tokens,
                                 .parent = spw_chain_root(v->fingerprint),
                                 .checkpoint = true,
                                 .sections = v->sections,
                                 .n_sections = v->n,
                                 .locked_fd = &v->s->file->fd,
                                 .max_state_bytes = (uint32_t)(sizeof(struct head) + state_bytes)};
    struct spw_error why = {0};
    SPW_TRY(check_limit(v, &spec, err));
    int rc = v->reuses ? spw_pack_append(w, v->path, &spec, &why) : -ENOENT;
    if (rc != -ENOENT && rc != -EBADMSG && rc != -ESTALE)
        return rc ? spw_fail(err, rc, "%s", why.text) : 0;
    if (v->reuses) { /* the file has changed meanwhile */
        v->n_shared = 0;
        split_sections(v);
        spec.n_sections = v->n;
        SPW_TRY(check_limit(v, &spec, err));
    }
    return spw_pack_create(w, v->path, true, &spec, err);
}

static int write_file(struct save *v, const void *state, size_t state_bytes, uint64_t *written,
                      struct spw_error *err)
{
    struct spw_pack_writer *w = NULL;
    uint8_t *blob = spw_alloc(sizeof(struct head) + state_bytes);
    if (!blob)
        return -ENOMEM;
    fill_head((struct head *)(void *)blob, v->s, state_bytes);
    if (state_bytes)
        memcpy(blob + sizeof(struct head), state, state_bytes);
    int rc = open_writer(v, &w, state_bytes, err);
    if (!rc) {
        rc = spw_snapshot_write(v->s, v->sections, v->n, w);
        *written = spw_pack_written_bytes(w);
        if (rc)
            spw_pack_abort(w);
        else
            rc = spw_pack_commit(w, blob, (uint32_t)(sizeof(struct head) + state_bytes), written,
                                 err);
        spw_snapshot_count_write(v->s->engine, rc, *written);
    }
    spw_free(blob);
    return rc;
}

static int save_once(struct spw_session *s, const char *path, const void *state, size_t state_bytes,
                     uint64_t *written, struct spw_error *err)
{
    struct save v = {.s = s, .path = path};
    spw_snapshot_fingerprint(v.fingerprint, s->engine, SPW_ROPE_SHARED);
    int rc = plan_save(&v);
    if (!rc)
        rc = write_file(&v, state, state_bytes, written, err);
    spw_pack_close(v.before);
    spw_free(v.bad);
    spw_free(v.first_record);
    spw_free(v.sections);
    spw_free(v.wanted);
    return rc;
}

/* A tile was lost on disk: computes the tokens from there on again, as a step does. */
static int compute_again(struct spw_session *s, struct spw_error *err)
{
    uint64_t n = s->n_tokens;
    int32_t *tokens = spw_alloc(n * sizeof *tokens);
    if (!tokens)
        return -ENOMEM;
    memcpy(tokens, s->tokens, n * sizeof *tokens);
    int rc = spw_recover_step(s->engine, &s, 1);
    if (!rc)
        rc = spw_sync(s->engine, &(struct spw_span){s, tokens, n, 1}, 1, NULL, NULL, err);
    spw_free(tokens);
    return rc;
}

static int check_save(const struct spw_session *s, const char *path, size_t state_bytes,
                      struct spw_error *err)
{
    if (!s->engine->plan.piece_bytes || !s->n_tokens)
        return spw_fail(err, -EINVAL, "%s: %s", path,
                        s->n_tokens
                            ? "the engine was opened without `saves`, so it has no memory for this"
                            : "the session is empty");
    if (!s->cached)
        return spw_fail(err, -EINVAL,
                        "%s: the session's caches were freed when budgets changed; save it after "
                        "the next step",
                        path);
    if (state_bytes > SPW_SAVED_STATE_BYTES)
        return spw_fail(err, -E2BIG, "%s: found a state of %zu bytes, expected at most %d", path,
                        state_bytes, SPW_SAVED_STATE_BYTES);
    return 0;
}

static int save_tries(struct spw_session *s, const char *path, const void *state,
                      size_t state_bytes, uint64_t *written_bytes, struct spw_error *err)
{
    for (int i = 0; i < SAVE_TRIES; i++) {
        uint64_t written = 0;
        int rc = save_once(s, path, state, state_bytes, &written, err);
        *written_bytes += written;
        if (rc == -EBADMSG && s->engine->step.runs) /* the running step handles the loss */
            return spw_fail(err, -EIO, "%s: a tile was lost on disk; save it after the step", path);
        if (rc != -EBADMSG)
            return rc ? spw_fail(err, rc, "%s: could not be written: %s", path, strerror(-rc)) : 0;
        SPW_TRY(compute_again(s, err));
    }
    return spw_fail(err, -EIO,
                    "%s: tiles were lost each time they had been computed again; the drive of "
                    "options.disk_dir is failing",
                    path);
}

int spw_session_save(struct spw_session *s, const char *path, const void *state, size_t state_bytes,
                     uint64_t *written_bytes, struct spw_error *err)
{
    spw_error_clear(err);
    uint64_t written = 0;
    if (written_bytes)
        *written_bytes = 0;
    SPW_TRY(check_save(s, path, state_bytes, err));
    if (s->is_paused)
        spw_engine_drop_paused(s->engine);
    s->engine->unpredicted = true; /* what the file has already is not known */
    SPW_TRY(spw_session_save_to(s, path, err));
    int rc = spw_session_apply_kept_rows(s);
    rc = rc ? spw_fail(err, rc, "%s: the device failed", path)
            : save_tries(s, path, state, state_bytes, &written, err);
    if (written_bytes)
        *written_bytes = written;
    if (!rc)
        s->file->verified = true;
    else if (spw_save_file_is_empty(s->file))
        spw_save_file_release(s);
    return rc;
}

/* ---- resuming ---- */

/* Checksums show that the file has what its writer wrote, not that the writer computed it. */
static const char *foreign(struct spw_saved *v)
{
    if (spw_pack_is_blank(v->pack))
        return NULL;
    char why[SPW_OWNER_TEXT];
    if (spw_owner_is_exclusive(spw_pack_fd(v->pack), geteuid(), why))
        return NULL;
    snprintf(v->foreign, sizeof v->foreign,
             "%s; other users may have changed it: if you trust it, copy it and resume the copy",
             why);
    return v->foreign;
}

static int read_head(struct spw_saved *v, const char *path, struct spw_error *err)
{
    const struct spw_pack_info *i = spw_pack_info(v->pack);
    if (i->state_bytes < sizeof v->head || i->first_token || !i->n_tokens)
        return spw_fail(err, -EINVAL, "%s: is not a saved session", path);
    memcpy(&v->head, i->state, sizeof v->head);
    const struct head *h = &v->head;
    if (h->state_bytes != i->state_bytes - sizeof *h || h->compute > SPW_DTYPE_BF16 ||
        h->kv > SPW_DTYPE_BF16 || h->precision > SPW_KV_INT4 ||
        !memchr(h->backend, 0, sizeof h->backend))
        return spw_fail(err, -EINVAL, "%s: is not a saved session", path);
    v->info =
        (struct spw_saved_info){.tokens = i->tokens,
                                .n_tokens = i->n_tokens,
                                .state = (const uint8_t *)i->state + sizeof *h,
                                .state_bytes = h->state_bytes,
                                .compute = (enum spw_dtype)h->compute,
                                .kv = (enum spw_dtype)h->kv,
                                .precision = (enum spw_kv_precision)h->precision,
                                .residual_tokens = h->residual_tokens,
                                .backend = h->backend,
                                .has_logits = spw_pack_find(v->pack, SPW_SNAPSHOT_LOGITS, 0, 0),
                                .foreign = foreign(v)};
    return 0;
}

int spw_saved_open(struct spw_saved **out, const char *path, struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_saved *v = spw_alloc_zero(1, sizeof *v);
    *out = NULL;
    if (!v)
        return spw_fail(err, -ENOMEM, "%s: out of memory", path);
    int rc = spw_pack_open(&v->pack, path, NULL, err);
    if (!rc)
        rc = read_head(v, path, err);
    if (rc) {
        spw_saved_close(v);
        return rc;
    }
    *out = v;
    return 0;
}

int spw_saved_assume(struct spw_saved **out, const struct spw_engine *e, const int32_t *tokens,
                     uint64_t n, bool logits, struct spw_error *err)
{
    const struct spw_snapshot_range all = {.to = n, .checkpoint = true, .tail = true};
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    const struct spw_session s = {.engine = (struct spw_engine *)(uintptr_t)e,
                                  .n_tokens = n,
                                  .has_logits = logits,
                                  .rope_table = spw_engine_rope_table(e, n)};
    struct spw_saved *v = *out = spw_alloc_zero(1, sizeof *v);
    struct spw_pack_section *sections = spw_alloc(spw_snapshot_max_sections(e) * sizeof *sections);
    struct spw_pack_writer *w = NULL;
    int rc = v && sections ? 0 : spw_fail(err, -ENOMEM, "out of memory for a session");
    if (!rc) {
        spw_snapshot_fingerprint(fingerprint, e, SPW_ROPE_SHARED);
        const struct spw_pack_spec spec = {.fingerprint = fingerprint,
                                           .n_tokens = n,
                                           .tokens = tokens,
                                           .parent = spw_chain_root(fingerprint),
                                           .checkpoint = true,
                                           .sections = sections,
                                           .n_sections = spw_snapshot_sections(&s, &all, sections),
                                           .max_state_bytes = sizeof v->head};
        fill_head(&v->head, &s, 0);
        rc = spw_pack_create_blank(&w, &spec, err);
    }
    if (!rc)
        rc = spw_pack_open_blank(&v->pack, w, &v->head, sizeof v->head, NULL, err);
    if (!rc)
        rc = read_head(v, spw_pack_path(v->pack), err);
    spw_free(sections);
    if (rc) {
        spw_saved_close(v);
        *out = NULL;
    }
    return rc;
}

void spw_saved_close(struct spw_saved *v)
{
    if (!v)
        return;
    spw_pack_close(v->pack);
    spw_free(v);
}

const struct spw_saved_info *spw_saved_info(const struct spw_saved *v)
{
    return &v->info;
}

static int check_model(const struct spw_saved *v, const uint8_t model[SPW_FINGERPRINT_BYTES],
                       struct spw_error *err)
{
    if (memcmp(v->head.model, model, sizeof v->head.model) == 0)
        return 0;
    return spw_fail(err, -ESTALE, "%s: was saved with another model, or its files changed since",
                    spw_pack_path(v->pack));
}

int spw_saved_check_model(const struct spw_saved *v, const char *model_dir, struct spw_error *err)
{
    struct spw_model m;
    uint8_t model[SPW_FINGERPRINT_BYTES];
    spw_error_clear(err);
    SPW_TRY(spw_model_open(&m, model_dir, &(struct spw_options){0}, err));
    int rc = spw_fingerprint_take(model, m.source, m.tensors, err);
    spw_model_close(&m);
    return rc ? rc : check_model(v, model, err);
}

/* The text names both sides of the first difference. */
int spw_saved_check(const struct spw_saved *v, const struct spw_engine *e, struct spw_error *err)
{
    spw_error_clear(err);
    const struct head *h = &v->head;
    const struct spw_plan_info *p = &e->plan.info;
    const char *path = spw_pack_path(v->pack);
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    char backend[SPW_SNAPSHOT_BACKEND_BYTES];
    spw_snapshot_fingerprint(fingerprint, e, SPW_ROPE_SHARED);
    if (memcmp(fingerprint, spw_pack_info(v->pack)->fingerprint, sizeof fingerprint) == 0)
        return 0;
    SPW_TRY(check_model(v, e->model_fingerprint, err));
    spw_snapshot_backend(backend, e);
    if (strcmp(h->backend, backend) != 0)
        return spw_fail(err, -ESTALE,
                        "%s: was saved on %s, this is %s, which may compute other bits", path,
                        h->backend, backend);
    if (h->compute != (uint32_t)p->compute)
        return spw_fail(err, -ESTALE, "%s: was saved with options.compute %s, this run has %s",
                        path, spw_dtype_name(v->info.compute), spw_dtype_name(p->compute));
    if (h->precision != (uint32_t)p->precision || h->kv != (uint32_t)p->kv)
        return spw_fail(err, -ESTALE, "%s: was saved with KV of %s, old KV %s; this run has %s, %s",
                        path, spw_dtype_name(v->info.kv), spw_kv_precision_name(v->info.precision),
                        spw_dtype_name(p->kv), spw_kv_precision_name(p->precision));
    if (h->residual_tokens != p->residual_tokens)
        return spw_fail(
            err, -ESTALE, "%s: was saved with options.residual_window %llu, this run has %llu",
            path, (unsigned long long)h->residual_tokens, (unsigned long long)p->residual_tokens);
    if (e->model.config.may_add_mtp)
        return spw_fail(err, -ESTALE,
                        "%s: was saved %s drafts by the MTP layer, or by a version that computes "
                        "other bits",
                        path, e->model.config.mtp ? "without" : "with");
    return spw_fail(err, -ESTALE, "%s: was saved by a version that computes other bits", path);
}

static int check_fits(const struct spw_saved *v, const struct spw_engine *e, struct spw_error *err)
{
    const char *path = spw_pack_path(v->pack);
    if (!e->plan.piece_bytes)
        return spw_fail(
            err, -EINVAL,
            "%s: the engine was opened without `saves`, so it has no memory to resume a session",
            path);
    if (v->info.foreign)
        return spw_fail(err, -EPERM, "%s: %s", path, v->info.foreign);
    SPW_TRY(spw_saved_check(v, e, err));
    if (v->info.n_tokens > e->plan.info.context)
        return spw_fail(err, -E2BIG,
                        "%s: the session has %zu tokens, the engine was planned for %llu; raise "
                        "options.context",
                        path, v->info.n_tokens, (unsigned long long)e->plan.info.context);
    const struct spw_model_config *c = &e->model.config;
    const uint64_t n_source =
        c->n_source_layers ? spw_source_length(v->info.tokens, v->info.n_tokens) : 0;
    for (size_t i = 0; i < v->info.n_tokens; i++)
        if ((v->info.tokens[i] < 0 && i >= n_source) ||
            (uint32_t)spw_plain_token(v->info.tokens[i]) >= spw_config_vocab(c, i < n_source))
            return spw_fail(err, -EBADMSG, "%s: token %zu is not in the vocabulary of this model",
                            path, i);
    return 0;
}

int spw_session_resume(struct spw_session **out, struct spw_engine *e, const struct spw_saved *v,
                       struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    SPW_TRY(check_fits(v, e, err));
    SPW_TRY(spw_session_open(out, e, err));
    struct spw_session *s = *out;
    spw_engine_drop_paused(e); /* the frames are shared anew */
    spw_kv_write_again(e->kv);
    spw_engine_share(e);
    int rc = spw_snapshot_read(s, v->pack, v->info.n_tokens, err);
    if (!rc) {
        rc = spw_snapshot_read_logits(s, v->pack, err);
        s->has_logits = !rc;
        rc = rc == -ENOENT ? 0 : rc;
    }
    if (rc) {
        spw_session_close(s);
        *out = NULL;
        return rc;
    }
    memcpy(s->tokens, v->info.tokens, v->info.n_tokens * sizeof *s->tokens);
    s->n_tokens = s->reused = v->info.n_tokens;
    s->cached = true;
    s->rope_table = v->head.rope_table;
    return 0;
}
