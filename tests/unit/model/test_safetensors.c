/* Safetensors folders: correct ones are read back byte for byte, and every kind of damage has its
 * own message. Files are written into a fresh temporary folder. */
#include "base/numbers.h"
#include "model/source/safetensors.h"
#include "tests/folder.h"
#include "tests/json_text.h"

static void drop(const char *name)
{
    unlink(in_folder(name));
}

/* length | header | data_bytes of 0, 1, 2, ... */
static void write_file(const char *name, const char *text, size_t data_bytes)
{
    const char *header = json_quoted(text);
    size_t n = strlen(header);
    uint8_t *bytes = calloc(8 + n + data_bytes, 1);
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + n + i] = (uint8_t)i;
    write_bytes(name, bytes, 8 + n + data_bytes);
    free(bytes);
}

static void refuse_folder(int code, const char *message)
{
    struct spw_error err = {0};
    struct spw_tensors *st = NULL;
    int rc = spw_safetensors_open(&st, folder, &err);
    CHECK_MSG(rc == code, "'%s' gave %d", message, rc);
    CHECK_MSG(strstr(err.text, message) && !strchr(err.text, '\n'), "found '%s', expected '%s'",
              err.text, message);
    CHECK(!st);
    spw_tensors_close(st);
}

/* One header and 16 bytes of data. */
static void refuse_header(const char *text, const char *found)
{
    const char *header = json_quoted(text), *message = json_quoted(found);
    struct spw_error err = {0};
    struct spw_tensor_table table;
    int rc = spw_safetensors_parse_header(&table, header, strlen(header), 16, "f", &err);
    CHECK_MSG(rc == -EINVAL, "%s gave %d", header, rc);
    CHECK_MSG(!strncmp(err.text, "f: ", 3) && strstr(err.text, message) && !strchr(err.text, '\n'),
              "found '%s', expected '%s'", err.text, message);
    CHECK(!table.tensors && !table.names && !table.n);
    CHECK(spw_safetensors_parse_header(&table, header, strlen(header), 16, "f", NULL) == -EINVAL);
}

static void test_one_file(void)
{
    write_file("model.safetensors",
               "{'__metadata__': {'format': 'pt'},'b': {'dtype': 'BF16', 'shape': [2, 3], "
               "'data_offsets': [8, 20]},'a': {'dtype': 'F32', 'shape': [2], 'data_offsets': [0, "
               "8]},'scalar': {'dtype': 'F16', 'shape': [], 'data_offsets': [20, 22]},'none': "
               "{'dtype': 'F32', 'shape': [0, 5], 'data_offsets': [22, 22]},'ids': {'dtype': "
               "'I64', 'shape': [1], 'data_offsets': [24, 32]}}",
               32); /* a hole before ids, which does no harm */
    struct spw_error err = {0};
    struct spw_tensors *st;
    CHECK(!spw_safetensors_open(&st, folder, &err));
    CHECK(spw_tensors_count(st) == 5 && spw_tensors_total_bytes(st) == 30);
    const struct spw_tensor *b = spw_tensors_find(st, "b");
    CHECK(b && b->dtype == SPW_DTYPE_BF16 && b->n_dims == 2 && b->shape[0] == 2 &&
          b->shape[1] == 3);
    CHECK(b && b->bytes == 12 && b->offset == 8 && strstr(b->file, "/model.safetensors"));
    for (size_t i = 0; b && i < 12; i++)
        CHECK(((const uint8_t *)b->data)[i] == 8 + i);
    const struct spw_tensor *scalar = spw_tensors_find(st, "scalar");
    CHECK(scalar && scalar->n_dims == 0 && scalar->bytes == 2 && scalar->dtype == SPW_DTYPE_F16);
    const struct spw_tensor *ids = spw_tensors_find(st, "ids");
    CHECK(ids && ids->dtype == SPW_DTYPE_AUTO && !strcmp(ids->dtype_name, "I64"));
    CHECK(ids && *(const uint8_t *)ids->data == 24);
    const struct spw_tensor *none = spw_tensors_find(st, "none");
    CHECK(none && none->bytes == 0);
    CHECK(!spw_tensors_find(st, "c") && !spw_tensors_find(st, "__metadata__"));
    CHECK(!strcmp(spw_tensors_at(st, 0)->name, "a") && !spw_tensors_at(st, 5));
    spw_tensors_release(none->data, none->bytes);
    spw_tensors_release(b->data, b->bytes);
    CHECK(b && *(const uint8_t *)b->data == 8); /* released data can be read again */
    spw_tensors_close(st);
    spw_tensors_close(NULL);
    write_file("model.safetensors", "{}", 0);
    CHECK(!spw_safetensors_open(&st, folder, &err));
    CHECK(!spw_tensors_count(st) && !spw_tensors_find(st, "a"));
    spw_tensors_close(st);
    drop("model.safetensors");
}

