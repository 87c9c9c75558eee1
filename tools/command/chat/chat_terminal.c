/* Lines that libedit edits, or plain lines: see chat_terminal.h. */
#include "tools/command/chat/chat_terminal.h"

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000 };

struct cli_terminal {
    EditLine *edit; /* owned; NULL: plain lines */
    History *history;
    bool dropped;     /* Ctrl-C was pressed on the line */
    bool continuing;  /* the prompt of a continued line */
    unsigned columns; /* of the window, as the editor knows it; 0: not known */
    char *text;       /* owned */
    size_t n_text, capacity;
};

/* ---- the terminal's settings ---- */

static struct termios at_start;

/* A signal kills the program: the shell gets a terminal that shows what is typed. */
static void restore_and_die(int signal_number)
{
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

static char *prompt(EditLine *e)
{
    static char first[] = "> ", further[] = ". ";
    void *data = NULL;
    el_get(e, EL_CLIENTDATA, &data);
    return ((struct cli_terminal *)data)->continuing ? further : first;
}

/* Ctrl-C is a key for libedit: it discards the line and does nothing else. */
static unsigned char drop_line(EditLine *e, wint_t key)
{
    (void)key;
    void *data = NULL;
    el_get(e, EL_CLIENTDATA, &data);
    ((struct cli_terminal *)data)->dropped = true;
    fputs("^C\n", stderr);
    return CC_NEWLINE;
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
    void *data = NULL;
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
    el_get(e, EL_CLIENTDATA, &data);
    follow_window(e, data);
    return 1;
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
    el_set(t->edit, EL_CLIENTDATA, t);
    el_set(t->edit, EL_PROMPT, prompt);
    el_wset(t->edit, EL_GETCFN, read_character);
    el_set(t->edit, EL_EDITOR, "emacs");
    el_set(t->edit, EL_HIST, history, t->history);
    el_set(t->edit, EL_BIND, "^I", "ed-insert", NULL); /* tabs of a pasted text stay */
    el_source(t->edit, NULL);                          /* ~/.editrc */
    /* el_wset, because el_set leaks copies of both texts. */
    el_wset(t->edit, EL_ADDFN, L"spillway-drop-line", L"drops the line", drop_line);
    el_set(t->edit, EL_BIND, "^C", "spillway-drop-line", NULL);
    el_set(t->edit, EL_SETTY, "-d", "-isig", NULL);
    restore_at_death();
    return 0;
}

int cli_terminal_open(struct cli_terminal **out)
{
    struct cli_terminal *t = *out = spw_alloc_zero(1, sizeof *t);
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
    if (t->edit)
        el_end(t->edit);
    if (t->history)
        history_end(t->history);
    spw_free(t->text);
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

static int append(struct cli_terminal *t, const char *text, size_t bytes)
{
    if (t->n_text + bytes + 1 > t->capacity) {
        size_t capacity = 2 * (t->n_text + bytes + 1);
        char *grown = spw_realloc(t->text, capacity);
        if (!grown)
            return -ENOMEM;
        t->text = grown;
        t->capacity = capacity;
    }
    memcpy(t->text + t->n_text, text, bytes);
    t->n_text += bytes;
    t->text[t->n_text] = 0;
    return 0;
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
    if (*line != '\n')
        history(t->history, &event, H_ENTER, line);
    n -= line[n - 1] == '\n';
    int rc = append(t, line, (size_t)n);
    return rc < 0 ? rc : 1;
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
        rc = append(t, &byte, 1);
    }
    signal(SIGINT, handler);
    if (c == '\n' && t->n_text > 0 && t->text[t->n_text - 1] == '\r') /* a line of Windows */
        t->text[--t->n_text] = 0;
    if (rc == 0 && ferror(stdin))
        rc = -EIO;
    return rc < 0 ? rc : any;
}

/* Appends one line to the text. 1, 0 at the end of the input, -ECANCELED for a discarded line, or
 * -errno. */
static int read_line(struct cli_terminal *t, bool continuing)
{
    t->continuing = continuing;
    int rc = append(t, "", 0);
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
    t->n_text = 0;
    for (;;) {
        size_t start = t->n_text;
        int rc = read_line(t, true);
        if (rc < 0)
            return rc;
        if (rc == 0 || is_fence(t->text + start)) {
            t->n_text = start > 0 ? start - 1 : 0; /* without the last line break */
            t->text[t->n_text] = 0;
            return 1;
        }
        SPW_TRY(append(t, "\n", 1));
    }
}

static int read_text(struct cli_terminal *t, bool *verbatim)
{
    t->n_text = 0;
    *verbatim = false;
    int rc = read_line(t, false);
    if (rc > 0 && is_fence(t->text)) {
        *verbatim = true;
        return read_block(t);
    }
    while (rc > 0 && t->n_text > 0 && t->text[t->n_text - 1] == '\\') {
        t->text[t->n_text - 1] = '\n';
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
    *text = t->text;
    *bytes = t->n_text;
    return rc;
}
