/* Lines that libedit edits, or plain lines: see chat_terminal.h. */
#include "tools/command/chat/chat_terminal.h"

#include "tools/command/limits.h"

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000 };

struct cli_terminal {
    EditLine *edit; /* owned; NULL: plain lines */
    History *history;
    const char *const *words;
    bool dropped;         /* Ctrl-C was pressed on the line */
    bool continuing;      /* the prompt of a continued line */
    unsigned columns;     /* of the window, as the editor knows it; 0: not known */
    struct spw_text text; /* owned */
};

/* ---- the terminal's settings ---- */

static struct termios at_start;

/* A terminal in this mode sends ESC [200~ and ESC [201~ around a pasted text. */
static void mark_pastes(bool on)
{
    const char *name = getenv("TERM");
    if (name && strcmp(name, "dumb") != 0 && isatty(STDERR_FILENO) == 1 &&
        write(STDERR_FILENO, on ? "\033[?2004h" : "\033[?2004l", 8) < 0)
        return; /* then a text of several lines is several messages */
}

/* A signal kills the program: the shell gets a terminal that shows what is typed. */
static void restore_and_die(int signal_number)
{
    mark_pastes(false);
    tcsetattr(STDIN_FILENO, TCSANOW, &at_start);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void restore_at_death(void)
{
    static const int deadly[] = {SIGTERM, SIGQUIT};
    if (tcgetattr(STDIN_FILENO, &at_start))
        return;
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++)
        if (signal(deadly[i], restore_and_die) == SIG_IGN)
            signal(deadly[i], SIG_IGN);
    cli_before_kill(restore_and_die);
}

/* ---- edited lines ---- */

static struct cli_terminal *terminal_of(EditLine *e)
{
    void *data = NULL;
    el_get(e, EL_CLIENTDATA, &data);
    return data;
}

static char *prompt(EditLine *e)
{
    static char first[] = "> ", further[] = ". ";
    return terminal_of(e)->continuing ? further : first;
}

/* Ctrl-C is a key for libedit: it discards the line and does nothing else. */
static unsigned char drop_line(EditLine *e, wint_t key)
{
    (void)key;
    terminal_of(e)->dropped = true;
    fputs("^C\n", stderr);
    return CC_NEWLINE;
}

/* Puts a pasted text into the line, with its line breaks (a terminal sends each as \r) and without
 * other control characters. */
static unsigned char insert_paste(EditLine *e, wint_t key)
{
    static const wchar_t end[] = L"\033[201~";
    wchar_t one[2] = L"";
    size_t n_end = 0;
    (void)key;
    while (end[n_end] && el_wgetc(e, one) == 1) {
        n_end = *one == end[n_end] ? n_end + 1 : *one == *end;
        if (*one == '\r')
            *one = '\n';
        if (!n_end && (*one == '\n' || *one == '\t' || (*one >= ' ' && *one != 0x7f)))
            el_winsertstr(e, one);
    }
    return CC_REFRESH;
}

/* The Tab key completes a command, and is a tab elsewhere. */
static unsigned char complete(EditLine *e, wint_t key)
{
    (void)key;
    const LineInfo *line = el_line(e);
    const size_t n = (size_t)(line->cursor - line->buffer);
    const char *found = NULL;
    size_t same = 0;
    if (!n || *line->buffer != '/' || memchr(line->buffer, ' ', n))
        return el_insertstr(e, "\t") ? CC_ERROR : CC_REFRESH;
    for (const char *const *word = terminal_of(e)->words; *word; word++) {
        if (strncmp(*word, line->buffer, n) != 0)
            continue;
        if (!found)
            same = strlen(*word);
        for (size_t i = n; found && i < same; i++)
            if (found[i] != (*word)[i])
                same = i;
        found = *word;
    }
    char more[32];
    if (!found || (same == n && found[n])) /* none, or several without a further letter */
        return CC_ERROR;
    snprintf(more, sizeof more, "%.*s%s", (int)(same - n), found + n, found[same] ? "" : " ");
    return el_insertstr(e, more) ? CC_ERROR : CC_REFRESH;
}

