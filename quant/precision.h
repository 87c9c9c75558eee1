/* How precisely old keys and values are kept: a choice of the user, see quant/qtile.h for the
 * formats.
 */
#ifndef SPW_QUANT_PRECISION_H
#define SPW_QUANT_PRECISION_H

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Of old keys and values. Codes of 8 bits, of 4, or of 8 for keys and 4 for values. */
enum spw_kv_precision {
    SPW_KV_EXACT,
    SPW_KV_INT8,
    SPW_KV_INT8_INT4,
    SPW_KV_INT4,
};
enum { SPW_KV_PRECISIONS = SPW_KV_INT4 + 1 };

/* "exact", "int8", "int8:int4", "int4" */
const char *spw_kv_precision_name(enum spw_kv_precision precision);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
