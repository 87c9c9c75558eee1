/* The engine's side of the prefix cache (offload/store/prefix_store.h). Sessions begin with tiles
 * that any process has computed earlier, and publish their own tiles for others. spillway.h has the
 * public part.
 *
 * Old tiles are attached: they stay in the files of the store. The ring streams them, or they are
 * loaded when the residency is applied. Where layers have windows or old tiles are quantized, a
 * session can begin only at a checkpoint. The few exact tiles of the checkpoint are read at once.
 * The engine's thread. */
#ifndef SPW_RUNTIME_PERSIST_PREFIX_H
#define SPW_RUNTIME_PERSIST_PREFIX_H

#include "runtime/engine/engine.h"

extern const struct spw_persist_hooks spw_prefix_hooks;

#endif
