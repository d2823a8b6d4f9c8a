// The functions of UCX that the lane needs, opened at run time. Names, types and numbers: UCX's ucp/api/ucp.h of 1.13;
// they are part of its binary interface, and newer libraries keep it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace megatronapp::rdma {

// Only the fields that are set; the library reads no field whose bit is not in the mask.
struct UcpParams {
    std::uint64_t field_mask;
    std::uint64_t features;
    unsigned char unused[256];
};

struct UcpWorkerParams {
    std::uint64_t field_mask;
    int thread_mode;
    unsigned char unused[512];
};

struct UcpEndpointParams {
    std::uint64_t field_mask;
    const void* address;
    int error_mode;
    void (*error_handler)(void*, void*, int);
    void* error_argument;
    unsigned char unused[256];
};

struct UcpRequestParams {
    std::uint32_t attributes;
    std::uint32_t flags;
    void* request;
    void (*received)(void* request, int status, const void* info, void* argument);
    std::uint64_t datatype;
    void* argument;
    unsigned char unused[96];
};

struct UcxLibrary {
    // The one of this process. Throws std::runtime_error where there is none.
    static const UcxLibrary& get();

    void (*version)(unsigned*, unsigned*, unsigned*);
    int (*config_read)(const char*, const char*, void**);
    void (*config_release)(void*);
    int (*init)(unsigned, unsigned, const UcpParams*, const void*, void**);
    void (*cleanup)(void*);
    int (*worker_create)(void*, const UcpWorkerParams*, void**);
    void (*worker_destroy)(void*);
    int (*worker_address)(void*, void**, std::size_t*);
    void (*release_address)(void*, void*);
    unsigned (*progress)(void*);
    int (*event_descriptor)(void*, int*);
    int (*arm)(void*);
    int (*endpoint_create)(void*, const UcpEndpointParams*, void**);
    void* (*endpoint_close)(void*, const UcpRequestParams*);
    void* (*send)(void*, const void*, std::size_t, std::uint64_t, const UcpRequestParams*);
    void* (*receive)(void*, void*, std::size_t, std::uint64_t, std::uint64_t, const UcpRequestParams*);
    int (*request_status)(void*);
    void (*request_free)(void*);
    void (*request_cancel)(void*, void*);
    const char* (*text)(int);

    static constexpr unsigned kMajor = 1, kMinor = 13;
    static constexpr std::uint64_t kFeatures = 1;         // UCP_PARAM_FIELD_FEATURES
    static constexpr std::uint64_t kTagAndWakeup = 1 | 16;  // UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP
    static constexpr std::uint64_t kThreadMode = 1;       // UCP_WORKER_PARAM_FIELD_THREAD_MODE
    static constexpr int kSerialized = 1;                 // UCS_THREAD_MODE_SERIALIZED
    static constexpr std::uint64_t kEndpointFields = 7;   // UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, _ERR_HANDLING_MODE, _ERR_HANDLER
    static constexpr int kPeerErrors = 1;                 // UCP_ERR_HANDLING_MODE_PEER
    static constexpr std::uint32_t kHasCallback = 1u << 1 | 1u << 2;  // UCP_OP_ATTR_FIELD_CALLBACK, _USER_DATA
    static constexpr std::uint32_t kHasFlags = 1u << 4;   // UCP_OP_ATTR_FIELD_FLAGS
    static constexpr std::uint32_t kForce = 1;            // UCP_EP_CLOSE_FLAG_FORCE
    static constexpr int kOk = 0, kInProgress = 1;        // UCS_OK, UCS_INPROGRESS

    // A request, an error (as a small negative number), or null: done at once.
    static bool is_error(const void* pointer) { return reinterpret_cast<std::intptr_t>(pointer) < 0 &&
                                                       reinterpret_cast<std::intptr_t>(pointer) >= -100; }

private:
    UcxLibrary();
};

}  // namespace megatronapp::rdma