#define ONE(dtype, shape, offsets)                                                                 \
    "{'t': {'dtype': " dtype ", 'shape': " shape ", 'data_offsets': " offsets "}}"

static void test_bad_headers(void)
{
    refuse_header("", "found the end of the text");
    refuse_header("{'t': ", "expected a value");
    refuse_header("[1]", "found a list of 1, expected a JSON object");
    refuse_header("{'t': 1}", "tensor t: found 1, expected an object");
    refuse_header("{'t': {}, 't': {}}", "found the key \"t\" twice");
    refuse_header("{'__metadata__': []}", "__metadata__: found a list of 0, expected an object");
    refuse_header(ONE("null", "[4]", "[0, 16]"), "tensor t: dtype: found null, expected a safe");
    refuse_header(ONE("'F31'", "[4]", "[0, 16]"), "tensor t: dtype: found 'F31'");
    refuse_header(ONE("32", "[4]", "[0, 16]"), "tensor t: dtype: found 32, expected a string");
    refuse_header(ONE("'F32'", "4", "[0, 16]"), "tensor t: shape: found 4, expected a list");
    refuse_header(ONE("'F32'", "[4.0]", "[0, 16]"), "tensor t: shape: found a list of 1");
    refuse_header(ONE("'F32'", "[-4]", "[0, 16]"), "sizes that are integers");
    refuse_header(ONE("'F32'", "[1,1,1,1,1,1,1,1,4]", "[0, 16]"), "a list of at most 8 sizes");
    refuse_header(ONE("'F32'", "[4294967296, 4294967296]", "[0, 16]"), "fewer than 2^64 elements");
    refuse_header(ONE("'F32'", "[4611686018427387908]", "[0, 16]"), "found 16 bytes, expected 46");
    refuse_header(ONE("'F32'", "[3]", "[0, 16]"), "found 16 bytes, expected 3 elements of 32 bits");
    refuse_header(ONE("'F4'", "[3]", "[0, 1]"), "found 1 bytes, expected 3 elements of 4 bits");
    refuse_header(ONE("'F32'", "[4]", "[0]"), "data_offsets: found a list of 1, expected two");
    refuse_header(ONE("'F32'", "[4]", "16"), "data_offsets: found 16, expected two integers");
    refuse_header(ONE("'F32'", "[4]", "[16, 0]"), "expected two integers, begin and end");
    refuse_header(ONE("'F32'", "[4]", "[-16, 0]"), "expected two integers, begin and end");
    refuse_header(ONE("'F32'", "[4]", "[0.0, 16.0]"), "expected two integers, begin and end");
    refuse_header(ONE("'F32'", "[4]", "[8, 24]"), "found an end at 24, expected at most 16");
    refuse_header(ONE("'F32'", "[4]", "[9223372036854775791, 9223372036854775807]"),
                  "found an end at 9223372036854775807");
    refuse_header(
        "{'a': {'dtype': 'U8', 'shape': [8], 'data_offsets': [0, 8]},'b': {'dtype': 'U8', 'shape': "
        "[8], 'data_offsets': [4, 12]}}",
        "tensor b: data_offsets: found a begin at 4, expected at least 8, the end of tensor a");
    refuse_header("{'a': {'dtype': 'U8', 'shape': [8], 'data_offsets': [0, 8]},'b': {'dtype': "
                  "'U8', 'shape': [8], 'data_offsets': [0, 8]}}",
                  "expected at least 8, the end of tensor");
    refuse_header(ONE("'F32'", "[3]", "[0, 12]"),
                  "found 16 bytes after the header, expected 12, the end of the last tensor");
    refuse_header("{}", "found 16 bytes after the header, expected 0");
    refuse_header("{'two\\nlines': 1}", "tensor two?lines: found 1");
}

