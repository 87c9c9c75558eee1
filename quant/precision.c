/* Names of precisions: see precision.h. */
#include "quant/precision.h"

const char *spw_kv_precision_name(enum spw_kv_precision precision)
{
    static const char *const names[] = {[SPW_KV_EXACT] = "exact",
                                        [SPW_KV_INT8] = "int8",
                                        [SPW_KV_INT8_INT4] = "int8:int4",
                                        [SPW_KV_INT4] = "int4"};
    return names[precision];
}
