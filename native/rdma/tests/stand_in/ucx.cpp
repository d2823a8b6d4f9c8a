// A UCX that connects nothing and counts: for tests of what the lane does around it. Built as libucp.so.0. Requests never
// end; when the worker is destroyed, every endpoint that was ever made reports an error, as a real one may until then.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>

namespace {

struct Params {
    std::uint64_t field_mask;
    const void* address;
    int error_mode;
    void (*error_handler)(void*, void*, int);
    void* error_argument;
};

std::deque<Params> endpoints;
int closed = 0, forced = 0;

}  // namespace

extern "C" {

void ucp_get_version(unsigned* major, unsigned* minor, unsigned* patch) { *major = 1, *minor = 18, *patch = 0; }
int ucp_config_read(const char*, const char*, void** config) { return *config = &closed, 0; }
void ucp_config_release(void*) {}
int ucp_init_version(unsigned, unsigned, const void*, const void*, void** context) { return *context = &closed, 0; }
void ucp_cleanup(void*) {}
int ucp_worker_create(void*, const void*, void** worker) { return *worker = &endpoints, 0; }
void ucp_worker_destroy(void*) {
    for (const Params& each : endpoints) {
        each.error_handler(each.error_argument, nullptr, -25);
    }
}
int ucp_worker_get_address(void*, void** address, std::size_t* bytes) {
    return *address = std::calloc(1, 8), *bytes = 8, 0;
}
void ucp_worker_release_address(void*, void* address) { std::free(address); }
unsigned ucp_worker_progress(void*) { return 0; }
int ucp_worker_get_efd(void*, int* descriptor) { return *descriptor = -1, 0; }
int ucp_worker_arm(void*) { return 0; }
int ucp_ep_create(void*, const Params* params, void** endpoint) {
    endpoints.push_back(*params);
    return *endpoint = &endpoints.back(), 0;
}
void* ucp_ep_close_nbx(void*, const void* params) {
    struct Request {
        std::uint32_t attributes, flags;
    };
    const auto& request = *static_cast<const Request*>(params);
    ++closed;
    forced += (request.attributes & 16) != 0 && (request.flags & 1) != 0;
    return nullptr;
}
void* ucp_tag_send_nbx(void*, const void*, std::size_t, std::uint64_t, const void*) { return &closed; }
void* ucp_tag_recv_nbx(void*, void*, std::size_t, std::uint64_t, std::uint64_t, const void*) { return &closed; }
int ucp_request_check_status(void*) { return 1; }
void ucp_request_free(void*) {}
void ucp_request_cancel(void*, void*) {}
const char* ucs_status_string(int) { return "an error of the stand-in"; }

int stand_in_made() { return static_cast<int>(endpoints.size()); }
int stand_in_closed() { return closed; }
// Of those, without waiting for the peer.
int stand_in_forced() { return forced; }
}
