#include "drivers/ucx.h"

#include <cstdlib>
#include <dlfcn.h>
#include <stdexcept>

namespace megatronapp::rdma {

namespace {

template <typename Function>
void find(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) {
        throw std::runtime_error(std::string("UCX has no ") + name);
    }
}

}  // namespace

UcxLibrary::UcxLibrary() {
    // Signals belong to the program.
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_ERROR_SIGNALS", "", 0);
    void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error("no UCX: libucp.so.0 can't be opened");
    }
    find(library, version, "ucp_get_version");
    find(library, config_read, "ucp_config_read");
    find(library, config_release, "ucp_config_release");
    find(library, init, "ucp_init_version");
    find(library, cleanup, "ucp_cleanup");
    find(library, worker_create, "ucp_worker_create");
    find(library, worker_destroy, "ucp_worker_destroy");
    find(library, worker_address, "ucp_worker_get_address");
    find(library, release_address, "ucp_worker_release_address");
    find(library, progress, "ucp_worker_progress");
    find(library, event_descriptor, "ucp_worker_get_efd");
    find(library, arm, "ucp_worker_arm");
    find(library, endpoint_create, "ucp_ep_create");
    find(library, send, "ucp_tag_send_nbx");
    find(library, receive, "ucp_tag_recv_nbx");
    find(library, request_status, "ucp_request_check_status");
    find(library, request_free, "ucp_request_free");
    find(library, request_cancel, "ucp_request_cancel");
    find(library, text, "ucs_status_string");
}

const UcxLibrary& UcxLibrary::get() {
    static const UcxLibrary library;
    return library;
}

}  // namespace megatronapp::rdma
