/* `spillway chat` that is interrupted, and on a terminal: edited lines, the history, the width of
 * the window, what models write that terminals would obey, signals. Also what `generate` does
 * there. Skipped without the command. */
#include "tests/command/chat_models.h"
#include "tests/command/command_start.h"
#include "tests/command/terminal.h"

#include <termios.h>

#define LONG "--device cpu --ignore-eos --context 90000 --max-new-tokens 80000"

static struct terminal term;

static const char *content(const json_t *messages, size_t i)
{
    return text_at(json_array_get(messages, i), "content");
}

/* ---- through pipes ---- */

/* A chat whose stdin, stdout and stderr are pipes, of which it has the first two if asked to. */
struct piped {
    pid_t child;
    int in, from, says;
};

static struct piped open_piped(const char *line)
{
    struct piped p;
    int in[2], from[2], says[2];
    char command[512];
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0 && pipe(says) == 0);
    snprintf(command, sizeof command, "exec \"$S\" chat %s 2>&%d", line, says[1]);
    p = (struct piped){start_on(in[0], from[1], command), in[1], from[0], says[0]};
    close(in[0]);
    close(from[1]);
    close(says[1]);
    return p;
}

/* Reads `bytes` bytes or, with `words`, until they have come; what it read is in `out`. */
static void read_piped(int fd, size_t bytes, const char *words)
{
    size_t n = 0;
    *out = 0;
    while (n + 1 < sizeof out && (words ? !strstr(out, words) : n < bytes)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t got = poll(&p, 1, 60000) == 1 ? read(fd, out + n, sizeof out - 1 - n) : 0;
        if (got <= 0)
            break;
        out[n += (size_t)got] = 0;
    }
    CHECK_MSG(words ? strstr(out, words) != NULL : n >= bytes, "%zu bytes: %.500s", n, out);
}

static void send_piped(const struct piped *p, const char *text)
{
    CHECK(write(p->in, text, strlen(text)) == (ssize_t)strlen(text));
}

static int close_piped(struct piped *p)
{
    send_piped(p, "/save s.json\n/quit\n");
    close(p->in);
    int status = end_of(p->child);
    close(p->from);
    close(p->says);
    return status;
}

/* SIGINT ends the answer; its text stays, and the next turn continues from it. */
static void test_interrupt(void)
{
    struct piped p = open_piped("slow " LONG " --report r.json");
    for (int i = 0; i < 2; i++) {
        send_piped(&p, i == 0 ? "Hello\n" : "Again\n");
        read_piped(p.from, 50, NULL);
        check_kill(p.child, SIGINT);
        read_piped(p.from, 0, "\n");
    }
    CHECK(has_exited(close_piped(&p), 0));
    json_t *s = parse_file("s.json"), *r = parse_file("r.json");
    CHECK(json_array_size(s) == 4 && strlen(content(s, 1)) >= 50 && strlen(content(s, 3)) >= 50);
    CHECK(strcmp(text_at(r, "turns.0.finish"), "interrupted") == 0);
    /* Everything is there, except half a character at the end, which was not shown. */
    long long held = number(r, "turns.0.n_prompt") + number(r, "turns.0.n_generated") - 1;
    CHECK(number(r, "turns.1.n_reused") <= held && number(r, "turns.1.n_reused") >= held - 2);
    json_decref(s);
    json_decref(r);
    write_text("q.json", "[{\"role\":\"user\",\"content\":\"Hello\"}]");
    /* In the foreground: else timeout sends two signals, and the second one kills. */
    CHECK(sh("rm s.json; timeout --foreground -s INT 1 $S chat slow --messages q.json " LONG) ==
          124);
    CHECK_MSG(strstr(err, "interrupted"), "%s", err);
}

/* Of the last progress line. */
static int last_percent(const char *text)
{
    double n = 0;
    for (const char *at = text; (at = strstr(at, " of 60.0k")); at++) {
        const char *begin = at;
        while (begin > text && strchr("0123456789.k", begin[-1]))
            begin--;
        n = atof(begin) * (at[-1] == 'k' ? 1000 : 1);
    }
    return (int)(n / 600);
}

/* SIGINT in a prompt that would take minutes: the conversation has not changed, and continues. It
 * continues from nothing if windows have moved on and there was no room to retain their tiles. */
