/* A terminal on which a command runs, in the folder of command_run.h. */
#ifndef SPW_TESTS_COMMAND_TERMINAL_H
#define SPW_TESTS_COMMAND_TERMINAL_H

#include "tests/command/command_run.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>

struct terminal {
    int fd;
    pid_t child;
    size_t n;
    char text[1 << 20]; /* that was read since the latest terminal_wait began, or at all */
};

/* Runs a line of shell. False: there are no terminals here. */
static inline bool terminal_open(struct terminal *t, uint16_t columns, const char *line)
{
    char command[4096];
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    snprintf(command, sizeof command, "cd %s && %s", folder, line);
    t->n = 0;
    t->child = forkpty(&t->fd, NULL, NULL, &size);
    if (t->child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    if (t->child < 0) { /* /dev/pts is not mounted */
        CHECK_MSG(errno == ENOENT || errno == ENODEV, "%s", strerror(errno));
        fprintf(stderr, "no terminals here: what they show is not tested\n");
    }
    return t->child > 0;
}

static inline bool terminal_has_text(const struct terminal *t, int milliseconds)
{
    struct pollfd ready = {.fd = t->fd, .events = POLLIN};
    return poll(&ready, 1, milliseconds) == 1;
}

/* Reads the text that the process has written, or waits for some. False: no text came, or the
 * process has ended. */
static inline bool terminal_read(struct terminal *t, int milliseconds)
{
    if (!terminal_has_text(t, milliseconds))
        return false;
    const ssize_t n = read(t->fd, t->text + t->n, sizeof t->text - 1 - t->n);
    t->n += n > 0 ? (size_t)n : 0;
    t->text[t->n] = 0;
    return n > 0;
}

/* Waits until these words come; a minute between two bytes is for busy machines. */
static inline void terminal_wait(struct terminal *t, const char *words)
{
    t->text[t->n = 0] = 0;
    while (!strstr(t->text, words) && terminal_read(t, 60000))
        ;
    CHECK_MSG(strstr(t->text, words), "no '%s' in: %s", words, t->text);
}

static inline void terminal_send(const struct terminal *t, const char *keys)
{
    CHECK(write(t->fd, keys, strlen(keys)) == (ssize_t)strlen(keys));
}

/* Waits for the end of the process; the status is that of waitpid. */
static inline int terminal_close(struct terminal *t)
{
    int status = -1;
    while (terminal_read(t, 60000))
        ;
    CHECK(waitpid(t->child, &status, 0) == t->child);
    close(t->fd);
    return status;
}

#endif