/* The window may have another width than when the prompt was shown. */
static void follow_window(EditLine *e, struct cli_terminal *t)
{
    struct winsize is;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &is) || is.ws_col == t->columns)
        return;
    const bool changed = t->columns;
    t->columns = is.ws_col;
    if (!changed)
        return;
    fputs("\r\033[J", stderr); /* the editor draws the line again from here */
    el_resize(e);
    el_set(e, EL_REFRESH);
}

/* Reads a character and skips bytes that are not part of one. The function of libedit does the
 * same, but asks for the size of the window only before a line. */
static int read_character(EditLine *e, wchar_t *out)
{
    mbstate_t state = {0};
    size_t used;
    do {
        char byte;
        ssize_t n;
        do
            n = read(STDIN_FILENO, &byte, 1);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
            return (int)n;
        const bool is_first = mbsinit(&state);
        used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-1) {
            memset(&state, 0, sizeof state);
            if (!is_first) /* this byte may begin the next character */
                used = mbrtowc(out, &byte, 1, &state);
        }
        if (used == (size_t)-1)
            memset(&state, 0, sizeof state);
    } while (used > 1);
    follow_window(e, terminal_of(e));
    return 1;
}

/* Reads or writes the history of all conversations. Without a folder for it there is none. */
static void keep_history(const struct cli_terminal *t, int what)
{
    HistEvent event;
    char path[CLI_PATH_BYTES];
    if (!cli_cache_path(NULL, "chat-history", path))
        return;
    char *slash = strrchr(path, '/');
    *slash = 0;
    mkdir(path, 0700);
    *slash = '/';
    history(t->history, &event, what, path);
}

static int open_editor(struct cli_terminal *t)
{
    HistEvent event;
    /* All text is UTF-8, so characters are counted in UTF-8 in every locale. */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    t->edit = el_init("spillway", stdin, stderr, stderr); /* answers go to stdout */
    t->history = history_init();
    if (!t->edit || !t->history)
        return -ENOMEM;
    history(t->history, &event, H_SETSIZE, HISTORY_LINES);
    history(t->history, &event, H_SETUNIQUE, 1);
    keep_history(t, H_LOAD);
    el_set(t->edit, EL_CLIENTDATA, t);
    el_set(t->edit, EL_PROMPT, prompt);
    el_wset(t->edit, EL_GETCFN, read_character);
    el_set(t->edit, EL_EDITOR, "emacs");
    el_set(t->edit, EL_HIST, history, t->history);
    /* el_wset, because el_set leaks copies of both texts. */
    el_wset(t->edit, EL_ADDFN, L"spillway-complete", L"completes a command", complete);
    el_wset(t->edit, EL_ADDFN, L"spillway-paste", L"inserts a pasted text", insert_paste);
    el_wset(t->edit, EL_ADDFN, L"spillway-drop-line", L"drops the line", drop_line);
    el_set(t->edit, EL_BIND, "^I", "spillway-complete", NULL);
    el_source(t->edit, NULL); /* ~/.editrc */
    el_set(t->edit, EL_BIND, "\\e[200~", "spillway-paste", NULL);
    el_set(t->edit, EL_BIND, "^C", "spillway-drop-line", NULL);
    el_set(t->edit, EL_SETTY, "-d", "-isig", NULL);
    restore_at_death();
    mark_pastes(true);
    return 0;
}

int cli_terminal_open(struct cli_terminal **out, const char *const *words)
{
    struct cli_terminal *t = *out = spw_alloc_zero(1, sizeof *t);
    if (t)
        t->words = words;
    if (t && (isatty(STDIN_FILENO) != 1 || open_editor(t) == 0))
        return 0;
    cli_terminal_close(t);
    *out = NULL;
    return cli_fail(CLI_FAILED, "the terminal: no memory to edit lines");
}

void cli_terminal_close(struct cli_terminal *t)
{
    if (!t)
        return;
    if (t->edit) {
        mark_pastes(false);
        el_end(t->edit);
    }
    if (t->history)
        history_end(t->history);
    spw_free(t->text.text);
    spw_free(t);
}

