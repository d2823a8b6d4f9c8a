// NCCL's interface for profiler plug-ins, versions 5 (NCCL 2.28), 6 (2.29) and 7 (2.31), as far as it is read here.
// Source: github.com/NVIDIA/nccl, src/include/plugin/nccl_profiler.h and src/include/plugin/profiler/profiler_v5.h to v7.h
// (Apache-2.0).
//
// The versions have one set of functions. They append to the members of the descriptor and add new ones, so that what is
// read here lies at the same place in all three.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace megatronapp::nccl::abi {

using Result = int;
constexpr Result kSuccess = 0;

enum Event : std::uint64_t {
    kCollective = 1 << 1,
    kMessage = 1 << 2,
    kProxyOperation = 1 << 3,
    kProxyStep = 1 << 4,
    kKernelChannel = 1 << 6,
    kCopyEngineCollective = 1 << 12,  // since version 6
};

enum EventState : int {
    kSendWaitsForGpu = 8,
    kSendWaitsForNetwork = 9,
    kReceiveWaitsForNetwork = 10,
    kReceiveFlushes = 11,
    kReceiveWaitsForGpu = 12,
    kSendWaitsForPeer = 20,
    kKernelChannelStops = 22,
};

struct Collective {
    std::uint64_t sequence;  // of this function in this communicator
    const char* function;
    const void* send_buffer;
    void* receive_buffer;
    std::size_t count;
    int root;
    const char* type;
    std::uint8_t channels, warps;
    const char* algorithm;
    const char* protocol;
};

struct Message {
    const char* function;
    void* buffer;
    const char* type;
    std::size_t count;
    int peer;
    std::uint8_t channels;
};

struct ProxyOperation {
    pid_t pid;  // whose parent it is
    std::uint8_t channel;
    int peer, steps, chunk_bytes, sends;
};

struct KernelChannel {
    std::uint8_t channel;
    std::uint64_t at_ns;  // globaltimer
};

struct CopyEngineCollective {
    std::uint64_t sequence;
    const char* function;
    const void* send_buffer;
    void* receive_buffer;
    std::size_t count;
    int root;
    const char* type;
};

struct Description {
    std::uint64_t event;
    void* parent;
    int rank;
    union {
        Collective collective;
        Message message;
        ProxyOperation proxy_operation;
        KernelChannel kernel_channel;
        CopyEngineCollective copy_engine_collective;
    };
};

union StateArguments {
    std::size_t bytes;    // of a proxy step
    std::uint64_t at_ns;  // of a kernel channel: globaltimer
};

enum LogLevel : int { kWarn = 2, kInfo = 3 };
constexpr unsigned long kLogOfProfilers = 0x4000;
using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

struct Plugin {
    const char* name;
    Result (*init)(
        void** context, std::uint64_t communicator, int* mask, const char* name, int nodes, int ranks, int rank,
        Logger log);
    Result (*start_event)(void* context, void** event, Description* description);
    Result (*stop_event)(void* event);
    Result (*record_event_state)(void* event, int state, StateArguments* arguments);
    Result (*finalize)(void* context);
};

static_assert(offsetof(Description, parent) == 8 && offsetof(Description, rank) == 16);
static_assert(offsetof(Description, collective) == 24);
static_assert(offsetof(Collective, count) == 32 && offsetof(Collective, root) == 40);
static_assert(offsetof(Collective, type) == 48 && offsetof(Collective, channels) == 56);
static_assert(offsetof(Collective, algorithm) == 64 && offsetof(Collective, protocol) == 72);
static_assert(offsetof(Message, count) == 24 && offsetof(Message, peer) == 32 && offsetof(Message, channels) == 36);
static_assert(offsetof(ProxyOperation, peer) == 8 && offsetof(ProxyOperation, sends) == 20);
static_assert(offsetof(KernelChannel, at_ns) == 8);

}  // namespace megatronapp::nccl::abi
