/* What the files that read tokenizer.json share. Not for other modules. */
#ifndef SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_JSON_H
#define SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_JSON_H

#include "model/text/special_tokens.h"
#include "model/text/tokenizer/tokenizer_build.h"

/* A value inside the file's text. at == NULL: absent, or of another type. */
struct spw_tok_cut {
    const char *at;
    size_t bytes;
};

struct spw_tok_loader {
    struct spw_tok_build build;
    struct spw_tokenizer *t;
    const char *json; /* the whole text, borrowed */
    struct spw_tok_cut vocab, merges;
    const struct spw_special_tokens *special; /* borrowed; NULL: there is no folder */
    size_t n_own;     /* added tokens of the file itself; the others follow */
    const char *name; /* the file, for error texts */
    struct spw_error *err;
};

/* "file: path.key: found X, expected Y"; returns `code`. */
int spw_tok_bad(const struct spw_tok_loader *l, int code, const char *path, const char *key,
                const json_t *found, const char *expected);
int spw_tok_get_string(const struct spw_tok_loader *l, const json_t *object, const char *path,
                       const char *key, const char **out);
/* Absent or null gives `otherwise`. */
int spw_tok_get_bool(const struct spw_tok_loader *l, const json_t *object, const char *path,
                     const char *key, bool otherwise, bool *out);
int spw_tok_get_id(const struct spw_tok_loader *l, const json_t *value, const char *path,
                   const char *key, int32_t *out);

/* ---- reading JSON as text; every call gives -EINVAL where the text is not JSON ---- */

struct spw_tok_scan {
    const char *p, *end;
    struct spw_tok_buf text; /* the string read last, NUL-terminated */
};

char spw_tok_scan_peek(struct spw_tok_scan *s); /* the next mark, 0 at the end */
/* 1: a member follows; 0: the list or object was closed. *begun is false before the first. */
int spw_tok_scan_member(struct spw_tok_scan *s, char close, bool *begun);
int spw_tok_scan_string(struct spw_tok_scan *s);
int spw_tok_scan_key(struct spw_tok_scan *s);  /* a string and its colon */
int spw_tok_scan_skip(struct spw_tok_scan *s); /* one value, whatever it is */
/* Finds model.vocab (an object) and model.merges (a list). */
int spw_tok_scan_find(struct spw_tok_scan *s, struct spw_tok_cut *vocab,
                      struct spw_tok_cut *merges);
/* Appends the text with the two emptied. */
int spw_tok_scan_rest(const char *json, size_t bytes, const struct spw_tok_cut *vocab,
                      const struct spw_tok_cut *merges, struct spw_tok_buf *out);

/* Adds the tokens of `special` to added_tokens of the root. *fresh is owned by the caller, also
 * after a failure: those that have no id yet, by their content; NULL: none. -ENOMEM. */
int spw_tok_merge_added(const struct spw_special_tokens *special, json_t *root, json_t **fresh);

/* normalizer, pre_tokenizer, post_processor, decoder */
int spw_tok_load_pipeline(const struct spw_tok_loader *l, const json_t *root);

#endif