void cli_terminal_echo(const struct cli_terminal *t, bool on)
{
    struct termios settings;
    if (!t->edit || tcgetattr(STDIN_FILENO, &settings))
        return;
    if (on)
        settings.c_lflag |= ECHO;
    else
        settings.c_lflag &= ~(tcflag_t)ECHO;
    tcsetattr(STDIN_FILENO, TCSANOW, &settings);
}

bool cli_terminal_edits(const struct cli_terminal *t)
{
    return t->edit;
}

static int read_edited(struct cli_terminal *t)
{
    HistEvent event;
    int n = 0;
    t->dropped = false;
    t->columns = 0;
    follow_window(t->edit, t);
    /* Between the prompt and the first key Ctrl-C is still a signal. It discards the line. */
    void (*handler)(int) = signal(SIGINT, SIG_IGN);
    const char *line = el_gets(t->edit, &n);
    signal(SIGINT, handler);
    if (t->dropped) /* also if nothing was typed yet, which looks like the end of the input */
        return -ECANCELED;
    if (!line || n <= 0)
        return 0;
    if (*line != '\n') {
        history(t->history, &event, H_ENTER, line);
        keep_history(t, H_SAVE);
    }
    n -= line[n - 1] == '\n';
    int rc = spw_text_add(&t->text, line, (size_t)n);
    return rc < 0 ? rc : 1;
}

static void cut(struct cli_terminal *t, size_t n)
{
    t->text.n = n;
    t->text.text[n] = 0;
}

/* While nothing runs, SIGINT ends the program as usual. */
static int read_plain(struct cli_terminal *t)
{
    void (*handler)(int) = signal(SIGINT, SIG_DFL);
    int c, rc = 0;
    bool any = false;
    while (rc == 0 && (c = getchar()) != EOF) {
        any = true;
        if (c == '\n')
            break;
        char byte = (char)c;
        rc = spw_text_add(&t->text, &byte, 1);
    }
    signal(SIGINT, handler);
    if (c == '\n' && t->text.n > 0 && t->text.text[t->text.n - 1] == '\r') /* a line of Windows */
        cut(t, t->text.n - 1);
    if (rc == 0 && ferror(stdin))
        rc = -EIO;
    return rc < 0 ? rc : any;
}

/* Appends one line to the text. 1, 0 at the end of the input, -ECANCELED for a discarded line, or
 * -errno. */
static int read_line(struct cli_terminal *t, bool continuing)
{
    t->continuing = continuing;
    int rc = spw_text_add(&t->text, "", 0);
    if (rc < 0)
        return rc;
    return t->edit ? read_edited(t) : read_plain(t);
}

static bool is_fence(const char *line)
{
    return strcmp(line, "\"\"\"") == 0;
}

/* Reads the lines up to the next """. */
static int read_block(struct cli_terminal *t)
{
    cut(t, 0);
    for (;;) {
        size_t start = t->text.n;
        int rc = read_line(t, true);
        if (rc < 0)
            return rc;
        if (rc == 0 || is_fence(t->text.text + start)) {
            cut(t, start > 0 ? start - 1 : 0); /* without the last line break */
            return 1;
        }
        SPW_TRY(spw_text_add(&t->text, "\n", 1));
    }
}

static int read_text(struct cli_terminal *t, bool *verbatim)
{
    t->text.n = 0;
    int rc = read_line(t, false);
    *verbatim = strchr(t->text.text, '\n'); /* pasted */
    if (rc > 0 && is_fence(t->text.text)) {
        *verbatim = true;
        return read_block(t);
    }
    while (rc > 0 && t->text.n > 0 && t->text.text[t->text.n - 1] == '\\') {
        t->text.text[t->text.n - 1] = '\n';
        rc = read_line(t, true);
        if (rc == 0)
            return 1; /* the end of the input ends the text */
    }
    return rc;
}

int cli_terminal_read(struct cli_terminal *t, char **text, size_t *bytes, bool *verbatim)
{
    int rc;
    do
        rc = read_text(t, verbatim);
    while (rc == -ECANCELED);
    *text = t->text.text;
    *bytes = t->text.n;
    return rc;
}
