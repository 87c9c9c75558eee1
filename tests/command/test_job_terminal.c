/* `spillway batch` on a terminal: the line of progress stays in one row of the terminal, also when
 * its width changes, and leaves nothing behind. Without a terminal there is no such line. */
#include "tests/command/batch_files.h"
#include "tests/command/command_start.h"
#include "tests/command/terminal.h"

#define CLEAR "\r\033[K"
enum { ITEMS = 4000, REDRAWS = 2 };

/* Far more than the test waits for. */
static void make_input(uint64_t *random)
{
    FILE *file = fopen(in_folder("in.jsonl"), "w");
    CHECK(file);
    for (int i = 0; file && i < ITEMS; i++)
        fprintf(file, "{\"id\":%d,\"tokens\":[5,%d],\"max_new_tokens\":900,\"ignore_eos\":true}\n",
                i, (int)check_range(random, 3, 95));
    if (file)
        fclose(file);
}

#define BATCH                                                                                      \
    "exec spillway batch m --input in.jsonl --device cpu --threads 1 --allow-long-context "

/* Reads what is there, or waits for it. False: the process has ended. */
static bool read_terminal(struct terminal *t)
{
    const bool is_ready = terminal_has_text(t, 60000);
    CHECK_MSG(is_ready, "nothing in a minute");
    return is_ready && terminal_read(t, 0);
}

static int redraws(const char *text)
{
    int n = 0;
    while ((text = strstr(text, CLEAR)))
        text += strlen(CLEAR), n++;
    return n;
}

/* Waits for `n` more lines, at most 20 seconds. Returns the first of them. */
static const char *wait_for_lines(struct terminal *t, int n)
{
    const double end = check_seconds() + 20;
    size_t from = t->n;
    while (redraws(t->text + from) <= n && check_seconds() < end && read_terminal(t))
        ;
    const char *first = strstr(t->text + from, CLEAR);
    CHECK_MSG(first, "no line of progress: %s", t->text + from);
    return first ? first : t->text + from;
}

/* Each line is a message, or it fits and is replaced in its place. Returns the longest one of the
 * second kind. */
static size_t check_lines(const char *text, size_t columns)
{
    size_t longest = 0;
    while ((text = strstr(text, CLEAR))) {
        text += strlen(CLEAR);
        const size_t n = strcspn(text, "\r\n");
        if (strncmp(text, "spillway: ", 10) == 0)
            continue;
        CHECK_MSG(n < columns, "%zu columns: %.*s", columns, (int)n, text);
        CHECK_MSG(text[n] != '\n' && strncmp(text + n, "\r\n", 2) != 0, "%.*s", (int)n, text);
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* Ends the process with SIGTERM. */
static void end_terminal(struct terminal *t)
{
    check_kill(t->child, SIGTERM);
    CHECK_MSG(has_exited(terminal_close(t), 128 + SIGTERM), "%s", t->text);
}

/* Every line of the text is a message. */
static void check_messages(const char *text)
{
    CHECK_MSG(!strchr(text, '\033'), "%s", text);
    while (*text) {
        CHECK_MSG(strncmp(text, "spillway: ", 10) == 0, "%s", text);
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
}

static void test_width(struct terminal *t, uint16_t columns)
{
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    CHECK(ioctl(t->fd, TIOCSWINSZ, &size) == 0); /* sends SIGWINCH */
    while (terminal_has_text(t, 0) && read_terminal(t))
        ;
    wait_for_lines(t, 1); /* the first one may have been under way with the width before */
    const char *lines = wait_for_lines(t, REDRAWS);
    size_t longest = check_lines(lines, columns);
    CHECK_MSG(longest >= columns / 2u || columns > 80, "%zu columns of %d", longest, columns);
    CHECK_MSG(columns <= 40 || strstr(lines, " done"), "%s", lines);
}

/* What a terminal shows after the last line of progress. */
static const char *last_rows(const struct terminal *t)
{
    const char *last = t->text;
    for (const char *at = last; (at = strstr(at, CLEAR)); at += strlen(CLEAR))
        last = at + strlen(CLEAR);
    return last;
}

/* Items run as soon as their prompts are computed: these have no token while they run. The time
 * that is left includes these prompts. */
static void test_long_prompts(int n)
{
    static struct terminal t;
    char words[64], short_words[64];
    snprintf(words, sizeof words, "0 of %d item%s done, %d running, 0 waiting", n, n > 1 ? "s" : "",
             n);
    snprintf(short_words, sizeof short_words, "0/%d done %d run 0 wait", n, n);
    CHECK(sh("mv in.jsonl all && for id in $(seq %d); do printf '{\"id\":%%d,\"max_new_tokens\":1,"
             "\"tokens\":[5' $id; yes ,5 | head -n 40000 | tr -d '\\n'; echo ']}'; done "
             ">in.jsonl",
             n) == 0);
    CHECK(terminal_open(&t, 80,
                        n == 1 ? BATCH "--output one --progress always"
                               : BATCH "--output two --progress always"));
    const double end = check_seconds() + 40;
    bool all_run = false;
    while (!all_run && check_seconds() < end && read_terminal(&t))
        all_run = strstr(t.text, words) || strstr(t.text, short_words);
    CHECK_MSG(all_run, "%s", t.text);
    CHECK_MSG(!strstr(t.text, " 0 s left") && !strstr(t.text, "left 0s"), "%s", t.text);
    end_terminal(&t);
    CHECK(sh("mv all in.jsonl") == 0);
}

/* A run that ends by itself. */
static void test_end(void)
{
    static struct terminal t;
    CHECK(sh("mv in.jsonl all && head -n 30 all >in.jsonl") == 0);
    CHECK(terminal_open(&t, 80, BATCH "--output end --progress always"));
    CHECK(has_exited(terminal_close(&t), 0));
    check_lines(t.text, 80);
    check_messages(last_rows(&t));
    CHECK_MSG(strstr(last_rows(&t), "30 answered"), "%s", last_rows(&t));
}

int main(void)
{
    static struct terminal seen, silent;
    if (!command_is_there())
        return CHECK_SKIP;
    uint64_t random = check_seed();
    command_model("job_terminal");
    command_limits();
    make_input(&random);
    if (!terminal_open(&seen, 80, BATCH "--output seen")) {
        sh("rm -rf %s", folder);
        return CHECK_SKIP;
    }
    CHECK(terminal_open(&silent, 80, BATCH "--output silent --progress never"));
    pid_t logged = start_on(-1, -1, BATCH "--output logged >log 2>&1");
    test_width(&seen, 80); /* takes longer than a line of progress waits for */
    end_terminal(&silent);
    check_messages(silent.text);
    check_kill(logged, SIGTERM);
    end_of(logged);
    CHECK(sh("! grep -q \"$(printf '\\r')\" log && cat log") == 0);
    check_messages(out);
    test_width(&seen, 40);
    test_width(&seen, 12);
    test_width(&seen, 132);
    end_terminal(&seen);
    check_messages(last_rows(&seen));
    test_long_prompts(1);
    test_long_prompts(2);
    test_end();
    sh("rm -rf %s", folder);
    return check_done();
}
