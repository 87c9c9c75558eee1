/* Sessions in files: saved, and continued by any process as if they had never ended. Part of the
 * public API. The engine needs options.saves. */
#ifndef SPW_RUNTIME_SAVED_H
#define SPW_RUNTIME_SAVED_H

#include "runtime/spillway.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { SPW_SAVED_STATE_BYTES = (16 << 20) - 4096 };

/* Reserves `path` for this session until the session is closed or gets another path: no other
 * session can save there meanwhile. If there is no file, an empty file is created, and removed
 * again if nothing is saved. -EBUSY: another process or session has reserved the path; -EPERM: the
 * file belongs to another user; -EINVAL: the file is no saved session, or is a link. */
int spw_session_save_to(struct spw_session *s, const char *path, struct spw_error *err);
/* Reserves `path` as spw_session_save_to does, if the session has not reserved it. Then writes
 * everything that the session holds to `path`, mode 0600, and `state`, the caller's own bytes. If
 * the process dies, the file is the old one or the new one. A file of the same tokens grows: only
 * new tiles are written, and, in a session's first save, tiles that were damaged. A file of other
 * tokens is replaced, and so is a file that others may read or write. written_bytes may be NULL.
 * -EDQUOT: the disk write limit; -ENOSPC, -EIO. The session does not change. */
int spw_session_save(struct spw_session *s, const char *path, const void *state, size_t state_bytes,
                     uint64_t *written_bytes, struct spw_error *err);

/* An open file with a saved session. */
struct spw_saved;
struct spw_saved_info {
    const int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    bool has_logits;   /* after the last token */
    const void *state; /* [state_bytes], from the caller of spw_session_save */
    size_t state_bytes;
    enum spw_dtype compute, kv; /* types of the computation: the engine must have the same */
    enum spw_kv_precision precision;
    uint64_t residual_tokens;
    const char *backend; /* spw_engine_backend */
    /* NULL, or the reason not to trust the file: others own it, or may write to it. */
    const char *foreign;
};
/* -ENOENT; -EBADMSG: the file is damaged, or no file of spillway; -EINVAL: it is another kind of
 * file of spillway; -ESTALE: it is from another version. */
int spw_saved_open(struct spw_saved **out, const char *path, struct spw_error *err);
void spw_saved_close(struct spw_saved *v); /* NULL is fine */
const struct spw_saved_info *spw_saved_info(const struct spw_saved *v);
/* Whether the engine can resume it. -ESTALE: it was computed with another model, on another
 * backend, or with other types; `err` names both sides. */
int spw_saved_check(const struct spw_saved *v, const struct spw_engine *e, struct spw_error *err);
/* Whether it was computed with this model; without an engine, so that a plan can ask. -ESTALE. */
int spw_saved_check_model(const struct spw_saved *v, const char *model_dir, struct spw_error *err);
/* Opens a new session that holds what was saved, under any budgets. It continues with the same bits
 * as the saved session. -ESTALE: see spw_saved_check; -EPERM: info.foreign; -EBADMSG: the file is
 * damaged; -E2BIG: it has more tokens than the context. */
int spw_session_resume(struct spw_session **out, struct spw_engine *e, const struct spw_saved *v,
                       struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
