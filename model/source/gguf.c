/* Reads the header of a GGUF file: see gguf.h, and ggml-org/ggml, docs/gguf.md. */
#include "model/source/gguf.h"

#include "model/config/config_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DIMS = 4,
    MOST_VALUES = 4096,                     /* real files have less than a hundred */
    LEAST_VALUE_BYTES = 8 + 1 + 4 + 1,      /* a key of one character, and a byte */
    LEAST_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, /* without sizes */
    MOST_STRING_BYTES = 1 << 16,            /* of a string in an object */
};

/* What is left of the header. */
struct reader {
    const uint8_t *at, *end;
    const char *path;
    struct spw_error *err;
};

static uint64_t left(const struct reader *r)
{
    return (uint64_t)(r->end - r->at);
}

static int cut_short(const struct reader *r, const char *what)
{
    return spw_fail(r->err, -EINVAL,
                    "%s: %s: found the end of the file, expected more bytes; the file is cut short "
                    "or damaged",
                    r->path, what);
}

/* An unsigned number of 1, 2, 4 or 8 bytes. */
static uint64_t load(const uint8_t *at, unsigned bytes)
{
    uint64_t x = 0;
    for (unsigned i = 0; i < bytes; i++)
        x |= (uint64_t)at[i] << (8 * i);
    return x;
}

static int read_number(struct reader *r, unsigned bytes, const char *what, uint64_t *out)
{
    if (left(r) < bytes)
        return cut_short(r, what);
    *out = load(r->at, bytes);
    r->at += bytes;
    return 0;
}

bool spw_gguf_next_string(const uint8_t **at, const uint8_t *end, struct spw_gguf_string *out)
{
    if (end - *at < 8)
        return false;
    out->bytes = load(*at, 8);
    out->at = (const char *)*at + 8;
    if (out->bytes > (uint64_t)(end - *at) - 8)
        return false;
    *at += 8 + out->bytes;
    return true;
}

static int read_string(struct reader *r, const char *what, struct spw_gguf_string *out)
{
    return spw_gguf_next_string(&r->at, r->end, out) ? 0 : cut_short(r, what);
}

/* ---- keys ---- */

static const uint8_t value_bytes[SPW_GGUF_TYPES] = {
    [SPW_GGUF_U8] = 1,  [SPW_GGUF_I8] = 1,  [SPW_GGUF_U16] = 2, [SPW_GGUF_I16] = 2,
    [SPW_GGUF_U32] = 4, [SPW_GGUF_I32] = 4, [SPW_GGUF_F32] = 4, [SPW_GGUF_BOOL] = 1,
    [SPW_GGUF_U64] = 8, [SPW_GGUF_I64] = 8, [SPW_GGUF_F64] = 8,
};

unsigned spw_gguf_value_bytes(enum spw_gguf_type type)
{
    return value_bytes[type];
}

/* Moves the reader past n elements. */
static int skip_elements(struct reader *r, struct spw_gguf_value *v, const char *what)
{
    v->at = r->at;
    if (v->type != SPW_GGUF_STRING) {
        uint64_t bytes;
        if (!spw_mul_u64(v->n, value_bytes[v->type], &bytes) || bytes > left(r))
            return cut_short(r, what);
        r->at += bytes;
    } else {
        struct spw_gguf_string unused;
        if (v->n > left(r) / 8)
            return cut_short(r, what);
        for (uint64_t i = 0; i < v->n; i++)
            SPW_TRY(read_string(r, what, &unused));
    }
    v->bytes = (uint64_t)(r->at - v->at);
    return 0;
}

static int read_type(struct reader *r, const char *what, bool in_array, enum spw_gguf_type *out)
{
    uint64_t type = 0;
    SPW_TRY(read_number(r, 4, what, &type));
    if (type >= SPW_GGUF_TYPES || (in_array && type == SPW_GGUF_ARRAY))
        return spw_fail(
            r->err, -EINVAL, "%s: %s: found type %" PRIu64 ", expected %s", r->path, what, type,
            in_array ? "a type of elements from 0 to 12, and no array" : "a type from 0 to 12");
    *out = (enum spw_gguf_type)type;
    return 0;
}

