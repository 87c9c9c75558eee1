/* What the page at / shows of the machine: GET /state. The engine's thread looks once a second, and
 * other threads get what it has seen. page/index.html has the JSON. */
#ifndef SPW_TOOLS_COMMAND_SERVE_STATE_H
#define SPW_TOOLS_COMMAND_SERVE_STATE_H

#include "tools/command/limits.h"
#include "tools/command/output/json.h"

enum { SERVE_MOST_SEEN = 64 }; /* sessions */

struct serve_state {
    double seconds; /* when: cli_now_seconds; 0: never */
    char backend[128];
    double limits[SPW_MOVED_COUNT]; /* bytes a second of each link; 0: not known */
    struct spw_plan_info plan;
    struct spw_stats stats;
    uint32_t n_running, n_waiting, most_waiting; /* choices */
    struct spw_batch_session sessions[SERVE_MOST_SEEN];
    size_t n_sessions;
};

/* What engine and batch have now. Waits for transfers. */
void serve_state_see(struct serve_state *s, struct spw_engine *e, const struct spw_batch *b,
                     const struct cli_limits *limits);
/* NULL: out of memory. */
json_t *serve_state_json(const struct serve_state *s, const char *model);

#endif