static void test_bad_files(void)
{
    refuse_folder(-ENOENT, "found neither model.safetensors nor model.safetensors.index.json");
    struct spw_error err = {0};
    struct spw_tensors *st;
    CHECK(spw_safetensors_open(&st, "/nonexistent", &err) == -ENOENT && !st);
    write_bytes("model.safetensors", "", 0);
    refuse_folder(-EINVAL, "model.safetensors: found 0 bytes, expected a file of at least 8");
    write_bytes("model.safetensors", "1234567", 7);
    refuse_folder(-EINVAL, "found 7 bytes");
    write_bytes("model.safetensors", "\3\0\0\0\0\0\0\0{}", 10); /* the file is cut short */
    refuse_folder(-EINVAL,
                  "header: found a length of 3, expected at most 2; the file is cut short");
    write_bytes("model.safetensors", "\377\377\377\377\377\377\377\377{}", 10);
    refuse_folder(-EINVAL, "header: found a length of 18446744073709551615, expected at most 2");
    write_bytes("model.safetensors", "\0\0\0\0\0\0\0\0", 8);
    refuse_folder(-EINVAL, "model.safetensors: line");
    write_file("model.safetensors", ONE("'F32'", "[4]", "[0, 16]"), 15);
    refuse_folder(-EINVAL, "tensor t: data_offsets: found an end at 16, expected at most 15, the "
                           "bytes after the header; the file is cut short");
    const char *path = in_folder("model.safetensors");
    FILE *file = fopen(path, "wb"); /* sparse: a length that the file has, but no header has */
    CHECK(file && fwrite("\1\341\365\5\0\0\0\0", 1, 8, file) == 8 &&
          !fseek(file, 100000100, SEEK_SET) && fwrite("x", 1, 1, file) == 1 && !fclose(file));
    refuse_folder(-EINVAL, "header: found a length of 100000001, expected at most 100000000");
    drop("model.safetensors");
    CHECK(!symlink("/", in_folder("model.safetensors"))); /* a folder where a file should be */
    refuse_folder(-EINVAL, "expected a regular file");
    drop("model.safetensors");
}

/* A wrong length of the header shifts all weights: padding would hide that. */
static void test_lengths(void)
{
    static const char header[] = ONE("'F32'", "[4]", "[0, 16]") "      ";
    const char *path = in_folder("model.safetensors");
    for (int by = -6; by <= 2; by += 2) {
        write_file("model.safetensors", header, 16);
        FILE *file = fopen(path, "r+b");
        CHECK(file && fputc((int)sizeof header - 1 + by, file) != EOF && !fclose(file));
        struct spw_error err = {0};
        struct spw_tensors *st;
        CHECK_MSG(spw_safetensors_open(&st, folder, &err) == (by ? -EINVAL : 0), "%d: %s", by,
                  err.text);
        CHECK_MSG(by >= 0 || strstr(err.text, "the header's length is wrong"), "%s", err.text);
        spw_tensors_close(st);
    }
    write_file("model.safetensors", header, 17);
    refuse_folder(-EINVAL, "found 17 bytes after the header, expected 16");
    drop("model.safetensors");
}

/* There is no writer: a wait would never end. */
static void test_fifos(void)
{
    const char *path = in_folder("model.safetensors");
    CHECK(!mkfifo(path, 0600));
    refuse_folder(-EINVAL, "model.safetensors: found a FIFO, expected a regular file");
    drop("model.safetensors");
    CHECK(!mkfifo(in_folder("model.safetensors.index.json"), 0600));
    refuse_folder(-EINVAL, "index.json: found a FIFO, expected a regular file");
    drop("model.safetensors.index.json");
}

