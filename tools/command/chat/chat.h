/* The state of a conversation, for chat.c (turns) and chat_commands.c (lines that begin with /). */
#ifndef SPW_TOOLS_COMMAND_CHAT_CHAT_H
#define SPW_TOOLS_COMMAND_CHAT_CHAT_H

#include "tools/command/chat/chat_history.h"
#include "tools/command/chat/chat_prompt.h"
#include "tools/command/events.h"

struct chat_turn {
    size_t n_prompt, n_reused, n_from_store, n_recomputed, n_generated; /* tokens */
    double prefill_seconds, decode_seconds;
};

struct chat {
    struct cli_options own;      /* those of the command line, as /set has changed them; borrows */
    const struct cli_options *o; /* = &own */
    struct cli_model model;
    struct cli_prompt *prompt;
    struct spw_engine *engine;
    struct cli_events events;
    struct spw_session *session;
    json_t *messages; /* owned */
    json_t *kept;     /* owned: the messages that /save wrote or /load read last; NULL: none */
    json_t *turns;    /* owned: for --report */
    uint64_t n_again; /* how often /regen answered the last question again; added to the seed */
    bool is_known;    /* the last question has its whole answer, of the settings that are now */
    /* Owned, NULL: none: a text that stands before a question; at which message: SIZE_MAX: the next
     */
    char *document;
    size_t document_bytes, document_at;
    /* Of the running answer: all of it, with the marks of reasoning; and its parts without them. */
    struct spw_text reply, answer, reasoning;
    struct spw_splitter splitter;
    enum { CHAT_NOTHING, CHAT_REASONING, CHAT_ANSWER } shown; /* what stdout got last of it */
    int write_error; /* -errno of a failed write to stdout, which ends the conversation */
    struct chat_turn last, sum; /* the latest turn; the sum of all turns */
    size_t n_turns;
    bool interactive, quit;
};

/* Answers the conversation and adds the answer to it. 0, or an exit code after one line on stderr;
 * after a failure the conversation is unchanged. */
int cli_chat_answer(struct chat *c);
/* Reads a text that stands before the next question. 0 or an exit code. */
int cli_chat_read(struct chat *c, const char *path);
/* Removes messages at the end until `n` are left. A document that they had stands before the next
 * question again. */
void cli_chat_cut(struct chat *c, size_t n);

/* Runs a line that begins with /. 0 or an exit code. */
int cli_chat_command(struct chat *c, char *line);
/* The names of these commands; NULL ends the list. */
const char *const *cli_chat_words(void);

#endif
