#include "drivers/ucx.h"

#include <cstdlib>

#include "common/library.h"

namespace megatronapp::rdma {

UcxLibrary::UcxLibrary() {
    // Signals belong to the program.
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_ERROR_SIGNALS", "", 0);
    const common::Library library("libucp.so.0", "UCX");
    library.find(version, "ucp_get_version");
    library.find(config_read, "ucp_config_read");
    library.find(config_release, "ucp_config_release");
    library.find(init, "ucp_init_version");
    library.find(cleanup, "ucp_cleanup");
    library.find(worker_create, "ucp_worker_create");
    library.find(worker_destroy, "ucp_worker_destroy");
    library.find(worker_address, "ucp_worker_get_address");
    library.find(release_address, "ucp_worker_release_address");
    library.find(progress, "ucp_worker_progress");
    library.find(event_descriptor, "ucp_worker_get_efd");
    library.find(arm, "ucp_worker_arm");
    library.find(endpoint_create, "ucp_ep_create");
    library.find(endpoint_close, "ucp_ep_close_nbx");
    library.find(send, "ucp_tag_send_nbx");
    library.find(receive, "ucp_tag_recv_nbx");
    library.find(request_status, "ucp_request_check_status");
    library.find(request_free, "ucp_request_free");
    library.find(request_cancel, "ucp_request_cancel");
    library.find(text, "ucs_status_string");
}

const UcxLibrary& UcxLibrary::get() {
    static const UcxLibrary library;
    return library;
}

}  // namespace megatronapp::rdma