/* A file that is cut short during a read: zeros instead of a signal, and the check reports it. */
static void test_cut_short(void)
{
    enum { N = 1 << 20 };
    char header[128];
    snprintf(header, sizeof header, ONE("'U8'", "[%d]", "[0, %d]"), N, N);
    const char *path = in_folder("model.safetensors");
    for (int way = 0; way < 3; way++) {
        write_file("model.safetensors", header, N);
        struct spw_error err = {0};
        struct spw_tensors *st;
        CHECK(!spw_safetensors_open(&st, folder, &err));
        const uint8_t *data = spw_tensors_find(st, "t")->data;
        CHECK(!spw_tensors_damaged(st) && !spw_tensors_check(st, &err) && data[255] == 255);
        if (way == 0) { /* cut, and read */
            CHECK(!truncate(path, 4096));
            for (size_t i = 8192; i < N; i += 1000)
                CHECK(data[i] == 0);
            CHECK(spw_tensors_damaged(st));
        } else if (way == 1) { /* cut, and not read */
            CHECK(!truncate(path, N / 2));
        } else { /* other weights of the same size */
            FILE *file = fopen(path, "r+b");
            CHECK(file && !fseek(file, -1, SEEK_END) && fputc(9, file) == 9 && !fclose(file));
        }
        CHECK(spw_tensors_check(st, &err) == -EIO);
        CHECK_MSG(strstr(err.text, way < 2 ? "model.safetensors: the file had " : "was written to"),
                  "%s", err.text);
        spw_tensors_close(st);
    }
    drop("model.safetensors");
}

#define SHARD(name) "{'" name "': {'dtype': 'U8', 'shape': [4], 'data_offsets': [0, 4]}}"

static void write_index(const char *text)
{
    write_bytes("model.safetensors.index.json", json_quoted(text), strlen(text));
}

static void refuse_index(const char *text, int code, const char *message)
{
    write_index(text);
    refuse_folder(code, message);
}

static void test_shards(void)
{
    struct spw_error err = {0};
    struct spw_tensors *st;
    write_file("one.safetensors", SHARD("a"), 4);
    write_file("two.safetensors", SHARD("b"), 4);
    write_index("{'metadata': {'total_size': 8}, 'weight_map': {'a': 'one.safetensors','b': "
                "'two.safetensors'}}");
    CHECK(!spw_safetensors_open(&st, folder, &err));
    CHECK(spw_tensors_count(st) == 2 && spw_tensors_total_bytes(st) == 8);
    const struct spw_tensor *b = spw_tensors_find(st, "b");
    CHECK(b && strstr(b->file, "/two.safetensors") && ((const uint8_t *)b->data)[3] == 3);
    CHECK(spw_tensors_n_files(st) == 2 && b &&
          !strcmp(spw_tensors_path(st, b->file_index), b->file));
    CHECK(b && b->file_offset == 8 + strlen(SHARD("b"))); /* its data begins after the header */
    spw_tensors_close(st);

    refuse_index("{'weight_map': {'a': 'one.safetensors', 'b': 'gone.safetensors'}}", -ENOENT,
                 "/gone.safetensors: found no such file, expected a shard that");
    refuse_index("{'weight_map': {'a': 'one.safetensors', 'c': 'two.safetensors'}}", -EINVAL,
                 "weight_map.c: found two.safetensors, but the tensor is in no shard");
    refuse_index("{'weight_map': {'a': 'two.safetensors', 'b': 'one.safetensors'}}", -EINVAL,
                 "weight_map.a: found two.safetensors, but the tensor is in one.safe");
    static const char *const outside[] = {"../one.safetensors", "/etc/passwd", "", ".", "..",
                                          "a/b.safetensors"};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "{'weight_map': {'a': '%s'}}", outside[i]);
        refuse_index(text, -EINVAL, "expected the name of a file in the same folder");
    }
    refuse_index("{'weight_map': {'a': 1}}", -EINVAL, "weight_map.a: found 1, expected the name");
    refuse_index("{'weight_map': []}", -EINVAL,
                 "weight_map: found a list of 0, expected an object");
    refuse_index("{'weight_map': {}}", -EINVAL, "weight_map: found an object, expected");
    refuse_index("{'metadata': {}}", -EINVAL, "weight_map: found nothing, expected an object");
    refuse_index("[]________", -EINVAL, "expected the end of the text");
    write_file("two.safetensors", SHARD("a"), 4);
    refuse_index("{'weight_map': {'a': 'one.safetensors', 'b': 'two.safetensors'}}", -EINVAL,
                 "tensor a: found it also in");
    drop("one.safetensors");
    drop("two.safetensors");
    drop("model.safetensors.index.json");
}

