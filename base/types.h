/* Plain types that the public headers share: errors, precisions of the KV cache.
 *
 * Functions return 0 or -errno. Only slow calls give a text, through their last argument `struct
 * spw_error *`, which may be NULL. */
#ifndef SPW_BASE_TYPES_H
#define SPW_BASE_TYPES_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* what the shared library exports */

/* A budget that was part of a refusal. */
struct spw_refused_budget {
    uint64_t given_bytes;
    /* The smallest budget that works beside the other budgets as they are; if no budget does,
     * beside the smallest other budgets that work. More than given_bytes: this budget is too small.
     */
    uint64_t smallest_bytes;
    bool alone; /* it works beside the other budgets as they are */
};
enum spw_budget { SPW_BUDGET_DEVICE, SPW_BUDGET_HOST, SPW_BUDGET_DISK, SPW_BUDGETS };

/* One line: what is wrong, where (file, tensor, key), what was expected, what to do. The line
 * names a setting as "options." and the member of struct spw_options: "raise
 * options.device_bytes". A program with other names for its settings replaces these names before
 * it shows the line. Every public function with a struct spw_error clears it first. */
struct spw_error {
    char text[1024];
    bool refuses_budgets; /* with -ENOMEM: no plan works within the budgets, and these would do */
    struct spw_refused_budget budgets[SPW_BUDGETS];
};
void spw_error_clear(struct spw_error *err);

/* "40.00MiB", as options accept it. Rounded up: a budget given so is never too small. Returns
 * `buffer`. */
const char *spw_bytes_text(char buffer[32], uint64_t bytes);

/* How old keys and values are stored: exact, or as codes of 8 bits, of 8 bits for keys and 4 for
 * values, or of 4 bits. */
enum spw_kv_precision {
    SPW_KV_EXACT,
    SPW_KV_INT8,
    SPW_KV_INT8_INT4,
    SPW_KV_INT4,
};
enum { SPW_KV_PRECISIONS = SPW_KV_INT4 + 1 };

/* "exact", "int8", "int8:int4", "int4" */
const char *spw_kv_precision_name(enum spw_kv_precision precision);

/* What reads and writes the files of KV: io_uring where the system allows it, or threads. */
enum spw_io_kind { SPW_IO_AUTO, SPW_IO_URING, SPW_IO_THREADS };

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
