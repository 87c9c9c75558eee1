/* Measuring: the limits of this machine and of a drive, whether a model works with quantized KV,
 * the time that a plan takes. Part of the public API. An engine works without these numbers,
 * and they never change a result. */
#ifndef SPW_RUNTIME_MEASURE_H
#define SPW_RUNTIME_MEASURE_H

#include "base/base.h"
#include "runtime/plan_query.h"
#include "runtime/spillway.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- the machine's own limits, measured now (a second) ---- */

/* A profile is a file with measured numbers. */
enum spw_probe_mode {
    SPW_PROBE_UNKNOWN, /* measure what the profile does not have */
    SPW_PROBE_AGAIN,   /* measure in any case */
    SPW_PROBE_NEVER,   /* never measure: -ENODATA for what the profile does not have */
};

/* What a product multiplies. */
enum spw_product {
    SPW_PRODUCT_F32,      /* rows and weights in f32 (or 16 bits, widened) */
    SPW_PRODUCT_BF16,     /* both in bf16 */
    SPW_PRODUCT_INT8,     /* int8 activations and quantized weights */
    SPW_PRODUCT_UNPACKED, /* rows in f32 and quantized weights, which are taken apart */
    SPW_PRODUCTS,
};
enum spw_product spw_product_of(enum spw_dtype compute, bool quantized, bool int8_activations);
/* "f32", "bf16", "int8", "f32_quantized" */
const char *spw_product_name(enum spw_product product);

/* Each speed is measured in several rounds, in turn with the others. Other work on the machine only
 * makes a round slower. */
struct spw_machine {
    char cpu[128], isa[32], gpu[80]; /* gpu: "" where the CPU computes */
    uint32_t threads, cores;         /* cores: those that this process may use, for any `threads` */
    double read_bytes_per_second;    /* the device reads its memory, a CPU with all threads */
    double copy_bytes_per_second;    /* host to device, as a copy of a ring: 64 MiB */
    double host_bytes_per_second;    /* beside a GPU: the processor multiplies quantized weights in
                                        host memory, one row; where the CPU computes: 0 */
    /* Multiplications and additions a second in products of the device's kernels with one row,
     * whose weights come from memory, and with many rows. */
    double few_flops[SPW_PRODUCTS], many_flops[SPW_PRODUCTS];
    int64_t measured_at; /* seconds since 1970 */
    /* Not part of the profile: */
    /* How much the speed that changed most differs, fastest over median round. Above 3 other
     * programs run, and a profile does not get the numbers. 0: they are from the profile. */
    double spread;
    char note[320];     /* that the profile could not be used; or "" */
    char unstored[320]; /* why the numbers were not stored; or "" */
};

/* Measures the device that `o` names (backend, device_index, threads). `typical`: by the median
 * rounds, for the time that work probably takes. `best` (may be NULL): by the fastest rounds, to
 * compare other work with. -ECANCELED: o->interrupt was raised, and stays raised for the next
 * step. */
int spw_machine_probe(struct spw_machine *typical, struct spw_machine *best,
                      const struct spw_options *o, struct spw_error *err);
/* The typical numbers of the profile (NULL: none), or new ones, which are stored. A profile that
 * cannot be used is no failure: out->note says so. Nor is a profile that cannot be written. */
int spw_machine_recall(struct spw_machine *out, const struct spw_options *o, const char *profile,
                       enum spw_probe_mode mode, struct spw_error *err);

/* Computes small products whose bits are known on the device that `o` names (backend, device_index,
 * threads), with the operations that a run uses. `device`: its name. -EBADMSG: it gives other
 * numbers, and the text says where. */
int spw_self_test(char device[80], const struct spw_options *o, struct spw_error *err);

/* Where the threads of one role run. */
struct spw_role_info {
    uint32_t n_threads;
    bool bound;        /* to `threads`; else the system chooses */
    char threads[128]; /* hardware threads by the system's numbers, "0-7,16-23" */
};

/* The part of this machine that this process may use, and what a run would do with it. */
struct spw_topology_info {
    char cpu[128];
    uint32_t n_cores, n_threads, n_nodes; /* by control group and affinity */
    char usable[128];                     /* the n_threads hardware threads, as above */
    uint32_t quota;           /* processors whose time the control group grants; 0: no limit */
    uint64_t memory_bytes;    /* of the machine */
    uint64_t available_bytes; /* memory that this process can still allocate */
    char backend[80];
    struct spw_role_info compute, transfer, io;
    char why[96]; /* they run there */
};

/* The threads are those of a run with these options (backend, device_index, threads, disk_dir).
 * -EIO: hwloc cannot read this machine. */
int spw_machine_topology(struct spw_topology_info *out, const struct spw_options *o,
                         struct spw_error *err);

/* ---- the drive: measured once, then stored ---- */

/* The drive behind a directory, as the disk tier uses it: records of request_bytes with checksums,
 * O_DIRECT where it is allowed. */
struct spw_drive {
    char device[192];    /* model and serial number; without them its number, name and size */
    char filesystem[32]; /* "ext4" */
    enum spw_io_kind io; /* as in the options */
    char engine[128];    /* what read and wrote, as spw_engine_io says it */
    bool direct;         /* false: through the page cache, which is part of the numbers */
    uint64_t request_bytes;
    uint32_t queue_depth; /* requests in flight: bandwidth times latency, from 8 to 64 */
    double read_bytes_per_second, write_bytes_per_second; /* with that many requests in flight */
    double latency_seconds;                               /* of a single request */
    /* The same for small requests: rings may have slots smaller than request_bytes. */
    uint64_t small_request_bytes;
    double small_read_bytes_per_second;
    int64_t measured_at; /* seconds since 1970 */
    /* Not part of the profile: */
    uint64_t written_bytes; /* by this measuring; 0: the numbers are from the profile */
    char note[320];         /* that the profile could not be used; or "" */
    char unstored[320];     /* why the profile could not be written; or "" */
};