static void interrupt_prompt(const char *model, const char *memory, bool lost)
{
    enum { N = 60000 };
    static char question[N + 2];
    char line[512];
    memset(question, 'a', N);
    question[N] = '\n';
    snprintf(
        line, sizeof line,
        "%s --device cpu --threads 2 --device-memory %s --max-new-tokens 8 --ignore-eos --context "
        "90000 --progress always --report r.json",
        model, memory);
    struct piped p = open_piped(line);
    send_piped(&p, "Hello\n");
    read_piped(p.from, 0, "\n");
    send_piped(&p, question);
    read_piped(p.says, 0, " of 60.0k tokens");
    check_kill(p.child, SIGINT);
    read_piped(p.says, 0, lost ? "computes the whole conversation again" : "before the first word");
    CHECK_MSG(last_percent(out) < 90, "%s", out); /* not at its end */
    send_piped(&p, "Again\n");
    read_piped(p.from, 0, "\n");
    CHECK(has_exited(close_piped(&p), 130));
    json_t *s = parse_file("s.json"), *r = parse_file("r.json");
    CHECK(json_array_size(s) == 4 && strcmp(content(s, 2), "Again") == 0);
    CHECK(json_array_size(value_at(r, "turns")) == 2);
    long long held = number(r, "turns.0.n_prompt") + number(r, "turns.0.n_generated") - 1;
    CHECK_MSG(number(r, "turns.1.n_reused") == (lost ? 0 : held), "%s, %s: %lld of %lld held",
              model, memory, number(r, "turns.1.n_reused"), held);
    json_decref(s);
    json_decref(r);
    CHECK(sh("rm s.json") == 0);
}

static void test_interrupted_prompt(void)
{
    interrupt_prompt("slow", "256MiB", false);
    interrupt_prompt("slides", "256MiB", false);
    interrupt_prompt("slides", "700KiB", true);

    /* `generate` ends, with no output. The passes that were complete are saved: none or some,
     * depending on the machine's speed. */
    CHECK(sh("seq 60000 | sed 's/.*/7/' >many; timeout --foreground -s INT 2 \"$S\" generate slow "
             "--device cpu --token-ids many --ids --save f --max-new-tokens 8") == 124);
    CHECK_MSG(!*out && strstr(err, "interrupted\n"), "%s%s", out, err);
    bool refused = strstr(err, "f was not written");
    CHECK_MSG((sh("test -e f") == 0) == !refused, "%d", refused);
}

/* ---- on a terminal ---- */

/* Keys right after the prompt may come before the terminal is set up: then they are lost. */
static void drop_line(void)
{
    for (int i = 0; i < 10; i++) {
        usleep(50000);
        terminal_send(&term, "junk\003");
        term.text[term.n = 0] = 0;
        while (!strstr(term.text, "\n> ") && terminal_read(&term, 2000))
            ;
        if (strstr(term.text, "\n> "))
            return;
    }
    CHECK_MSG(false, "%s", term.text);
}

/* Starts a chat, after the first prompt. False: there are no terminals here. */
static bool open_chat(const char *arguments)
{
    char line[512];
    snprintf(line, sizeof line, "exec \"$S\" chat %s", arguments);
    if (!terminal_open(&term, 80, line))
        return false;
    terminal_wait(&term, "> ");
    drop_line();
    return true;
}

/* Waits for the next prompt. */
static void type(const char *line)
{
    usleep(50000);
    terminal_send(&term, line);
    terminal_wait(&term, "\n> ");
}

static void close_chat(void)
{
    usleep(50000);
    terminal_send(&term, "/quit\r");
    terminal_wait(&term, "\033[?2004l");
    CHECK(has_exited(terminal_close(&term), 0));
}

/* Well into the answer. */
static void wait_for_answer(void)
{
    for (term.n = 0; term.n < 900 && terminal_read(&term, 60000);)
        ;
    CHECK_MSG(term.n >= 900, "%zu: %s", term.n, term.text);
}

/* Edited lines, the history, and Ctrl-C at the prompt and in an answer. Ctrl-D ends the chat. */
static void test_lines(void)
{
    static const char *const lines[] = {"Hexx\177\177llo\r", "\033[A\r", "a\\\r\tb\xc3\xa9\r"};
    if (!open_chat("slow " LONG))
        return;
    for (int i = 0; i < 3; i++) {
        drop_line();
        type("\003"); /* on an empty line it drops nothing, and the conversation stays */
        usleep(50000);
        terminal_send(&term, lines[i]);
        wait_for_answer();
        type("\003");
    }
    type("/save p.json\r");
    usleep(50000);
    terminal_send(&term, "\004");
    CHECK(has_exited(terminal_close(&term), 0));
    json_t *p = parse_file("p.json");
    CHECK(json_array_size(p) == 6);
    CHECK_MSG(strcmp(content(p, 0), "Hello") == 0, "'%s'", content(p, 0));
    CHECK_MSG(strcmp(content(p, 2), "Hello") == 0, "'%s'", content(p, 2));
    CHECK_MSG(strcmp(content(p, 4), "a\n\tb\xc3\xa9") == 0, "'%s'", content(p, 4));
    CHECK(strlen(content(p, 1)) > 0 && strlen(content(p, 3)) > 0 && strlen(content(p, 5)) > 0);
    json_decref(p);
}

/* A pasted text of several lines is one message, and no command. Tab completes a command. The next
 * conversation has the lines of this one. With a text file the conversation is about it. */
