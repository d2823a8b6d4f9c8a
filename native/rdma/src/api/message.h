// What two ranks tell each other. Plain memory: both sides run the same build on the same kind of processor, which the
// handshake checks.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace megatronapp::rdma {

constexpr std::size_t kMaxDimensions = 8;

enum class Memory : std::uint8_t { kHost, kCuda };

// What a message is: both sides must say the same, save for the kind of memory.
struct Descriptor {
    std::uint64_t bytes = 0;
    std::int64_t shape[kMaxDimensions] = {};
    std::uint8_t dtype = 0;  // index into the Python package's table
    std::uint8_t dimensions = 0;
    Memory memory = Memory::kHost;
    std::uint8_t reserved[5] = {};

    // The same tensor, wherever it is.
    bool operator==(const Descriptor& other) const {
        Descriptor there = other;
        there.memory = memory;
        return std::memcmp(this, &there, sizeof there) == 0;
    }
};

enum class MessageKind : std::uint32_t {
    kReady = 1,  // receiver: my buffer for this tag is ready
    kRefused,    // sender: what I have for this tag is something else
    kCancel,     // receiver: forget that I was ready
    kCancelled,  // sender: forgotten, nothing will be written
    kNotCancelled,  // sender: too late, it comes
    kSendPending,    // sender: I have this for a tag for which you are not ready
    kWithdrawn,  // sender: not any more
    kStage,      // sender: what I have is in host memory; be ready for it there
    kData,       // sender, TCP: a part of the message follows
    kDoorbell,   // look into the shared memory
    kHeartbeat,
    kClose,   // I leave; everything that I sent is before this
    kCloseAck,  // I have read everything up to your goodbye
    kChunkEnded,  // receiver: unmap this GPU memory of mine (`receive` is its number), no message uses it
};

constexpr std::size_t kLaneBytes = 96;

struct Message {
    MessageKind kind = MessageKind::kHeartbeat;
    std::uint32_t checksum = 0;
    std::uint64_t receive = 0;  // the receiver's id of the operation
    std::uint64_t tag = 0;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    Descriptor what;
    Memory via = Memory::kHost;  // by which lane the receiver is ready: the host's, or the GPUs' own
    std::uint8_t padding[7] = {};
    unsigned char lane[kLaneBytes] = {};  // what the receiver's lane tells the sender's
};

static_assert(std::is_trivially_copyable_v<Message>);
static_assert(sizeof(Message) == 40 + 80 + 8 + kLaneBytes);

}  // namespace megatronapp::rdma