/* A name as messages show it. */
static const char *shown(char buffer[128], const char *what, const struct spw_gguf_string *name)
{
    snprintf(buffer, 128, "%s %.*s", what, (int)spw_min_u64(name->bytes, 100), name->at);
    return buffer;
}

static int read_value(struct reader *r, struct spw_gguf_value *v)
{
    char what[128];
    SPW_TRY(read_string(r, "a key", &v->key));
    if (!v->key.bytes || memchr(v->key.at, 0, v->key.bytes))
        return spw_fail(r->err, -EINVAL, "%s: found a key %s, expected a name", r->path,
                        v->key.bytes ? "with a zero byte" : "without a name");
    shown(what, "key", &v->key);
    SPW_TRY(read_type(r, what, false, &v->type));
    v->n = 1;
    v->array = v->type == SPW_GGUF_ARRAY;
    if (v->array) {
        SPW_TRY(read_type(r, what, true, &v->type));
        SPW_TRY(read_number(r, 8, what, &v->n));
    }
    return skip_elements(r, v, what);
}

static int compare_strings(const struct spw_gguf_string *a, const struct spw_gguf_string *b)
{
    int order = memcmp(a->at, b->at, spw_min_u64(a->bytes, b->bytes));
    return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_values(const void *a, const void *b)
{
    return compare_strings(&((const struct spw_gguf_value *)a)->key,
                           &((const struct spw_gguf_value *)b)->key);
}

/* Each of n keys or tensors has `least` bytes or more. */
static int check_room(const struct reader *r, const char *what, uint64_t n, uint64_t least)
{
    return n <= left(r) / least
               ? 0
               : spw_fail(r->err, -EINVAL,
                          "%s: the header says that the file has %" PRIu64 " %s, but only %" PRIu64
                          " bytes follow; the file is cut short or damaged",
                          r->path, n, what, left(r));
}

static int read_values(struct spw_gguf *g, struct reader *r, uint64_t n)
{
    SPW_TRY(check_room(r, "keys", n, LEAST_VALUE_BYTES));
    if (n > MOST_VALUES)
        return spw_fail(r->err, -EINVAL,
                        "%s: found %" PRIu64 " keys in the header, expected at most %d", r->path, n,
                        MOST_VALUES);
    g->values = spw_alloc_zero((size_t)n, sizeof *g->values);
    if (!g->values)
        return spw_fail(r->err, -ENOMEM, "%s: out of memory", r->path);
    for (; g->n_values < n; g->n_values++)
        SPW_TRY(read_value(r, &g->values[g->n_values]));
    qsort(g->values, g->n_values, sizeof *g->values, compare_values);
    for (size_t i = 1; i < g->n_values; i++) {
        char what[128];
        if (!compare_values(&g->values[i - 1], &g->values[i]))
            return spw_fail(r->err, -EINVAL, "%s: %s: found it twice, expected each key once",
                            r->path, shown(what, "key", &g->values[i].key));
    }
    return 0;
}

const struct spw_gguf_value *spw_gguf_find(const struct spw_gguf *g, const char *key)
{
    struct spw_gguf_value wanted = {.key = {key, strlen(key)}};
    if (!g->n_values)
        return NULL;
    return bsearch(&wanted, g->values, g->n_values, sizeof wanted, compare_values);
}

/* ---- tensors ---- */

static const struct spw_gguf_tensor_type tensor_types[] = {
    {0, "F32", 1, 4, SPW_DTYPE_F32},          {1, "F16", 1, 2, SPW_DTYPE_F16},
    {2, "Q4_0", 32, 18, SPW_DTYPE_Q4_0},      {3, "Q4_1", 32, 20, SPW_DTYPE_Q4_1},
    {6, "Q5_0", 32, 22, SPW_DTYPE_Q5_0},      {7, "Q5_1", 32, 24, SPW_DTYPE_Q5_1},
    {8, "Q8_0", 32, 34, SPW_DTYPE_Q8_0},      {9, "Q8_1", 32, 36, SPW_DTYPE_AUTO},
    {10, "Q2_K", 256, 84, SPW_DTYPE_Q2_K},    {11, "Q3_K", 256, 110, SPW_DTYPE_Q3_K},
    {12, "Q4_K", 256, 144, SPW_DTYPE_Q4_K},   {13, "Q5_K", 256, 176, SPW_DTYPE_Q5_K},
    {14, "Q6_K", 256, 210, SPW_DTYPE_Q6_K},   {15, "Q8_K", 256, 292, SPW_DTYPE_AUTO},
    {16, "IQ2_XXS", 256, 66, SPW_DTYPE_AUTO}, {17, "IQ2_XS", 256, 74, SPW_DTYPE_AUTO},
    {18, "IQ3_XXS", 256, 98, SPW_DTYPE_AUTO}, {19, "IQ1_S", 256, 50, SPW_DTYPE_AUTO},
    {20, "IQ4_NL", 32, 18, SPW_DTYPE_IQ4_NL}, {21, "IQ3_S", 256, 110, SPW_DTYPE_AUTO},
    {22, "IQ2_S", 256, 82, SPW_DTYPE_AUTO},   {23, "IQ4_XS", 256, 136, SPW_DTYPE_IQ4_XS},
    {24, "I8", 1, 1, SPW_DTYPE_AUTO},         {25, "I16", 1, 2, SPW_DTYPE_AUTO},
    {26, "I32", 1, 4, SPW_DTYPE_AUTO},        {27, "I64", 1, 8, SPW_DTYPE_AUTO},
    {28, "F64", 1, 8, SPW_DTYPE_F64},         {29, "IQ1_M", 256, 56, SPW_DTYPE_AUTO},
    {30, "BF16", 1, 2, SPW_DTYPE_BF16},       {34, "TQ1_0", 256, 54, SPW_DTYPE_AUTO},
    {35, "TQ2_0", 256, 66, SPW_DTYPE_AUTO},   {39, "MXFP4", 32, 17, SPW_DTYPE_MXFP4},
    {40, "NVFP4", 64, 36, SPW_DTYPE_AUTO},    {41, "Q1_0", 128, 18, SPW_DTYPE_AUTO},
};

const struct spw_gguf_tensor_type *spw_gguf_tensor_type_of(enum spw_dtype dtype)
{
    for (size_t i = 0; i < sizeof tensor_types / sizeof *tensor_types; i++)
        if (dtype != SPW_DTYPE_AUTO && tensor_types[i].dtype == dtype)
            return &tensor_types[i];
    return NULL;
}

const struct spw_gguf_tensor_type *spw_gguf_tensor_type(uint32_t id)
{
    for (size_t i = 0; i < sizeof tensor_types / sizeof *tensor_types; i++)
        if (tensor_types[i].id == id)
            return &tensor_types[i];
    return NULL;
}

/* Sizes come fastest first; a shape has them slowest first. */
static int read_shape(struct reader *r, struct spw_tensor *t, const char *what, uint64_t *elements)
{
    uint64_t n_dims = 0;
    SPW_TRY(read_number(r, 4, what, &n_dims));
    if (n_dims > MAX_DIMS)
        return spw_fail(r->err, -EINVAL, "%s: %s: found %" PRIu64 " dimensions, expected at most 4",
                        r->path, what, n_dims);
    t->n_dims = (uint32_t)n_dims;
    *elements = 1;
    for (uint32_t i = t->n_dims; i-- > 0;) {
        SPW_TRY(read_number(r, 8, what, &t->shape[i]));
        if (!spw_mul_u64(*elements, t->shape[i], elements))
            return spw_fail(r->err, -EINVAL, "%s: %s: found 2^64 elements or more", r->path, what);
    }
    return 0;
}

static int read_tensor_type(struct reader *r, struct spw_tensor *t, const char *what,
                            uint64_t elements)
{
    uint64_t id = 0;
    SPW_TRY(read_number(r, 4, what, &id));
    const struct spw_gguf_tensor_type *type = spw_gguf_tensor_type((uint32_t)id);
    if (!type)
        return spw_fail(r->err, -EINVAL,
                        "%s: %s: found type %" PRIu64 ", expected a type of GGUF such as F16 (1), "
                        "Q8_0 (8) or Q4_K (12); the file is newer than this program, or damaged",
                        r->path, what, id);
    uint64_t row = t->n_dims ? t->shape[t->n_dims - 1] : 1;
    if (row % type->elements)
        return spw_fail(r->err, -EINVAL,
                        "%s: %s: found rows of %" PRIu64 " numbers, expected a multiple of %u for "
                        "type %s",
                        r->path, what, row, type->elements, type->name);
    t->dtype = type->dtype;
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", type->name);
    if (!spw_mul_u64(elements / type->elements, type->bytes, &t->bytes))
        return spw_fail(r->err, -EINVAL, "%s: %s: found 2^64 bytes or more", r->path, what);
    return 0;
}

/* *next: where the tensor must begin; then, where the following tensor must begin. */
static int read_tensor(struct reader *r, struct spw_tensor *t, char **names, uint64_t alignment,
                       uint64_t *next)
{
    struct spw_gguf_string name = {0};
    uint64_t elements = 0, end;
    char what[128];
    SPW_TRY(read_string(r, "a tensor", &name));
    if (!name.bytes || name.bytes > SPW_GGUF_MOST_NAME || memchr(name.at, 0, name.bytes))
        return spw_fail(r->err, -EINVAL,
                        "%s: found a tensor whose name has %" PRIu64 " bytes%s, expected 1 to 64",
                        r->path, name.bytes, name.bytes > SPW_GGUF_MOST_NAME ? "" : " or a zero");
    shown(what, "tensor", &name);
    t->name = memcpy(*names, name.at, name.bytes);
    (*names)[name.bytes] = 0;
    *names += name.bytes + 1;
    SPW_TRY(read_shape(r, t, what, &elements));
    SPW_TRY(read_tensor_type(r, t, what, elements));
    SPW_TRY(read_number(r, 8, what, &t->offset));
    if (t->offset != *next)
        return spw_fail(r->err, -EINVAL,
                        "%s: %s: found offset %" PRIu64 ", expected %" PRIu64
                        ", the end of the tensor before it",
                        r->path, what, t->offset, *next);
    if (!spw_add_u64(t->offset, t->bytes, &end) || end > UINT64_MAX - alignment)
        return spw_fail(r->err, -EINVAL, "%s: %s: found an end past 2^64", r->path, what);
    *next = spw_align_up(end, alignment);
    return 0;
}

/* *end: of their data, up to the alignment. */
static int read_tensors(struct spw_gguf *g, struct reader *r, uint64_t n, uint64_t alignment,
                        uint64_t *end)
{
    struct spw_tensor_table *table = &g->tensors;
    *end = 0;
    char what[128];
    SPW_TRY(check_room(r, "tensors", n, LEAST_TENSOR_BYTES));
    table->tensors = spw_alloc_zero((size_t)n, sizeof *table->tensors);
    table->names = spw_alloc((size_t)n * (SPW_GGUF_MOST_NAME + 1));
    if (!table->tensors || !table->names)
        return spw_fail(r->err, -ENOMEM, "%s: out of memory", r->path);
    char *names = table->names;
    for (; table->n < n; table->n++)
        SPW_TRY(read_tensor(r, &table->tensors[table->n], &names, alignment, end));
    qsort(table->tensors, table->n, sizeof *table->tensors, spw_tensor_compare);
    for (size_t i = 1; i < table->n; i++) {
        struct spw_gguf_string name = {table->tensors[i].name, strlen(table->tensors[i].name)};
        if (!strcmp(table->tensors[i - 1].name, name.at))
            return spw_fail(r->err, -EINVAL, "%s: %s: found it twice, expected each tensor once",
                            r->path, shown(what, "tensor", &name));
    }
    return 0;
}

/* ---- the header ---- */

static int read_version(struct reader *r)
{
    uint64_t version = 0;
    SPW_TRY(spw_json_refuse_pointer(r->at, left(r), r->path, r->err));
    if (left(r) < 4 || memcmp(r->at, "GGUF", 4) != 0)
        return spw_fail(
            r->err, -EINVAL,
            "%s: found a file that is not GGUF, expected a GGUF file or a Hugging Face model "
            "folder, not a file in it",
            r->path);
    r->at += 4;
    SPW_TRY(read_number(r, 4, "the version", &version));
    if (version == 2 || version == 3)
        return 0;
    if (version && !(version & 0xffff))
        return spw_fail(r->err, -EINVAL,
                        "%s: found a big-endian file, expected little-endian; convert the model "
                        "for a little-endian machine",
                        r->path);
    return spw_fail(r->err, -EINVAL, "%s: found version %" PRIu64 " of GGUF, expected 2 or 3; %s",
                    r->path, version,
                    version < 2 ? "convert the model again with a current converter"
                                : "this program is too old for the file");
}

/* The keys are read: general.alignment, or the default. */
static int read_alignment(const struct spw_gguf *g, const struct reader *r, uint64_t *out)
{
    const struct spw_gguf_value *v = spw_gguf_find(g, "general.alignment");
    *out = SPW_GGUF_ALIGNMENT;
    if (!v)
        return 0;
    bool number = !v->array && v->type != SPW_GGUF_STRING && v->type != SPW_GGUF_BOOL;
    double x = number ? spw_gguf_number(v, 0) : 0;
    *out = x >= 1 && x <= 1 << 20 ? (uint64_t)x : 0;
    if (*out && (double)*out == x && !(*out & (*out - 1)))
        return 0;
    return spw_fail(r->err, -EINVAL,
                    "%s: key general.alignment: expected a power of two from 1 to 1048576",
                    r->path);
}

static int read_header(struct spw_gguf *g, struct reader *r, const uint8_t *base)
{
    uint64_t n_tensors = 0, n_values = 0, alignment, end, bytes = left(r);
    SPW_TRY(read_version(r));
    SPW_TRY(read_number(r, 8, "the number of tensors", &n_tensors));
    SPW_TRY(read_number(r, 8, "the number of keys", &n_values));
    SPW_TRY(read_values(g, r, n_values));
    SPW_TRY(read_alignment(g, r, &alignment));
    SPW_TRY(read_tensors(g, r, n_tensors, alignment, &end));
    g->header_bytes = spw_min_u64(spw_align_up((uint64_t)(r->at - base), alignment), bytes);
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct spw_tensor *t = &g->tensors.tensors[i];
        if (t->offset + t->bytes > bytes - g->header_bytes)
            return spw_fail(r->err, -EINVAL,
                            "%s: tensor %s: found its end at byte %" PRIu64
                            " of the data, expected at most %" PRIu64 "; the file is cut short",
                            r->path, t->name, t->offset + t->bytes, bytes - g->header_bytes);
    }
    if (n_tensors && bytes - g->header_bytes > end) /* the data may lie elsewhere in it */
        return spw_fail(r->err, -EINVAL,
                        "%s: found %" PRIu64 " bytes of data, expected at most %" PRIu64
                        ", the end of the last tensor; the file is damaged",
                        r->path, bytes - g->header_bytes, end);
    return 0;
}

