#include "tools/command/serve/room.h"

int serve_share_grow(struct serve_share *s, uint64_t bytes, struct request_refusal *why)
{
    const uint64_t more = spw_sub_u64(bytes, s->bytes);
    struct serve_room *r = s->room;
    if (!r || !more)
        return 0;
    if (bytes > r->most)
        return request_refuse(why, 413, "request_too_large", NULL,
                              "the request and its answers take %llu bytes, more than the %llu "
                              "that this server has for all requests (4 times --max-body)",
                              (unsigned long long)bytes, (unsigned long long)r->most);
    if (atomic_fetch_add(&r->taken, more) + more > r->most) {
        atomic_fetch_sub(&r->taken, more);
        return request_refuse(why, 503, "no_room", NULL,
                              "other requests take the memory for requests now; ask again later");
    }
    s->bytes = bytes;
    return 0;
}

void serve_share_give_back(struct serve_share *s)
{
    if (s->room)
        atomic_fetch_sub(&s->room->taken, s->bytes);
    s->bytes = 0;
}