static size_t resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*u %lu", &pages) != 1)
        abort();
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Reading weights must not increase the resident size of the process by their size. */
static void test_release(void)
{
    enum { MIB = 1 << 20, N = 32 * MIB };
    char header[128];
    snprintf(header, sizeof header, ONE("'U8'", "[%d]", "[0, %d]"), N, N);
    write_file("model.safetensors", header, N);
    struct spw_error err = {0};
    struct spw_tensors *st;
    CHECK(!spw_safetensors_open(&st, folder, &err));
    const struct spw_tensor *t = spw_tensors_find(st, "t");
    uint64_t sum = 0;
    size_t before = resident_bytes();
    for (size_t i = 0; i < N; i++)
        sum += ((const uint8_t *)t->data)[i];
    CHECK(sum == (uint64_t)N / 256 * (255 * 256 / 2));
    CHECK(resident_bytes() > before + N / 2);
    spw_tensors_release(t->data, t->bytes);
    CHECK(resident_bytes() < before + N / 4);
    CHECK(((const uint8_t *)t->data)[N - 1] == 255);
    spw_tensors_close(st);
    drop("model.safetensors");
}

/* Files of another writer, huggingface's own. */
static void test_golden_folders(void)
{
    static const char *const folders[] = {"llama_plain", "llama_sharded", "llama_f16",
                                          "llama_mha_tied"};
    static const enum spw_dtype dtypes[] = {SPW_DTYPE_F32, SPW_DTYPE_F32, SPW_DTYPE_F16,
                                            SPW_DTYPE_BF16};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char path[128];
        struct spw_error err = {0};
        struct spw_tensors *st;
        snprintf(path, sizeof path, "tests/golden/%s", folders[i]);
        int rc = spw_safetensors_open(&st, path, &err);
        CHECK_MSG(rc == 0, "%s", err.text);
        if (rc)
            continue;
        const struct spw_tensor *t = spw_tensors_find(st, "model.layers.2.mlp.down_proj.weight");
        CHECK(t && t->dtype == dtypes[i] && t->n_dims == 2 && t->shape[1] == 40);
        CHECK(t && t->bytes == t->shape[0] * t->shape[1] * spw_dtype_bytes(t->dtype));
        CHECK(!spw_tensors_find(st, "lm_head.weight") == (i == 3)); /* tied */
        spw_tensors_close(st);
    }
}

/* Every allocation and every mapping fails once. */
static void test_failed_allocations(void)
{
    static const char *const folders[] = {"tests/golden/llama_plain", "tests/golden/llama_sharded"};
    for (size_t i = 0; i < 2; i++) {
        int n_failed = 0;
        for (int64_t n = 0;; n++) {
            struct spw_error err = {0};
            struct spw_tensors *st;
            spw_alloc_fail_nth(n);
            int rc = spw_safetensors_open(&st, folders[i], &err);
            spw_alloc_fail_nth(-1);
            if (!rc) {
                spw_tensors_close(st);
                break;
            }
            n_failed++;
            CHECK_MSG(rc == -ENOMEM && err.text[0] && !st, "%d: %s", rc, err.text);
            CHECK(spw_alloc_outstanding() == 0);
        }
        CHECK(n_failed >= 8);
    }
}

int main(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    open_folder("safetensors");
    test_one_file();
    test_bad_headers();
    test_bad_files();
    test_lengths();
    test_fifos();
    test_cut_short();
    test_shards();
    test_release();
    test_golden_folders();
    test_failed_allocations();
    close_folder();
    CHECK(spw_alloc_outstanding() == 0);
    CHECK(json_outstanding == 0);
    return check_done();
}