struct spw_drive_options {
    const char *directory;
    const char *profile; /* NULL: none */
    enum spw_probe_mode mode;
    enum spw_io_kind io;
    uint64_t write_limit_bytes; /* the most bytes that measuring may write; 0: 128 MiB */
};

/* The numbers of the profile, or new ones. Measuring takes about a second and writes to an
 * anonymous file in the directory. A damaged profile is replaced. -ENOENT, -ENOTDIR, -EACCES,
 * -EROFS, -ENOSPC, -EDQUOT (the limit is under 8 MiB): the directory cannot be used. */
int spw_drive_probe(struct spw_drive *out, const struct spw_drive_options *o,
                    struct spw_error *err);

/* ---- the gate: whether a model works with quantized KV; checked once, then stored ---- */

enum { SPW_GATE_FORMATS = 3 };

/* The result for one format: the same text with old KV in this format, and with all KV exact.
 * Divergences are Kullback-Leibler, in nats, of the next-token distribution with quantized KV from
 * the exact distribution. */
struct spw_gate_result {
    enum spw_kv_precision precision; /* given by the caller */
    bool passes;
    bool known;           /* the result is from the profile, not measured now */
    uint64_t n_positions; /* positions that were compared: they read quantized tiles */
    uint64_t n_sure;      /* of these: exact KV gives one token twice the probability of the next */
    uint64_t n_sharpened; /* of these: the distribution is so flat that it was sharpened first */
    double kl_median, kl_p999; /* half of the positions, 99.9 % of them, are not above it */
    double same_top,
        same_sure; /* the share of positions with the same likeliest token; of n_sure */
    uint64_t bytes_per_token, exact_bytes_per_token; /* of KV, full-attention layers */
    int64_t measured_at;                             /* seconds since 1970 */
    char note[320];                                  /* why the format does not pass; or "" */
    char unstored[320]; /* why the profile could not be written; or "" */
};

struct spw_gate_options {
    const char *profile; /* the file with results; NULL: none */
    enum spw_probe_mode mode;
};

/* Fills in results[n]: the caller sets `precision` of each, none of them EXACT; n is at most
 * SPW_GATE_FORMATS. Measures results that the profile does not have, on two engines within the
 * budgets of `o`: some seconds for a small model, a minute for 1 GB on few cores. `o->precision`
 * does not matter, and of `o->residual_window` only whether it is SPW_NONE. A format that
 * does not pass is no failure. -ENODATA: the profile does not have a result, and mode is NEVER.
 * -ENOMEM: two engines do not fit. Other errors are those of spw_engine_open and spw_sync. */
int spw_gate_check(struct spw_gate_result *results, size_t n, const char *model_dir,
                   const struct spw_options *o, const struct spw_gate_options *g,
                   struct spw_error *err);

/* ---- the time that a plan takes on this machine, from bytes and measured limits ----
 *
 * An estimate, which may be wrong by 30 %, and by more for models whose tokens take less than some
 * milliseconds. */

enum spw_bound { SPW_BOUND_COMPUTE, SPW_BOUND_LINK, SPW_BOUND_DISK };

struct spw_prediction {
    /* The time of each alone; on the CPU, compute_seconds includes the time that copies take from
     * its cores. */
    double compute_seconds, link_seconds, disk_seconds;
    double seconds;       /* the longest of them: they overlap */
    enum spw_bound bound; /* which of them is the longest */
};

/* One decode step at the full context. Pure. `d`: NULL without a disk. */
void spw_predict_step(struct spw_prediction *out, const struct spw_plan_info *p,
                      const struct spw_machine *m, const struct spw_drive *d);
/* A token of an answer on a GPU that need not be here, at these rates: nothing is measured. */
struct spw_simulation {
    struct spw_plan_info plan;  /* of the GPU; decode_moved_bytes: of a token of the answer */
    struct spw_prediction step; /* computation counts as the reading of its bytes */
};
/* Steps through an engine that only counts, whose GPU has card_bytes of memory: a prompt, and n_new
 * tokens after it. o: context, budgets and host_compute; the device is not used. What experts miss
 * is what the plan expects. Errors as of spw_plan_query. */
int spw_simulate(struct spw_simulation *out, const char *model, const struct spw_options *o,
                 const struct spw_machine *m, const struct spw_drive *d, uint64_t card_bytes,
                 uint64_t n_prompt, uint64_t n_new, struct spw_error *err);
/* A prompt: its tokens, and its multiplications and additions: products with weights, and attention
 * (4 for each channel of a head and pair of a query and a key). */
struct spw_prompt_work {
    double product_flops, attention_flops, tokens;
};
/* A prompt of the full context with this work. */
void spw_predict_prompt(struct spw_prediction *out, const struct spw_plan_info *p,
                        const struct spw_prompt_work *work, const struct spw_machine *m,
                        const struct spw_drive *d);
/* "computation", "host link", "disk" */
const char *spw_bound_name(enum spw_bound bound);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
