/* Small PDF files, also hostile ones. */
#ifndef SPW_TESTS_PDF_FILE_H
#define SPW_TESTS_PDF_FILE_H

#include "tests/check.h"

#include <stdarg.h>
#include <string.h>

enum { PDF_OBJECTS = 64 };

struct pdf {
    FILE *file;
    long at[PDF_OBJECTS]; /* of object 1 and so on */
    int n;
};

/* An object; its number is one more than that of the object before. */
__attribute__((format(printf, 2, 3))) static inline void pdf_object(struct pdf *p,
                                                                    const char *format, ...)
{
    va_list args;
    CHECK(p->n < PDF_OBJECTS);
    p->at[p->n++] = ftell(p->file);
    fprintf(p->file, "%d 0 obj\n", p->n);
    va_start(args, format);
    vfprintf(p->file, format, args);
    va_end(args);
    fputs("\nendobj\n", p->file);
}

/* `keys`: of its dictionary, beside the length. */
static inline void pdf_stream(struct pdf *p, const char *keys, const void *data, size_t bytes)
{
    CHECK(p->n < PDF_OBJECTS);
    p->at[p->n++] = ftell(p->file);
    fprintf(p->file, "%d 0 obj\n<<%s/Length %zu>>\nstream\n", p->n, keys, bytes);
    fwrite(data, 1, bytes, p->file);
    fputs("\nendstream\nendobj\n", p->file);
}

/* Objects 1 to 4: a document with `kids` as its pages, which says that they are `count`. Page 3 has
 * the content 5 and the form 6. */
static inline void pdf_begin(struct pdf *p, const char *path, const char *kids, int count)
{
    *p = (struct pdf){.file = fopen(path, "wb")};
    CHECK_MSG(p->file, "%s", path);
    if (!p->file)
        exit(1);
    fputs("%PDF-1.4\n", p->file);
    pdf_object(p, "<</Type/Catalog/Pages 2 0 R>>");
    pdf_object(p, "<</Type/Pages/Kids[%s]/Count %d>>", kids, count);
    pdf_object(p, "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 5 0 R/Resources"
                  "<</Font<</F 4 0 R>>/XObject<</X 6 0 R>>>>>>");
    pdf_object(p, "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>");
}

static inline void pdf_end(struct pdf *p)
{
    long table = ftell(p->file);
    fprintf(p->file, "xref\n0 %d\n0000000000 65535 f \n", p->n + 1);
    for (int i = 0; i < p->n; i++)
        fprintf(p->file, "%010ld 00000 n \n", p->at[i]);
    fprintf(p->file, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%ld\n%%%%EOF\n", p->n + 1,
            table);
    CHECK(fclose(p->file) == 0);
}

/* One page with this content. */
static inline void write_pdf(const char *path, const char *content)
{
    struct pdf p;
    pdf_begin(&p, path, "3 0 R", 1);
    pdf_stream(&p, "", content, strlen(content));
    pdf_end(&p);
}

/* One page that is said to be a thousand million. */
static inline void write_pdf_of_many_pages(const char *path)
{
    static const char content[] = "0 0 m 9 9 l S", kid[] = "3 0 R ";
    enum { KIDS = 1000 };
    char kids[KIDS * (sizeof kid - 1) + 1] = "";
    struct pdf p;
    for (int i = 0; i < KIDS; i++)
        memcpy(kids + (size_t)i * (sizeof kid - 1), kid, sizeof kid);
    pdf_begin(&p, path, kids, 1000000000);
    pdf_stream(&p, "", content, strlen(content));
    pdf_end(&p);
}

/* A page draws a form, form i draws form i+1 ten times, and the last one has a word: 10^n words. */
static inline void write_pdf_of_forms(const char *path, int n)
{
    static const char ten[] = "/X Do /X Do /X Do /X Do /X Do /X Do /X Do /X Do /X Do /X Do ";
    char keys[160];
    struct pdf p;
    pdf_begin(&p, path, "3 0 R", 1);
    pdf_stream(&p, "", "/X Do", 5);
    for (int i = 0; i <= n; i++) {
        const char *what = i < n ? ten : "BT /F 9 Tf 9 9 Td (ha) Tj ET";
        snprintf(keys, sizeof keys,
                 "/Type/XObject/Subtype/Form/BBox[0 0 612 792]/Resources<</Font<</F 4 0 "
                 "R>>/XObject<</X %d 0 R>>>>",
                 7 + i);
        pdf_stream(&p, keys, what, strlen(what));
    }
    pdf_end(&p);
}

/* Bits of a deflated stream (RFC 1951), the first bit of each byte in its lowest place. */
struct pdf_bits {
    unsigned char *to; /* [zeros] */
    size_t n;
};

/* A code of n bits, which begins with its highest bit. */
static inline void pdf_put(struct pdf_bits *b, unsigned code, int n)
{
    for (int i = n - 1; i >= 0; i--, b->n++)
        b->to[b->n / 8] |= (unsigned char)((code >> i & 1) << b->n % 8);
}

/* A page whose deflated content has 400 MB: 50 million words. */
static inline void write_pdf_of_deflated_words(const char *path)
{
    static const char begin[] = "BT /F 9 Tf 9 9 Td ", word[] = "(ha) Tj ";
    enum { MATCHES = 400000000 / 258 };
    struct pdf_bits b = {calloc(1, 64 + MATCHES * 14ull / 8 + 1), 16};
    struct pdf p;
    memcpy(b.to, "\x78\x9c", 2);
    pdf_put(&b, 6, 3); /* the last block, with the fixed codes */
    for (const char *c = begin; *c; c++)
        pdf_put(&b, 0x30u + (unsigned char)*c, 8);
    for (const char *c = word; *c; c++)
        pdf_put(&b, 0x30u + (unsigned char)*c, 8);
    for (int i = 0; i < MATCHES; i++) { /* 258 bytes, 8 bytes back */
        pdf_put(&b, 0xc5, 8);
        pdf_put(&b, 5, 5);
        pdf_put(&b, 1, 1);
    }
    pdf_put(&b, 0, 7);
    pdf_begin(&p, path, "3 0 R", 1);
    pdf_stream(&p, "/Filter/FlateDecode", b.to, b.n / 8 + 1);
    pdf_end(&p);
    free(b.to);
}

#endif
