/* How many sessions the engine of a job has.
 *
 * With more sessions, each weight that a step reads serves more answers. But the KV of more
 * sessions takes memory of the device from weights, and KV that has no room there streams in each
 * step. So fewer sessions can give more tokens a second.
 */
#ifndef SPW_TOOLS_COMMAND_JOB_SESSIONS_H
#define SPW_TOOLS_COMMAND_JOB_SESSIONS_H

#include "tools/command/limits.h"

struct job_sessions { /* borrowed */
    const struct cli_options *o;
    const struct spw_model_config *config;
    const struct cli_limits *limits;
    uint64_t n_held; /* tokens that a session holds, on average */
};

/* Whether weights or KV stream under these options, so that another number of sessions may be
 * faster. */
bool job_sessions_matter(const struct spw_options *options, const struct job_sessions *s);
/* Sets the options to the number of sessions, at most that of the options, that is predicted to be
 * the fastest. Leaves the options as they are where limits are not known. */
void job_choose_sessions(struct spw_options *options, const struct job_sessions *s);

#endif
