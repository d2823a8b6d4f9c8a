// What the recorder writes into the segment, byte for byte: docs/nccl.md.
#pragma once

#include "common/layout.h"

namespace megatronapp::nccl {

constexpr int kNobody = -1;
enum class Direction : std::uint32_t { kNone = 0, kSends = 1, kReceives = 2 };

// Of an operation, when it is enqueued. Texts are filled up with zeros, and cut where they are longer.
struct Enqueued {
    std::uint32_t lane;
    std::int32_t root;
    std::uint64_t number;
    std::uint64_t sequence;  // NCCL's, of this function in this communicator; of a message the same as `number`
    std::uint64_t count;
    std::int64_t at_ns;
    std::uint32_t channels, timed;
    char operation[16], type[16], algorithm[16], protocol[8];
};

// Of an operation that is through.
struct Completed {
    std::uint32_t lane, channels;
    std::uint64_t number;
    // The host's clock: when it was enqueued, when its launch had ended, and when the device's times were seen.
    std::int64_t enqueued_ns, launched_ns, start_seen_ns, end_seen_ns;
    // globaltimer; 0: not known.
    std::uint64_t start_ns, end_ns;
    // Of its proxy's steps, all together; for the network: that a send ends, and that data arrive.
    std::uint64_t waited_for_gpu_ns, waited_for_peer_ns, waited_for_network_ns, waited_for_data_ns;
    std::uint64_t network_bytes, sent_bytes;
};

constexpr std::size_t kDescriptionWords = sizeof(Enqueued) / 8;

// Of all operations of a communicator, or all messages of a pair in one direction.
struct alignas(64) Lane {
    common::Sequence lock;
    common::Field<std::uint64_t> communicator;  // NCCL's hash, the same in all its members
    common::Field<std::int32_t> ranks, rank, peer;
    common::Field<std::uint32_t> direction;
    common::Field<std::uint32_t> closed, switches;  // `switches`: how often recording was switched off and on again
    common::Field<std::uint64_t> enqueued, started, completed;  // numbers
    common::Field<std::int64_t> enqueued_ns, started_ns, completed_ns;  // of the newest; the host's clock
    common::Field<std::uint64_t> name[4];
    common::Field<std::uint64_t> lost;
    common::Field<std::uint64_t> oldest[kDescriptionWords];  // Enqueued, of the first that is not through
    common::Field<std::uint64_t> newest[kDescriptionWords];
};

struct alignas(64) LanesHeader {
    common::Field<std::uint32_t> entries, mask;
    common::Field<std::uint64_t> without_lane;  // operations of communicators and pairs for which there is no entry
};

static_assert(sizeof(Enqueued) == 104 && offsetof(Enqueued, operation) == 48);
static_assert(sizeof(Completed) == 112 && offsetof(Completed, start_ns) == 48);
static_assert(sizeof(Lane) == 384 && offsetof(Lane, enqueued) == 40 && offsetof(Lane, name) == 88);
static_assert(offsetof(Lane, oldest) == 128 && offsetof(Lane, newest) == 232);
static_assert(sizeof(LanesHeader) == 64);

}  // namespace megatronapp::nccl