static void test_editing(void)
{
    if (!open_chat("m --device cpu --max-new-tokens 4"))
        return;
    type("\033[200~/one\r\ttwo\033[31m\r\033[201~three\r");
    type("/sa\tpaste.json\r");
    close_chat();
    json_t *p = parse_file("paste.json");
    CHECK(json_array_size(p) == 2);
    CHECK_MSG(!strcmp(content(p, 0), "/one\n\ttwo31m\nthree"), "'%s'", content(p, 0));
    json_decref(p);
    write_text("book", "It was\nnight.\n");
    CHECK(open_chat("m --device cpu --max-new-tokens 4 --prompt-file book"));
    type("\020\020\020\r"); /* Ctrl-P: /quit, /save, the pasted text */
    type("/save book.json\r");
    close_chat();
    p = parse_file("book.json");
    CHECK_MSG(!strcmp(content(p, 0), "It was\nnight.\n\n/one\n\ttwo31m\nthree"), "'%s'",
              content(p, 0));
    json_decref(p);
}

/* A line is shown in the width that the window has while it is typed; Ctrl-D ends the last line. */
static void test_window(void)
{
    const struct winsize narrow = {.ws_row = 24, .ws_col = 30};
    if (!open_chat("m --device cpu"))
        return;
    usleep(50000);
    terminal_send(&term, "0123456789012345678901234567890123456789");
    terminal_wait(&term, "6789012345678901234567890123456789");
    CHECK(ioctl(term.fd, TIOCSWINSZ, &narrow) == 0);
    terminal_send(&term, "x");
    terminal_wait(&term, "x");
    CHECK_MSG(strstr(term.text, "> 0123456789012345678901234567") &&
                  !strstr(term.text, "67890123456789x"),
              "not in two lines: %s", term.text);
    terminal_send(&term, "\025\004"); /* Ctrl-U removes the text */
    terminal_wait(&term, "^D\r\n");
    CHECK(has_exited(terminal_close(&term), 0));
}

/* A line of shell that ends by itself, and shows these words. */
static bool check_shown(const char *line, const char *keys, const char *words)
{
    if (!terminal_open(&term, 80, line))
        return false;
    terminal_send(&term, keys);
    terminal_wait(&term, words);
    CHECK(has_exited(terminal_close(&term), 0));
    return true;
}

/* A terminal does not obey what a model writes; a pipe gets its bytes. */
static void test_control_characters(void)
{
    static const char *const commands[] = {"chat", "generate"};
    CHECK(sh("cp -r m escapes && sed -i 's/\"!\":0,/\"\xc4\x9b\":0,/' escapes/tokenizer.json") ==
          0);
    for (size_t i = 0; i < 2; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "exec \"$S\" %s escapes --device cpu --prompt a --max-new-tokens 3 --logit-bias "
                 "0=100",
                 commands[i]);
        CHECK(sh("(%s)", line) == 0);
        CHECK_MSG(!strcmp(out, "\033\033\033"), "%s", out);
        check_shown(line, "", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    }
}

/* A message begins a line, also in the middle of an answer: here the prefix cache cannot be
 * written. */
static void test_message_in_answer(void)
{
    check_shown(
        "ulimit -f 8 && exec \"$S\" generate m --device cpu --ignore-eos --max-new-tokens 9 "
        "--prefix-cache full --prompt $(printf '%0300d' 0)",
        "", "cut off");
    const char *message = strstr(term.text, "spillway: full/");
    CHECK_MSG(!message || message[-1] == '\n', "%s", term.text);
    CHECK(message || access("/dev/pts/0", F_OK) != 0);
}

/* A signal that kills leaves the terminal as it was: at the prompt, and in an answer. */
static void test_killed(void)
{
    static const int ends[] = {SIGTERM, SIGTERM, SIGINT};
    const tcflag_t all = ECHO | ICANON | ISIG;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct termios is;
        if (!open_chat("slow " LONG))
            return;
        int slave = open(ptsname(term.fd), O_RDWR | O_NOCTTY), status; /* the terminal stays */
        usleep(50000);
        if (i > 0) {
            terminal_send(&term, "Hello\r");
            wait_for_answer();
        }
        CHECK(tcgetattr(slave, &is) == 0 && (is.c_lflag & all) != all);
        check_kill(term.child, ends[i]);
        usleep(1000);
        check_kill(term.child, ends[i]); /* the second SIGINT kills, unless the step has ended */
        usleep(100000);
        check_kill(term.child, SIGTERM);
        CHECK(waitpid(term.child, &status, 0) == term.child && WIFSIGNALED(status));
        CHECK_MSG(tcgetattr(slave, &is) == 0 && (is.c_lflag & all) == all, "case %d: flags %x",
                  (int)i, (unsigned)is.c_lflag);
        close(slave);
        close(term.fd);
    }
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    setenv("TERM", "xterm", 1);
    chat_models("chat_terminal");
    setenv("HOME", folder, 1); /* nobody's .editrc */
    command_limits();
    test_interrupt();
    test_interrupted_prompt();
    test_lines();
    test_editing();
    test_control_characters();
    test_window();
    test_message_in_answer();
    /* One Ctrl-D ends a text that is typed. */
    check_shown(
        "exec \"$S\" generate m --device cpu --ignore-eos --max-new-tokens 3 --prompt-file -",
        "Hello\n\004", "cut off after 3 new tokens");
    test_killed();
    sh("rm -r %s", folder);
    return check_done();
}
