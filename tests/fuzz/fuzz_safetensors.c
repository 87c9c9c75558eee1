/* libFuzzer target of the two JSON texts of a safetensors folder. The first two bytes say how much
 * data lies behind the header (little-endian, times 16); the rest is read as a header, then as an
 * index. Accepted tensors lie inside the data, apart from each other, and are found sorted.
 *
 *   build/fuzz/fuzz_safetensors -max_total_time=60 tests/fuzz/seeds/safetensors */
#include "base/numbers.h"
#include "model/source/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void expect(bool promise)
{
    if (!promise)
        abort();
}

static void check_table(const struct spw_tensor_table *table, uint64_t data_bytes)
{
    uint64_t total = 0;
    for (size_t i = 0; i < table->n; i++) {
        const struct spw_tensor *t = &table->tensors[i];
        expect(!i || strcmp(table->tensors[i - 1].name, t->name) < 0);
        expect(t->n_dims <= SPW_TENSOR_MAX_DIMS && t->offset <= data_bytes);
        expect(t->bytes <= data_bytes - t->offset);
        uint64_t elements = 1;
        for (uint32_t d = 0; d < t->n_dims; d++)
            elements *= t->shape[d];
        if (t->dtype != SPW_DTYPE_AUTO)
            expect(t->bytes == elements * spw_dtype_bytes(t->dtype));
        total += t->bytes;
    }
    expect(total <= data_bytes); /* or two of them overlap */
}

static void check_index(json_t *map)
{
    const char *name;
    json_t *file;
    expect(json_object_size(map) > 0);
    json_object_foreach(map, name, file)
        expect(json_is_string(file) && !strchr(json_string_value(file), '/'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2)
        return 0;
    uint64_t data_bytes = 16 * (data[0] + 256u * data[1]);
    const char *text = (const char *)data + 2;
    struct spw_error err = {0};
    struct spw_tensor_table table;
    if (spw_safetensors_parse_header(&table, text, bytes - 2, data_bytes, "header", &err))
        expect(err.text[0] && !strchr(err.text, '\n') && !table.tensors);
    else
        check_table(&table, data_bytes);
    spw_tensor_table_free(&table);

    json_t *map;
    spw_error_clear(&err);
    if (spw_safetensors_parse_index(&map, text, bytes - 2, "index", &err))
        expect(err.text[0] && !strchr(err.text, '\n') && !map);
    else
        check_index(map);
    json_decref(map);
    expect(spw_alloc_outstanding() == 0);
    return 0;
}
