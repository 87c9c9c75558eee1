/* Stop strings in text that arrives in pieces. Text that is final is emitted; text that may still
 * become a stop string waits. The text ends before the first stop string that is complete; if
 * several are complete at the same byte, before the longest one. The result does not depend on how
 * the text was cut into pieces.
 *
 * spw_stop owns copies of the strings. open fails with -EINVAL for an empty string and -ENOMEM;
 * push and finish allocate nothing and return what `emit` returned (0 or negative). When text and
 * strings are valid UTF-8 and pieces end at characters, so do the emitted pieces. */
#ifndef SPW_RUNTIME_BATCH_STOP_H
#define SPW_RUNTIME_BATCH_STOP_H

#include "base/base.h"

struct spw_stop;

int spw_stop_open(struct spw_stop **out, const char *const *strings, size_t n,
                  struct spw_error *err);
void spw_stop_close(struct spw_stop *s);

/* `emit` gets final text, never an empty piece. After a stop was found all text is dropped. */
int spw_stop_push(struct spw_stop *s, const char *text, size_t bytes,
                  int (*emit)(void *context, const char *text, size_t bytes), void *context);
bool spw_stop_found(const struct spw_stop *s);
/* No more text comes: the text that has waited is final. */
int spw_stop_finish(struct spw_stop *s, int (*emit)(void *context, const char *text, size_t bytes),
                    void *context);

#endif
