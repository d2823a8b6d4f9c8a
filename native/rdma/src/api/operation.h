// One isend or irecv.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "api/message.h"

namespace megatronapp::rdma {

enum class Direction : std::uint8_t { kSend, kReceive };

enum class Status : std::uint8_t {
    kPending,
    kDone,
    kPeerLost,
    kTimedOut,
    kMismatch,
    kCancelled,
    kAborted,
    kCorrupt,
};

// A place that a stream can wait at: done when *host reached value. Null where the lane has no streams.
struct Flag {
    std::atomic<std::uint32_t>* host = nullptr;
    std::uint64_t device = 0;
    std::uint32_t value = 0;
};

// What became of the wish to take an operation back.
enum class Cancel : std::uint8_t { kNot, kAsked, kTooLate };

struct Operation : std::enable_shared_from_this<Operation> {
    std::uint64_t id = 0;
    Direction direction = Direction::kSend;
    int peer = 0;
    std::uint64_t tag = 0;
    Descriptor what;
    char* data = nullptr;
    void* stream = nullptr;
    int priority = 0;  // the greater goes first
    std::int64_t deadline_ns = 0;

    // Written before status leaves kPending, read after.
    std::string reason;
    Descriptor other;  // of a mismatch: what the peer has
    std::int64_t done_ns = 0;
    std::atomic<Status> status{Status::kPending};

    // The engine's and the lanes' own, under the engine's lock.
    Message ready;              // of a matched send: the receiver's
    std::uint64_t offset = 0;   // bytes handed on so far
    bool matched = false;
    bool started = false;       // is given to its lane
    Memory via = Memory::kHost;  // GPU memory: by which lane
    char* buffer = nullptr;     // what the host's lanes read or write: `data`, or host memory in its place
    Cancel cancel = Cancel::kNot;
    bool peer_cancels = false;  // of a matched send: the receiver wants to forget it
    Flag flag;
    void* event = nullptr;  // CUDA: after the work that fills the buffer
    void* request = nullptr;  // UCX
    std::uint64_t completion = ~0ull;  // its place among what has ended

    void* owner = nullptr;  // the bindings' own, under the interpreter's lock

    // Something that the engine can't stop, the GPU or a network card, may still read or write the memory at `data`: also
    // after the operation has ended, if not well.
    std::atomic<bool> in_use{false};

    bool pending() const { return status.load(std::memory_order_acquire) == Status::kPending; }
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace megatronapp::rdma
