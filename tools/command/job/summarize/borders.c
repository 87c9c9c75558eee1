/* Where a text may be cut: see split.h. One pass over the code points.
 *
 * Tokenizers join a space with the word that follows it. A border between words or sentences is
 * therefore before the last space, and a border between lines after the newline. */
#include "tools/command/job/summarize/split.h"

#include <string.h>
#include <utf8proc.h>

enum ending { NOT_ENDED, ENDED, ENDED_WITHOUT_SPACE };

/* The state before the code point at `at`. */
struct scan {
    const char *text;
    size_t bytes, at;
    uint8_t *borders;
    int32_t last;     /* the code point before */
    size_t last_at;   /* its position */
    int32_t grapheme; /* state of utf8proc */
    size_t line;      /* where this line begins */
    bool line_is_blank, after_blank, after_heading;
    enum ending ending; /* a sentence has ended, and the next one has not begun */
};

static bool is_space(int32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= '\t' && c <= '\r');
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

static bool closes(int32_t c)
{
    if (c < 0x80)
        return c == '"' || c == '\'' || c == ')' || c == ']' || c == '}';
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_PE || category == UTF8PROC_CATEGORY_PF;
}

static enum ending ending_of(int32_t c)
{
    switch (c) {
    case '.':
    case '!':
    case '?':
    case 0x2026: /* ellipsis */
    case 0x061f: /* Arabic */
    case 0x06d4:
    case 0x0964: /* Devanagari */
    case 0x0965:
        return ENDED;
    case 0x3002: /* Chinese and Japanese */
    case 0xff01:
    case 0xff1f:
        return ENDED_WITHOUT_SPACE;
    default:
        return NOT_ENDED;
    }
}

static void raise_border(struct scan *s, size_t at, enum job_border border)
{
    if (s->borders[at] < border)
        s->borders[at] = (uint8_t)border;
}

/* "# Heading" of Markdown. */
static bool is_heading(const struct scan *s)
{
    size_t n = 0;
    while (n < 7 && s->at + n < s->bytes && s->text[s->at + n] == '#')
        n++;
    return n >= 1 && n <= 6 && s->at + n < s->bytes && s->text[s->at + n] == ' ';
}

/* The first code point of a line that is not a space. */
static void begin_line(struct scan *s)
{
    bool heading = is_heading(s);
    if (heading)
        raise_border(s, s->line, JOB_BORDER_HEADING);
    else if (s->after_blank && !s->after_heading)
        raise_border(s, s->line, JOB_BORDER_PARAGRAPH);
    s->after_heading = heading;
    s->line_is_blank = false;
}

static void end_line(struct scan *s, size_t next)
{
    s->after_blank = s->line_is_blank;
    s->line = next;
    s->line_is_blank = true;
    s->ending = NOT_ENDED;
}

/* A code point that is neither space nor newline. */
static void visible(struct scan *s, int32_t c)
{
    bool spaced = s->at > 0 && is_space(s->last) && s->last != '\n';
    if (s->line_is_blank)
        begin_line(s);
    else if (spaced)
        raise_border(s, s->last_at, s->ending ? JOB_BORDER_SENTENCE : JOB_BORDER_WORD);
    enum ending ending = ending_of(c);
    bool goes_on = !spaced && (ending || closes(c)); /* ?!, ." */
    if (s->ending == ENDED_WITHOUT_SPACE && !spaced && !goes_on)
        raise_border(s, s->at, JOB_BORDER_SENTENCE);
    if (ending)
        s->ending = ending;
    else if (!goes_on)
        s->ending = NOT_ENDED;
}

static enum job_border character_border(struct scan *s, int32_t c)
{
    if (c < 0x80 && s->last < 0x80) { /* the usual case, without a look at the tables */
        s->grapheme = 0;
        return s->last == '\r' && c == '\n' ? JOB_BORDER_CODE_POINT : JOB_BORDER_CHARACTER;
    }
    return utf8proc_grapheme_break_stateful(s->last, c, &s->grapheme) ? JOB_BORDER_CHARACTER
                                                                      : JOB_BORDER_CODE_POINT;
}

int job_borders(const char *text, size_t bytes, uint8_t *borders, struct spw_error *err)
{
    struct scan s = {.text = text, .bytes = bytes, .borders = borders, .line_is_blank = true};
    memset(borders, JOB_BORDER_NONE, bytes);
    while (s.at < bytes) {
        int32_t c;
        ptrdiff_t n = utf8proc_iterate((const uint8_t *)text + s.at, (ptrdiff_t)(bytes - s.at), &c);
        if (n <= 0)
            return spw_fail(err, -EILSEQ,
                            "text: found byte 0x%02x at offset %zu, which is not valid UTF-8",
                            (unsigned char)text[s.at], s.at);
        if (s.at > 0)
            raise_border(&s, s.at, s.last == '\n' ? JOB_BORDER_LINE : character_border(&s, c));
        if (c == '\n')
            end_line(&s, s.at + 1);
        else if (!is_space(c))
            visible(&s, c);
        s.last = c;
        s.last_at = s.at;
        s.at += (size_t)n;
    }
    return 0;
}
