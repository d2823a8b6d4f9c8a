// What two ranks tell each other. Plain memory: both sides run the same build on the same kind of processor, which the
// handshake checks.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace megatronapp::rdma {

constexpr std::size_t kMaxDimensions = 8;

enum class Memory : std::uint8_t { kHost, kCuda };

// What a message is: both sides must say the same.
struct Descriptor {
    std::uint64_t bytes = 0;
    std::int64_t shape[kMaxDimensions] = {};
    std::uint8_t dtype = 0;  // index into the Python package's table
    std::uint8_t dimensions = 0;
    Memory memory = Memory::kHost;
    std::uint8_t reserved[5] = {};

    bool operator==(const Descriptor& other) const { return std::memcmp(this, &other, sizeof other) == 0; }
};

enum class MessageKind : std::uint32_t {
    kReady = 1,  // receiver: my buffer for this tag is ready
    kRefused,    // sender: what I have for this tag is something else
    kCancel,     // receiver: forget that I was ready
    kCancelled,  // sender: forgotten, nothing will be written
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
    unsigned char lane[kLaneBytes] = {};  // what the receiver's lane tells the sender's
};

static_assert(std::is_trivially_copyable_v<Message>);
static_assert(sizeof(Message) == 40 + 80 + kLaneBytes);

}  // namespace megatronapp::rdma