int spw_gguf_parse(struct spw_gguf *out, const uint8_t *base, uint64_t bytes, const char *path,
                   struct spw_error *err)
{
    struct reader r = {.at = base, .end = base + bytes, .path = path, .err = err};
    *out = (struct spw_gguf){0};
    int rc = read_header(out, &r, base);
    if (rc) {
        spw_gguf_free(out);
        spw_json_tidy(err);
    }
    return rc;
}

void spw_gguf_free(struct spw_gguf *g)
{
    spw_free(g->values);
    spw_tensor_table_free(&g->tensors);
    *g = (struct spw_gguf){0};
}

/* ---- values as JSON ---- */

/* A whole number is exact below 2^53. */
double spw_gguf_number(const struct spw_gguf_value *v, uint64_t i)
{
    unsigned bytes = value_bytes[v->type];
    uint64_t x = load(v->at + i * bytes, bytes);
    switch (v->type) {
    case SPW_GGUF_I8:
        return (int8_t)x;
    case SPW_GGUF_I16:
        return (int16_t)x;
    case SPW_GGUF_I32:
        return (int32_t)x;
    case SPW_GGUF_I64:
        return (double)(int64_t)x;
    case SPW_GGUF_F32: {
        uint32_t bits = (uint32_t)x;
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    case SPW_GGUF_F64: {
        double d;
        memcpy(&d, &x, sizeof d);
        return d;
    }
    default:
        return (double)x;
    }
}

static json_t *describe(const char *format, uint64_t n)
{
    char text[64];
    snprintf(text, sizeof text, format, n);
    return json_string(text);
}

static json_t *string_json(const struct spw_gguf_value *v)
{
    const uint8_t *at = v->at;
    struct spw_gguf_string s = {0};
    bool whole = spw_gguf_next_string(&at, v->at + v->bytes, &s) && s.bytes <= MOST_STRING_BYTES &&
                 !memchr(s.at, 0, s.bytes);
    json_t *text = whole ? json_stringn(s.at, s.bytes) : NULL;
    return text ? text : describe("a string of %" PRIu64 " bytes", s.bytes);
}

static json_t *element_json(const struct spw_gguf_value *v, uint64_t i)
{
    double x = spw_gguf_number(v, i);
    if (v->type == SPW_GGUF_BOOL)
        return json_boolean(x != 0);
    if (!isfinite(x))
        return json_string("a number that is not finite");
    bool whole = v->type != SPW_GGUF_F32 && v->type != SPW_GGUF_F64 && fabs(x) < 0x1p53;
    return whole ? json_integer((json_int_t)x) : json_real(x);
}

static json_t *array_json(const struct spw_gguf_value *v)
{
    if (v->type == SPW_GGUF_STRING || v->n > SPW_GGUF_MOST_ELEMENTS)
        return describe("a list of %" PRIu64, v->n);
    bool same = v->n > 0 && v->type != SPW_GGUF_BOOL;
    for (uint64_t i = 1; i < v->n; i++)
        same = same && spw_gguf_number(v, i) == spw_gguf_number(v, 0);
    if (same)
        return element_json(v, 0);
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < v->n; i++)
        if (json_array_append_new(list, element_json(v, i))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

int spw_gguf_object(const struct spw_gguf *g, const char *prefix, json_t **out)
{
    size_t n = strlen(prefix);
    char key[128];
    *out = json_object();
    for (size_t i = 0; *out && i < g->n_values; i++) {
        const struct spw_gguf_value *v = &g->values[i];
        if (v->key.bytes <= n || v->key.bytes - n >= sizeof key ||
            memcmp(v->key.at, prefix, n) != 0)
            continue; /* no key that the program knows is so long */
        snprintf(key, sizeof key, "%.*s", (int)(v->key.bytes - n), v->key.at + n);
        json_t *value = v->array                     ? array_json(v)
                        : v->type == SPW_GGUF_STRING ? string_json(v)
                                                     : element_json(v, 0);
        if (json_object_set_new_nocheck(*out, key, value)) {
            json_decref(*out);
            *out = NULL;
        }
    }
    return *out ? 0 : -ENOMEM;
}

/* ---- a file ---- */

int spw_gguf_open(struct spw_gguf_file *f, const char *path, struct spw_error *err)
{
    *f = (struct spw_gguf_file){0};
    SPW_TRY(spw_file_map_open(&f->map, path, SPW_GGUF_LEAST_BYTES, err));
    int rc = spw_gguf_parse(&f->gguf, f->map.base, f->map.bytes, path, err);
    return rc ? spw_gguf_close(f, path, rc, err) : 0;
}

int spw_gguf_close(struct spw_gguf_file *f, const char *path, int rc, struct spw_error *err)
{
    if (!rc && f->map.base)
        rc = spw_file_map_check(&f->map, path, err);
    spw_gguf_free(&f->gguf);
    spw_file_map_close(&f->map);
    return rc;
}
